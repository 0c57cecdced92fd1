// Package status asks the programs of a machine that have NICs open for their status, and computes
// the rates of their counters.
package status

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/base/fds"
	"viaxdp/internal/base/programs"
	"viaxdp/internal/base/termsafe"
	"viaxdp/internal/ops/capture"
	"viaxdp/vipl"
	"viaxdp/xdpnic"
)

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
}

// VI is what a VI has done.
type VI struct {
	vipl.VIStatus
	SendRate   float64 `json:"send_rate"` // messages a second that completed
	RecvRate   float64 `json:"recv_rate"`
	ResentRate float64 `json:"resent_rate"` // frames a second
}

// engineDrops are the counters of vipl.Counters that count what was lost; docs/counters.md
// has the same.
var engineDrops = []string{
	"Malformed", "UnknownVI", "WrongKey", "WrongSource", "Corrupt", "Unsealed", "Forged", "Replayed", "OutsideWindow",
	"OutOfOrderDropped", "Dropped", "RecvQueueEmpty", "TooLong", "RDMARefused", "ErrorsDropped",
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

// Queues lists the queues of a report, with rates since an earlier one if that is
// not nil. Handles that share a queue are one row.
func (c *Report) Queues(before *Report) []Queue {
	list := []Queue{}
	for _, p := range c.Programs {
		looks, rows := lookAgain(&p, before.find(&p)), make(map[uint32]int)
		for _, n := range p.Nics {
			s := looks[n.ID]
			at, ok := rows[n.ID]
			if !ok {
				at = len(list)
				rows[n.ID] = at
				list = append(list, s.queue(&p, &n))
			}
			for _, v := range n.VIs {
				list[at].VIs = append(list[at].VIs, s.vi(v))
			}
		}
	}
	return list
}

// find finds a program as it was; nil: it was not there.
func (c *Report) find(p *Program) *Program {
	if c == nil {
		return nil
	}
	i := slices.IndexFunc(c.Programs, func(o Program) bool { return o.PID == p.PID && o.Command == p.Command })
	if i < 0 {
		return nil
	}
	return &c.Programs[i]
}

// secondLook is what a queue was like before, for rates.
type secondLook struct {
	before  vipl.NICStatus           // of one of its handles
	vis     map[uint32]vipl.VIStatus // of all of them, by number
	elapsed time.Duration            // 0: it was not looked at before
}

// lookAgain finds the queues of a program as they were, by their numbers.
func lookAgain(p, was *Program) map[uint32]secondLook {
	looks := make(map[uint32]secondLook)
	if was == nil || p.Time.Sub(was.Time) <= 0 {
		return looks
	}
	for _, n := range was.Nics {
		s, ok := looks[n.ID]
		if !ok {
			s = secondLook{n, map[uint32]vipl.VIStatus{}, p.Time.Sub(was.Time)}
			looks[n.ID] = s
		}
		for _, v := range n.VIs {
			s.vis[v.Number] = v
		}
	}
	return looks
}

// rate is by how much a count has grown in a second.
func (s *secondLook) rate(now, then uint64) float64 {
	if s.elapsed == 0 || now < then {
		return 0
	}
	return float64(now-then) / s.elapsed.Seconds()
}

// queue is a queue with its counts, by what one of its handles says, without VIs.
func (s *secondLook) queue(p *Program, n *vipl.NICStatus) Queue {
	q := Queue{PID: p.PID, Command: p.Command, Interface: n.Interface, Queue: n.Queue, Mode: n.Mode, VIs: []VI{}}
	add := func(group, name string, now, then uint64, drop bool) {
		q.Counts = append(q.Counts, Count{group, name, now, s.rate(now, then), drop})
	}
	now, then := reflect.ValueOf(n.Counters), reflect.ValueOf(s.before.Counters)
	for i := range now.NumField() {
		name := now.Type().Field(i).Name
		add("engine", name, now.Field(i).Uint(), then.Field(i).Uint(), slices.Contains(engineDrops, name))
	}
	for _, name := range slices.Sorted(maps.Keys(n.Socket)) {
		add("socket", name, n.Socket[name], s.before.Socket[name], slices.Contains(socketDrops, name))
	}
	for _, name := range slices.Sorted(maps.Keys(n.Demux)) {
		add("demux", name, n.Demux[name], s.before.Demux[name], name != "redirected" && name != "control")
	}
	return q
}

// vi is a VI of the queue with its rates.
func (s *secondLook) vi(v vipl.VIStatus) VI {
	x := VI{VIStatus: v}
	if then, ok := s.vis[v.Number]; ok {
		x.SendRate, x.RecvRate = s.rate(v.SendDone, then.SendDone), s.rate(v.RecvDone, then.RecvDone)
		x.ResentRate = s.rate(v.Resent, then.Resent)
	}
	return x
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

// Program is one that answered.
type Program struct {
	programs.Program
	vipl.ProgramStatus
}

// Report is the answer of every program that gave one.
type Report struct {
	Programs []Program `json:"programs"`
	Denied   int       `json:"denied"`           // programs that this process may not ask
	Failed   []string  `json:"failed,omitempty"` // those that gave no answer, and why
}

// listDescriptors are those that List needs at a time, with Go's for the first use of the network.
const listDescriptors = 8

// Take asks the programs that are registered in dirs; see package rundir.
func Take(dirs []string) *Report {
	c := &Report{Programs: []Program{}}
	if err := fds.Need(listDescriptors); err != nil { // List would leave programs out
		c.Failed = append(c.Failed, fmt.Sprintf("some programs may not be shown: %v", err))
	}
	for _, dir := range dirs { // List leaves their programs out without an error
		if err := unix.Faccessat(unix.AT_FDCWD, dir, unix.R_OK|unix.X_OK, unix.AT_EACCESS); errors.Is(err, unix.EACCES) {
			c.Failed = append(c.Failed, fmt.Sprintf("some programs may not be shown: %s: %v", termsafe.Printable(dir), err))
		}
	}
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

// user is the budget for the programs of a user, so that one user's programs cannot use up the
// budget of others.
type user struct {
	budget programs.Budget
	places chan struct{}
}

// maxAsked is how many programs of a user are asked at once.
const maxAsked = 8

// maxName is how many bytes of an interface's name are kept: as many as the kernel allows in an alternative one.
const maxName = 127

// clean removes terminal control sequences from a program's answer, and cuts names that no interface has: the program may
// be another user's.
func clean(s *vipl.ProgramStatus) {
	for i := range s.Nics {
		n := &s.Nics[i]
		for _, text := range []*string{&n.Interface, &n.Mode, &n.NoGSO, &n.NoHeadroom, &n.Mem.Pages} {
			*text = termsafe.Printable(*text)
		}
		n.Interface = strings.ToValidUTF8(n.Interface[:min(len(n.Interface), maxName)], "")
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

// Only keeps the NICs of an interface; empty keeps all.
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
		seen := make(map[uint32]bool)
		for _, n := range p.Nics {
			if !seen[n.ID] {
				seen[n.ID] = true
				t.Sources = append(t.Sources, capture.Source{
					PID: p.PID, Command: p.Command, ID: n.ID, Interface: n.Interface, Queue: n.Queue,
				})
			}
		}
		all = append(all, t)
	}
	return all
}
