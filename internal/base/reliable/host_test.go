package reliable

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

const ackEvery = 16

// host is one end of a connection and does what an engine does: it sends while
// there is room, places what arrives, acknowledges every ackEvery frames, at
// once when that is urgent, and after ackDelay else, and serves the timer.
type host struct {
	w   *world
	s   *Sender
	r   *Receiver
	out *pipe

	total    uint64 // frames of this side's stream
	sent     uint64 // of them handed to the Sender
	released uint64 // of them acknowledged
	placed   uint64 // frames of the other side's stream that came in order
	backlog  int    // of them, those that the program did not take yet
	window   int
	units    int                  // of the window, that each frame takes
	stalled  func(now int64) bool // the program takes nothing now; nil: never

	ackDelay         int64
	ackDue, timerDue int64 // events that are under way, 0: none
	probing, waiting bool
	acks             int // sent by themselves
	err              error
}

// pair joins two hosts by two pipes with numbers that start at first.
func pair(seed uint64, first uint32, window int, there, back link) (w *world, a, b *host) {
	w = &world{now: 1}
	rnd := rand.New(rand.NewPCG(seed, 1))
	make := func(l link, mine, theirs uint32) *host {
		return &host{
			w: w, s: NewSender(mine, window), r: NewReceiver(theirs, window), window: window, units: 1,
			ackDelay: 50_000, out: &pipe{link: l, w: w, rnd: rnd},
		}
	}
	a, b = make(there, first, first+7), make(back, first+7, first)
	a.out.deliver, b.out.deliver = b.receive, a.receive
	return w, a, b
}

// transfer runs both streams to their end and returns the first thing that
// went wrong.
func transfer(w *world, a, b *host, limit int64) error {
	a.work()
	b.work()
	w.run(w.now+limit, func() bool {
		return a.err != nil || b.err != nil || a.done(b) && b.done(a)
	})
	for _, h := range []*host{a, b} {
		if h.err != nil {
			return h.err
		}
	}
	if !a.done(b) || !b.done(a) {
		return fmt.Errorf("at %d ns: placed %d of %d and %d of %d, released %d and %d; %+v",
			w.now, b.placed, a.total, a.placed, b.total, a.released, b.released, a.s)
	}
	for _, h := range []*host{a, b} {
		if h.s.Deadline() != 0 || !h.s.Idle() || h.r.Buffered() != 0 {
			return fmt.Errorf("at rest: deadline %d, idle %v, held %d", h.s.Deadline(), h.s.Idle(), h.r.Buffered())
		}
	}
	return nil
}

func (h *host) done(peer *host) bool {
	return h.released == h.total && peer.placed == h.total && peer.backlog == 0
}

func (h *host) fail(format string, args ...any) {
	if h.err == nil {
		h.err = fmt.Errorf("at %d ns: "+format, append([]any{h.w.now}, args...)...)
	}
}

// receive takes a packet off the network.
func (h *host) receive(p packet) {
	from, to, valid := h.s.Ack(h.w.now, p.ack, p.window)
	if !valid {
		h.fail("honest acknowledgement %d taken for a lie", p.ack)
	}
	for ; from != to; from++ {
		if h.s.Tag(from) != h.released {
			h.fail("released frame %d instead of %d", h.s.Tag(from), h.released)
		}
		h.released++
	}
	if !h.s.AckRanges(h.w.now, p.ack, p.ranges) {
		h.fail("honest ranges %v behind %d taken for a lie", p.ranges, p.ack)
	}
	if len(p.ranges) > 0 {
		h.s.DetectLosses(h.w.now)
	}
	if p.data {
		h.arrive(p)
	}
	if p.ask {
		h.r.AskUrgent()
	}
	h.work()
}

func (h *host) arrive(p packet) {
	switch h.r.Arrive(p.seq, p.again) {
	case InOrder:
		for id, ok := p.id, true; ok; id, ok = h.r.Pop() {
			if id != h.placed {
				h.fail("placed frame %d instead of %d", id, h.placed)
			}
			h.placed++
			h.backlog++
		}
	case OutOfOrder:
		h.r.Buffer(p.seq, p.id)
	case OutsideWindow:
		h.fail("frame %d is outside of the window at %d", p.seq, h.r.Next())
	}
}

// work is a turn of the engine: consume, retransmit, send, acknowledge.
func (h *host) work() {
	if h.stalled == nil || !h.stalled(h.w.now) {
		if h.backlog > h.window/2 {
			h.r.AskUrgent() // the window opens again
		}
		h.backlog = 0
	} else if h.backlog > 0 && !h.waiting {
		h.waiting = true
		h.w.at(h.w.now+40_000, func() {
			h.waiting = false
			h.work()
		})
	}
	h.s.Pace(h.w.now)
	for {
		seq, ok := h.s.NextLost()
		if !ok {
			break
		}
		h.resend(seq, false)
	}
	for h.sent < h.total && h.s.Fits(h.units) {
		seq := h.s.Send(h.w.now, h.sent, h.units)
		h.emit(packet{data: true, seq: seq, id: h.sent, ask: !h.s.Fits(h.units)})
		h.sent++
		if h.s.inFlight() > h.s.window() {
			h.fail("%d frames in flight, window %d", h.s.inFlight(), h.s.window())
		}
	}
	if h.sent < h.total && h.s.Idle() && !h.probing {
		h.probing = true // the peer's window is closed: ask whether it still is
		h.w.at(h.w.now+1_000_000, func() {
			h.probing = false
			if h.s.Room() == 0 {
				h.emit(packet{ask: true})
			}
			h.work()
		})
	}
	if h.r.Urgent() || h.r.Unacked() >= ackEvery {
		h.acknowledge()
	} else if h.r.Unacked() > 0 && h.ackDue == 0 {
		h.ackDue = h.w.now + h.ackDelay
		h.w.at(h.ackDue, func() {
			if h.ackDue = 0; h.r.Unacked() > 0 {
				h.acknowledge()
			}
		})
	}
	h.arm()
	if err := audit(h.s); err != nil {
		h.fail("%v", err)
	}
}

func (h *host) acknowledge() {
	var ranges [32]Range
	n := h.r.Ranges(ranges[:])
	h.emit(packet{ranges: append([]Range(nil), ranges[:n]...)})
	h.r.Acked()
	h.acks++
}

func (h *host) resend(seq uint32, ask bool) {
	h.emit(packet{data: true, seq: seq, id: h.s.Tag(seq), ask: ask, again: true})
	h.s.Resent(h.w.now, seq)
}

func (h *host) emit(p packet) {
	p.ack, p.window = h.r.Next(), h.window-h.backlog
	if p.data && h.r.Buffered() == 0 && !h.r.Urgent() {
		h.r.Acked()
	}
	h.out.send(p)
}

// arm makes an event for the Sender's deadline, unless one comes before it.
func (h *host) arm() {
	due := h.s.Deadline()
	if due == 0 || h.timerDue != 0 && h.timerDue <= due {
		return
	}
	h.timerDue = due
	h.w.at(due, func() {
		if h.timerDue != due {
			return
		}
		h.timerDue = 0
		if seq, probe := h.s.Timeout(h.w.now); probe {
			h.resend(seq, true)
		}
		h.work()
	})
}

// audit counts a Sender's frames and compares the counts with the Sender's own.
func audit(s *Sender) error {
	var sacked, lost, sent, n int
	span, units := int(s.nxt-s.una), uint32(0)
	for seq := s.una; seq != s.nxt && n <= len(s.frames); seq, n = seq+1, n+1 {
		units += uint32(s.frames[seq&s.mask].units)
		switch {
		case s.sacked.has(seq) && s.lost.has(seq):
			return fmt.Errorf("frame %d has arrived, and is lost", seq)
		case s.sacked.has(seq):
			sacked++
		case s.lost.has(seq):
			lost++
		default:
			sent++
		}
	}
	for i, r := range s.resent {
		if i > 0 && r.at < s.resent[i-1].at {
			return fmt.Errorf("retransmissions in disorder: %+v", s.resent)
		}
	}
	for seq := s.una; seq != s.nxt; seq++ {
		f := &s.frames[seq&s.mask]
		if s.sacked.has(seq) || s.lost.has(seq) || f.tries == 0 && !before(seq, s.once) {
			continue
		}
		if f.tries == 0 || !slices.Contains(s.resent, resentFrame{seq, f.sentAt}) {
			return fmt.Errorf("frame %d, %+v, is in flight: [%d, %d), once %d, %+v", seq, *f, s.una, s.nxt, s.once, s.resent)
		}
	}
	switch {
	case span > len(s.frames):
		return fmt.Errorf("%d frames remembered in %d places", span, len(s.frames))
	case sacked != s.sacked.n, lost != s.lost.n, sent != s.inFlight(), sacked+lost+sent != span:
		return fmt.Errorf("%d frames: %d sacked, %d lost, %d in flight, told %d, %d, %d",
			span, sacked, lost, sent, s.sacked.n, s.lost.n, s.inFlight())
	case s.window() < 1, s.cwnd > s.most, s.Room() < 0, s.Room() > max(s.granted-span, 0):
		return fmt.Errorf("window %d, room %d of %d", s.window(), s.Room(), s.granted)
	case s.limit-s.freed != uint32(s.granted), s.used-s.freed != units:
		return fmt.Errorf("limit %d of a window of %d, units [%d, %d), %d in [%d, %d)",
			s.limit, s.granted, s.freed, s.used, units, s.una, s.nxt)
	case (s.timer == 0) != s.Idle():
		return fmt.Errorf("timer %d, idle %v", s.timer, s.Idle())
	case s.high-s.una > s.nxt-s.una:
		return fmt.Errorf("high %d outside of [%d, %d]", s.high, s.una, s.nxt)
	}
	return nil
}
