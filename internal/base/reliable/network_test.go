package reliable

import (
	"container/heap"
	"math/rand/v2"
)

// world is simulated time: events in the order of their time, and of their
// making where that is the same.
type world struct {
	now    int64
	made   uint64
	events eventHeap
}

type event struct {
	at int64
	n  uint64
	do func()
}

type eventHeap []event

func (h eventHeap) Len() int { return len(h) }
func (h eventHeap) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].n < h[j].n
}
func (h eventHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *eventHeap) Push(x any)   { *h = append(*h, x.(event)) }
func (h *eventHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

func (w *world) at(t int64, do func()) {
	w.made++
	heap.Push(&w.events, event{max(t, w.now), w.made, do})
}

// run advances time until done returns true. It returns false at the time end, or if no event is left.
func (w *world) run(end int64, done func() bool) bool {
	for !done() {
		if len(w.events) == 0 || w.events[0].at > end {
			return false
		}
		e := heap.Pop(&w.events).(event)
		w.now = e.at
		e.do()
	}
	return true
}

// packet is a frame on the simulated network.
type packet struct {
	data   bool // seq and id are meant
	seq    uint32
	id     uint64 // place in the stream, from 0
	ack    uint32
	window int
	ranges []Range
	ask    bool // acknowledge at once
	again  bool // it was sent before
}

// link is one direction of a network.
type link struct {
	delay, jitter int64   // one way; jitter is added evenly and overtakes
	perFrame      int64   // time that a frame occupies the link, 0: none
	queue         int     // frames that may wait for the link, 0: any number
	loss          float64 // of single frames
	burst         float64 // chance that a frame starts a time in which all is lost
	burstFor      int64   // mean length of that time
	repeat        float64 // chance of a second copy
	late          float64 // chance of lateBy more delay
	lateBy        int64
	drop          func(p packet) bool // a script of its own, or nil
}

// pipe carries packets over a link.
type pipe struct {
	link
	w        *world
	rnd      *rand.Rand
	free     int64 // when the link has sent all that waits
	through  *pipe // the pipe whose link this one shares, or nil
	silenced int64 // the end of the burst
	dropped  int   // data frames lost
	deliver  func(packet)
}

func (p *pipe) send(f packet) {
	at := p.w.now
	if p.perFrame > 0 {
		gate := p
		if p.through != nil {
			gate = p.through
		}
		wait := max(gate.free-at, 0)
		if p.queue > 0 && wait/p.perFrame >= int64(p.queue) {
			p.lose(f)
			return
		}
		at += wait + p.perFrame
		gate.free = at
	}
	if p.burst > 0 && p.w.now >= p.silenced && p.rnd.Float64() < p.burst {
		p.silenced = p.w.now + 1 + p.rnd.Int64N(2*p.burstFor)
	}
	if p.w.now < p.silenced || p.drop != nil && p.drop(f) || p.rnd.Float64() < p.loss {
		p.lose(f)
		return
	}
	copies := 1
	if p.rnd.Float64() < p.repeat {
		copies = 2
	}
	for range copies {
		t := at + p.delay
		if p.jitter > 0 {
			t += p.rnd.Int64N(p.jitter)
		}
		if p.rnd.Float64() < p.late {
			t += p.lateBy
		}
		p.w.at(t, func() { p.deliver(f) })
	}
}

func (p *pipe) lose(f packet) {
	if f.data {
		p.dropped++
	}
}
