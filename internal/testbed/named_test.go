package testbed

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/hugepages"
	"viaxdp/internal/await"
	"viaxdp/internal/nstest"
)

// privateBed has names that no other test and no user has.
func privateBed(t *testing.T) Named {
	t.Helper()
	nstest.Require(t)
	n := DefaultNamed()
	id := strconv.Itoa(os.Getpid() % 100000)
	n.Namespaces = [2]string{"vt" + id + "a", "vt" + id + "b"}
	n.StateDir = filepath.Join(t.TempDir(), "state")
	t.Cleanup(func() { n.Down() })
	return n
}

func named(t *testing.T) []string {
	t.Helper()
	entries, _ := os.ReadDir(namespaceDir)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func inode(t *testing.T, name string) uint64 {
	t.Helper()
	i, err := namespaceInode(name)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func TestNamedUpAndDown(t *testing.T) {
	n := privateBed(t)
	if s, err := n.Status(); err != nil || s.Up {
		t.Fatalf("before: %+v, %v", s, err)
	}
	if err := n.Up(); err != nil {
		t.Fatal(err)
	}
	s, err := n.Status()
	if err != nil || !s.Up || len(s.Ends) != 2 {
		t.Fatalf("up: %+v, %v", s, err)
	}
	for i, e := range s.Ends {
		if e.Name != n.Namespaces[i] {
			t.Errorf("interface %s in namespace %s", e.Name, n.Namespaces[i])
		}
		if err := linkUp(n.Namespaces[i], e.Name); err != nil {
			t.Errorf("%s: %v", e.Name, err)
		}
	}
	// A second up changes nothing.
	was := inode(t, n.Namespaces[0])
	if err := n.Up(); err != nil {
		t.Fatal(err)
	}
	if inode(t, n.Namespaces[0]) != was {
		t.Error("the second up has made another namespace")
	}
	if err := n.Down(); err != nil {
		t.Fatal(err)
	}
	for _, name := range n.Namespaces {
		if slices.Contains(named(t), name) {
			t.Errorf("the namespace %s is left", name)
		}
	}
	if _, err := os.Stat(n.StateDir); !os.IsNotExist(err) {
		t.Errorf("the state directory is left: %v", err)
	}
	if err := n.Down(); err != nil {
		t.Errorf("down twice: %v", err)
	}
}

// A namespace that somebody else made under our name is neither used nor
// removed.
func TestNamedLeavesOthersAlone(t *testing.T) {
	n := privateBed(t)
	h, err := newNamed(n.Namespaces[1])
	if err != nil {
		t.Fatal(err)
	}
	h.Close()
	defer deleteNamed(n.Namespaces[1])
	if err := n.Up(); err == nil || !strings.Contains(err.Error(), "not ours") {
		t.Fatalf("got %v", err)
	}
	if err := n.Down(); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(named(t), n.Namespaces[1]) {
		t.Error("down has removed it")
	}
	if slices.Contains(named(t), n.Namespaces[0]) {
		t.Error("a half-made bed is left")
	}
}

// Down knows its namespaces by more than their names.
func TestNamedReplaced(t *testing.T) {
	n := privateBed(t)
	if err := n.Up(); err != nil {
		t.Fatal(err)
	}
	if err := deleteNamed(n.Namespaces[0]); err != nil {
		t.Fatal(err)
	}
	h, err := newNamed(n.Namespaces[0])
	if err != nil {
		t.Fatal(err)
	}
	h.Close()
	defer deleteNamed(n.Namespaces[0])
	if s, err := n.Status(); err != nil || s.Up || s.Problem == "" {
		t.Errorf("status: %+v, %v", s, err)
	}
	if err := n.Down(); err != nil {
		t.Fatal(err)
	}
	if got := named(t); !slices.Contains(got, n.Namespaces[0]) || slices.Contains(got, n.Namespaces[1]) {
		t.Errorf("left are %v, want %s only", got, n.Namespaces[0])
	}
}

// A bed that was interrupted, or lost its link, is made anew.
func TestNamedRepair(t *testing.T) {
	n := privateBed(t)
	if err := n.Up(); err != nil {
		t.Fatal(err)
	}
	if err := deleteLink(n.Namespaces[0], n.Namespaces[0]); err != nil {
		t.Fatal(err)
	}
	if s, err := n.Status(); err != nil || s.Up {
		t.Fatalf("status without a link: %+v, %v", s, err)
	}
	if err := n.Up(); err != nil {
		t.Fatal(err)
	}
	if s, err := n.Status(); err != nil || !s.Up {
		t.Errorf("after repair: %+v, %v", s, err)
	}
	st, err := n.load()
	if err != nil {
		t.Fatal(err)
	}
	st.Complete, st.Namespaces[1].Inode = false, 0
	if err := n.save(st); err != nil {
		t.Fatal(err)
	}
	if s, err := n.Status(); err != nil || s.Up || !strings.Contains(s.Problem, "interrupted") {
		t.Errorf("status of an interrupted up: %+v, %v", s, err)
	}
	if err := n.Up(); err != nil {
		t.Fatal(err)
	}
	if s, err := n.Status(); err != nil || !s.Up {
		t.Errorf("after repair: %+v, %v", s, err)
	}
}

// A state file is not trusted with names.
func TestNamedStateFile(t *testing.T) {
	n := DefaultNamed()
	n.StateDir = t.TempDir()
	for _, text := range []string{
		`{"namespaces":[{"name":"../../etc/passwd"}]}`,
		`{"namespaces":[{"name":""}]}`,
		`{"namespaces":[{"name":".."}]}`,
		`{"namespaces":[{"name":"somebodys"}]}`,
		`{"namespaces":[{"name":"via0"},{"name":"via0"}]}`,
		`{"hugepages":7}`,
		`not JSON`,
	} {
		if err := os.WriteFile(n.stateFile(), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := n.load(); err == nil || !strings.Contains(err.Error(), n.stateFile()) || !strings.Contains(err.Error(), "remove the file") {
			t.Errorf("%s: %v", text, err)
		}
	}
	for path, mode := range map[string]os.FileMode{n.stateFile(): 0o666, n.StateDir: 0o777} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if unlock, err := n.lock(); err == nil {
			unlock()
			t.Errorf("%s, which others may write, is believed", path)
		} else if !strings.Contains(err.Error(), path) {
			t.Error(err)
		}
		if err := os.Chmod(path, mode&^0o022); err != nil {
			t.Fatal(err)
		}
	}
}

// Who can read the state directory, and locks it, keeps no bed from being made.
func TestNamedLockedByOthers(t *testing.T) {
	n := privateBed(t)
	if err := os.Mkdir(n.StateDir, 0o755); err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(n.StateDir)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	up := make(chan error, 1)
	go func() { up <- n.Up() }()
	select {
	case err := <-up:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		dir.Close()
		t.Fatalf("it waits for a lock that everybody can have: %v", <-up)
	}
	if st, err := os.Stat(n.StateDir); err != nil || st.Mode().Perm() != 0o755 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
}

// pages are the persistent ones of the machine's pool.
func pages(t *testing.T) int {
	t.Helper()
	p, _, err := hugepages.Persistent()
	if err != nil {
		nstest.Lacks(t, "the pool of 2 MB pages: %v", err)
	}
	return p
}

func reserve(t *testing.T, n int) hugepages.Reservation {
	t.Helper()
	r, err := hugepages.Reserve(n)
	if err != nil {
		nstest.Lacks(t, "the pool of 2 MB pages cannot be set: %v", err)
	}
	return r
}

// useSurplus opens an arena of all free pages and two surplus ones.
func useSurplus(t *testing.T) *hugepages.Arena {
	t.Helper()
	b, err := os.ReadFile("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
	if err != nil {
		nstest.Lacks(t, "the pool of 2 MB pages: %v", err)
	}
	free, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	restore, err := hugepages.Overcommit(1024)
	if err != nil {
		nstest.Lacks(t, "the pool of 2 MB pages cannot be set: %v", err)
	}
	a, err := hugepages.New(hugepages.Config{Size: (free + 2) << 21, Policy: hugepages.Require})
	if err := errors.Join(err, restore()); err != nil {
		t.Fatal(err)
	}
	return a
}

// What an up that was killed while it added pages has added goes back, with the surplus
// pages that it has made persistent.
func TestNamedKilledWhileItGrowsThePool(t *testing.T) {
	for _, inUse := range []bool{false, true} {
		await.Undisturbed(t, func() error { return killed(t, inUse) })
	}
}

func killed(t *testing.T, inUse bool) error {
	n := privateBed(t)
	if err := os.Mkdir(n.StateDir, 0o755); err != nil {
		t.Fatal(err)
	}
	if inUse {
		defer useSurplus(t).Close()
	}
	before, surplus, err := hugepages.Persistent()
	if err != nil {
		nstest.Lacks(t, "the pool of 2 MB pages: %v", err)
	}
	// Of three pages it got two.
	st := state{Namespaces: []namespaceState{{Name: n.Namespaces[0]}}, Growing: &growing{before, surplus, 3}}
	if err := n.save(st); err != nil {
		t.Fatal(err)
	}
	left := reserve(t, 2)
	defer func() {
		if err := left.Restore(); err != nil {
			t.Error(err)
		}
	}()
	back, err := st.Growing.added()
	if err == nil {
		err = n.Down()
	}
	if err != nil {
		t.Fatal(err)
	}
	left.Pages -= back
	if after := pages(t); after != before || left.Pages != 0 {
		return fmt.Errorf("surplus pages %v: %d persistent pages, before %d; %d are left", inUse, after, before, left.Pages)
	}
	return nil
}

// A down that fails at something else has taken its pages out of the pool, and a second one
// leaves those of others there.
func TestNamedDownTwice(t *testing.T) {
	await.Undisturbed(t, func() error {
		n := privateBed(t)
		before := pages(t)
		others := reserve(t, 1)
		left := others
		defer func() {
			if err := left.Restore(); err != nil {
				t.Error(err)
			}
		}()
		r := reserve(t, 1)
		left.Pages += r.Pages
		if err := os.Mkdir(n.StateDir, 0o755); err != nil {
			t.Fatal(err)
		}
		in := filepath.Join(namespaceDir, n.Namespaces[0], "in the way")
		if err := os.MkdirAll(in, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := n.save(state{Complete: true, Namespaces: []namespaceState{{Name: n.Namespaces[0]}}, Hugepages: r.Pages}); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := n.Down(); err == nil {
				t.Error("no error")
			}
		}
		st, err := n.load()
		if err != nil {
			t.Fatal(err)
		}
		left.Pages = others.Pages + st.Hugepages
		with := pages(t)
		if err := os.RemoveAll(filepath.Dir(in)); err != nil {
			t.Fatal(err)
		}
		if err := n.Down(); err != nil {
			t.Fatal(err)
		}
		left = others
		if err := left.Restore(); err != nil {
			t.Fatal(err)
		}
		left.Pages = 0
		if after := pages(t); with != before+others.Pages || after != before {
			return fmt.Errorf("%d pages with those of others, %d after all, before %d", with, after, before)
		}
		return nil
	})
}
