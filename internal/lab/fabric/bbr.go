package fabric

import (
	"math"
	"slices"
)

// Gains, rounds and times of BBRv1 (draft-cardwell-iccrg-bbr-congestion-control-00), as Linux has them.
const (
	bbrStartGain  = 2.885 // 2/ln 2
	bbrWindowGain = 2
	bbrMargin     = 0.99 // of the rate
	bbrRounds     = 10   // that a delivery rate is remembered
	bbrBursts     = 3    // that the window has room for above its gain
	bbrLeast      = 4    // packets in flight
	bbrExpires    = 10 * Second
	bbrProbe      = 200 * Millisecond
	bbrGrowth     = 1.25 // of the delivery rate; the startup ends after bbrFull rounds without
	bbrFull       = 3
)

// bbrCycle are the gains of the rate in the state bbrBandwidth, for a least round trip each.
var bbrCycle = [...]float64{1.25, 0.75, 1, 1, 1, 1, 1, 1}

type bbrState int

const (
	bbrStartup bbrState = iota
	bbrDrain
	bbrBandwidth
	bbrRTT
)

// bbr is BBRv1 without its detection of policers.
type bbr struct {
	state bbrState

	rates    [bbrRounds]float64 // greatest delivery rate of each of the last rounds, packets/s
	round    int
	roundEnd int64   // arrivals before the transmission of the packet that ends the round
	full     float64 // the delivery rate that the startup has reached
	noGrowth int     // rounds since

	phase   int // of the cycle
	phaseAt int64
	dropped bool // a packet in the phase

	least, leastAt int64 // round trip
	probeEnd       int64 // of the state bbrRTT; 0: too much is in flight
	limited        int64 // arrivals up to which packets that are sent show the window of an RTT probe, not the path

	prior     float64 // window before a loss or an RTT probe; 0: there was none
	conserves bool    // in the first round after a loss a packet leaves for each that arrives
}

func (b *bbr) bandwidth() float64 { return slices.Max(b.rates[:]) }

func (b *bbr) filled() bool { return b.noGrowth >= bbrFull }

// path is what the path holds at the delivery rate, times gain.
func (b *bbr) path(gain float64) float64 {
	return math.Ceil(gain * b.bandwidth() * float64(b.least) / Second)
}

func (b *bbr) rate() float64 {
	gain := 1.
	switch b.state {
	case bbrStartup:
		gain = bbrStartGain
	case bbrDrain:
		gain = 1 / bbrStartGain
	case bbrBandwidth:
		gain = bbrCycle[b.phase]
	}
	return gain * bbrMargin * b.bandwidth()
}

func (b *bbr) lost(f *TCP) {
	b.dropped = true
	b.prior = max(b.prior, f.cwnd)
	b.conserves, b.roundEnd = true, f.delivered
	f.cwnd = max(float64(f.inFlight), 1)
}

func (b *bbr) acked(f *TCP, arrived int, _ bool) {
	now := f.sim.now
	newRound, limited := f.sample.after >= b.roundEnd, f.sample.after < b.limited
	if newRound {
		b.roundEnd, b.conserves = f.delivered, false
	}
	if newRound && !limited {
		b.round = (b.round + 1) % bbrRounds
		b.rates[b.round] = 0
	}
	if !limited || f.sample.rate >= b.bandwidth() {
		b.rates[b.round] = max(b.rates[b.round], f.sample.rate)
	}
	expired := b.least != 0 && now-b.leastAt > bbrExpires
	if trip := f.sample.trip; trip > 0 && (b.least == 0 || trip <= b.least || expired) {
		b.least, b.leastAt = trip, now
	}
	if newRound && !limited && !b.filled() {
		b.noGrowth++
		if bw := b.bandwidth(); bw >= bbrGrowth*b.full {
			b.full, b.noGrowth = bw, 0
		}
	}
	b.advance(f, now)
	if expired && b.state != bbrRTT {
		b.state, b.probeEnd, b.prior = bbrRTT, 0, max(b.prior, f.cwnd)
	}
	if b.state == bbrRTT {
		b.limited = f.delivered + int64(f.inFlight)
	}
	b.setWindow(f, float64(arrived))
}

// advance goes from state to state, and from phase to phase.
func (b *bbr) advance(f *TCP, now int64) {
	inFlight := float64(f.inFlight)
	switch b.state {
	case bbrStartup:
		if b.filled() {
			b.state = bbrDrain
		}
	case bbrDrain:
		if inFlight <= b.path(1) {
			b.cycle(f, now)
		}
	case bbrBandwidth:
		over, gain := now-b.phaseAt > b.least, bbrCycle[b.phase]
		if gain > 1 {
			over = over && (b.dropped || inFlight >= b.path(gain))
		} else if gain < 1 {
			over = over || inFlight <= b.path(1)
		}
		if over {
			b.phase, b.phaseAt, b.dropped = (b.phase+1)%len(bbrCycle), now, false
		}
	case bbrRTT:
		switch {
		case b.probeEnd == 0 && f.inFlight <= bbrLeast:
			b.probeEnd = now + bbrProbe
		case b.probeEnd != 0 && now > b.probeEnd:
			b.leastAt = now
			if b.state = bbrStartup; b.filled() {
				b.cycle(f, now)
			}
		}
	}
}

// cycle begins the cycle in any phase but the one that drains.
func (b *bbr) cycle(f *TCP, now int64) {
	b.state, b.phaseAt, b.dropped = bbrBandwidth, now, false
	b.phase = (2 + f.sim.rng.IntN(len(bbrCycle)-1)) % len(bbrCycle)
}

func (b *bbr) setWindow(f *TCP, arrived float64) {
	switch {
	case b.state == bbrRTT:
		f.cwnd = bbrLeast
		return
	case b.conserves:
		f.cwnd = max(f.cwnd, float64(f.inFlight)+arrived)
		return
	case f.una >= f.recovery:
		f.cwnd, b.prior = max(f.cwnd, b.prior), 0
	}
	gain := bbrStartGain
	if b.filled() {
		gain = bbrWindowGain
	}
	switch target := b.path(gain) + bbrBursts*float64(tsoBurst(b.bandwidth())); {
	case b.filled():
		f.cwnd = min(f.cwnd+arrived, target)
	case f.cwnd < target || f.delivered < tcpInitial:
		f.cwnd += arrived
	}
	f.cwnd = max(f.cwnd, bbrLeast)
}
