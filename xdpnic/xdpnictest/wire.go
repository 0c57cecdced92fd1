package xdpnictest

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// Wire connects queues. The zero value is not usable; NewWire makes one.
type Wire struct {
	mu     sync.Mutex // guards everything of the wire and of its queues
	epoch  time.Time
	ends   []*Queue
	line   []*onLine // events to come, the earliest first
	timer  *time.Timer
	due    time.Duration // when timer expires; 0: it is stopped
	spare  [][]byte
	joined []byte // a frame of several segments, put together
	cut    bool
	closed bool
	route  func(from *Queue, frame []byte) // nil: frames go to the queues of the wire
}

// NewWire makes a wire without queues.
func NewWire() *Wire { return &Wire{epoch: time.Now()} }

// Close drops all frames on the wire, now and later. It does not wait: a timer's goroutine may still be about
// to run.
func (w *Wire) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	for _, e := range w.line {
		if e.frame != nil {
			e.from.n.Cut++
		}
	}
	w.line = nil
	for _, q := range w.ends {
		q.back = nil
	}
	if w.timer != nil {
		w.timer.Stop()
	}
}

// Cut interrupts the wire without notice to either side, or restores it. Frames on the wire still arrive.
func (w *Wire) Cut(off bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = off
}

// SetFaults sets the faults of every queue, with a seed of its own for each.
func (w *Wire) SetFaults(f Faults) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, q := range w.ends {
		q.setFaults(f)
	}
}

// onLine is a later event: a frame arrives, or an entry completes.
type onLine struct {
	due    time.Duration
	from   *Queue
	frame  []byte // nil: completion of entry
	entry  entry
	behind int           // held back: later frames still to overtake it
	delay  time.Duration // held back: time on the way afterwards
}

// later schedules e after d, behind events that are due at the same time. Locked.
func (w *Wire) later(e *onLine, d time.Duration) {
	e.due = time.Since(w.epoch) + d
	i, _ := slices.BinarySearchFunc(w.line, e.due, func(other *onLine, due time.Duration) int {
		if other.due <= due {
			return -1
		}
		return 1
	})
	w.line = slices.Insert(w.line, i, e)
	w.arm()
}

// arm sets the timer for the earliest event. Locked.
func (w *Wire) arm() {
	if len(w.line) == 0 || w.closed {
		return
	}
	first := w.line[0].due
	if w.due != 0 && w.due <= first {
		return
	}
	w.due = first
	d := max(first-time.Since(w.epoch), 0)
	if w.timer == nil {
		w.timer = time.AfterFunc(d, w.run)
	} else {
		w.timer.Reset(d)
	}
}

// run processes the events that are due.
func (w *Wire) run() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.due = 0
	now := time.Since(w.epoch)
	for len(w.line) > 0 && w.line[0].due <= now {
		e := w.line[0]
		w.line = w.line[1:]
		if e.frame == nil {
			e.from.complete(e.entry)
			continue
		}
		if e.behind > 0 { // its time for being overtaken is over
			e.from.back = remove(e.from.back, e)
		}
		w.release(e)
	}
	w.arm()
}

// Route has f called with each frame that a queue sends, in place of the queues of the wire. f is called with the
// wire locked, so it must not call a queue, and must not keep the frame. What f carries arrives with Arrive.
func (w *Wire) Route(f func(from *Queue, frame []byte)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.route = f
}

// Arrive has a frame arrive at q.
func (q *Queue) Arrive(frame []byte) {
	q.wire.mu.Lock()
	defer q.wire.mu.Unlock()
	q.kernelReceive(frame)
}

// release sends on a frame that was held back, or is at the end of its way.
func (w *Wire) release(e *onLine) {
	e.behind = 0
	if d := e.delay; d > 0 {
		e.delay = 0
		w.later(e, d)
		return
	}
	w.arrive(e.from, e.frame)
	w.spare = append(w.spare, e.frame[:0])
}

// carry takes a frame from queue from. The bytes remain the sender's. Locked.
func (w *Wire) carry(from *Queue, frame []byte) {
	n := &from.n
	n.Carried++
	switch {
	case w.cut || w.closed || from.cut:
		n.Cut++
		return
	case from.faults.Drop != nil && from.faults.Drop(frame):
		n.Filtered++
		return
	}
	if !from.faulty {
		w.arrive(from, frame)
		return
	}
	t := from.faults.decide(&from.randomSource)
	switch {
	case t.inBurst:
		n.LostBurst++
		return
	case t.lost:
		n.Lost++
		return
	}
	if t.dup {
		n.Duplicated++
		w.send(from, frame, t.delay[1], 0)
	}
	if t.corrupt {
		n.Corrupted++
		frame = append(w.buffer(), frame...)
		defer func() { w.spare = append(w.spare, frame[:0]) }()
		for _, flip := range t.flip[:t.flips] {
			bit := flip % uint64(8*len(frame))
			frame[bit/8] ^= 1 << (bit % 8)
		}
	}
	w.send(from, frame, t.delay[0], t.behind)
	from.overtake()
}

// send puts a frame on the wire.
func (w *Wire) send(from *Queue, frame []byte, delay time.Duration, behind int) {
	if delay <= 0 && behind == 0 {
		w.arrive(from, frame)
		return
	}
	e := &onLine{from: from, frame: append(w.buffer(), frame...)}
	if behind > 0 {
		from.n.Reordered++
		e.delay, e.behind = delay, behind+1 // its own turn counts
		from.back = append(from.back, e)
		w.later(e, time.Millisecond)
		return
	}
	from.n.Delayed++
	w.later(e, delay)
}

func (w *Wire) buffer() []byte {
	if n := len(w.spare); n > 0 {
		b := w.spare[n-1]
		w.spare = w.spare[:n-1]
		return b
	}
	return make([]byte, 0, DefaultChunkSize)
}

// overtake counts a frame that has passed those held back, and releases those that enough frames have passed.
func (q *Queue) overtake() {
	w := q.wire
	for i := 0; i < len(q.back); {
		e := q.back[i]
		if e.behind--; e.behind > 0 {
			i++
			continue
		}
		q.back, w.line = remove(q.back, e), remove(w.line, e)
		w.release(e)
	}
}

func remove(from []*onLine, e *onLine) []*onLine {
	return slices.DeleteFunc(from, func(other *onLine) bool { return other == e })
}

// arrive passes a frame to the queues that receive it.
func (w *Wire) arrive(from *Queue, frame []byte) {
	if w.route != nil {
		w.route(from, frame)
		return
	}
	taken := false
	for _, q := range w.ends {
		if q.wants(from, frame) {
			taken = true
			q.kernelReceive(frame)
		}
	}
	if !taken {
		from.n.Nowhere++
	}
}

// wants reports whether q receives a frame that from sent.
func (q *Queue) wants(from *Queue, frame []byte) bool {
	if q.cfg.MAC == ([6]byte{}) || frame[0]&1 != 0 {
		return q != from
	}
	return [6]byte(frame) == q.cfg.MAC
}

// Faults are what the wire does to the frames that a queue sends. The zero value delivers each at once, in
// order. Shares are between 0 and 1.
type Faults struct {
	Seed uint64

	Loss     float64 // share of frames that are lost, independently of each other
	Burst    float64 // share of frames that begin a run of losses
	BurstLen int     // longest run; default 8
	Dup      float64 // share that arrives twice
	Corrupt  float64 // share that has up to three bits flipped

	Reorder float64 // share that is overtaken: by 1 to 4 later frames, or for 1 ms at most

	Delay  time.Duration // minimum delay
	Jitter time.Duration // upper bound of an additional random delay, which reorders frames

	// Drop, unless nil, selects frames to lose by returning true. It must not keep the frame or call a queue.
	Drop func(frame []byte) bool
}

// Lies are wrong answers of the simulated kernel to the program of a queue. Shares are between 0 and 1.
type Lies struct {
	Seed uint64

	LostCompletion   float64       // share of TX entries that never complete
	DoubleCompletion float64       // share that completes twice
	WildCompletion   float64       // share that is accompanied by the completion of an address outside of the chunks
	LateCompletion   time.Duration // time until a sent frame completes

	WildRx   float64 // share of arrivals that follow an RX entry with a wrong address or length
	RxLength float64 // share of arrivals whose length is wrong, within the chunk
	Split    float64 // share of arrivals in two segments although they fit in one

	RefuseSend float64 // share of Send calls that find the TX ring full
	FlushError float64 // share of Flush calls that fail and send nothing
	Stall      float64 // share of Flush calls that send nothing and return no error; see Config.ZeroCopy
}

// randomSource is a source of random choices. The choices for the n-th event follow from the seed and n alone.
type randomSource struct {
	seed, n uint64
	burst   int // frames of a burst still to lose
	pcg     *rand.PCG
	rng     *rand.Rand
}

func newRandomSource(seed, stream uint64) randomSource {
	pcg := rand.NewPCG(0, 0)
	return randomSource{seed: seed + stream*0x9e3779b97f4a7c15, pcg: pcg, rng: rand.New(pcg)}
}

// next starts the choices for the next event.
func (d *randomSource) next() {
	d.n++
	d.pcg.Seed(d.seed, d.n)
}

func (d *randomSource) hit(share float64) bool {
	u := d.rng.Float64()
	return u < share
}

// faultDecision is the outcome for one frame.
type faultDecision struct {
	lost, inBurst bool
	dup, corrupt  bool
	behind        int // later frames that overtake it
	delay         [2]time.Duration
	flips         int
	flip          [3]uint64 // random numbers that choose the bits
}

// decide draws the outcome for the next frame. It always draws the same number of times, so that one fault does
// not change the choices of another.
func (f *Faults) decide(d *randomSource) (t faultDecision) {
	d.next()
	t.lost = d.hit(f.Loss)
	begins, length := d.hit(f.Burst), 1+d.rng.IntN(cmp.Or(f.BurstLen, 8))
	if begins && d.burst == 0 {
		d.burst = length
	}
	if d.burst > 0 {
		d.burst--
		t.inBurst = true
	}
	t.dup = d.hit(f.Dup)
	t.corrupt = d.hit(f.Corrupt)
	t.flips = 1 + d.rng.IntN(len(t.flip))
	for i := range t.flip {
		t.flip[i] = d.rng.Uint64()
	}
	if k := 1 + d.rng.IntN(4); d.hit(f.Reorder) {
		t.behind = k
	}
	for i := range t.delay {
		u := d.rng.Float64()
		t.delay[i] = f.Delay + time.Duration(u*float64(f.Jitter))
	}
	return t
}
