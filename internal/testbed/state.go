package testbed

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"viaxdp/hugepages"
	"viaxdp/internal/rundir"
)

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

// lock takes the bed's lock; it makes the state directory. The lock is on a file for this
// user alone: it takes no more than the right to read, and who had that could keep beds from
// being made and removed.
func (n Named) lock() (unlock func(), err error) {
	if err := os.MkdirAll(n.StateDir, 0o755); err != nil {
		return nil, err
	}
	if err := rundir.Own(n.StateDir); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(n.stateFile()+".lock", os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if errors.Is(err, os.ErrNotExist) {
		return n.lock() // whoever had the lock has removed the directory
	}
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	// Or the file.
	locked, err1 := f.Stat()
	current, err2 := os.Lstat(f.Name())
	if err1 != nil || err2 != nil || !os.SameFile(locked, current) {
		f.Close()
		return n.lock()
	}
	unlock = func() {
		os.Remove(f.Name())
		os.Remove(n.StateDir) // not, if there is something in it
		f.Close()
	}
	if err := rundir.Own(n.stateFile()); err != nil && !errors.Is(err, os.ErrNotExist) {
		unlock()
		return nil, err
	}
	return unlock, nil
}

func (n Named) load() (state, error) {
	var st state
	b, err := os.ReadFile(n.stateFile())
	if errors.Is(err, os.ErrNotExist) {
		return st, nil
	}
	if err != nil {
		return st, err
	}
	if st, err = n.parse(b); err != nil {
		return state{}, fmt.Errorf("%s: %w: if no bed is up, remove the file", n.stateFile(), err)
	}
	return st, nil
}

// parse reads what save wrote. Down removes what it names: it may name nothing but what Up makes, and no
// more pages than a pool has.
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

func (n Named) save(st state) error {
	b, err := json.MarshalIndent(st, "", "  ")
	if err != nil {
		return err
	}
	tmp := n.stateFile() + ".new"
	if err := os.WriteFile(tmp, append(b, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, n.stateFile())
}

// forget removes the state file.
func (n Named) forget() error {
	if err := os.Remove(n.stateFile()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	os.Remove(n.stateFile() + ".new")
	return nil
}

// intact returns why the bed is not as the state says, or nil.
func (n Named) intact(st state) error {
	if len(st.Ends) != len(n.Namespaces) || len(st.Namespaces) != len(n.Namespaces) {
		return errors.New("incomplete")
	}
	for i, ns := range st.Namespaces {
		inode, err := namespaceInode(ns.Name)
		if err != nil {
			return fmt.Errorf("namespace %s: %w", ns.Name, err)
		}
		if inode != ns.Inode {
			return fmt.Errorf("namespace %s is another one now", ns.Name)
		}
		if err := linkUp(ns.Name, st.Ends[i].Name); err != nil {
			return fmt.Errorf("interface %s in namespace %s: %w", st.Ends[i].Name, ns.Name, err)
		}
	}
	return nil
}

func linkUp(namespace, name string) error {
	h, err := netns.GetFromName(namespace)
	if err != nil {
		return err
	}
	defer h.Close()
	nl, err := netlink.NewHandleAt(h, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer nl.Close()
	l, err := nl.LinkByName(name)
	if err != nil {
		return err
	}
	if l.Attrs().RawFlags&unix.IFF_UP == 0 {
		return errors.New("down")
	}
	return nil
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

// Status tells whether the bed is up. To look into the namespaces needs the
// privileges of Up; without them the state file is believed.
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
			s.Up, s.Problem = false, err.Error()+"; run up to make it anew"
		}
	}
	return s, nil
}
