package testbed

import (
	"math/rand/v2"
	"time"
)

// Faults are what a [Middle] does to the frames that go one way through it. The
// zero value passes each on at once, in order. Shares are of 1.
//
// The choices for the n-th frame follow from Seed and n alone, and one kind of
// fault does not change those of another: a run that fails is repeated with its
// seed.
type Faults struct {
	Seed uint64

	Loss     float64 // share of frames that are lost, each by itself
	Burst    float64 // share of frames with which a run of losses begins
	BurstLen int     // frames of such a run; 0: 8

	Duplicate float64 // share that arrives twice
	Corrupt   float64 // share of the IP frames of which up to three bits behind the Ethernet header are flipped

	Reorder   float64       // share that is held back, so that later ones overtake it
	ReorderBy time.Duration // for how long; 0: 1 ms

	Delay  time.Duration // least time on the way
	Jitter time.Duration // a random part of it comes on top, and reorders

	Rate  int64 // bits per second of whole frames; 0: no limit
	Queue int   // frames that wait for the rate's turn at most, others are lost; 0: 1000
}

const (
	defaultBurstLen  = 8
	defaultReorderBy = time.Millisecond
	defaultQueue     = 1000
	mostFlips        = 3
)

// WayCounters tell what became of the frames that went one way. At rest,
//
//	Taken + Duplicated = Passed + Lost + LostInBurst + Limited + Refused
//
// and Waiting is 0, else it is on the right side, too.
type WayCounters struct {
	Taken      uint64 // frames that came from the sending side
	Passed     uint64 // frames handed to the receiving side
	Duplicated uint64 // second copies made
	Corrupted  uint64 // frames, or copies, with bits flipped; they are passed on
	Reordered  uint64 // frames, or copies, held back; they are passed on
	Delayed    uint64 // frames, or copies, that waited for another reason

	Lost        uint64 // drop: by Loss
	LostInBurst uint64 // drop: by Burst
	Limited     uint64 // drop: too many waited for Rate
	Refused     uint64 // drop: the kernel did not take the frame, as when the interface is down

	Overrun uint64 // drop before Taken: the forwarder was too slow for its socket
	Waiting uint64 // frames that are on the way now
}

// Plus is the sum of two ways.
func (n WayCounters) Plus(o WayCounters) WayCounters {
	n.each(&o, func(a *uint64, b uint64) { *a += b })
	return n
}

// Since is what came after an earlier look; Waiting stays as it is now.
func (n WayCounters) Since(before WayCounters) WayCounters {
	before.Waiting = 0
	n.each(&before, func(a *uint64, b uint64) { *a -= b })
	return n
}

func (n *WayCounters) each(o *WayCounters, f func(a *uint64, b uint64)) {
	f(&n.Taken, o.Taken)
	f(&n.Passed, o.Passed)
	f(&n.Duplicated, o.Duplicated)
	f(&n.Corrupted, o.Corrupted)
	f(&n.Reordered, o.Reordered)
	f(&n.Delayed, o.Delayed)
	f(&n.Lost, o.Lost)
	f(&n.LostInBurst, o.LostInBurst)
	f(&n.Limited, o.Limited)
	f(&n.Refused, o.Refused)
	f(&n.Overrun, o.Overrun)
	f(&n.Waiting, o.Waiting)
}

// fate is what is to become of one frame.
type fate struct {
	lost, inBurst bool
	copies        [2]passage // the second one if duplicate
	duplicate     bool
}

// passage is how one copy of a frame travels.
type passage struct {
	corrupt  bool
	flips    int
	flip     [mostFlips]uint64 // random numbers that choose the bits
	heldBack bool
	jitter   float64 // share of Faults.Jitter
}

// dice draws the fates of one direction's frames.
type dice struct {
	n     uint64 // frames so far
	burst int    // frames of the run of losses that are to come
	pcg   *rand.PCG
	rng   *rand.Rand
}

func newDice() dice {
	pcg := rand.NewPCG(0, 0)
	return dice{pcg: pcg, rng: rand.New(pcg)}
}

// next is the fate of the next frame. It draws the same number of times
// whatever the faults are.
func (d *dice) next(f *Faults) (t fate) {
	d.n++
	d.pcg.Seed(f.Seed, d.n)
	hit := func(share float64) bool { return d.rng.Float64() < share }
	t.lost = hit(f.Loss)
	begins := hit(f.Burst)
	t.duplicate = hit(f.Duplicate)
	for i := range t.copies {
		c := &t.copies[i]
		c.corrupt = hit(f.Corrupt)
		c.flips = 1 + d.rng.IntN(mostFlips)
		for k := range c.flip {
			c.flip[k] = d.rng.Uint64()
		}
		c.heldBack = hit(f.Reorder)
		c.jitter = d.rng.Float64()
	}
	switch {
	case d.burst > 0:
		d.burst--
		t.inBurst = true
	case begins:
		d.burst = orElse(f.BurstLen, defaultBurstLen) - 1
		t.inBurst = true
	}
	return t
}

func orElse[T int | time.Duration](v, standard T) T {
	if v <= 0 {
		return standard
	}
	return v
}

// Bytes of an Ethernet frame that matter here.
const (
	etherTypeAt = 12
	etherLen    = 14
)

// canCorrupt says whether damage to a frame is found out: all of IP has
// checksums, ARP has none, and a wrong address learned from it would stay.
func canCorrupt(frame []byte) bool {
	if len(frame) <= etherLen {
		return false
	}
	switch uint16(frame[etherTypeAt])<<8 | uint16(frame[etherTypeAt+1]) {
	case 0x0800, 0x86dd:
		return true
	}
	return false
}

// damage flips the bits that p chose, behind the Ethernet header.
func (p *passage) damage(frame []byte) {
	body := frame[etherLen:]
	for _, r := range p.flip[:p.flips] {
		bit := r % uint64(8*len(body))
		body[bit/8] ^= 1 << (bit % 8)
	}
}
