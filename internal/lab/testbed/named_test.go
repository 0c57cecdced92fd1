package testbed

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/hugepages"
	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/veth"
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
	must(t, err)
	return i
}

// statusIs checks whether a bed is up, and why not.
func statusIs(t *testing.T, n Named, up bool, problem string) Status {
	t.Helper()
	s, err := n.Status()
	if err != nil || s.Up != up || (s.Problem == "") != (problem == "") || !strings.Contains(s.Problem, problem) {
		t.Errorf("status: %+v, %v; want up %v, problem %q", s, err, up, problem)
	}
	return s
}

func TestNamedUpAndDown(t *testing.T) {
	n := privateBed(t)
	statusIs(t, n, false, "")
	must(t, n.Up())
	s := statusIs(t, n, true, "")
	nstest.FatalIf(t, len(s.Ends) != 2, "%+v", s)
	for i, e := range s.Ends {
		if e.Name != n.Namespaces[i] {
			t.Errorf("interface %s in namespace %s", e.Name, n.Namespaces[i])
		}
		if err := linkUp(e.Name); err != nil {
			t.Errorf("%s: %v", e.Name, err)
		}
	}
	// A second up changes nothing.
	was := inode(t, n.Namespaces[0])
	must(t, n.Up())
	nstest.ErrorIf(t, inode(t, n.Namespaces[0]) != was, "the second up has made another namespace")
	must(t, n.Down())
	for _, name := range n.Namespaces {
		nstest.ErrorIf(t, slices.Contains(named(t), name), "the namespace %s is left", name)
	}
	if _, err := os.Stat(n.StateDir); !os.IsNotExist(err) {
		t.Errorf("the state directory is left: %v", err)
	}
	if err := n.Down(); err != nil {
		t.Errorf("down twice: %v", err)
	}
}

// A namespace under our name that is not ours is neither used nor
// removed.
func TestNamedLeavesOthersAlone(t *testing.T) {
	n := privateBed(t)
	h, err := veth.NewNamed(n.Namespaces[1])
	must(t, err)
	h.Close()
	defer deleteNamed(n.Namespaces[1])
	if err := n.Up(); err == nil || !strings.Contains(err.Error(), "not ours") {
		t.Fatalf("got %v", err)
	}
	must(t, n.Down())
	nstest.ErrorIf(t, !slices.Contains(named(t), n.Namespaces[1]), "down has removed it")
	nstest.ErrorIf(t, slices.Contains(named(t), n.Namespaces[0]), "a half-made bed is left")
}

// Down knows its namespaces by more than their names.
func TestNamedReplaced(t *testing.T) {
	n := privateBed(t)
	must(t, n.Up())
	must(t, deleteNamed(n.Namespaces[0]))
	h, err := veth.NewNamed(n.Namespaces[0])
	must(t, err)
	h.Close()
	defer deleteNamed(n.Namespaces[0])
	statusIs(t, n, false, "another one now")
	must(t, n.Down())
	if got := named(t); !slices.Contains(got, n.Namespaces[0]) || slices.Contains(got, n.Namespaces[1]) {
		t.Errorf("left are %v, want %s only", got, n.Namespaces[0])
	}
}

// A link that goes while it is removed, as the kernel's work on another namespace has it, is removed.
func TestLinkGoesMeanwhile(t *testing.T) {
	n := privateBed(t)
	for range 10 {
		must(t, n.Up())
		var both sync.WaitGroup
		for _, name := range n.Namespaces {
			both.Go(func() { nstest.Check(t, deleteLink(name)) })
		}
		both.Wait()
		must(t, n.Down())
	}
}

// An interrupted bed, or one that lost its link, is made again.
func TestNamedRepair(t *testing.T) {
	n := privateBed(t)
	must(t, n.Up())
	must(t, deleteLink(n.Namespaces[0]))
	statusIs(t, n, false, "interface "+n.Namespaces[0])
	must(t, n.Up())
	statusIs(t, n, true, "")
	st, err := n.load()
	must(t, err)
	st.Complete, st.Namespaces[1].Inode = false, 0
	must(t, n.save(st))
	statusIs(t, n, false, "interrupted")
	must(t, n.Up())
	statusIs(t, n, true, "")
}

// A user who can read the state directory, and locks it, does not prevent a bed from being made.
func TestNamedLockedByOthers(t *testing.T) {
	n := privateBed(t)
	must(t, os.Mkdir(n.StateDir, 0o755))
	dir, err := os.Open(n.StateDir)
	must(t, err)
	defer dir.Close()
	must(t, unix.Flock(int(dir.Fd()), unix.LOCK_EX))
	up := make(chan error, 1)
	go func() { up <- n.Up() }()
	select {
	case err := <-up:
		nstest.Check(t, err)
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
	free := pool(t, "free_hugepages")
	restore, err := hugepages.Overcommit(1024)
	if err != nil {
		nstest.Lacks(t, "the pool of 2 MB pages cannot be set: %v", err)
	}
	a, err := hugepages.New(hugepages.Config{Size: (free + 2) << 21, Policy: hugepages.Require})
	must(t, errors.Join(err, restore()))
	return a
}

// An Up that was killed while it added pages is undone, including the surplus pages that it has made
// persistent.
func TestNamedKilledWhileItGrowsThePool(t *testing.T) {
	for _, inUse := range []bool{false, true} {
		await.Undisturbed(t, func() error { return killed(t, inUse) })
	}
}

func killed(t *testing.T, inUse bool) error {
	n := privateBed(t)
	must(t, os.Mkdir(n.StateDir, 0o755))
	if inUse {
		defer useSurplus(t).Close()
	}
	before, surplus, err := hugepages.Persistent()
	if err != nil {
		nstest.Lacks(t, "the pool of 2 MB pages: %v", err)
	}
	// Of three pages it got two.
	st := state{Namespaces: []namespaceState{{Name: n.Namespaces[0]}}, Growing: &growing{before, surplus, 3}}
	must(t, n.save(st))
	left := reserve(t, 2)
	defer func() { nstest.Check(t, left.Restore()) }()
	back, err := st.Growing.added()
	if err == nil {
		err = n.Down()
	}
	must(t, err)
	left.Pages -= back
	if after := pages(t); after != before || left.Pages != 0 {
		return fmt.Errorf("surplus pages %v: %d persistent pages, before %d; %d are left", inUse, after, before, left.Pages)
	}
	return nil
}

// A Down that fails later has already taken its pages out of the pool; a second Down leaves the pages of others
// there.
func TestNamedDownTwice(t *testing.T) {
	await.Undisturbed(t, func() error {
		n := privateBed(t)
		before := pages(t)
		others := reserve(t, 1)
		left := others
		defer func() { nstest.Check(t, left.Restore()) }()
		r := reserve(t, 1)
		left.Pages += r.Pages
		must(t, os.Mkdir(n.StateDir, 0o755))
		in := filepath.Join(namespaceDir, n.Namespaces[0], "in the way")
		must(t, os.MkdirAll(in, 0o755))
		must(t, n.save(state{Complete: true, Namespaces: []namespaceState{{Name: n.Namespaces[0]}}, Hugepages: r.Pages}))
		for range 2 {
			if err := n.Down(); err == nil {
				t.Error("no error")
			}
		}
		st, err := n.load()
		must(t, err)
		left.Pages = others.Pages + st.Hugepages
		with := pages(t)
		must(t, os.RemoveAll(filepath.Dir(in)))
		must(t, n.Down())
		left = others
		must(t, left.Restore())
		left.Pages = 0
		if after := pages(t); with != before+others.Pages || after != before {
			return fmt.Errorf("%d pages with those of others, %d after all, before %d", with, after, before)
		}
		return nil
	})
}

// An Up that cannot make a bed in the place of a broken one takes the pages of that out of the pool once, and leaves those of
// others there.
func TestNamedUpTwice(t *testing.T) {
	await.Undisturbed(t, func() error {
		n := privateBed(t)
		before := pages(t)
		others := reserve(t, 1)
		r := reserve(t, 1)
		must(t, os.Mkdir(n.StateDir, 0o755))
		must(t, n.save(state{Complete: true, Namespaces: []namespaceState{{n.Namespaces[0], 1}, {n.Namespaces[1], 1}}, Hugepages: r.Pages}))
		h, err := veth.NewNamed(n.Namespaces[1])
		must(t, err)
		h.Close()
		defer deleteNamed(n.Namespaces[1])
		for range 2 {
			nstest.ErrSays(t, "up", n.Up(), "not ours")
		}
		with := pages(t)
		must(t, others.Restore())
		if with != before+others.Pages {
			return fmt.Errorf("%d pages with %d of others, before %d", with, others.Pages, before)
		}
		return nil
	})
}

// FuzzState: for any state file, Down removes no namespace but the bed's own, and takes no more pages than Up
// can have added. An accepted file is written and read back unchanged.
func FuzzState(f *testing.F) {
	n := DefaultNamed()
	up := state{
		Complete:   true,
		Namespaces: []namespaceState{{"via0", 4026532001}, {"via1", 4026532002}},
		Ends:       []End{{Name: "via0", Index: 2, MAC: "02:00:00:00:00:01", IPv4: XDPNet4, IPv6: XDPNet6, MTU: 1500}, {Name: "via1"}},
		Hugepages:  64,
	}
	grows := up
	grows.Complete, grows.Hugepages, grows.Growing = false, 0, &growing{Before: 8, Surplus: 2, Pages: 64}
	for _, st := range []state{{}, up, grows, {Namespaces: up.Namespaces[:1]}, {Namespaces: []namespaceState{{Name: "via0"}}}} {
		b, err := json.Marshal(st)
		must(f, err)
		f.Add(b)
	}
	f.Add([]byte(`{"namespaces":[{"name":"../via0"}]}`))
	f.Add([]byte(`{"namespaces":[{"name":"via1","inode":1},{"name":"via0","inode":2}],"hugepages":-1}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, b []byte) {
		st, err := n.parse(b)
		if err != nil {
			nstest.FatalIf(t, st.exists() || st.Hugepages != 0 || st.Growing != nil, "%q is refused, and is %+v: %v", b, st, err)
			return
		}
		for i, ns := range st.Namespaces {
			nstest.FatalIf(t, i > 1 || ns.Name != [2]string{"via0", "via1"}[i], "%q would be removed", ns.Name)
		}
		for i, end := range st.Ends {
			nstest.FatalIf(t, i > 1 || end.Name != st.Namespaces[i].Name, "%+v would be an interface of the bed", end)
		}
		nstest.FatalIf(t, st.Complete && !st.exists(), "a bed is up that has no namespaces")
		most := st.Hugepages
		if g := st.Growing; g != nil {
			nstest.FatalIf(t, most > 0 || g.Before < 0 || g.Surplus < 0, "%d pages, and %+v", most, *g)
			most = g.Pages + g.Surplus
		}
		if most < 0 || most > math.MaxInt32 || most > 0 && len(st.Namespaces) == 0 {
			t.Fatalf("%d pages would leave the pool for %d ends", most, len(st.Ends))
		}
		again, err := json.Marshal(st)
		must(t, err)
		back, err := n.parse(again)
		nstest.FatalIf(t, err != nil, "%s is not read again: %v", again, err)
		if twice, err := json.Marshal(back); err != nil || string(twice) != string(again) {
			t.Fatalf("%s is read again as %s, %v", again, twice, err)
		}
	})
}
