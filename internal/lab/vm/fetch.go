package main

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/ulikunitz/xz"

	"viaxdp/internal/lab/fail"
)

const (
	mirror  = "http://deb.debian.org/debian"
	keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
)

// apt reads Debian's archive through a configuration of its own: the machine's
// sources, lists and cache are neither used nor changed. Its methods fail by package fail.
type apt struct {
	dir     string   // holds configuration, lists and packages
	suites  []string // of the archive
	updated bool
}

// configure writes the configuration.
func (a *apt) configure() {
	for _, d := range []string{"lists/partial", "cache/archives/partial", "state"} {
		fail.If(os.MkdirAll(filepath.Join(a.dir, d), 0o755))
	}
	var sources strings.Builder
	for _, s := range a.suites {
		fmt.Fprintf(&sources, "deb [signed-by=%s] %s %s main\n", keyring, mirror, s)
	}
	conf := fmt.Sprintf(`Dir::Etc::SourceList "%[1]s/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "/dev/null";
Dir::State "%[1]s/state";
Dir::State::Lists "%[1]s/lists";
Dir::State::status "/var/lib/dpkg/status";
Dir::Cache "%[1]s/cache";
Acquire::Languages "none";
Acquire::Retries "3";
APT::Sandbox::User "";
Debug::NoLocking "true";
`, a.dir)
	fail.If(os.WriteFile(filepath.Join(a.dir, "sources.list"), []byte(sources.String()), 0o644))
	fail.If(os.WriteFile(filepath.Join(a.dir, "apt.conf"), []byte(conf), 0o644))
}

// run runs a program of apt's in a directory and returns what it prints.
func (a *apt) run(ctx context.Context, dir string, argv ...string) []byte {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "APT_CONFIG="+filepath.Join(a.dir, "apt.conf"), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		fail.With("%s: %w: %s", strings.Join(argv, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return out
}

// update reads the lists of packages, once.
func (a *apt) update(ctx context.Context) {
	if a.updated {
		return
	}
	a.configure()
	a.run(ctx, a.dir, "apt-get", "update", "-qq")
	a.updated = true
}

// names are the packages whose names match a regular expression.
func (a *apt) names(ctx context.Context, pattern string) (names []string) {
	a.update(ctx)
	for line := range strings.Lines(string(a.run(ctx, a.dir, "apt-cache", "search", "--names-only", pattern))) {
		name, _, _ := strings.Cut(line, " ")
		names = append(names, strings.TrimSpace(name))
	}
	return names
}

// Arguments of apt-get: alone downloads only the packages that are named, closure also those that they depend on and that the
// machine does not have.
var (
	alone   = []string{"download"}
	closure = []string{"install", "-y", "--no-install-recommends", "--download-only"}
)

// fetch unpacks the packages that apt-get downloads into a directory, which exists only if all of it is there.
func (a *apt) fetch(ctx context.Context, to string, words []string, packages ...string) {
	a.update(ctx)
	fail.If(os.MkdirAll(filepath.Dir(to), 0o755))
	tmp := fail.Must(os.MkdirTemp(filepath.Dir(to), "unpack-"))
	defer os.RemoveAll(tmp)
	debs, root := filepath.Join(tmp, "debs"), filepath.Join(tmp, "root")
	fail.If(errors.Join(os.MkdirAll(filepath.Join(debs, "partial"), 0o755), os.Mkdir(root, 0o755)))
	a.run(ctx, debs, slices.Concat([]string{"apt-get", "-qq", "-o", "Dir::Cache::archives=" + debs}, words, packages)...)
	files := fail.Must(filepath.Glob(filepath.Join(debs, "*.deb")))
	if len(files) == 0 {
		fail.With("apt downloaded no package")
	}
	for _, deb := range files {
		if out, err := exec.CommandContext(ctx, "dpkg-deb", "-x", deb, root).CombinedOutput(); err != nil {
			fail.With("dpkg-deb -x %s: %w: %s", filepath.Base(deb), err, bytes.TrimSpace(out))
		}
	}
	fail.If(os.RemoveAll(to))
	fail.If(os.Rename(root, to))
}

// newest asks for the newest kernel that the archive has.
const newest = "newest"

// kernelSuites have Debian's kernels from 6.1 on.
var kernelSuites = []string{"bookworm", "bookworm-backports", "trixie", "trixie-backports"}

// kernel is an unpacked kernel.
type kernel struct {
	release string // as uname -r says
	root    string // where its packages are unpacked
}

func flavour(cloud bool) string {
	if cloud {
		return "-cloud"
	}
	return ""
}

var number = regexp.MustCompile("[0-9]+")

// findRelease takes the highest version among image packages: one of the series want,
// such as "6.18", or the newest. It returns what is behind "linux-image-".
func findRelease(packages []string, want string, cloud bool) (best string, err error) {
	image := regexp.MustCompile(`^linux-image-(([0-9]+\.[0-9]+)\.[0-9]+[-+][^-]+` + flavour(cloud) + `-amd64)$`)
	var highest []int
	for _, p := range packages {
		m := image.FindStringSubmatch(p)
		if m == nil || want != newest && m[2] != want {
			continue
		}
		var version []int // 6.12.107+deb13 and 6.1.0-50
		for _, n := range number.FindAllString(strings.ReplaceAll(m[1], "deb", "."), -1) {
			v, _ := strconv.Atoi(n)
			version = append(version, v)
		}
		if slices.Compare(version, highest) > 0 {
			best, highest = m[1], version
		}
	}
	if best == "" {
		return "", fmt.Errorf("the archive has no kernel %q: take another series, or %q", want, newest)
	}
	return best, nil
}

// fetchKernel gets a kernel of a series into the cache. One that is there is
// taken as it is.
func fetchKernel(ctx context.Context, cache, want string, cloud bool) *kernel {
	dir := filepath.Join(cache, "kernels", want+flavour(cloud))
	if k := openKernel(dir); k != nil {
		return k
	}
	a := &apt{dir: filepath.Join(cache, "apt-kernels"), suites: kernelSuites}
	names := a.names(ctx, "^linux-(image|binary|modules)-[0-9].*-amd64$")
	name := fail.Must(findRelease(names, want, cloud))
	packages := []string{"linux-image-" + name}
	// From 6.19 on the image is an empty package that depends on these.
	for _, p := range []string{"linux-binary-" + name, "linux-modules-" + name} {
		if slices.Contains(names, p) {
			packages = append(packages, p)
		}
	}
	a.fetch(ctx, dir, alone, packages...)
	k := openKernel(dir)
	if k == nil {
		fail.With("%s has no kernel modules, or no image for them", dir)
	}
	return k
}

// openKernel looks for an unpacked kernel, with modules and an image; nil: there is none.
func openKernel(root string) *kernel {
	for _, lib := range []string{"lib", "usr/lib"} {
		for _, dir := range fail.Must(filepath.Glob(filepath.Join(root, lib, "modules/*"))) {
			if k := (&kernel{release: filepath.Base(dir), root: root}); k.image() != "" {
				return k
			}
		}
	}
	return nil
}

// image is the path of the kernel's image, or "".
func (k *kernel) image() string {
	for _, p := range []string{"boot/vmlinuz-" + k.release, "usr/lib/modules/" + k.release + "/vmlinuz", "lib/modules/" + k.release + "/vmlinuz"} {
		p = filepath.Join(k.root, p)
		if _, err := os.Stat(p); err == nil {
			return p
		}
	}
	return ""
}

// module is a kernel module, decompressed.
type module struct {
	name string
	data []byte
}

// modules finds modules with all that they depend on, in the order in which
// they must be loaded. What is built into the kernel has no file and is left
// out. The packages have no modules.dep, so each module's own list is read.
func (k *kernel) modules(want ...string) (order []module) {
	files := make(map[string]string)
	fail.If(filepath.WalkDir(k.root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if name, _, ok := strings.Cut(d.Name(), ".ko"); ok {
			files[moduleName(name)] = path
		}
		return nil
	}))
	seen := make(map[string]bool)
	var visit func(name string)
	visit = func(name string) {
		path, ok := files[name]
		if !ok || seen[name] {
			return
		}
		seen[name] = true
		var data []byte
		var depends []string
		fail.During(path, func() {
			data = readModule(path)
			depends = moduleDepends(data)
		})
		for _, d := range depends {
			visit(d)
		}
		order = append(order, module{name, data})
	}
	for _, name := range want {
		visit(moduleName(name))
	}
	return order
}

// moduleName is a module's name in its one form.
func moduleName(s string) string { return strings.ReplaceAll(s, "-", "_") }

func readModule(path string) []byte {
	data := fail.Must(os.ReadFile(path))
	switch filepath.Ext(path) {
	case ".ko":
	case ".xz":
		data = fail.Must(io.ReadAll(fail.Must(xz.NewReader(bytes.NewReader(data)))))
	default:
		fail.With("a module compressed in a way that is not known here")
	}
	return data
}

// moduleDepends reads the names that the section .modinfo has under "depends".
func moduleDepends(data []byte) (names []string) {
	s := fail.Must(elf.NewFile(bytes.NewReader(data))).Section(".modinfo")
	if s == nil {
		fail.With("no section .modinfo")
	}
	for entry := range strings.SplitSeq(string(fail.Must(s.Data())), "\x00") {
		if list, ok := strings.CutPrefix(entry, "depends="); ok && list != "" {
			for name := range strings.SplitSeq(list, ",") {
				names = append(names, moduleName(name))
			}
		}
	}
	return names
}
