package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
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
	if err := a.update(ctx); err != nil {
		return err
	}
	return unpacked(ctx, to, func(debs string) error {
		_, err := a.run(ctx, debs, slices.Concat([]string{"apt-get", "download", "-qq"}, packages)...)
		return err
	})
}

// fetchClosure is fetch with all that the packages depend on and that the
// machine does not have.
func (a *apt) fetchClosure(ctx context.Context, to, suite string, packages ...string) error {
	if err := a.update(ctx); err != nil {
		return err
	}
	return unpacked(ctx, to, func(debs string) error {
		if err := os.MkdirAll(filepath.Join(debs, "partial"), 0o755); err != nil {
			return err
		}
		_, err := a.run(ctx, debs, slices.Concat([]string{"apt-get", "install", "-y", "-qq", "--no-install-recommends",
			"--download-only", "-t", suite, "-o", "Dir::Cache::archives=" + debs}, packages)...)
		return err
	})
}

// unpacked makes the directory of the packages that download leaves in the
// directory it is given.
func unpacked(ctx context.Context, to string, download func(debs string) error) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(to), "unpack-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	debs, root := filepath.Join(tmp, "debs"), filepath.Join(tmp, "root")
	if err := errors.Join(os.Mkdir(debs, 0o755), os.Mkdir(root, 0o755)); err != nil {
		return err
	}
	if err := download(debs); err != nil {
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
