package torture

import (
	"errors"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"viaxdp/internal/lag"
	"viaxdp/internal/testbed"
)

// event is something that happens to a bed in a soak. Afterwards all flows talk
// again; breaks says that reliable connections may have ended meanwhile.
type event struct {
	name   string
	breaks bool
	run    func(s *soak) error
}

// nap is too short for anybody to be taken for dead.
func (s *soak) nap() time.Duration { return s.cfg.Silence / 4 }

// coma is longer than the silence by up to as much again.
func (s *soak) coma() time.Duration { return s.cfg.Silence + s.below(s.cfg.Silence) }

var (
	storm = event{"storm", false, (*soak).storm}
	quiet = event{"quiet", true, (*soak).quiet} // all connections end, in order
)

var events = append(moves, []event{
	{"calm", false, func(s *soak) error { return s.pass(s.draw(500)) }},
	storm,
	storm, // twice as often as the others
	{"kill", true, (*soak).kill},
	{"suspend", true, func(s *soak) error { return s.suspend(s.coma()) }},
	{"nap", false, func(s *soak) error { return s.suspend(s.nap()) }},
	{"link down", true, func(s *soak) error { return s.flap(s.coma()) }},
	{"link blinks", false, func(s *soak) error { return s.flap(s.nap()) }},
	{"detach", true, (*soak).detach},
	quiet,
}...)

// happen lets a random event take place.
func (s *soak) happen() error { return s.undergo(events[s.rng.IntN(len(events))]) }

// undergo lets an event take place and looks at what it left.
func (s *soak) undergo(e event) error {
	s.note(e.name)
	s.away = 0
	before, start := s.known, time.Now()
	if err := e.run(s); err != nil {
		return err
	}
	if err := s.settle(e.name); err != nil {
		return err
	}
	s.report.Events[e.name]++
	if e.breaks {
		return nil
	}
	s.blame(e.name, before, s.starved(e.name, start))
	return nil
}

// blame looks for reliable flows that broke since before, in an event that ends no connection: a broken
// promise, unless somebody was starved, who was silent then.
func (s *soak) blame(event string, before [2]*Report, starved bool) {
	for side, r := range s.known {
		// The first flows of each side are the unreliable ones, which a lost frame of the close may end.
		for i := s.cfg.Flows; i < len(r.Flows); i++ {
			fresh := r.Flows[i].Breaks[len(before[side].Flows[i].Breaks):]
			switch {
			case len(fresh) == 0:
			case starved:
				s.report.Excused += len(fresh)
			default:
				last := fresh[len(fresh)-1]
				s.violated("%s: side %d: flow %s broke: %s", event, side, last.Flow, last.Cause)
			}
		}
	}
}

// starved says whether anybody was kept waiting for a CPU for a quarter of the silence, within one second since
// a moment: who gets none is silent, too.
func (s *soak) starved(event string, since time.Time) bool {
	most := s.cfg.Silence / 4
	late := lag.Worst(s.bed.Spells(), since)
	switch {
	case event == "nap":
		most += s.nap() // who naps is late by that itself
	case strings.HasSuffix(event, " blinks") && s.away > 0:
		// What is away counts as lost after the grace, and who is late may see it so.
		most, late = s.grace()/2, max(late, s.away)
	}
	for _, r := range s.known {
		late = max(late, lag.Worst(r.Spells, since))
	}
	return late > most
}

// draw is a random time up to some milliseconds.
func (s *soak) draw(ms int) time.Duration { return time.Duration(s.rng.IntN(ms)+1) * time.Millisecond }

// below is a random time below d.
func (s *soak) below(d time.Duration) time.Duration { return time.Duration(s.rng.Int64N(int64(d))) }

// pass lets time go by, unless the soak is called off.
func (s *soak) pass(d time.Duration) error {
	select {
	case <-time.After(d):
	case <-s.ctx.Done():
	}
	return nil
}

// storm is a random mixture of faults for some seconds.
func (s *soak) storm() error {
	f := testbed.Faults{Seed: s.rng.Uint64()}
	share := func(most float64) float64 {
		if s.rng.IntN(2) == 0 {
			return 0
		}
		return most * s.rng.Float64()
	}
	f.Loss, f.Burst, f.Duplicate = share(0.1), share(0.003), share(0.1)
	f.Corrupt, f.Reorder = share(0.05), share(0.1)
	if s.rng.IntN(3) == 0 {
		f.Delay, f.Jitter = s.draw(5), s.draw(3)
	}
	if s.rng.IntN(4) == 0 {
		// Room for the unreliable flows, which do not slow down, and for others.
		f.Rate, f.Queue = 200_000_000+s.rng.Int64N(500_000_000), 50+s.rng.IntN(500)
	}
	s.bed.Site.Middle.SetBoth(f)
	return s.pass(500*time.Millisecond + s.draw(2500))
}

// kill ends one party in the middle of its work, and starts another in its
// place.
func (s *soak) kill() error {
	side := s.rng.IntN(2)
	r, err := s.bed.Parties[side].Report()
	if err != nil {
		return err
	}
	s.add(side, r)
	if err := s.pass(s.draw(200)); err != nil {
		return err
	}
	if err := s.bed.Kill(side); err != nil {
		return err
	}
	if err := s.pass(s.below(2 * s.cfg.Silence)); err != nil {
		return err
	}
	if err := s.bed.StartParty(side); err != nil {
		return err
	}
	s.base[side] = nil
	return s.reopen(side)
}

// reopen opens a side's interface and starts its flows.
func (s *soak) reopen(side int) error {
	s.cut = true
	if err := s.bed.OpenSide(side, NICConfig{Silence: s.cfg.Silence, Sealed: s.cfg.Hostile && !s.cfg.Plain}); err != nil {
		return err
	}
	return s.startFlows(side)
}

// suspend stops one party for a time.
func (s *soak) suspend(d time.Duration) error {
	p := s.bed.Parties[s.rng.IntN(2)]
	if err := p.Signal(unix.SIGSTOP); err != nil {
		return err
	}
	return errors.Join(s.pass(d), p.Signal(unix.SIGCONT))
}

// flap takes one side's interface down for a time.
func (s *soak) flap(d time.Duration) error {
	side := s.rng.IntN(2)
	s.cut = true
	if err := s.bed.Link(side, netlink.LinkSetDown); err != nil {
		return err
	}
	return errors.Join(s.pass(d), s.bed.Link(side, netlink.LinkSetUp))
}

// detach takes the program off one side's interface. Its owner, who hears
// nothing any more, opens the interface anew.
func (s *soak) detach() error {
	side := s.rng.IntN(2)
	p := s.bed.Parties[side]
	if err := s.bed.Detach(side); err != nil {
		return err
	}
	// Flows end in order only with a peer that hears them.
	if err := s.pass(2 * s.cfg.Silence); err != nil {
		return err
	}
	r, err := p.CloseNIC()
	if err != nil {
		return err
	}
	s.add(side, r)
	return s.reopen(side)
}
