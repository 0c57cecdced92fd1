package steer

import (
	"errors"
	"fmt"
	"slices"
)

// How selects the means that may be used.
type How uint8

// The means.
const (
	Rules How = iota // rules only
	RSS              // rules, or the indirection table if rules fail
	Off              // none
	All              // none: the owner receives from all queues
)

// String is the name on a command line.
func (h How) String() string {
	if h > All {
		return fmt.Sprintf("How(%d)", uint8(h))
	}
	return [...]string{Rules: "rules", RSS: "rss", Off: "off", All: "all"}[h]
}

// Parse reads what String writes.
func Parse(s string) (How, error) {
	for h := Rules; h <= All; h++ {
		if s == h.String() {
			return h, nil
		}
	}
	return 0, fmt.Errorf("steering %q: want rules, rss, off or all", s)
}

// Rule puts frames on a queue: UDP to a port, over IPv4 or IPv6.
type Rule struct {
	IPv6  bool
	Port  uint16
	Queue int
}

// NIC is the interface to a driver; [Open] returns that of a network interface.
type NIC interface {
	// Rules returns the NIC's rules that a Rule can express, by their location.
	Rules() (map[uint32]Rule, error)
	// Insert adds a rule at any location and returns it.
	Insert(Rule) (uint32, error)
	// InsertAt adds a rule at a location. A driver may not support locations.
	InsertAt(location uint32, r Rule) error
	Delete(location uint32) error
	// Table is the indirection table: a queue for each value of the hash.
	Table() ([]uint32, error)
	// SetTable replaces the table; an empty one stands for the kernel's default.
	SetTable([]uint32) error
	// RulesOff reports whether the NIC has a classifier that is turned off.
	RulesOff() bool
}

// ErrRulesOff is in the error of Port if the NIC has a classifier that is turned
// off. An administrator may turn it on, which resets the link of some NICs.
var ErrRulesOff = errors.New("the NIC's classifier is turned off")

// State describes the changes in a form that can be encoded and outlives the
// process.
type State struct {
	How       How    // Rules or RSS: what is in use
	Port      uint16 // UDP
	Locations []uint32
	Removed   map[uint32]Rule // rules for other queues, by their location
	Before    []uint32        // the table
	Set       []uint32
}

// Steering is a change that Undo can revert. It has one owner.
type Steering struct {
	State
	NoIPv6 error // why there is no rule for IPv6, beside that for IPv4; nil: IPv6 is steered, too
	queue  int
	nic    NIC
}

// Resume makes a Steering of the changes of an earlier process.
func Resume(nic NIC, queue int, was State) *Steering {
	return &Steering{State: was, queue: queue, nic: nic}
}

// Port steers a UDP port to a queue. Its error gives the reason why each means failed.
func Port(nic NIC, port uint16, queue int, how How) (*Steering, error) {
	if how == Off || how == All {
		return nil, errors.New("steering is off")
	}
	s := &Steering{State: State{Port: port}, queue: queue, nic: nic}
	err := s.rules()
	if err == nil {
		return s, nil
	}
	err = fmt.Errorf("rule: %w", err)
	if nic.RulesOff() {
		err = fmt.Errorf("%w: %w", ErrRulesOff, err)
	}
	if how == RSS {
		rss := s.table()
		if rss == nil {
			return s, nil
		}
		err = errors.Join(err, fmt.Errorf("indirection table: %w", rss))
	}
	return nil, err
}

// Works returns why a UDP port cannot be steered by rules; nil: it can. It inserts rules for a queue and removes them.
func Works(nic NIC, port uint16, queue int) error {
	s, err := Port(nic, port, queue, Rules)
	if err != nil {
		return err
	}
	return s.Undo()
}

// rules inserts one rule for each version of IP. That of IPv6 may fail, since not every classifier supports it.
func (s *Steering) rules() error {
	have, err := s.nic.Rules()
	if err != nil {
		return err
	}
	for _, v6 := range []bool{false, true} {
		want, there := Rule{IPv6: v6, Port: s.Port, Queue: s.queue}, false
		for location, r := range have {
			if r.IPv6 != v6 || r.Port != s.Port {
				continue
			}
			if r == want {
				there = true // another owner's rule with the same effect
				continue
			}
			// A rule for another queue would win or lose by its location.
			if err := s.nic.Delete(location); err != nil {
				return errors.Join(fmt.Errorf("the rule at %d is in the way: %w", location, err), s.Undo())
			}
			if s.Removed == nil {
				s.Removed = make(map[uint32]Rule)
			}
			s.Removed[location] = r
		}
		if there {
			continue
		}
		location, err := s.nic.Insert(want)
		if err == nil {
			s.Locations = append(s.Locations, location)
		} else if !v6 {
			return errors.Join(err, s.Undo())
		} else {
			s.NoIPv6 = err
		}
	}
	s.How = Rules
	return nil
}

// table sets every entry of the indirection table to the queue.
func (s *Steering) table() error {
	before, err := s.nic.Table()
	if err != nil {
		return err
	}
	if len(before) == 0 {
		return errors.New("the NIC has none")
	}
	set := slices.Repeat([]uint32{uint32(s.queue)}, len(before))
	if err := s.nic.SetTable(set); err != nil {
		return err
	}
	s.Before, s.Set, s.How = before, set, RSS
	return nil
}

// Undo restores the previous rules and table. It leaves rules and a table that
// another owner has changed meanwhile. A second Undo does nothing.
func (s *Steering) Undo() error {
	var errs []error
	if len(s.Locations)+len(s.Removed) > 0 {
		errs = append(errs, s.undoRules())
	}
	if s.Set != nil {
		now, err := s.nic.Table()
		if err == nil && slices.Equal(now, s.Set) {
			err = s.putBack()
		}
		errs = append(errs, err)
	}
	s.Locations, s.Removed, s.Before, s.Set = nil, nil, nil, nil
	return errors.Join(errs...)
}

// putBack restores the table. If it was the kernel's default, it asks for the default instead of setting the same
// entries: a table that was set counts as the administrator's (IFF_RXFH_CONFIGURED, net/ethtool/ioctl.c). Drivers
// do not extend such a table to added queues, and the kernel lets no queue be removed that it names.
func (s *Steering) putBack() error {
	if likeDefault(s.Before) && s.nic.SetTable(nil) == nil {
		if now, err := s.nic.Table(); err == nil && slices.Equal(now, s.Before) {
			return nil
		}
	}
	return s.nic.SetTable(s.Before)
}

// likeDefault reports whether a table cycles through the first queues (ethtool_rxfh_indir_default,
// include/linux/ethtool.h).
func likeDefault(table []uint32) bool {
	n := 0
	for _, q := range table {
		n = max(n, int(q)+1)
	}
	for i, q := range table {
		if int(q) != i%n {
			return false
		}
	}
	return true
}

func (s *Steering) undoRules() error {
	have, err := s.nic.Rules()
	if err != nil {
		return err
	}
	var errs []error
	for _, l := range s.Locations {
		// The location of a deleted rule may hold another owner's rule by now.
		if r, ok := have[l]; ok && r.Port == s.Port && r.Queue == s.queue {
			errs = append(errs, s.nic.Delete(l))
			delete(have, l)
		}
	}
	for l, r := range s.Removed {
		if s.replaced(have, r) {
			continue
		}
		// At its old location. Not every driver accepts a location, and it may be in use.
		err := s.nic.InsertAt(l, r)
		if err != nil {
			_, err = s.nic.Insert(r)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("put back the rule for queue %d at %d: %w", r.Queue, l, err))
		}
	}
	return errors.Join(errs...)
}

// replaced reports whether another owner has set another rule for the frames of r. A
// rule for the steering's own queue does not count, because it existed before.
func (s *Steering) replaced(have map[uint32]Rule, r Rule) bool {
	for _, x := range have {
		if x.IPv6 == r.IPv6 && x.Port == r.Port && x.Queue != s.queue {
			return true
		}
	}
	return false
}
