package xdpnictest

import (
	"math/rand/v2"
	"time"
)

// Faults are what the way does to the frames that a queue sends. The zero
// value delivers each at once, in order. Shares are of 1.
type Faults struct {
	Seed uint64

	Loss     float64 // share of frames that are lost, each by itself
	Burst    float64 // share of frames with which a run of losses begins
	BurstLen int     // longest run; default 8
	Dup      float64 // share that arrives twice
	Corrupt  float64 // share of which up to three bits are flipped

	// Reorder is the share of frames that are overtaken: by 1 to ReorderDepth
	// (default 4) later ones, or for ReorderTime (default 1 ms) at most.
	Reorder      float64
	ReorderDepth int
	ReorderTime  time.Duration

	Delay  time.Duration // least time on the way
	Jitter time.Duration // a random part of it comes on top, and reorders

	// Drop, unless nil, loses the frames for which it returns true. It must
	// keep neither the frame nor call a queue.
	Drop func(frame []byte) bool
}

// Lies are what the imagined kernel tells the program of a queue. Shares are
// of 1.
type Lies struct {
	Seed uint64

	LostCompletion   float64       // share of TX entries that never complete
	DoubleCompletion float64       // share that completes twice
	WildCompletion   float64       // share beside which an address outside of the chunks completes
	LateCompletion   time.Duration // time until a sent frame completes

	WildRx   float64 // share of arrivals before which an RX entry with a wrong address or length comes
	RxLength float64 // share of arrivals whose length is wrong, within the chunk
	Split    float64 // share of arrivals in two segments although they fit in one

	RefuseSend float64 // share of Send calls that find the TX ring full
	FlushError float64 // share of Flush calls that fail and send nothing
	Stall      float64 // share of Flush calls that send nothing and say nothing
}

// dice is a source of random choices in which those of the n-th event follow
// from the seed and n alone.
type dice struct {
	seed, n uint64
	pcg     *rand.PCG
	rng     *rand.Rand
}

func newDice(seed, stream uint64) dice {
	pcg := rand.NewPCG(0, 0)
	return dice{seed: seed + stream*0x9e3779b97f4a7c15, pcg: pcg, rng: rand.New(pcg)}
}

// next begins the choices of the next event.
func (d *dice) next() {
	d.n++
	d.pcg.Seed(d.seed, d.n)
}

func (d *dice) hit(share float64) bool {
	u := d.rng.Float64()
	return u < share
}

// fate is what becomes of one frame.
type fate struct {
	lost, burst  bool
	dup, corrupt bool
	behind       int // later frames that overtake it
	delay        [2]time.Duration
	flips        int
	flip         [3]uint64 // random numbers that choose the bits
	burstLen     int
}

// decide draws the fate of the next frame. It always draws the same number of
// times, so that one fault does not change the choices of another.
func (f *Faults) decide(d *dice) (t fate) {
	d.next()
	t.lost = d.hit(f.Loss)
	t.burst = d.hit(f.Burst)
	t.burstLen = 1 + d.rng.IntN(or(f.BurstLen, 8))
	t.dup = d.hit(f.Dup)
	t.corrupt = d.hit(f.Corrupt)
	t.flips = 1 + d.rng.IntN(len(t.flip))
	for i := range t.flip {
		t.flip[i] = d.rng.Uint64()
	}
	if k := 1 + d.rng.IntN(or(f.ReorderDepth, 4)); d.hit(f.Reorder) {
		t.behind = k
	}
	for i := range t.delay {
		u := d.rng.Float64()
		t.delay[i] = f.Delay + time.Duration(u*float64(f.Jitter))
	}
	return t
}

func or(v, d int) int {
	if v <= 0 {
		return d
	}
	return v
}
