package status

import (
	"slices"
	"sync"

	"viaxdp/internal/base/programs"
	"viaxdp/internal/base/termsafe"
	"viaxdp/internal/ops/capture"
	"viaxdp/vipl"
)

// Program is one that answered.
type Program struct {
	programs.Program
	vipl.ProgramStatus
}

// Census is all that answered.
type Report struct {
	Programs []Program `json:"programs"`
	Denied   int       `json:"denied"`           // programs that this process may not ask
	Failed   []string  `json:"failed,omitempty"` // those that gave no answer, and why
}

// Take asks those that say in dirs that they run; see package rundir.
func Take(dirs []string) *Report {
	c := &Report{Programs: []Program{}}
	found, denied := programs.List(dirs)
	c.Denied = denied
	answers, errs := make([]Program, len(found)), make([]error, len(found))
	users := make(map[int]*user)
	var all sync.WaitGroup
	for i, p := range found {
		u := users[p.UID]
		if u == nil {
			u = &user{places: make(chan struct{}, maxAsked)}
			users[p.UID] = u
		}
		all.Go(func() {
			u.places <- struct{}{}
			defer func() { <-u.places }()
			answers[i].Program = p
			errs[i] = p.StatusWithin(&u.budget, &answers[i].ProgramStatus)
		})
	}
	all.Wait()
	for i := range answers {
		if errs[i] != nil {
			c.Failed = append(c.Failed, termsafe.Printable(errs[i].Error()))
			continue
		}
		clean(&answers[i].ProgramStatus)
		c.Programs = append(c.Programs, answers[i])
	}
	return c
}

// user is what the programs of a user may cost: one user's cannot use up what others' have.
type user struct {
	budget programs.Budget
	places chan struct{}
}

// maxAsked is how many programs of a user are asked at once.
const maxAsked = 8

// clean takes out of what a program says, which may be another user's, what a terminal would obey.
func clean(s *vipl.ProgramStatus) {
	for i := range s.Nics {
		n := &s.Nics[i]
		for _, text := range []*string{&n.Interface, &n.Mode, &n.Mem.Pages} {
			*text = termsafe.Printable(*text)
		}
		n.Socket, n.Demux = cleanNames(n.Socket), cleanNames(n.Demux)
		for k := range n.VIs {
			v := &n.VIs[k]
			for _, text := range []*string{&v.State, &v.Level, &v.Cause} {
				*text = termsafe.Printable(*text)
			}
			v.Peer = v.Peer.WithZone(termsafe.Printable(v.Peer.Zone()))
		}
	}
}

func cleanNames(counts map[string]uint64) map[string]uint64 {
	for name, v := range counts {
		if p := termsafe.Printable(name); p != name {
			delete(counts, name)
			counts[p] = v
		}
	}
	return counts
}

// Only leaves the NICs of an interface; of all of them if it is empty.
func (c *Report) Only(nic string) {
	if nic == "" {
		return
	}
	for i := range c.Programs {
		p := &c.Programs[i]
		p.Nics = slices.DeleteFunc(p.Nics, func(n vipl.NICStatus) bool { return n.Interface != nic })
	}
	c.Programs = slices.DeleteFunc(c.Programs, func(p Program) bool { return len(p.Nics) == 0 })
}

// Targets are the programs and their queues, to capture of.
func (c *Report) Targets() (all []capture.Target) {
	for _, p := range c.Programs {
		t := capture.Target{Program: p.Program}
		for _, n := range p.Nics {
			if !slices.ContainsFunc(t.Sources, func(s capture.Source) bool { return s.ID == n.ID }) {
				t.Sources = append(t.Sources, capture.Source{
					PID: p.PID, Command: p.Command, ID: n.ID, Interface: n.Interface, Queue: n.Queue,
				})
			}
		}
		all = append(all, t)
	}
	return all
}
