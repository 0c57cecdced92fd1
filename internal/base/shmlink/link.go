package shmlink

import (
	"fmt"
	"sync/atomic"
)

// Geometry of the memory in bytes.
const (
	Slots    = 256  // frames of each direction; a power of two
	MaxFrame = 4096 // bytes of a frame

	line     = 64 // cache line; the two sides never write to the same one
	header   = 4 * line
	slotHead = line // the length, on a line of its own so that frames are aligned
	slotSize = slotHead + MaxFrame
	ringSize = header + Slots*slotSize
	pageSize = 4096

	// Size is the size of a link's memory.
	Size = (2*ringSize + pageSize - 1) &^ (pageSize - 1)
)

// Link is one side's view of the shared memory.
type Link struct {
	out ring // frames to the other side
	in  ring // frames from the other side

	head uint32        // first slot of out that is not published
	tail atomic.Uint32 // first frame of in that is not taken; Ready reads it from any goroutine
}

// ring is one direction. The words are shared.
type ring struct {
	mem    []byte
	prod   *atomic.Uint32 // frames ever published
	cons   *atomic.Uint32 // frames ever taken
	asleep *atomic.Uint32 // 1: the consumer wants the bell
}

// New makes the view of a side, 0 or 1. mem is the whole shared memory, which is
// zero at first. A side that is made again continues where it stopped. mem must
// stay mapped while the Link is in use.
func New(mem []byte, side int) (*Link, error) {
	if len(mem) < Size || side != 0 && side != 1 {
		return nil, fmt.Errorf("shmlink: side %d of %d bytes, want 0 or 1 of %d", side, len(mem), Size)
	}
	l := &Link{out: newRing(mem[side*ringSize:][:ringSize]), in: newRing(mem[(1-side)*ringSize:][:ringSize])}
	l.head = l.out.prod.Load()
	l.tail.Store(l.in.cons.Load())
	return l, nil
}

func newRing(mem []byte) ring {
	return ring{mem: mem, prod: word(mem, 0), cons: word(mem, line), asleep: word(mem, 2*line)}
}

func (r *ring) slot(i uint32) []byte {
	at := header + int(i%Slots)*slotSize
	return r.mem[at : at+slotSize]
}

// Send publishes a frame if there is room. bell reports that the other side sleeps
// and must be woken.
func (l *Link) Send(frame []byte) (sent, bell bool) {
	// A difference of more than Slots is invalid and counts as no room.
	if l.head-l.out.cons.Load() >= Slots || len(frame) > MaxFrame {
		return false, false
	}
	slot := l.out.slot(l.head)
	copy(slot[slotHead:], frame)
	word(slot, 0).Store(uint32(len(frame)))
	l.head++
	l.out.prod.Store(l.head)
	// The other side stores asleep and then loads the ring's index. This side stores
	// the index and then loads asleep. Both are sequentially consistent, so one of
	// the two sees the other's store.
	return true, l.out.asleep.Load() == 1
}

// Receive copies the next frame into buf, which has MaxFrame bytes, and returns its
// length; ok is false if there is none.
func (l *Link) Receive(buf []byte) (n int, ok bool) {
	tail := l.tail.Load()
	if !l.some(tail) {
		return 0, false
	}
	slot := l.in.slot(tail)
	if length := word(slot, 0).Load(); length <= MaxFrame {
		n = copy(buf[:MaxFrame], slot[slotHead:slotHead+int(length)])
	}
	l.tail.Store(tail + 1)
	l.in.cons.Store(tail + 1)
	return n, true
}

// some reports whether there are frames from tail on.
func (l *Link) some(tail uint32) bool {
	n := l.in.prod.Load() - tail
	return n != 0 && n <= Slots
}

// Ready reports whether there is a frame. It uses this side's private tail, because
// the other side can write to the index in the ring. Any goroutine may call it.
func (l *Link) Ready() bool { return l.some(l.tail.Load()) }

// Sleep sets whether the other side must wake this one after Send. After Sleep(true)
// the caller must check Ready before it sleeps.
func (l *Link) Sleep(on bool) {
	v := uint32(0)
	if on {
		v = 1
	}
	l.in.asleep.Store(v)
}
