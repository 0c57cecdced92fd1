// Package census asks the programs of a machine that have NICs open about
// themselves, and tells how fast what they count goes.
package census

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"time"

	"viaxdp/internal/capture"
	"viaxdp/internal/comm"
	"viaxdp/internal/programs"
	"viaxdp/vipl"
	"viaxdp/xdpnic"
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

// Count is one counter of a queue.
type Count struct {
	Group string  `json:"group"` // engine, socket, demux: the tables of docs/counters.md
	Name  string  `json:"name"`
	Value uint64  `json:"value"`
	Rate  float64 `json:"rate"` // a second; 0 in a first look
	Drop  bool    `json:"drop"` // each is a frame or message that was lost here
}

// Queue is what a queue has counted, and its VIs.
type Queue struct {
	PID       int     `json:"pid"`
	Command   string  `json:"command"`
	Interface string  `json:"interface"`
	Queue     int     `json:"queue"`
	Mode      string  `json:"mode"`
	Counts    []Count `json:"counts"`
	VIs       []VI    `json:"vis"`
	id        uint32
}

// VI is what a VI has done.
type VI struct {
	vipl.VIStatus
	SendRate   float64 `json:"send_rate"` // messages a second that completed
	RecvRate   float64 `json:"recv_rate"`
	ResentRate float64 `json:"resent_rate"` // frames a second
}

// engineDrops are the counters of vipl.Counters that count what was lost.
var engineDrops = []string{
	"Malformed", "UnknownVI", "WrongKey", "WrongSource", "Corrupt", "Outside", "Dropped", "RecvQueueEmpty", "TooLong",
	"RDMARefused", "ErrorsDropped",
}

// socketDrops are those of the AF_XDP socket.
var socketDrops = func() (names []string) {
	var s xdpnic.Stats
	s.Each(func(c xdpnic.Counter) {
		if c.Drop {
			names = append(names, c.Name)
		}
	})
	return names
}()

// Queues lists the queues of a census, with rates since another one if that is
// not nil. Handles that share a queue are one row.
func (c *Census) Queues(before *Census) []Queue {
	list := []Queue{}
	for _, p := range c.Programs {
		var was *Program
		if before != nil {
			i := slices.IndexFunc(before.Programs, func(b Program) bool { return b.PID == p.PID && b.Command == p.Command })
			if i >= 0 {
				was = &before.Programs[i]
			}
		}
		for _, n := range p.Nics {
			list = addNic(list, &p, was, &n)
		}
	}
	return list
}

func addNic(list []Queue, p, was *Program, n *vipl.NicStatus) []Queue {
	var old *vipl.NicStatus
	var elapsed time.Duration
	if was != nil {
		elapsed = p.Time.Sub(was.Time)
		if i := slices.IndexFunc(was.Nics, func(o vipl.NicStatus) bool { return o.ID == n.ID }); i >= 0 && elapsed > 0 {
			old = &was.Nics[i]
		}
	}
	rate := func(now, then uint64) float64 {
		if old == nil || now < then {
			return 0
		}
		return float64(now-then) / elapsed.Seconds()
	}
	at := slices.IndexFunc(list, func(q Queue) bool { return q.PID == p.PID && q.id == n.ID })
	if at < 0 {
		at = len(list)
		q := Queue{PID: p.PID, Command: p.Command, Interface: n.Interface, Queue: n.Queue, Mode: n.Mode, id: n.ID, VIs: []VI{}}
		add := func(group, name string, now, then uint64, drop bool) {
			q.Counts = append(q.Counts, Count{group, name, now, rate(now, then), drop})
		}
		var before vipl.NicStatus
		if old != nil {
			before = *old
		}
		now, then := reflect.ValueOf(n.Counters), reflect.ValueOf(before.Counters)
		for i := range now.NumField() {
			name := now.Type().Field(i).Name
			add("engine", name, now.Field(i).Uint(), then.Field(i).Uint(), slices.Contains(engineDrops, name))
		}
		for _, name := range sorted(n.Socket) {
			add("socket", name, n.Socket[name], before.Socket[name], slices.Contains(socketDrops, name))
		}
		for _, name := range sorted(n.Demux) {
			add("demux", name, n.Demux[name], before.Demux[name], name != "redirected" && name != "control")
		}
		list = append(list, q)
	}
	for _, v := range n.VIs {
		x := VI{VIStatus: v}
		if old != nil {
			for _, o := range was.Nics {
				for _, w := range o.VIs {
					if o.ID == n.ID && w.Number == v.Number {
						x.SendRate, x.RecvRate = rate(v.SendDone, w.SendDone), rate(v.RecvDone, w.RecvDone)
						x.ResentRate = rate(v.Resent, w.Resent)
					}
				}
			}
		}
		list[at].VIs = append(list[at].VIs, x)
	}
	return list
}

func sorted(m map[string]uint64) (names []string) {
	for name := range m {
		names = append(names, name)
	}
	slices.SortFunc(names, cmp.Compare)
	return names
}

// Get is one counter of the queue; zero if there is none of that name.
func (q *Queue) Get(group, name string) Count {
	i := slices.IndexFunc(q.Counts, func(c Count) bool { return c.Group == group && c.Name == name })
	if i < 0 {
		return Count{}
	}
	return q.Counts[i]
}

// Drops are the counters that count losses and have moved: since the last look,
// if there was one and changed is set, else ever.
func (q *Queue) Drops(changed bool) (all []Count) {
	for _, c := range q.Counts {
		if c.Drop && (c.Rate > 0 || !changed && c.Value > 0) {
			all = append(all, c)
		}
	}
	return all
}

// String is the place of the queue.
func (q *Queue) String() string { return fmt.Sprintf("%s queue %d", q.Interface, q.Queue) }
