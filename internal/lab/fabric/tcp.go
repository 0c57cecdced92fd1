package fabric

import (
	"math"
	"slices"
)

const (
	mss        = 1448 // with timestamps
	tcpHeaders = 66
	tcpMinRTO  = 200 * Millisecond
	tcpInitial = 10 // packets

	// A paced flow sends at once what it may send in a millisecond, as one packet of segmentation offload.
	tsoTime  = Millisecond
	tsoLeast = 2
	tsoMost  = 45
)

// segment is a packet of a TCP flow, or the acknowledgement of one.
type segment struct {
	seq  int64 // packet number; ack: of the packet that it acknowledges
	cum  int64 // ack: all before it arrived
	at   int64 // when the packet was sent
	echo bool  // ack: the packet was marked
}

// TCP is a flow from one host to another.
type TCP struct {
	Received int64 // bytes in order at the receiver
	Resent   uint64
	Timeouts uint64
	control  tcpControl
	marks    bool // packets may be marked
	sim      *Sim
	from, to *Host
	flow     uint32
	end      int64 // packets to send; endless: math.MaxInt64
	ended    func(now int64)

	// The sender.
	una, nxt   int64
	high       int64 // one past the highest packet that arrived
	sent       map[int64]*tcpPacket
	inFlight   int
	lost       []int64 // to be sent again, ascending
	rackSent   int64
	recovery   int64 // a loss below this number belongs to a round that was answered
	cwnd       float64
	srtt, rvar float64
	least      int64
	rto        int64 // when the timer expires; 0: off
	backoff    int64
	probing    bool  // the timer is that of a tail loss probe
	probed     bool  // one was sent since a packet arrived
	armed      int64 // time of the event that looks at rto; 0: none

	// What BBR needs.
	delivered   int64 // packets that have arrived
	deliveredAt int64 // when the last of them did
	sample      delivery
	due         int64 // when the next packet may leave
	burst       int   // packets that may leave at once
	waits       bool  // for due

	// The receiver.
	cum int64
	got map[int64]bool
}

type tcpPacket struct {
	at            int64
	sacked, again bool
	isLost        bool

	delivered, deliveredAt int64 // of the flow when it was sent
}

// delivery is what an acknowledgement shows: of the newest packet that has arrived.
type delivery struct {
	after int64   // how many had arrived when it was sent; -1: nothing new has arrived
	rate  float64 // packets/s that have arrived since then
	trip  int64   // its round trip
}

// NewTCP makes a flow that sends nothing before Start or Transfer.
func (s *Sim) NewTCP(a TCPAlgorithm, from, to *Host) *TCP {
	s.flows++
	f := &TCP{
		control: a.control(), marks: a == DCTCP, sim: s, from: from, to: to, flow: s.flows,
		sent: make(map[int64]*tcpPacket), got: make(map[int64]bool), cwnd: tcpInitial,
	}
	to.tcp[f.flow] = f.receive
	from.tcp[f.flow] = f.acknowledged
	return f
}

// Start sends without end from now on.
func (f *TCP) Start() {
	f.end = math.MaxInt64
	f.send()
}

// Transfer sends n bytes and calls done when they have been received.
func (f *TCP) Transfer(n int64, done func(now int64)) {
	f.end += (n + mss - 1) / mss
	f.ended = done
	f.send()
}

func (f *TCP) receive(p *packet) {
	g := p.seg
	if g.seq >= f.cum {
		f.got[g.seq] = true
	}
	for f.got[f.cum] {
		delete(f.got, f.cum)
		f.cum++
		f.Received += mss
	}
	ack := &segment{seq: g.seq, cum: f.cum, at: g.at, echo: p.ce}
	f.to.uplink.send(&packet{to: f.from, flow: f.flow, size: tcpHeaders, seg: ack})
	if f.cum == f.end && f.ended != nil {
		done := f.ended
		f.ended = nil
		done(f.sim.Now())
	}
}

func (f *TCP) send() {
	for float64(f.inFlight) < math.Floor(f.cwnd) && f.mayGo() {
		if len(f.lost) > 0 {
			seq := f.lost[0]
			f.lost = f.lost[1:]
			if p := f.sent[seq]; p != nil && p.isLost {
				p.isLost, p.again = false, true
				f.Resent++
				f.emit(seq, p)
			}
			continue
		}
		if f.nxt >= f.end {
			break
		}
		p := &tcpPacket{}
		f.sent[f.nxt] = p
		f.emit(f.nxt, p)
		f.nxt++
	}
	f.arm()
}

// mayGo reports whether a packet is due at the control's rate. If not, the flow sends when it is.
func (f *TCP) mayGo() bool {
	if f.due <= f.sim.now {
		return true
	}
	if !f.waits {
		f.waits = true
		f.sim.at(f.due, func() {
			f.waits = false
			f.send()
		})
	}
	return false
}

// tsoBurst is how many packets leave at once at a rate.
func tsoBurst(rate float64) int { return min(max(int(rate*tsoTime/Second), tsoLeast), tsoMost) }

func (f *TCP) emit(seq int64, p *tcpPacket) {
	p.at = f.sim.now
	if f.inFlight == 0 {
		f.deliveredAt = p.at
	}
	p.delivered, p.deliveredAt = f.delivered, f.deliveredAt
	if rate := f.control.rate(); rate > 0 {
		if f.burst--; f.burst <= 0 {
			f.burst = tsoBurst(rate)
			f.due = max(f.due, p.at) + int64(float64(f.burst)*Second/rate)
		}
	}
	f.inFlight++
	g := &segment{seq: seq, at: p.at}
	f.from.uplink.send(&packet{to: f.to, flow: f.flow, size: tcpHeaders + mss, ect: f.marks, seg: g})
}

func (f *TCP) acknowledged(p *packet) {
	g, now := p.seg, f.sim.now
	arrived, since := 0, int64(0)
	f.sample = delivery{after: -1}
	mark := func(seq int64) {
		if t := f.sent[seq]; t != nil && !t.sacked {
			t.sacked = true
			arrived++
			f.delivered++
			f.deliveredAt = now
			if t.delivered >= f.sample.after {
				f.sample, since = delivery{after: t.delivered, trip: now - t.at}, t.deliveredAt
			}
			if !t.isLost {
				f.inFlight--
			}
			t.isLost = false
			f.rackSent = max(f.rackSent, t.at)
		}
	}
	mark(g.seq)
	f.high = max(f.high, g.seq+1)
	for ; f.una < g.cum; f.una++ {
		mark(f.una)
		delete(f.sent, f.una)
	}
	if spent := now - since; arrived > 0 && spent >= f.least {
		f.sample.rate = float64(f.delivered-f.sample.after) * Second / float64(spent)
	}
	rtt := float64(now - g.at)
	if f.srtt == 0 {
		f.srtt, f.rvar = rtt, rtt/2
	} else {
		f.rvar += (math.Abs(f.srtt-rtt) - f.rvar) / 4
		f.srtt += (rtt - f.srtt) / 8
	}
	if f.least == 0 || now-g.at < f.least {
		f.least = now - g.at
	}
	f.backoff, f.rto, f.probed = 0, 0, false
	f.findLosses()
	f.control.acked(f, arrived, g.echo)
	f.send()
}

// findLosses is RACK with a reordering window of a quarter of the least round trip.
func (f *TCP) findLosses() {
	for seq := f.una; seq < f.high; seq++ {
		if p := f.sent[seq]; p != nil && !p.sacked && !p.isLost && p.at+f.least/4 < f.rackSent {
			p.isLost = true
			f.inFlight--
			i, _ := slices.BinarySearch(f.lost, seq)
			f.lost = slices.Insert(f.lost, i, seq)
			if seq >= f.recovery {
				f.recovery = f.nxt
				f.control.lost(f)
			}
		}
	}
}

// arm starts the retransmission timer.
func (f *TCP) arm() {
	if f.una == f.nxt {
		f.rto = 0
		return
	}
	if f.rto == 0 {
		f.rto = f.sim.now + max(tcpMinRTO, int64(f.srtt+4*f.rvar))<<f.backoff
		if f.probing = !f.probed && f.inFlight > 0 && f.srtt > 0; f.probing {
			f.rto = min(f.rto, f.sim.now+int64(2*f.srtt))
		}
	}
	if f.armed != 0 && f.armed <= f.rto {
		return
	}
	armed := f.rto
	f.armed = armed
	f.sim.at(armed, func() {
		switch {
		case f.armed != armed: // an earlier time was set
			return
		case f.rto == 0 || f.sim.now < f.rto:
			f.armed = 0
			f.arm()
			return
		}
		f.armed, f.rto = 0, 0
		if f.probing {
			f.probe()
			return
		}
		f.timeout()
	})
}

// timeout takes everything that is in flight for lost.
func (f *TCP) timeout() {
	f.Timeouts++
	f.backoff = min(f.backoff+1, 6)
	f.control.lost(f)
	f.cwnd = 1
	f.recovery = f.nxt
	f.lost = f.lost[:0]
	for seq := f.una; seq < f.nxt; seq++ {
		if p := f.sent[seq]; p != nil && !p.sacked {
			if !p.isLost {
				f.inFlight--
			}
			p.isLost = true
			f.lost = append(f.lost, seq)
		}
	}
	f.send()
}

// probe sends the last packet again, so that its acknowledgement shows what was lost (RFC 8985).
func (f *TCP) probe() {
	f.probed = true
	for seq := f.nxt - 1; seq >= f.una; seq-- {
		if p := f.sent[seq]; p != nil && !p.sacked && !p.isLost {
			p.again = true
			f.inFlight--
			f.emit(seq, p)
			break
		}
	}
	f.arm()
}
