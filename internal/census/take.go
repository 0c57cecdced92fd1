package census

import (
	"slices"

	"viaxdp/internal/capture"
	"viaxdp/internal/comm"
	"viaxdp/internal/programs"
	"viaxdp/vipl"
)

// Program is one that answered.
type Program struct {
	programs.Program
	vipl.ProgramStatus
}

// Census is all that answered.
type Census struct {
	Programs []Program `json:"programs"`
	Denied   int       `json:"denied"`           // programs that this process may not ask
	Failed   []string  `json:"failed,omitempty"` // those that gave no answer, and why
}

// Take asks those that say in dirs that they run; see package rundir.
func Take(dirs []string) *Census {
	c := &Census{Programs: []Program{}}
	found, denied := programs.List(dirs)
	c.Denied = denied
	for _, p := range found {
		x := Program{Program: p}
		if err := p.Status(&x.ProgramStatus); err != nil {
			c.Failed = append(c.Failed, comm.Printable(err.Error()))
			continue
		}
		clean(&x.ProgramStatus)
		c.Programs = append(c.Programs, x)
	}
	return c
}

// clean takes out of what a program says, which may be another user's, what a terminal would obey.
func clean(s *vipl.ProgramStatus) {
	for i := range s.Nics {
		n := &s.Nics[i]
		for _, text := range []*string{&n.Interface, &n.Mode, &n.Mem.Pages} {
			*text = comm.Printable(*text)
		}
		n.Socket, n.Demux = cleanNames(n.Socket), cleanNames(n.Demux)
		for k := range n.VIs {
			v := &n.VIs[k]
			for _, text := range []*string{&v.State, &v.Level, &v.Cause} {
				*text = comm.Printable(*text)
			}
			v.Peer = v.Peer.WithZone(comm.Printable(v.Peer.Zone()))
		}
	}
}

func cleanNames(counts map[string]uint64) map[string]uint64 {
	for name, v := range counts {
		if p := comm.Printable(name); p != name {
			delete(counts, name)
			counts[p] = v
		}
	}
	return counts
}

// Only leaves the NICs of an interface; of all of them if it is empty.
func (c *Census) Only(nic string) {
	if nic == "" {
		return
	}
	for i := range c.Programs {
		p := &c.Programs[i]
		p.Nics = slices.DeleteFunc(p.Nics, func(n vipl.NicStatus) bool { return n.Interface != nic })
	}
	c.Programs = slices.DeleteFunc(c.Programs, func(p Program) bool { return len(p.Nics) == 0 })
}

// Targets are the programs and their queues, to capture of.
func (c *Census) Targets() (all []capture.Target) {
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
