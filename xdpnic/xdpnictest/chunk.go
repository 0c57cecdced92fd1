package xdpnictest

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
)

// state is the owner of a chunk. A chunk has exactly one owner at any time.
type state uint8

const (
	// TX chunks.
	free   state = iota // on the stack
	held                // the program's
	queued              // on the TX ring, with the kernel, or on the completion ring
	// RX chunks.
	filled   // on the fill ring
	arrived  // on the RX ring
	leased   // the program's
	recycled // given back, not yet on the fill ring
	numStates
)

var stateNames = [numStates]string{"free", "held", "in flight", "on the fill ring", "on the RX ring", "leased", "recycled"}

func (s state) String() string { return stateNames[s] }

type chunk struct {
	state  state
	retain bool   // queued: the program's again afterwards
	last   string // the call that set the state
	sum    uint32 // checksum of the bytes while they must not change
	summed bool
}

// poison overwrites a chunk that was given back.
var poison = bytes.Repeat([]byte{0xd5}, 512)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// number returns the number of the chunk that holds addr, or -1.
func (q *Queue) number(addr uint64) int {
	if addr >= uint64(len(q.chunks))*q.size {
		return -1
	}
	return int(addr / q.size)
}

func (q *Queue) isTx(i int) bool { return i >= q.cfg.RxChunks }

func (q *Queue) addr(i int) uint64 { return uint64(i) * q.size }

func (q *Queue) bytes(i int) []byte {
	a := q.addr(i)
	return q.mem[a : a+q.size : a+q.size]
}

// move changes a chunk's state by the call op.
func (q *Queue) move(i int, to state, op string) {
	c := &q.chunks[i]
	q.owners[c.state]--
	q.owners[to]++
	c.state, c.last = to, op
}

// spoil overwrites a chunk that was given back, and records its checksum.
func (q *Queue) spoil(i int) {
	b := q.bytes(i)
	for len(b) > 0 {
		b = b[copy(b, poison):]
	}
	q.freeze(i)
}

// freeze records the checksum of a chunk's bytes, which must not change until thaw.
func (q *Queue) freeze(i int) {
	c := &q.chunks[i]
	c.sum, c.summed = crc32.Checksum(q.bytes(i), castagnoli), true
}

// thaw ends freeze and records whether the chunk was written to.
func (q *Queue) thaw(i int) {
	c := &q.chunks[i]
	if !c.summed {
		return
	}
	c.summed = false
	if crc32.Checksum(q.bytes(i), castagnoli) != c.sum {
		q.misuse("write to chunk %d while it was %v (since %s)", i, c.state, c.last)
	}
}

// misuse records a wrong use by the program, for Audit.
func (q *Queue) misuse(format string, args ...any) {
	q.n.Misuses++
	if len(q.wrong) < 8 {
		q.wrong = append(q.wrong, fmt.Errorf("xdpnictest: "+format, args...))
	}
}

// wrongChunk records a call on a chunk that the program does not own.
func (q *Queue) wrongChunk(op string, addr uint64) {
	i := q.number(addr)
	if i < 0 {
		q.misuse("%s of address %#x, which is in no chunk", op, addr)
		return
	}
	c := &q.chunks[i]
	q.misuse("%s of chunk %d, which is %v (since %s)", op, i, c.state, c.last)
}

// Owners is the number of chunks of each owner.
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

// Audit checks that every chunk has exactly one owner and that rings, lists and chunks agree. It reports the
// first wrong uses: calls on chunks that the program did not own (released twice, recycled without a lease,
// sent after release), and writes to chunks that the kernel had or that had been given back.
func (q *Queue) Audit() error {
	q.wire.mu.Lock()
	defer q.wire.mu.Unlock()
	for i := range q.chunks {
		if q.chunks[i].summed { // an undetected write
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
