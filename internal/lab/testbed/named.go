package testbed

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"viaxdp/hugepages"
	"viaxdp/internal/base/rundir"
	"viaxdp/internal/lab/fail"
	"viaxdp/internal/lab/veth"
)

// Named is a bed for work by hand: two namespaces that other programs find by
// name (ip netns exec), kept until [Named.Down].
//
//	/run/netns/via0                        /run/netns/via1
//	+----------------+     veth pair     +----------------+
//	| via0 10.77.0.1 |===================| via1 10.77.0.2 |
//	|      fd77::1   |                   |      fd77::2   |
//	+----------------+                   +----------------+
//
// Up and Down may be called by several processes at once; a lock in the state
// directory keeps them apart.
type Named struct {
	Namespaces [2]string // names under /run/netns, and of the interface in each
	Pair       Pair      // Names is set from Namespaces
	Hugepages  int       // pages of 2 MB to add to the host's pool; 0: none
	StateDir   string    // where the state file is kept
}

// Networks of the beds: the pair for AF_XDP, and the pair without any XDP
// program for the kernel's own transports.
var (
	XDPNet4    = netip.MustParsePrefix("10.77.0.0/24")
	XDPNet6    = netip.MustParsePrefix("fd77::/64")
	KernelNet4 = netip.MustParsePrefix("10.78.0.0/24")
	KernelNet6 = netip.MustParsePrefix("fd78::/64")
)

// DefaultNamed is the bed of `via-xdp testbed`.
func DefaultNamed() Named {
	return Named{
		Namespaces: [2]string{"via0", "via1"},
		Pair:       Pair{Net4: XDPNet4, Net6: XDPNet6, MTU: 1500, Queues: 1},
		StateDir:   "/run/via-xdp",
	}
}

const namespaceDir = "/run/netns"

// Up makes the bed. A bed that is up is left as it is. On an error what had
// been made is undone.
func (n Named) Up() (err error) {
	defer fail.Catch(&err)
	fail.If(Require(Namespaces))
	unlock := fail.Must(n.lock())
	defer unlock()
	st := fail.Must(n.load())
	if st.Complete && n.intact(st) == nil {
		return nil
	}
	if st.exists() {
		// A run that was interrupted, or a bed that lost a part.
		fail.If(n.undo(st))
		fail.If(n.forget()) // or the next undo would take its pages out of the pool again
	}
	for _, name := range n.Namespaces {
		if _, err := os.Lstat(filepath.Join(namespaceDir, name)); err == nil {
			fail.With("the namespace %s exists and is not ours: remove it (ip netns delete %s) or use it as it is", name, name)
		}
	}
	st = state{}
	if err = fail.Try(func() { n.build(&st) }); err != nil {
		undone := n.undo(st)
		if undone == nil {
			undone = n.forget()
		}
		err = errors.Join(err, undone)
	}
	return err
}

// build makes the bed. It records each step before doing it.
func (n Named) build(st *state) {
	var handles [2]netns.NsHandle
	for i, name := range n.Namespaces {
		st.Namespaces = append(st.Namespaces, namespaceState{Name: name})
		fail.If(n.save(*st))
		var err error
		handles[i], err = veth.NewNamed(name)
		fail.If(explain(err, "network namespace"))
		defer handles[i].Close()
		st.Namespaces[i].Inode = fail.Must(namespaceInode(name))
	}
	p := n.Pair
	p.Names = n.Namespaces
	ends := join(handles, p)
	st.Ends = ends[:]
	if n.Hugepages > 0 {
		n.growPool(st)
	}
	st.Complete = true
	fail.If(n.save(*st))
}

// growPool adds n.Hugepages to the host's pool. Without room for them the bed is made all the same, with
// a note of the reason.
func (n Named) growPool(st *state) {
	before, surplus, err := hugepages.Persistent()
	if err != nil {
		st.Note = err.Error()
		return
	}
	st.Growing = &growing{before, surplus, n.Hugepages}
	fail.If(n.save(*st))
	r, err := hugepages.Reserve(n.Hugepages)
	if st.Growing = nil; err != nil {
		st.Note = err.Error()
	}
	st.Hugepages = r.Pages
}

// Down undoes what Up has made, and nothing else. Without a bed it does
// nothing.
func (n Named) Down() (err error) {
	defer fail.Catch(&err)
	fail.If(Require(Namespaces))
	if _, err := os.Stat(n.StateDir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	unlock := fail.Must(n.lock())
	defer unlock()
	st := fail.Must(n.load())
	fail.If(n.undo(st))
	return n.forget()
}

// undo removes what the state names. It goes on after an error, and then keeps the state file, so that
// Down can be tried again. The file no longer has pages already taken out of the pool, since any left
// there belong to others.
func (n Named) undo(st state) error {
	var errs []error
	for _, ns := range st.Namespaces {
		inode, err := namespaceInode(ns.Name)
		switch {
		case errors.Is(err, os.ErrNotExist):
			continue
		case err != nil:
			errs = append(errs, err)
			continue
		case ns.Inode != 0 && inode != ns.Inode:
			continue // not ours: another one has this name now
		}
		// The link goes first: processes that still live in the namespace
		// would keep it.
		if err := deleteLink(ns.Name); err != nil {
			errs = append(errs, err)
		}
		if err := deleteNamed(ns.Name); err != nil {
			errs = append(errs, fmt.Errorf("namespace %s: %w", ns.Name, err))
		}
	}
	if st.Growing != nil {
		var err error
		if st.Hugepages, err = st.Growing.added(); err != nil {
			errs = append(errs, err)
		}
		st.Growing = nil
	}
	if st.Hugepages > 0 {
		if err := (hugepages.Reservation{Pages: st.Hugepages}).Restore(); err != nil {
			errs = append(errs, err)
		} else if st.Hugepages = 0; len(errs) > 0 {
			st.Complete = false
			errs = append(errs, n.save(st))
		}
	}
	return errors.Join(errs...)
}

// deleteNamed removes the name; a plain file that an interrupted NewNamed left
// is removed, too.
func deleteNamed(name string) error {
	path := filepath.Join(namespaceDir, name)
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
		return err
	}
	return os.Remove(path)
}

// onLink calls f for the interface of a namespace that has the same name.
func onLink(name string, f func(*netlink.Handle, netlink.Link) error) error {
	h, err := netns.GetFromName(name)
	if err != nil {
		return err
	}
	defer h.Close()
	return veth.OnLink(h, name, f)
}

// deleteLink removes a namespace's interface and so its peer; neither need exist, and the name may be that of a
// plain file that an interrupted NewNamed left.
func deleteLink(name string) (err error) {
	_ = onLink(name, func(nl *netlink.Handle, l netlink.Link) error {
		switch err = nl.LinkDel(l); {
		case errors.Is(err, unix.ENODEV):
			err = nil // the kernel has just removed it, with a peer whose namespace is gone
		case err != nil:
			err = fmt.Errorf("interface %s: %w", name, err)
		}
		return nil
	})
	return err
}

// namespaceInode identifies a namespace behind its name, namespaces(7).
func namespaceInode(name string) (uint64, error) {
	var st unix.Stat_t
	path := filepath.Join(namespaceDir, name)
	if err := unix.Stat(path, &st); err != nil {
		return 0, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return st.Ino, nil
}

// state is what Up writes down so that Down undoes only that.
type state struct {
	Complete   bool             `json:"complete"`
	Namespaces []namespaceState `json:"namespaces"`
	Ends       []End            `json:"ends,omitempty"`
	Hugepages  int              `json:"hugepages,omitempty"` // added to the pool
	Growing    *growing         `json:"growing,omitempty"`   // the pool, while pages are added
	Note       string           `json:"note,omitempty"`      // why no hugepages were added
}

type namespaceState struct {
	Name  string `json:"name"`
	Inode uint64 `json:"inode"` // 0: it was being made
}

// growing is the pool before pages are added to it.
type growing struct {
	Before  int `json:"before"`            // persistent pages
	Surplus int `json:"surplus,omitempty"` // pages beside them, which become persistent by it
	Pages   int `json:"pages"`             // to be added
}

// added is how many pages have become persistent.
func (g *growing) added() (int, error) {
	now, _, err := hugepages.Persistent()
	return min(max(now-g.Before, 0), g.Pages+g.Surplus), err
}

func (s state) exists() bool { return len(s.Namespaces) > 0 }

func (n Named) stateFile() string { return filepath.Join(n.StateDir, "testbed.json") }

// lock takes the bed's lock; it makes the state directory.
func (n Named) lock() (unlock func(), err error) {
	lock, err := rundir.Lock(n.stateFile())
	if err != nil {
		return nil, err
	}
	return func() { rundir.Unlock(lock) }, nil
}

func (n Named) load() (st state, err error) {
	b, err := os.ReadFile(n.stateFile())
	switch {
	case errors.Is(err, os.ErrNotExist):
		return st, nil
	case err != nil:
		return st, err
	}
	if st, err = n.parse(b); err != nil {
		return state{}, fmt.Errorf("%s: %w: if no bed is up, remove the file", n.stateFile(), err)
	}
	return st, nil
}

// parse reads what save wrote. Down removes what the state names, so parse rejects names that Up does
// not make, and more pages than a pool has.
func (n Named) parse(b []byte) (st state, err error) {
	if err := json.Unmarshal(b, &st); err != nil {
		return state{}, err
	}
	if len(st.Namespaces) > len(n.Namespaces) {
		return state{}, fmt.Errorf("%d namespaces, want %d", len(st.Namespaces), len(n.Namespaces))
	}
	for i, ns := range st.Namespaces {
		if ns.Name != n.Namespaces[i] {
			return state{}, fmt.Errorf("%q is no namespace of ours", ns.Name)
		}
	}
	for i, end := range st.Ends {
		if len(st.Ends) != len(st.Namespaces) || end.Name != st.Namespaces[i].Name {
			return state{}, fmt.Errorf("%q is no interface of ours", end.Name)
		}
	}
	switch g := st.Growing; {
	case st.Complete && (len(st.Namespaces) == 0 || g != nil):
		return state{}, errors.New("a bed that is complete, and is not")
	case st.Hugepages < 0 || st.Hugepages > mostPages:
		return state{}, fmt.Errorf("%d hugepages", st.Hugepages)
	case g != nil && (min(g.Before, g.Surplus) < 0 || g.Pages <= 0 || max(g.Before, g.Surplus, g.Pages) > mostPages):
		return state{}, fmt.Errorf("hugepages that grow by %+v", *g)
	case st.Hugepages > 0 && g != nil, (st.Hugepages > 0 || g != nil) && len(st.Namespaces) == 0:
		return state{}, errors.New("hugepages of no bed, or twice")
	}
	return st, nil
}

const mostPages = 1 << 30 // of 2 MB: more than an address space has

func (n Named) save(st state) error { return rundir.Save(n.stateFile(), st) }

// forget removes the state file.
func (n Named) forget() error { return rundir.Save(n.stateFile(), nil) }

// intact returns why the bed is not as the state says, or nil.
func (n Named) intact(st state) error {
	if len(st.Ends) != len(n.Namespaces) || len(st.Namespaces) != len(n.Namespaces) {
		return errors.New("incomplete")
	}
	for _, ns := range st.Namespaces {
		inode, err := namespaceInode(ns.Name)
		if err != nil {
			return fmt.Errorf("namespace %s: %w", ns.Name, err)
		}
		if inode != ns.Inode {
			return fmt.Errorf("namespace %s is another one now", ns.Name)
		}
		if err := linkUp(ns.Name); err != nil {
			return fmt.Errorf("interface %[1]s in namespace %[1]s: %[2]w", ns.Name, err)
		}
	}
	return nil
}

func linkUp(name string) error {
	return onLink(name, func(_ *netlink.Handle, l netlink.Link) error {
		if l.Attrs().RawFlags&unix.IFF_UP == 0 {
			return errors.New("down")
		}
		return nil
	})
}

// Status of a named bed.
type Status struct {
	Up         bool     `json:"up"`
	Problem    string   `json:"problem,omitempty"` // why a bed that was made is not up
	Namespaces []string `json:"namespaces,omitempty"`
	Ends       []End    `json:"interfaces,omitempty"`
	Hugepages  int      `json:"hugepages"`      // pages of 2 MB added to the host's pool
	Note       string   `json:"note,omitempty"` // why no hugepages were added
}

// Status reports whether the bed is up. Checking the namespaces needs the privileges of Up; without them
// Status trusts the state file.
func (n Named) Status() (Status, error) {
	st, err := n.load()
	if err != nil || !st.exists() {
		return Status{}, err
	}
	s := Status{Up: st.Complete, Ends: st.Ends, Hugepages: st.Hugepages, Note: st.Note}
	for _, ns := range st.Namespaces {
		s.Namespaces = append(s.Namespaces, ns.Name)
	}
	switch {
	case !st.Complete:
		s.Problem = "it was interrupted while it was made; run down, then up"
	case Require(Namespaces) == nil:
		if err := n.intact(st); err != nil {
			s.Up, s.Problem = false, err.Error()+"; run up to make it again"
		}
	}
	return s, nil
}
