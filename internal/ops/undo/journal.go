package undo

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"viaxdp/internal/base/rundir"
	"viaxdp/internal/base/termsafe"
)

// Setting names something that has a value.
type Setting struct {
	Kind      Kind   `json:"kind"`
	Interface string `json:"interface,omitempty"`
	Name      string `json:"name"`
}

// Kind says where a setting is and what its name means.
type Kind string

// The kinds. All but File are of an interface.
const (
	File     Kind = "file"     // Name is a path under /sys, one of hostFiles
	NetFile  Kind = "net"      // Name is a file of /sys/class/net/INTERFACE
	Feature  Kind = "feature"  // an offload, by the kernel's name: "on" or "off"
	Coalesce Kind = "coalesce" // interrupt moderation: rx-usecs, tx-usecs, adaptive-rx, adaptive-tx
	Ring     Kind = "ring"     // entries of the hardware's rings: rx, tx
	Link     Kind = "link"     // state: "up" or "down"
)

// String is safe for a terminal, whatever the interface's name.
func (s Setting) String() string {
	text := fmt.Sprintf("%s %s %s", s.Interface, s.Kind, s.Name)
	switch s.Kind {
	case File:
		text = s.Name
	case NetFile:
		text = "/sys/class/net/" + s.Interface + "/" + s.Name
	}
	return termsafe.Printable(text)
}

// Step is a change that is wanted.
type Step struct {
	Setting
	Value string `json:"value"`
}

// Change is one that was made.
type Change struct {
	Setting
	Before  string `json:"before"`
	After   string `json:"after"`             // as it reads: drivers round, pages run out
	Netns   uint64 `json:"netns,omitempty"`   // inode of the interface's network namespace
	Cookie  uint64 `json:"cookie,omitempty"`  // of that namespace; 0: not known
	Ifindex int    `json:"ifindex,omitempty"` // of the interface
	// Unfinished: it was being made, and what it has become is not known.
	Unfinished bool   `json:"unfinished,omitempty"`
	Boot       string `json:"boot,omitempty"` // bootID when it was made; in the list only
}

func (c Change) String() string {
	return fmt.Sprintf("%s: %s -> %s", c.Setting, c.Before, c.After)
}

// A System has the settings. [Machine] is this one.
type System interface {
	// Where finds an interface of the caller's network namespace.
	Where(name string) (Place, error)
	// Enter calls f with the setting of c, where its interface is and by the name that it has now; ErrGone if it is no more.
	Enter(c Change, f func(Setting) error) error
	Get(Setting) (string, error)
	Set(s Setting, value string) error
}

// Place is where an interface is. The kernel may give the inode number of a removed namespace
// to a new one, but never its cookie (SO_NETNS_COOKIE, since Linux 5.14).
type Place struct {
	Netns, Cookie uint64 // of its network namespace; no cookie: 0
	Ifindex       int
}

// sameNetns reports whether two cookies may be those of one namespace.
func sameNetns(a, b uint64) bool { return a == b || a == 0 || b == 0 }

// ErrGone is returned if what had the setting no longer exists.
var ErrGone = errors.New("it is gone")

// Journal is a list of changes.
type Journal struct {
	path    string
	system  System
	lock    *os.File
	changes []Change // that Undo would take back, oldest first
}

// Open opens the list of that name in a directory, which it makes. Close it. A
// directory or a list that others can change is refused.
func Open(dir, name string, s System) (*Journal, error) {
	j := &Journal{path: filepath.Join(dir, name+".json"), system: s}
	var err error
	if j.lock, err = rundir.Lock(j.path); err != nil {
		return nil, err
	}
	b, err := os.ReadFile(j.path)
	switch {
	case err == nil:
		j.changes, err = parse(b)
	case errors.Is(err, fs.ErrNotExist):
		return j, nil
	}
	if err != nil {
		j.Close()
		return nil, fmt.Errorf("%s: %w: put the settings back by hand and remove the file", j.path, err)
	}
	all := len(j.changes)
	if j.changes = sinceBoot(j.changes, bootID()); len(j.changes) < all {
		if err := j.save(); err != nil {
			j.Close()
			return nil, err
		}
	}
	return j, nil
}

// bootID returns the kernel's random number of this boot; "": not known.
func bootID() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b))
}

// sinceBoot drops the changes of another boot, which a reboot has taken back: what has such a value now has it from elsewhere.
// The list outlives a reboot in a container, and in a directory that VIA_STATE_DIR names.
func sinceBoot(changes []Change, boot string) []Change {
	return slices.DeleteFunc(changes, func(c Change) bool { return c.Boot != "" && boot != "" && c.Boot != boot })
}

// parse reads a list. Get and Set check the names in it.
func parse(b []byte) (changes []Change, err error) {
	err = json.Unmarshal(b, &changes)
	return changes, err
}

// Close unlocks the list. An empty list leaves no file.
func (j *Journal) Close() error { return rundir.Unlock(j.lock) }

// ErrAbsent is returned by Set if the driver has no such setting, although Get has read a value of it.
var ErrAbsent = errors.New("the driver has no such setting")

// Apply makes the changes in order and returns those that were made. A setting that already
// has the value, or keeps its value when it is set, or is absent, is not among them. The error names the
// settings that are refused; the others are changed nevertheless. Apply stops at a lack of
// privilege, which concerns them, too, and when the list cannot be saved.
func (j *Journal) Apply(steps []Step) (made []Change, err error) {
	made = []Change{} // in JSON not null
	var refused []error
	for _, s := range steps {
		if errors.Is(errors.Join(refused...), fs.ErrPermission) {
			break
		}
		c, refusal, err := j.apply(s)
		if c != nil {
			made = append(made, *c)
		}
		if refusal != nil {
			refused = append(refused, refusal)
		}
		if err != nil {
			return made, errors.Join(append(refused, err)...)
		}
	}
	return made, errors.Join(refused...)
}

// apply makes one change. made is nil if the setting is as it was, refusal is why it could not be changed, and err means that the
// list cannot be saved.
func (j *Journal) apply(s Step) (made *Change, refusal, err error) {
	c := Change{Setting: s.Setting, After: s.Value, Unfinished: true}
	if s.Interface != "" {
		at, err := j.system.Where(s.Interface)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.Setting, err), nil
		}
		c.Netns, c.Cookie, c.Ifindex = at.Netns, at.Cookie, at.Ifindex
	}
	if c.Before, err = j.system.Get(s.Setting); err != nil {
		return nil, fmt.Errorf("%s: %w", s.Setting, err), nil
	}
	if c.Before == c.After {
		if j.finish(c, c.Before) {
			err = j.save()
		}
		return nil, nil, err
	}
	old := slices.Clone(j.changes)
	j.add(c)
	if err := j.save(); err != nil {
		j.changes = old
		return nil, nil, err
	}
	refusal = j.system.Set(s.Setting, s.Value)
	now, err := j.system.Get(s.Setting)
	switch {
	case err != nil && refusal != nil: // it stays unfinished
		err = nil
	case err == nil && (refusal != nil || now == c.Before):
		if now == c.Before {
			j.changes = old
		}
		j.finish(c, now)
		err = j.save()
	default:
		if err == nil {
			c.After, c.Unfinished = now, false // otherwise Undo would take it for another program's
		}
		made = &c
		j.add(c)
		err = j.save()
	}
	if refusal != nil && !errors.Is(refusal, ErrAbsent) {
		return made, fmt.Errorf("%s: set to %s: %w", s.Setting, s.Value, refusal), err
	}
	return made, nil, err
}

// add puts a change in the list. If the setting was changed before, its first value stays.
func (j *Journal) add(c Change) {
	if i := j.find(c); i >= 0 {
		j.changes[i].After, j.changes[i].Unfinished = c.After, c.Unfinished
		return
	}
	c.Boot = bootID()
	j.changes = append(j.changes, c)
}

// finish records the value of an unfinished change of the same setting, so that a later
// value is known to be another program's. It reports whether there was one.
func (j *Journal) finish(c Change, now string) bool {
	i := j.find(c)
	if i < 0 || !j.changes[i].Unfinished {
		return false
	}
	j.changes[i].After, j.changes[i].Unfinished = now, false
	return true
}

// find returns the index of the change of the same setting, or -1.
func (j *Journal) find(c Change) int {
	return slices.IndexFunc(j.changes, func(old Change) bool {
		return old.Setting == c.Setting && old.Netns == c.Netns && sameNetns(old.Cookie, c.Cookie) && old.Ifindex == c.Ifindex
	})
}

// Undone says what became of a change.
type Undone struct {
	Change
	Kept string `json:"kept,omitempty"` // why the setting was left as it is; empty: it went back
}

// Undo takes the changes back, newest first. Those that fail stay in the list;
// the error names them. If the list cannot be saved meanwhile, as on a full disk, Undo goes
// on: the next Undo only finds that a change is taken back already, and removing the list needs no room.
func (j *Journal) Undo() (done []Undone, err error) {
	var errs []error
	var unsaved error
	for i, c := range slices.Backward(j.changes) {
		if u, err := j.undo(c); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", c.Setting, err))
		} else {
			done = append(done, u)
			j.changes = slices.Delete(j.changes, i, i+1)
		}
		unsaved = j.save()
	}
	return done, errors.Join(append(errs, unsaved)...)
}

func (j *Journal) undo(c Change) (u Undone, err error) {
	u.Change = c
	u.Boot = ""
	err = j.system.Enter(c, func(s Setting) error {
		now, err := j.system.Get(s)
		switch {
		case err != nil:
			return err
		case now == c.Before:
			return nil
		case now != c.After && !c.Unfinished:
			u.Kept = "another program has set it to " + now + " since"
			return nil
		}
		return j.system.Set(s, c.Before)
	})
	if errors.Is(err, ErrGone) {
		u.Kept, err = ErrGone.Error(), nil
	}
	return u, err
}

// save writes the list, or removes the file of an empty one.
func (j *Journal) save() error {
	if len(j.changes) == 0 {
		return rundir.Save(j.path, nil)
	}
	return rundir.Save(j.path, j.changes)
}
