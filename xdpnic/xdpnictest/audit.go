package xdpnictest

import (
	"errors"
	"fmt"
)

// Owners says how many chunks are whose.
type Owners struct {
	Free, Held, InFlight              int // TX chunks
	Filled, Arrived, Leased, Recycled int // RX chunks
}

// Owners counts the chunks by their owner.
func (q *Queue) Owners() Owners {
	q.wire.mu.Lock()
	defer q.wire.mu.Unlock()
	n := &q.owners
	return Owners{n[free], n[held], n[queued], n[filled], n[arrived], n[leased], n[recycled]}
}

// Audit checks that every chunk has exactly one owner and that rings, lists
// and chunks agree. It names the first wrong uses: calls on chunks that were
// not the program's to make them on (released twice, recycled without a lease,
// sent after release), and writes to chunks that the kernel had or that had
// been given back.
func (q *Queue) Audit() error {
	q.wire.mu.Lock()
	defer q.wire.mu.Unlock()
	for i := range q.chunks {
		if q.chunks[i].summed { // a write that nobody has met yet
			q.thaw(i)
			q.freeze(i)
		}
	}
	errs := append([]error(nil), q.wrong...)
	if more := q.n.Misuses - uint64(len(q.wrong)); more > 0 {
		errs = append(errs, fmt.Errorf("xdpnictest: and %d more wrong uses", more))
	}
	seen := make([]string, len(q.chunks))
	list := func(name string, want state, i int) {
		switch {
		case i < 0:
			errs = append(errs, fmt.Errorf("xdpnictest: what is no chunk is %s", name))
		case seen[i] != "":
			errs = append(errs, fmt.Errorf("xdpnictest: chunk %d is %s and %s", i, seen[i], name))
		case q.chunks[i].state != want:
			errs = append(errs, fmt.Errorf("xdpnictest: chunk %d is %s, but its state is %q", i, name, q.chunks[i].state))
		default:
			seen[i] = name
		}
	}
	for _, addr := range q.stack {
		list("on the free stack", free, q.number(addr))
	}
	for k := range q.tx.n {
		if i := q.number(q.tx.peek(k).addr); i >= 0 {
			list("on the TX ring", queued, i)
		}
	}
	for k := range q.fill.n {
		list("on the fill ring", filled, *q.fill.peek(k))
	}
	for _, i := range q.recycled {
		list("recycled", recycled, i)
	}
	for k := range q.rx.n {
		if a := q.rx.peek(k); q.sound(a) {
			list("on the RX ring", arrived, q.number(a.addr))
		}
	}
	for i := range q.chunks {
		// Held and leased chunks are with the program; the kernel has those in
		// flight that are not on the TX ring.
		switch s := q.chunks[i].state; s {
		case held, leased, queued:
		default:
			if seen[i] == "" {
				errs = append(errs, fmt.Errorf("xdpnictest: chunk %d is nowhere; its state is %q", i, s))
			}
		}
	}
	return errors.Join(errs...)
}
