package torture

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/fail"
	"viaxdp/internal/lab/schedlat"
	"viaxdp/internal/lab/testbed"
)

// event is something that happens to a bed in a soak. Afterwards all flows must communicate again. breaks means that
// reliable connections may have ended meanwhile.
type event struct {
	name   string
	breaks bool
	run    func(s *soak)
}

var (
	storm = event{"storm", false, (*soak).storm}
	quiet = event{"quiet", true, (*soak).quiet} // all connections end, in order
)

var events = append(moves, []event{
	{"calm", false, func(s *soak) { s.pass(s.draw(500)) }},
	storm,
	storm, // twice as often as the others
	{"kill", true, (*soak).kill},
	{"suspend", true, func(s *soak) { s.suspend(s.long()) }},
	{"nap", false, func(s *soak) { s.suspend(s.short()) }},
	{"link down", true, (*soak).linkDown},
	{"link blinks", false, (*soak).linkBlinks},
	{"detach", true, (*soak).detach},
	{"XDP mode changes", true, (*soak).changeMode},
	quiet,
}...)

// moves are events in which an interface loses what the frames of its connections need: its address, its hardware
// address, or an MTU that lets them through. If it is back within the grace, no connection ends. Otherwise every
// connection ends, on both sides, and new ones follow.
var moves = []event{
	{"address moves", true, (*soak).moveAddress},
	{"address blinks", false, func(s *soak) { s.blink(s.address) }},
	{"hardware address moves", true, (*soak).moveHardware},
	{"hardware address blinks", false, func(s *soak) { s.blink(s.hardware) }},
	{"MTU shrinks", true, (*soak).shrink},
	{"MTU blinks", false, func(s *soak) { s.blink(s.frameLength) }},
}

// short is a time in which no peer is taken for dead.
func (s *soak) short() time.Duration { return s.cfg.Silence / 4 }

// long is a time between one silence and two.
func (s *soak) long() time.Duration { return s.cfg.Silence + s.below(s.cfg.Silence) }

// grace is how long what frames need may be away: vipl's rule.
func (s *soak) grace() time.Duration { return min(500*time.Millisecond, s.cfg.Silence/4) }

// draw is a random time up to some milliseconds.
func (s *soak) draw(ms int) time.Duration { return time.Duration(s.rng.IntN(ms)+1) * time.Millisecond }

// below is a random time below d.
func (s *soak) below(d time.Duration) time.Duration { return time.Duration(s.rng.Int64N(int64(d))) }

// pass waits, unless the soak is cancelled.
func (s *soak) pass(d time.Duration) {
	select {
	case <-time.After(d):
	case <-s.ctx.Done():
	}
}

// happen runs a random event.
func (s *soak) happen() { s.undergo(events[s.rng.IntN(len(events))]) }

// undergo runs an event and checks the result.
func (s *soak) undergo(e event) {
	s.note(e.name)
	s.away = 0
	before, start := s.known, time.Now()
	e.run(s)
	s.awaitTalk(e.name)
	s.report.Events[e.name]++
	if !e.breaks {
		s.blame(e.name, before, s.starved(e.name, start))
	}
}

// blame finds reliable flows that broke since before, in an event that ends no connection. That is a broken promise,
// unless a process was starved and therefore silent.
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

// starved reports whether, since a moment, a process was kept waiting for a CPU for a quarter of the silence within
// one second.
func (s *soak) starved(event string, since time.Time) bool {
	most := s.cfg.Silence / 4
	late := schedlat.Worst(s.bed.lag.Spells(), since)
	switch {
	case event == "nap":
		most += s.short() // the nap itself counts as lateness
	case strings.HasSuffix(event, " blinks") && s.away > 0:
		// What is away counts as lost after the grace, and a late process may see it so.
		most, late = s.grace()/2, max(late, s.away)
	}
	for _, r := range s.known {
		late = max(late, schedlat.Worst(r.Spells, since))
	}
	return late > most
}

// storm is a random mixture of faults for some seconds.
func (s *soak) storm() {
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
	s.bed.setFaults(f)
	s.pass(500*time.Millisecond + s.draw(2500))
}

// kill ends one worker in the middle of its work, and starts another in its
// place.
func (s *soak) kill() { s.restart(s.rng.IntN(2)) }

// restart is kill for a side.
func (s *soak) restart(side int) {
	s.addLast(side)
	s.pass(s.draw(200))
	fail.If(s.bed.Kill(side))
	s.pass(s.below(2 * s.cfg.Silence))
	s.revive(side)
}

// addLast adds the report of a worker that is about to be killed.
func (s *soak) addLast(side int) {
	s.add(side, fail.Must(s.bed.Workers[side].Report()))
}

// revive starts a worker in the place of one that was killed.
func (s *soak) revive(side int) {
	fail.If(s.bed.StartWorker(side))
	s.base[side] = nil
	s.reopen(side)
}

// suspend stops one worker for a time.
func (s *soak) suspend(d time.Duration) {
	p := s.bed.Workers[s.rng.IntN(2)]
	fail.If(p.Signal(unix.SIGSTOP))
	s.pass(d)
	fail.If(p.Signal(unix.SIGCONT))
}

// linkDown takes one side's interface down until every connection has ended by silence.
func (s *soak) linkDown() {
	side := s.rng.IntN(2)
	s.allEnd("link down", s.bothTold(), s.link(side, netlink.LinkSetDown))
	s.link(side, netlink.LinkSetUp)()
}

// linkBlinks takes one side's interface down for a short time.
func (s *soak) linkBlinks() {
	side := s.rng.IntN(2)
	s.cut = true
	s.link(side, netlink.LinkSetDown)()
	s.pass(s.short())
	s.link(side, netlink.LinkSetUp)()
}

// detach takes the program off one side's interface. Its worker, which receives nothing any more, closes the
// interface and opens it again.
func (s *soak) detach() {
	side := s.rng.IntN(2)
	fail.If(s.bed.Detach(side))
	// Flows end in order only with a peer that receives their frames.
	s.pass(2 * s.cfg.Silence)
	s.add(side, fail.Must(s.bed.Workers[side].CloseNIC()))
	s.reopen(side)
}

// changeMode is kill; the worker that takes the place opens the interface with the XDP program in the driver, or no
// longer there. The same address then belongs to other rings, which take packets of several frames or do not.
func (s *soak) changeMode() {
	side := s.rng.IntN(2)
	s.native[side] = !s.native[side]
	s.restart(side)
}

// link is a change of a side's interface.
func (s *soak) link(side int, change func(netlink.Link) error) func() {
	return func() { fail.If(s.bed.Link(side, change)) }
}

// readdress puts an address in the place of the one that an interface has of its family; those of
// the link stay.
func readdress(l netlink.Link, to netip.Prefix) (err error) {
	defer fail.Catch(&err)
	family := netlink.FAMILY_V4
	if to.Addr().Is6() {
		family = netlink.FAMILY_V6
	}
	addrs := fail.Must(netlink.AddrList(l, family))
	fresh := fail.Must(netlink.ParseAddr(to.String()))
	if family == netlink.FAMILY_V6 {
		fresh.Flags = unix.IFA_F_NODAD
	}
	removed := 0
	for i := range addrs {
		if addrs[i].IP.IsGlobalUnicast() {
			err = errors.Join(err, netlink.AddrDel(l, &addrs[i]))
			removed++
		}
	}
	if removed != 1 {
		err = errors.Join(err, fmt.Errorf("%d addresses were there", removed))
	}
	return errors.Join(err, netlink.AddrAdd(l, fresh))
}

// address gives what sets a side's address, over which the workers connect, and what sets one of the same network that
// no host has.
func (s *soak) address(side int) (home, away func()) {
	set := func(to netip.Prefix) func() {
		return s.link(side, func(l netlink.Link) error { return readdress(l, to) })
	}
	now := s.bed.Site.Ends[side].IPv4
	if s.bed.cfg.IPv6 {
		now = s.bed.Site.Ends[side].IPv6
	}
	b := now.Addr().AsSlice()
	b[len(b)-1] = 0x77
	other, _ := netip.AddrFromSlice(b)
	return set(now), set(netip.PrefixFrom(other, now.Bits()))
}

// hardware gives what sets a side's hardware address as it is now, and what sets another one.
func (s *soak) hardware(side int) (home, away func()) {
	set := func(to net.HardwareAddr) func() {
		return s.link(side, func(l netlink.Link) error { return netlink.LinkSetHardwareAddr(l, to) })
	}
	var now net.HardwareAddr
	s.link(side, func(l netlink.Link) error { now = l.Attrs().HardwareAddr; return nil })()
	return set(now), set(net.HardwareAddr{2, 0x77, 0, 0, 0, 0x77})
}

// setMTU changes the MTU of one side.
func (s *soak) setMTU(side, mtu int) func() {
	return s.link(side, func(l netlink.Link) error { return netlink.LinkSetMTU(l, mtu) })
}

// setMTUs changes the MTU of both sides and between them.
func (s *soak) setMTUs(mtu int) {
	fail.If(s.bed.Site.Middle.SetMTU(mtu))
	onBoth(func(side int) { s.setMTU(side, mtu)() })
}

// lessMTU is one for which the frames of connections are too long.
func (s *soak) lessMTU() int { return max(1400, s.mtu()/3) }

// frameLength gives what sets a side's MTU, and what sets one that is too small.
func (s *soak) frameLength(side int) (home, away func()) {
	return s.setMTU(side, s.mtu()), s.setMTU(side, s.lessMTU())
}

// moveAddress gives a side another address for some time. Side 0 is asked for connections at its old
// address: there are none until it is back.
func (s *soak) moveAddress() {
	side := s.rng.IntN(2)
	home, away := s.address(side)
	s.moved("address moves", side, away)
	if side == 0 {
		home()
		return
	}
	s.awaitTalk("address moves")
	s.moved("address moves back", side, home)
}

// moveHardware gives side 1 another hardware address for some time. It asks for connections, so that
// the other one's kernel learns where it is.
func (s *soak) moveHardware() {
	const side = 1
	home, away := s.hardware(side)
	s.moved("hardware address moves", side, away)
	s.awaitTalk("hardware address moves")
	s.moved("hardware address moves back", side, home)
}

// moved changes what the connections of a side need. It checks that all connections end on both sides within their
// limits: the side that has changed ends them by itself, and the other one is notified.
func (s *soak) moved(name string, side int, change func()) {
	start := time.Now()
	within := s.bothTold()
	within[side] = toldAtMost
	before, after := s.allEnd(name, within, change)
	lost := func(side int) uint64 { return after[side].Engine.SourcesLost - before[side].Engine.SourcesLost }
	if n := lost(1 - side); n != 0 {
		s.violated("%s: side %d has not moved, and ended %d connections as if it had", name, 1-side, n)
	}
	if n := lost(side); n < uint64(2*s.cfg.Flows) && !s.starved(name, start) {
		s.violated("%s: side %d ended %d connections for it, and had %d reliable ones", name, side, n, 2*s.cfg.Flows)
	}
}

// bothTold is how soon each side learns that connections have ended.
func (s *soak) bothTold() [2]time.Duration { return [2]time.Duration{s.toldWithin(), s.toldWithin()} }

// allEnd makes a change that ends all connections, and waits until each side knows of each, for no longer than it
// has to take.
func (s *soak) allEnd(name string, within [2]time.Duration, change func()) (before, after [2]*Report) {
	s.cut = true // what the interface does not let through is not counted as our frames
	before = fail.Must(s.bed.Reports())
	mark := s.bed.lag.Mark()
	change()
	took := time.Since(mark.At) // as long as the kernel is busy
	late := func(side int) time.Duration { return took + after[side].Late - before[side].Late }
	for known, over := false, false; !known && !over; time.Sleep(5 * time.Millisecond) {
		after = fail.Must(s.bed.Reports())
		known, over = true, true
		for side, r := range after {
			_, all := ended(before[side], r, mark.At)
			known = known && all
			over = over && mark.Over(2*within[side]+late(side))
		}
	}
	for side, r := range after {
		told, _ := ended(before[side], r, mark.At)
		if told > mark.Allow(within[side])+late(side) {
			s.violated("%s: side %d: after %v %d of %d connections had ended", name, side, told, len(r.Breaks)-len(before[side].Breaks), before[side].Open)
		}
	}
	return before, after
}

// ended reports whether a worker knows that all its earlier connections have ended, and how long after since it
// learned of the last.
func ended(before, now *Report, since time.Time) (told time.Duration, all bool) {
	if len(now.Breaks) < len(before.Breaks)+before.Open {
		return time.Since(since), false
	}
	for _, b := range now.Breaks { // in the order of the flows
		told = max(told, b.At.Sub(since))
	}
	return told, true
}

// shrink lowers the MTU for some time: connections end, new ones use the smaller MTU, and they do not end when it
// grows.
func (s *soak) shrink() {
	const name = "MTU shrinks"
	start := time.Now()
	before, after := s.allEnd(name, s.bothTold(), func() { s.setMTUs(s.lessMTU()) })
	ended := uint64(0) // by one side or the other, which is notified
	for side := range after {
		ended += after[side].Engine.PathsLost - before[side].Engine.PathsLost
	}
	if ended < uint64(2*s.cfg.Flows) && !s.starved(name, start) {
		s.violated("%s: %d connections ended for it, and there were %d reliable ones", name, ended, 2*s.cfg.Flows)
	}
	s.awaitTalk(name)
	small, start := s.known, time.Now()
	s.setMTUs(s.mtu())
	s.awaitTalk("MTU grows")
	s.blame("MTU grows", small, s.starved("MTU grows", start))
	s.moveHardware() // it ends them: those of short frames would outlive the next time that the MTU shrinks
}

// blink takes something away that a side's connections need, and gives it back at once. It then checks the interface
// for as long as the workers may take to notice the loss. The workers may also wait for the kernel's lock, so a short
// loss may seem longer to them.
func (s *soak) blink(what func(side int) (home, away func())) {
	side := s.rng.IntN(2)
	home, away := what(side)
	s.cut = true
	gone := time.Now()
	away()
	home()
	s.away = time.Since(gone)
	for end := time.Now().Add(2 * s.grace()); time.Now().Before(end) && s.ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
		asked := time.Now()
		s.link(side, func(netlink.Link) error { return nil })()
		s.away = max(s.away, time.Since(asked))
	}
}
