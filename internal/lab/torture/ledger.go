package torture

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"

	"viaxdp/internal/base/wire"
	"viaxdp/internal/lab/fail"
	"viaxdp/internal/lab/testbed"
)

// frameCounts are what became of the frames of VIs that one side has sent, counted at each station:
//
//	socket --> emulator --> program --> socket --> engine
//	  sent       emulated     seen       got
type frameCounts struct {
	sent      uint64 // frames that the sender's kernel has taken, and did not name as lost
	cancelled uint64 // of them, those that were cancelled: see xdpnic.Queue.Cancel
	out       uint64 // those that the link to the emulator had no room for, other frames among them
	emulated  testbed.EmulatorCounters
	all       testbed.EmulatorCounters // with other frames
	in        uint64                   // those that the link from there had no room for, other frames among them

	seen       uint64 // by the program, whatever it did with them
	redirected uint64 // of them, those for the socket
	named      uint64 // by the receiver's socket: received, or dropped by name
	received   uint64
	engine     uint64 // by the engine, of received, and those that the meter lost on purpose
}

func (a frameCounts) since(b frameCounts) frameCounts {
	for _, p := range [][2]*uint64{
		{&a.sent, &b.sent}, {&a.cancelled, &b.cancelled}, {&a.out, &b.out}, {&a.in, &b.in}, {&a.seen, &b.seen}, {&a.redirected, &b.redirected},
		{&a.named, &b.named}, {&a.received, &b.received}, {&a.engine, &b.engine},
	} {
		*p[0] -= *p[1]
	}
	a.emulated, a.all = a.emulated.Since(b.emulated), a.all.Since(b.all)
	return a
}

// underWay finds frames that were lost without a count, or came from nowhere, between the two sockets. A damaged
// frame may count as any other.
func (a frameCounts) underWay() error {
	n, taken, room := a.emulated, a.emulated.Taken+a.cancelled, a.all.Overrun+a.out
	if taken > a.sent || taken+room < a.sent {
		return fmt.Errorf("%d frames were sent, %d came to the emulator; there was no room for %d", a.sent, taken, room)
	}
	if n.Taken+n.Duplicated != n.Passed+n.Lost+n.LostInBurst+n.Limited+n.Refused {
		return fmt.Errorf("the emulator has lost count of frames: %+v", n)
	}
	if a.seen+n.Corrupted+a.in < n.Passed || a.seen > n.Passed+a.all.Corrupted-n.Corrupted {
		return fmt.Errorf("%d frames passed, %d came to the program; %d were damaged, and there was no room for %d", n.Passed, a.seen, a.all.Corrupted, a.in)
	}
	return nil
}

// underWayDirect is underWay for a direct bed.
func (a frameCounts) underWayDirect() error {
	if a.seen > a.sent || a.seen+a.out < a.sent {
		return fmt.Errorf("%d frames were sent, %d came to the program; there was no room for %d", a.sent, a.seen, a.out)
	}
	return nil
}

// atReceiver finds frames that were lost without a count between the program and the engine.
func (a frameCounts) atReceiver() error {
	if a.redirected != a.named {
		return fmt.Errorf("%d frames were redirected, %d arrived or were dropped by name", a.redirected, a.named)
	}
	if a.received != a.engine {
		return fmt.Errorf("the queue has given %d frames, the engine has seen %d", a.received, a.engine)
	}
	return nil
}

// ledger counts what no other part of a bed counts.
type ledger struct {
	bed       *Bed
	cancelled [2]atomic.Uint64
}

// watch makes the forwarder count frames of VIs separately.
func watch(b *Bed) *ledger {
	l := &ledger{bed: b}
	if b.cfg.Direct {
		return l
	}
	b.Site.Middle.Watch(func(side int, frame []byte) bool {
		if len(frame) >= udpIPv4 && [14]byte(frame) == [14]byte{} {
			l.cancelled[side].Add(1)
		}
		return ofVI(frame)
	})
	return l
}

// ofVI reports whether a frame is one of a VI, plain or sealed.
func ofVI(frame []byte) bool {
	_, udp := dissect(frame)
	return udp != nil && udp[udpHead+1]&wire.KindConnect == 0
}

// underWay is the part of a side's counts that is taken between the two sockets.
func (l *ledger) underWay(side int) (a frameCounts) {
	if m := l.bed.Site.Middle; m != nil {
		a.cancelled, a.emulated, a.all = l.cancelled[side].Load(), m.Watched(side), m.Counters(side)
		a.in = fail.Must(m.Dropped(1 - side))
	}
	fail.If(l.bed.Link(side, func(link netlink.Link) error {
		a.out = link.Attrs().Statistics.TxDropped
		return nil
	}))
	return a
}

// counts are those of both sides, as of a count.
func (l *ledger) counts(r [2]*Report) (a [2]frameCounts) {
	for side := range a {
		a[side] = l.underWay(side)
		q := &r[side].Queue
		a[side].sent = q.TxFrames - q.TxLostBusy - q.KernelStats.Tx_invalid_descs
		if l.bed.cfg.Direct {
			a[side].sent += r[side].Engine.GSOSent
		} else { // the sender's kernel divides GSO packets, before its interface
			a[side].sent += r[side].Engine.GSOSentFrames
		}
		a[side].receive(r[1-side])
	}
	return a
}

// receive is the part of the counts that the receiver has reported.
func (a *frameCounts) receive(r *Report) {
	a.redirected = r.Program.Redirected
	r.Program.Each(func(_ string, n uint64) { a.seen += n })
	a.seen -= r.Program.Control
	q := &r.Queue
	a.received, a.engine = q.RxFrames, r.Engine.Frames+r.Discarded
	a.named = q.RxFrames + q.RxTooManySegs + q.RxBadEntries + q.KernelStats.Rx_dropped + q.KernelStats.Rx_ring_full
}

// begin begins the accounts of interfaces that are about to be opened.
func (s *soak) begin() {
	for side := range s.audited {
		s.audited[side] = s.ledger.underWay(side)
	}
	s.cut = false
}

// audit looks for chunks and frames that are not accounted for. No flow runs.
func (s *soak) audit() {
	for end := time.Now().Add(talkWithin); ; time.Sleep(5 * time.Millisecond) {
		r := fail.Must(s.bed.both(doCount))
		for side := range r {
			s.complain(side, r[side])
		}
		a := s.ledger.counts(r)
		switch err := s.unaccounted(a); {
		case len(s.report.Violations) > 0:
			return
		case err != nil && time.Now().Before(end):
			continue // the last frames are still under way
		case err != nil:
			s.violated("%v", err)
			return
		}
		for side := range a {
			if s.continuous() {
				s.report.Accounted += a[side].sent - s.audited[side].sent
			}
		}
		s.report.Audits++
		s.audited, s.cut = a, false
		return
	}
}

// continuous reports whether the counts go on from the last audit. A worker that was killed, cut off or opened again
// has lost frames or counters, and the program may have counted forged frames as any others.
func (s *soak) continuous() bool { return !s.cut && !s.cfg.Hostile }

// unaccounted returns what the counts lack. Under a flood nothing is at rest.
func (s *soak) unaccounted(a [2]frameCounts) (err error) {
	if s.hostile != nil {
		return nil
	}
	for side := range a {
		if e := a[side].atReceiver(); e != nil {
			err = errors.Join(err, fmt.Errorf("side %d: %w", 1-side, e))
		}
		if !s.continuous() {
			continue
		}
		check := frameCounts.underWay
		if s.cfg.Direct {
			check = frameCounts.underWayDirect
		}
		if e := check(a[side].since(s.audited[side])); e != nil {
			err = errors.Join(err, fmt.Errorf("from side %d: %w", side, e))
		}
	}
	return err
}

// quiet ends all flows in order, checks what is left, and starts them again.
func (s *soak) quiet() {
	s.rest()
	onBoth(s.startFlows)
}

// rest ends all flows, and checks what is left.
func (s *soak) rest() {
	s.record(fail.Must(s.bed.both(doStop)))
	s.record(fail.Must(s.bed.both(doFree)))
	s.audit()
}
