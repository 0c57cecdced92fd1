package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// newest asks for the newest kernel that the archive has.
const newest = "newest"

// kernelSuites have Debian's kernels from 6.1 on.
var kernelSuites = []string{"bookworm", "bookworm-backports", "trixie", "trixie-backports"}

// kernel is an unpacked kernel.
type kernel struct {
	release string // as uname -r says
	root    string // where its packages are unpacked
}

// release is what is between "linux-image-" and "-amd64".
type release struct {
	version []int
	name    string // of the package behind "linux-image-"
}

// kernelPackage takes the names of image packages apart; the flavour is added
// when it is used.
const kernelPackage = `^linux-image-([0-9]+)\.([0-9]+)\.([0-9]+)([-+][^-]+)%s-amd64$`

func flavour(cloud bool) string {
	if cloud {
		return "-cloud"
	}
	return ""
}

// findRelease takes the highest version among packages: one of the series want,
// such as "6.18", or the newest.
func findRelease(packages []string, want string, cloud bool) (string, error) {
	re := regexp.MustCompile(fmt.Sprintf(kernelPackage, flavour(cloud)))
	var found []release
	for _, p := range packages {
		m := re.FindStringSubmatch(p)
		if m == nil || want != newest && m[1]+"."+m[2] != want {
			continue
		}
		r := release{name: strings.TrimPrefix(p, "linux-image-")}
		for _, part := range append(m[1:4:4], strings.TrimLeft(m[4], "-+")) {
			n, _ := strconv.Atoi(part) // "deb13" counts 0
			r.version = append(r.version, n)
		}
		found = append(found, r)
	}
	if len(found) == 0 {
		return "", fmt.Errorf("the archive has no kernel %q: take another series, or %q", want, newest)
	}
	best := slices.MaxFunc(found, func(a, b release) int {
		return cmp.Or(slices.Compare(a.version, b.version), cmp.Compare(a.name, b.name))
	})
	return best.name, nil
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
	dirs, err := filepath.Glob(filepath.Join(root, "lib/modules/*"))
	if err != nil {
		return nil, err
	}
	usr, err := filepath.Glob(filepath.Join(root, "usr/lib/modules/*"))
	if err != nil {
		return nil, err
	}
	dirs = append(dirs, usr...)
	if len(dirs) == 0 {
		return nil, fmt.Errorf("%s has no kernel modules", root)
	}
	k := &kernel{release: filepath.Base(dirs[0]), root: root}
	if k.image() == "" {
		return nil, fmt.Errorf("%s has no kernel image", root)
	}
	return k, nil
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
