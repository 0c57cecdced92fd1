package fabric

import (
	"container/heap"
	"math/rand/v2"

	"viaxdp/internal/agent/kagenttest"
)

// Sim is virtual time. Events happen in the order of their time; those of the same time in the order of their creation.
type Sim struct {
	now    int64
	made   uint64
	events eventHeap
	rng    *rand.Rand

	hosts []*Host
	byMAC map[[6]byte]*Host
	agent *kagenttest.Fabric // connection management, which takes no virtual time
	flows uint32
}

// Times in ns.
const (
	Microsecond = 1_000
	Millisecond = 1_000_000
	Second      = 1_000_000_000

	start = Second // the engine's clock is positive
)

// NewSim makes a network without hosts. All random decisions follow from seed.
func NewSim(seed uint64) *Sim {
	return &Sim{
		now: start, rng: rand.New(rand.NewPCG(seed, 1)), byMAC: make(map[[6]byte]*Host), agent: kagenttest.NewFabric(kagenttest.Faults{}),
	}
}

// Now returns the time since the start.
func (s *Sim) Now() int64 { return s.now - start }

// After calls do after d.
func (s *Sim) After(d int64, do func()) { s.at(s.now+d, do) }

func (s *Sim) at(t int64, do func()) { heap.Push(&s.events, s.event(t, do)) }

func (s *Sim) event(t int64, do func()) *event {
	s.made++
	return &event{at: max(t, s.now), n: s.made, do: do}
}

// first takes the first event.
func (s *Sim) first() *event {
	e := s.events[0]
	switch {
	case e.next != nil:
		s.events[0] = e.next
		heap.Fix(&s.events, 0)
		return e
	case e.of != nil:
		e.of.last = nil
	}
	return heap.Pop(&s.events).(*event)
}

// Run advances time by d.
func (s *Sim) Run(d int64) { s.RunUntil(d, func() bool { return false }) }

// RunUntil advances time by d at most, until done returns true. It reports whether that happened.
func (s *Sim) RunUntil(d int64, done func() bool) bool {
	end := s.now + d
	for !done() {
		if len(s.events) == 0 || s.events[0].at > end {
			s.now = end
			return false
		}
		e := s.first()
		s.now = e.at
		e.do()
	}
	return true
}

type event struct {
	at   int64
	n    uint64
	do   func()
	of   *sequence
	next *event // of the sequence
}

// sequence has events that happen in the order of their creation, such as the frames of a link. Only the first of them is in the
// heap: with thousands of frames under way, a heap of all took a third of the time.
type sequence struct{ last *event }

// at is Sim.at for an event of the sequence.
func (q *sequence) at(s *Sim, t int64, do func()) {
	if q.last != nil && t < q.last.at { // the link has become shorter
		s.at(t, do)
		return
	}
	e := s.event(t, do)
	e.of = q
	if q.last != nil {
		q.last.next = e
	} else {
		heap.Push(&s.events, e)
	}
	q.last = e
}

// eventHeap has pointers, so that neither heap.Push nor heap.Pop allocates.
type eventHeap []*event

func (h eventHeap) Len() int { return len(h) }
func (h eventHeap) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].n < h[j].n
}
func (h eventHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *eventHeap) Push(x any)   { *h = append(*h, x.(*event)) }
func (h *eventHeap) Pop() any {
	last := (*h)[len(*h)-1]
	(*h)[len(*h)-1] = nil
	*h = (*h)[:len(*h)-1]
	return last
}
