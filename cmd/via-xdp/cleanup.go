package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"viaxdp/internal/base/programs"
	"viaxdp/internal/base/rundir"
	"viaxdp/internal/lab/testbed"
	"viaxdp/internal/ops/mpirun"
)

// leftover is something that a via-xdp program left behind.
type leftover struct {
	Kind   string `json:"kind"` // testbed, socket, directory, settings, file
	What   string `json:"what"`
	Remove bool   `json:"remove"` // by cleanup without --all
	undo   func() error
}

func newCleanup(env environment) *cobra.Command {
	var dry, all, asJSON bool
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove what a crash of via-xdp left: test beds, sockets, state files",
		Long: "Removes test beds that are incomplete (with the hugepages that they added), sockets of\n" +
			"programs that have ended, and half-written state files. --all also removes a bed that is up\n" +
			"and restores the settings that doctor --fix and tune have changed.",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			found, err := leftovers(env)
			if err != nil {
				return err
			}
			var errs []error
			for i := range found {
				l := &found[i]
				l.Remove = l.Remove || all
				verb := "left"
				if l.Remove {
					if verb = "removed"; dry {
						verb = "would remove"
					} else if err := l.undo(); err != nil {
						errs = append(errs, fmt.Errorf("%s: %w", l.What, err))
						verb = "could not remove"
					}
				}
				if !asJSON {
					fmt.Fprintf(env.stdout, "%s %s: %s\n", verb, l.Kind, l.What)
				}
			}
			if asJSON {
				if found == nil {
					found = []leftover{}
				}
				errs = append(errs, printJSON(env.stdout, found))
			} else if len(found) == 0 {
				fmt.Fprintln(env.stderr, "nothing is left behind")
			}
			return refused(errors.Join(errs...))
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&dry, "dry-run", "n", false, "print what would be removed, and remove nothing")
	f.BoolVar(&all, "all", false, "also remove a bed that is up, and undo doctor --fix and tune")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func leftovers(env environment) (found []leftover, err error) {
	bed := testbed.DefaultNamed()
	s, err := env.actions.status(bed)
	if err != nil && !errors.Is(err, fs.ErrPermission) { // a bed that this user may not see is root's to remove
		return nil, err
	}
	if s.Up || s.Problem != "" {
		what := "up"
		if !s.Up {
			what = s.Problem
		}
		found = append(found, leftover{"testbed", what, !s.Up, func() error { return env.actions.down(bed) }})
	}
	// Other users' directories are theirs to clean up.
	jobs, _ := filepath.Glob(filepath.Join(os.TempDir(), mpirun.Temporary+"[0-9]*"))
	dirs := slices.Clone(jobs)
	if dir, err := rundir.Programs(); err == nil {
		dirs = append(dirs, dir)
	}
	for _, dir := range dirs {
		for _, path := range programs.Stale(dir) {
			found = append(found, leftover{"socket", path, true, func() error {
				err := programs.Remove(path)
				if slices.Contains(jobs, dir) { // it goes with its last socket
					_, _ = os.Remove(path+".lock"), os.Remove(dir)
				}
				rundir.Unmake(dir)
				return err
			}})
		}
	}
	for _, job := range jobs { // whose agents were killed before they had a socket
		entries, err := os.ReadDir(job)
		other := func(e os.DirEntry) bool {
			ours, _ := filepath.Match("*.sock.*", e.Name())
			return !ours
		}
		if err == nil && isOld(job) && rundir.Own(job) == nil && !slices.ContainsFunc(entries, other) {
			found = append(found, leftover{"directory", job, true, func() error { return os.RemoveAll(job) }})
		}
	}
	dir, err := rundir.State()
	if err != nil {
		return found, nil // no state, no leftovers
	}
	var lists []fs.FileInfo
	for _, name := range []string{"doctor.json", "tune.json"} {
		if st, err := os.Stat(filepath.Join(dir, name)); err == nil {
			lists = append(lists, st)
		}
	}
	// Newest first: a setting that both have changed has the value of the last one.
	slices.SortFunc(lists, func(a, b fs.FileInfo) int { return b.ModTime().Compare(a.ModTime()) })
	for _, st := range lists {
		name := strings.TrimSuffix(st.Name(), ".json")
		found = append(found, leftover{"settings", "of via-xdp " + name, false, func() error {
			return takeBack(environment{stdout: env.stderr, stderr: env.stderr}, name, false)
		}})
	}
	half, _ := filepath.Glob(filepath.Join(dir, "*.json.new"))
	for _, path := range half {
		if isOld(path) && slices.Contains([]string{"doctor.json.new", "tune.json.new", "testbed.json.new"}, filepath.Base(path)) {
			found = append(found, leftover{"file", path, true, func() error { return os.Remove(path) }})
		}
	}
	return found, nil
}

// isOld reports whether nothing has changed at a path for a minute. A program may be about to use it before.
func isOld(path string) bool {
	st, err := os.Lstat(path)
	return err == nil && time.Since(st.ModTime()) >= time.Minute
}
