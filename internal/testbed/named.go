package testbed

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"viaxdp/hugepages"
	"viaxdp/internal/thread"
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
	if err := Require(Namespaces); err != nil {
		return err
	}
	unlock, err := n.lock()
	if err != nil {
		return err
	}
	defer unlock()
	st, err := n.load()
	if err != nil {
		return err
	}
	if st.Complete && n.intact(st) == nil {
		return nil
	}
	if st.exists() {
		// A run that was interrupted, or a bed that lost a part.
		if err := n.undo(st); err != nil {
			return err
		}
	}
	for _, name := range n.Namespaces {
		if _, err := os.Lstat(filepath.Join(namespaceDir, name)); err == nil {
			return fmt.Errorf("the namespace %s exists and is not ours: remove it (ip netns delete %s) or use it as it is", name, name)
		}
	}
	st = state{}
	defer func() {
		if err != nil {
			undone := n.undo(st)
			if undone == nil {
				undone = n.forget()
			}
			err = errors.Join(err, undone)
		}
	}()
	// Each step is written down before it is done.
	var handles [2]netns.NsHandle
	for i, name := range n.Namespaces {
		st.Namespaces = append(st.Namespaces, namespaceState{Name: name})
		if err := n.save(st); err != nil {
			return err
		}
		if handles[i], err = newNamed(name); err != nil {
			return explain(err, "network namespace")
		}
		defer handles[i].Close()
		if st.Namespaces[i].Inode, err = namespaceInode(name); err != nil {
			return err
		}
	}
	p := n.Pair
	p.Names = n.Namespaces
	ends, err := join(handles, p)
	if err != nil {
		return err
	}
	st.Ends = ends[:]
	if n.Hugepages > 0 {
		if err := n.growPool(&st); err != nil {
			return err
		}
	}
	st.Complete = true
	return n.save(st)
}

// growPool adds n.Hugepages to the host's pool. A machine without room for
// them has a bed all the same, and a note why not.
func (n Named) growPool(st *state) error {
	before, surplus, err := hugepages.Persistent()
	if err != nil {
		st.Note = err.Error()
		return nil
	}
	st.Growing = &growing{before, surplus, n.Hugepages}
	if err := n.save(*st); err != nil {
		return err
	}
	r, err := hugepages.Reserve(n.Hugepages)
	if st.Growing = nil; err != nil {
		st.Note = err.Error()
	}
	st.Hugepages = r.Pages
	return nil
}

// Down undoes what Up has made, and nothing else. Without a bed it does
// nothing.
func (n Named) Down() error {
	if err := Require(Namespaces); err != nil {
		return err
	}
	if _, err := os.Stat(n.StateDir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	unlock, err := n.lock()
	if err != nil {
		return err
	}
	defer unlock()
	st, err := n.load()
	if err != nil {
		return err
	}
	if err := n.undo(st); err != nil {
		return err
	}
	return n.forget()
}

// undo removes what the state names. It goes on after an error; the state file
// is kept then, so that Down can be tried again: without the pages that it has taken
// out of the pool, since those that it would find there are others'.
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
			continue // somebody made another one under this name
		}
		// The link goes first: processes that still live in the namespace
		// would keep it.
		if err := deleteLink(ns.Name, ns.Name); err != nil {
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

// newNamed makes a namespace with a name, without changing the caller's.
func newNamed(name string) (h netns.NsHandle, err error) {
	thread.Run(func() { h, err = netns.NewNamed(name) })
	return h, err
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

// deleteLink removes an interface and so its peer; neither need exist.
func deleteLink(namespace, name string) error {
	h, err := netns.GetFromName(namespace)
	if err != nil {
		return nil
	}
	defer h.Close()
	nl, err := netlink.NewHandleAt(h, unix.NETLINK_ROUTE)
	if err != nil {
		return nil // not a namespace: what an interrupted NewNamed left
	}
	defer nl.Close()
	l, err := nl.LinkByName(name)
	if err != nil {
		return nil
	}
	if err := nl.LinkDel(l); err != nil {
		return fmt.Errorf("interface %s: %w", name, err)
	}
	return nil
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
