package fabric

import (
	"math"
	"slices"
)

// bbr is BBR version 1 as in Linux (net/ipv4/tcp_bbr.c of 4.9 and later; Cardwell et al., ACM Queue 14(5), 2016). It
// models the path by the most that arrived in a time, over ten rounds, and by the least round trip, over ten seconds.
// It sends at the former, and keeps at most twice their product in flight. A loss changes the window only until the
// recovery ends.
//
// As in Linux, packets leave in bursts of the size that segmentation offload would have. The window has three of them on
// top, and an allowance for acknowledgements that come in aggregates (extra_acked). The model leaves out the detection
// of policers (lt_bw), restarts from idle, and flows limited by the application.
type bbr struct {
	state     bbrState
	cycle     int   // phase of probeBandwidth
	cycleAt   int64 // its begin
	rates     [bbrRounds]float64
	round     int64
	nextRound int64 // delivered at which the round ends
	full      float64
	flat      int // rounds without growth of the rate
	minRTT    int64
	minAt     int64
	probeEnd  int64   // of probeRTT; 0: more than its window is in flight
	probed    int64   // delivered at which a round of probeRTT is over
	prior     float64 // window before a recovery, or probeRTT
	recovers  bool
	conserves bool // first round of a recovery: one packet leaves for each that arrives

	// Packets that have arrived since epoch, and the most that were more than the rate explains: of each round.
	epoch   int64
	arrived float64
	extra   [bbrRounds]float64
}

type bbrState int

const (
	bbrStartup bbrState = iota
	bbrDrain
	bbrProbeBandwidth
	bbrProbeRTT
)

const (
	bbrRounds    = 10          // of the greatest rate
	bbrHigh      = 2.885       // gain that doubles the rate each round: 2/ln 2
	bbrWindow    = 2           // window in products of rate and round trip
	bbrGrowth    = 1.25        // growth of the rate below which a round is flat
	bbrFlat      = 3           // flat rounds after which the path is full
	bbrMargin    = 0.99        // share of the rate at which packets leave
	bbrMinRTT    = 10 * Second // for which a least round trip is valid
	bbrProbe     = 200 * Millisecond
	bbrLeast     = 4                 // packets of the least window
	bbrBursts    = 3                 // bursts that the window has on top
	bbrMostGSO   = 65535 - 320       // bytes of the longest burst
	bbrBurst     = Second >> 10      // time of a burst
	bbrMostExtra = 100 * Millisecond // time whose packets are the most of the allowance
	bbrFirstRTT  = Millisecond
)

// bbrGains are those of the phases of probeBandwidth.
var bbrGains = [8]float64{1.25, 0.75, 1, 1, 1, 1, 1, 1}

func newBBR(s *Sim) *bbr { return &bbr{cycle: s.rng.IntN(len(bbrGains) - 1)} }

// rate is the greatest of the last rounds, in packets per ns.
func (b *bbr) rate() float64 { return slices.Max(b.rates[:]) }

// product is how many packets a gain times rate and round trip are.
func (b *bbr) product(gain float64) float64 { return gain * b.rate() * float64(b.minRTT) }

func (b *bbr) gains() (pace, window float64) {
	switch b.state {
	case bbrStartup:
		return bbrHigh, bbrHigh
	case bbrDrain:
		return 1 / bbrHigh, bbrHigh
	case bbrProbeBandwidth:
		return bbrGains[b.cycle], bbrWindow
	}
	return 1, 1
}

func (b *bbr) lost(f *TCP) {
	if !b.recovers && b.state != bbrProbeRTT {
		b.prior = f.cwnd
	} else {
		b.prior = max(b.prior, f.cwnd)
	}
	b.recovers, b.conserves = true, true
	b.nextRound = f.delivered
	f.cwnd = float64(f.inFlight)
}

func (b *bbr) acked(f *TCP, a tcpAck) {
	now := f.sim.now
	begun := a.prior >= b.nextRound // a round
	if begun {
		b.round++
		b.nextRound = f.delivered
		b.conserves = false
		b.rates[b.round%bbrRounds], b.extra[b.round%bbrRounds] = 0, 0
	}
	b.rates[b.round%bbrRounds] = max(b.rates[b.round%bbrRounds], a.rate)
	b.aggregate(f, a)
	b.advance(f, a, begun)

	expired := b.minRTT > 0 && now > b.minAt+bbrMinRTT
	if b.minRTT == 0 || a.rtt <= b.minRTT || expired {
		b.minRTT, b.minAt = a.rtt, now
	}
	if expired && b.state != bbrProbeRTT {
		b.prior = max(b.prior, f.cwnd)
		b.state, b.probeEnd = bbrProbeRTT, 0
	}
	if b.state == bbrProbeRTT {
		switch {
		case b.probeEnd == 0 && f.inFlight <= bbrLeast:
			b.probeEnd, b.probed = now+bbrProbe, f.delivered
		case b.probeEnd > 0 && now > b.probeEnd && a.prior >= b.probed:
			b.minAt = now
			f.cwnd = max(f.cwnd, b.prior)
			b.state = bbrStartup
			if b.flat >= bbrFlat {
				b.probeBandwidth(f)
			}
		}
	}
	b.pace(f)
	b.window(f, a)
}

// aggregate measures by how much more arrives at once than the rate explains.
func (b *bbr) aggregate(f *TCP, a tcpAck) {
	if a.arrived == 0 {
		return
	}
	expected := b.rate() * float64(f.sim.now-b.epoch)
	if b.arrived <= expected {
		b.epoch, b.arrived, expected = f.sim.now, 0, 0
	}
	b.arrived += float64(a.arrived)
	i := b.round % bbrRounds
	b.extra[i] = max(b.extra[i], min(b.arrived-expected, f.cwnd))
}

// advance goes on to the next phase, or state.
func (b *bbr) advance(f *TCP, a tcpAck, begun bool) {
	now := f.sim.now
	if b.state == bbrProbeBandwidth {
		gain := bbrGains[b.cycle]
		over := now-b.cycleAt > b.minRTT
		switch {
		case gain > 1:
			over = over && (a.lost > 0 || float64(f.inFlight) >= b.target(gain, f))
		case gain < 1:
			over = over || float64(f.inFlight) <= b.target(1, f)
		}
		if over {
			b.cycle, b.cycleAt = (b.cycle+1)%len(bbrGains), now
		}
	}
	if begun && b.flat < bbrFlat {
		if r := b.rate(); r >= b.full*bbrGrowth {
			b.full, b.flat = r, 0
		} else {
			b.flat++
		}
	}
	if b.state == bbrStartup && b.flat >= bbrFlat {
		b.state = bbrDrain
	}
	if b.state == bbrDrain && float64(f.inFlight) <= b.target(1, f) {
		b.probeBandwidth(f)
	}
}

// probeBandwidth begins with a random phase, but not that which drains.
func (b *bbr) probeBandwidth(f *TCP) {
	b.state, b.cycleAt = bbrProbeBandwidth, f.sim.now
	b.cycle = (len(bbrGains) - f.sim.rng.IntN(len(bbrGains)-1)) % len(bbrGains)
}

// pace sets the gap of packets, and their bursts.
func (b *bbr) pace(f *TCP) {
	gain, _ := b.gains()
	rate := b.rate()
	if rate == 0 {
		rate = tcpInitial / max(f.srtt, bbrFirstRTT)
	}
	gap := 1 / (gain * rate * bbrMargin)
	if b.flat >= bbrFlat || f.gap == 0 || gap < f.gap {
		f.gap = gap
	}
	f.burst = int(min(max(min(bbrBurst/f.gap, bbrMostGSO/mss), 2), 127))
}

// target is the window of a gain.
func (b *bbr) target(gain float64, f *TCP) float64 {
	w := b.product(gain)
	if b.minRTT == 0 {
		w = tcpInitial
	}
	w = math.Ceil(w) + bbrBursts*float64(f.burst)
	if b.state == bbrProbeBandwidth && b.cycle == 0 {
		w += 2
	}
	return w
}

// window sets the window.
func (b *bbr) window(f *TCP, a tcpAck) {
	if b.state == bbrProbeRTT {
		f.cwnd = min(f.cwnd, bbrLeast)
		return
	}
	if a.lost > 0 {
		f.cwnd = max(f.cwnd-float64(a.lost), 1)
	}
	if b.recovers && f.una >= f.recovery {
		b.recovers, b.conserves = false, false
		f.cwnd = max(f.cwnd, b.prior)
	}
	if b.conserves {
		f.cwnd = max(f.cwnd, float64(f.inFlight+a.arrived))
		return
	}
	_, gain := b.gains()
	target := b.target(gain, f)
	if b.flat >= bbrFlat {
		target += min(slices.Max(b.extra[:]), b.rate()*bbrMostExtra)
		f.cwnd = min(f.cwnd+float64(a.arrived), target)
	} else if f.cwnd < target || f.delivered < tcpInitial {
		f.cwnd += float64(a.arrived)
	}
	f.cwnd = max(f.cwnd, bbrLeast)
}
