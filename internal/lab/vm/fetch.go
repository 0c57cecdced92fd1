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
)

const (
	mirror  = "http://deb.debian.org/debian"
	keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
)

// apt reads Debian's archive through a configuration of its own: the machine's
// sources, lists and cache are neither used nor changed.
type apt struct {
	dir     string   // holds configuration, lists and packages
	suites  []string // of the archive
	updated bool
}

// configure writes the configuration.
func (a *apt) configure() error {
	for _, d := range []string{"lists/partial", "cache/archives/partial", "state"} {
		if err := os.MkdirAll(filepath.Join(a.dir, d), 0o755); err != nil {
			return err
		}
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
	return errors.Join(
		os.WriteFile(filepath.Join(a.dir, "sources.list"), []byte(sources.String()), 0o644),
		os.WriteFile(filepath.Join(a.dir, "apt.conf"), []byte(conf), 0o644))
}

// run runs a program of apt's in a directory and returns what it prints.
func (a *apt) run(ctx context.Context, dir string, argv ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "APT_CONFIG="+filepath.Join(a.dir, "apt.conf"), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return out, nil
}

// update reads the lists of packages, once.
func (a *apt) update(ctx context.Context) error {
	if a.updated {
		return nil
	}
	if err := a.configure(); err != nil {
		return err
	}
	if _, err := a.run(ctx, a.dir, "apt-get", "update", "-qq"); err != nil {
		return err
	}
	a.updated = true
	return nil
}

// names are the packages whose names match a regular expression.
func (a *apt) names(ctx context.Context, pattern string) ([]string, error) {
	if err := a.update(ctx); err != nil {
		return nil, err
	}
	out, err := a.run(ctx, a.dir, "apt-cache", "search", "--names-only", pattern)
	if err != nil {
		return nil, err
	}
	var names []string
	for line := range strings.Lines(string(out)) {
		name, _, _ := strings.Cut(line, " ")
		names = append(names, strings.TrimSpace(name))
	}
	return names, nil
}

// fetch unpacks packages, without what they depend on, into a directory, which
// exists only if all of it is there.
func (a *apt) fetch(ctx context.Context, to string, packages ...string) error {
	return a.unpack(ctx, to, func(debs string) []string {
		return append([]string{"apt-get", "download", "-qq"}, packages...)
	})
}

// fetchClosure is fetch with all that the packages depend on and that the
// machine does not have.
func (a *apt) fetchClosure(ctx context.Context, to, suite string, packages ...string) error {
	return a.unpack(ctx, to, func(debs string) []string {
		return append([]string{"apt-get", "install", "-y", "-qq", "--no-install-recommends",
			"--download-only", "-t", suite, "-o", "Dir::Cache::archives=" + debs}, packages...)
	})
}

// unpack makes the directory of the packages that a program leaves in the
// directory it is given.
func (a *apt) unpack(ctx context.Context, to string, download func(debs string) []string) error {
	if err := errors.Join(a.update(ctx), os.MkdirAll(filepath.Dir(to), 0o755)); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(to), "unpack-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	debs, root := filepath.Join(tmp, "debs"), filepath.Join(tmp, "root")
	if err := errors.Join(os.MkdirAll(filepath.Join(debs, "partial"), 0o755), os.Mkdir(root, 0o755)); err != nil {
		return err
	}
	if _, err := a.run(ctx, debs, download(debs)...); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(debs, "*.deb"))
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return errors.New("apt downloaded no package")
	}
	for _, deb := range files {
		if out, err := exec.CommandContext(ctx, "dpkg-deb", "-x", deb, root).CombinedOutput(); err != nil {
			return fmt.Errorf("dpkg-deb -x %s: %w: %s", filepath.Base(deb), err, bytes.TrimSpace(out))
		}
	}
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	return os.Rename(root, to)
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
func fetchKernel(ctx context.Context, cache, want string, cloud bool) (*kernel, error) {
	key := want + flavour(cloud)
	dir := filepath.Join(cache, "kernels", key)
	if k, err := openKernel(dir); err == nil {
		return k, nil
	}
	a := &apt{dir: filepath.Join(cache, "apt-kernels"), suites: kernelSuites}
	names, err := a.names(ctx, "^linux-(image|binary|modules)-[0-9].*-amd64$")
	if err != nil {
		return nil, err
	}
	name, err := findRelease(names, want, cloud)
	if err != nil {
		return nil, err
	}
	packages := []string{"linux-image-" + name}
	// From 6.19 on the image is an empty package that depends on these.
	for _, p := range []string{"linux-binary-" + name, "linux-modules-" + name} {
		if slices.Contains(names, p) {
			packages = append(packages, p)
		}
	}
	if err := a.fetch(ctx, dir, packages...); err != nil {
		return nil, err
	}
	return openKernel(dir)
}

// openKernel looks at an unpacked kernel.
func openKernel(root string) (*kernel, error) {
	for _, lib := range []string{"lib", "usr/lib"} {
		dirs, err := filepath.Glob(filepath.Join(root, lib, "modules/*"))
		if err != nil {
			return nil, err
		}
		for _, dir := range dirs {
			if k := (&kernel{release: filepath.Base(dir), root: root}); k.image() != "" {
				return k, nil
			}
		}
	}
	return nil, fmt.Errorf("%s has no kernel modules, or no image for them", root)
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
func (k *kernel) modules(want ...string) ([]module, error) {
	files := make(map[string]string)
	err := filepath.WalkDir(k.root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if name, _, ok := strings.Cut(d.Name(), ".ko"); ok {
			files[moduleName(name)] = path
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	var order []module
	seen := make(map[string]bool)
	var visit func(name string) error
	visit = func(name string) error {
		path, ok := files[name]
		if !ok || seen[name] {
			return nil
		}
		seen[name] = true
		data, err := readModule(path)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		depends, err := moduleDepends(data)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		for _, d := range depends {
			if err := visit(d); err != nil {
				return err
			}
		}
		order = append(order, module{name, data})
		return nil
	}
	for _, name := range want {
		if err := visit(moduleName(name)); err != nil {
			return nil, err
		}
	}
	return order, nil
}

// moduleName is a module's name in its one form.
func moduleName(s string) string { return strings.ReplaceAll(s, "-", "_") }

func readModule(path string) ([]byte, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	switch filepath.Ext(path) {
	case ".ko":
		return data, nil
	case ".xz":
		r, err := xz.NewReader(bytes.NewReader(data))
		if err != nil {
			return nil, err
		}
		return io.ReadAll(r)
	}
	return nil, fmt.Errorf("a module compressed in a way that is not known here")
}

// moduleDepends reads the names that the section .modinfo has under "depends".
func moduleDepends(data []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	s := f.Section(".modinfo")
	if s == nil {
		return nil, fmt.Errorf("no section .modinfo")
	}
	info, err := s.Data()
	if err != nil {
		return nil, err
	}
	var names []string
	for entry := range strings.SplitSeq(string(info), "\x00") {
		list, ok := strings.CutPrefix(entry, "depends=")
		if !ok {
			continue
		}
		for name := range strings.SplitSeq(list, ",") {
			if name != "" {
				names = append(names, moduleName(name))
			}
		}
	}
	return names, nil
}
