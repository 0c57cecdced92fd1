package lane

import (
	"fmt"
	"sync/atomic"
)

// Geometry of the memory in bytes.
const (
	Slots    = 256  // frames of each direction; a power of two
	MaxFrame = 4096 // bytes of a frame

	line     = 64 // no two sides write to one
	header   = 4 * line
	slotHead = line // the length, on a line of its own so that frames are aligned
	slotSize = slotHead + MaxFrame
	ringSize = header + Slots*slotSize
	pageSize = 4096

	// Size is that of the memory of a lane.
	Size = (2*ringSize + pageSize - 1) &^ (pageSize - 1)
)

// Lane is one side's view.
type Lane struct {
	out ring // frames to the other side
	in  ring // frames from it

	head uint32        // of out: the first slot that is not published
	tail atomic.Uint32 // of in: the first frame that is not taken; who looks reads it, too
}

// ring is one direction. The words are shared.
type ring struct {
	mem    []byte
	prod   *atomic.Uint32 // frames ever published
	cons   *atomic.Uint32 // frames ever taken
	asleep *atomic.Uint32 // 1: the consumer wants the bell
}

// New makes the view of a side, 0 or 1. mem is the whole shared memory, zero at
// first; a side that begins anew goes on where it has stopped. mem must stay mapped
// while the Lane is used.
func New(mem []byte, side int) (*Lane, error) {
	if len(mem) < Size || side != 0 && side != 1 {
		return nil, fmt.Errorf("lane: side %d of %d bytes, want 0 or 1 of %d", side, len(mem), Size)
	}
	l := &Lane{out: newRing(mem[side*ringSize:][:ringSize]), in: newRing(mem[(1-side)*ringSize:][:ringSize])}
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

// Send puts a frame on the way, if there is room. bell says that the other side
// sleeps and is to be woken.
func (l *Lane) Send(frame []byte) (sent, bell bool) {
	// A difference of more than Slots is a lie, and no room either.
	if l.head-l.out.cons.Load() >= Slots || len(frame) > MaxFrame {
		return false, false
	}
	slot := l.out.slot(l.head)
	copy(slot[slotHead:], frame)
	word(slot, 0).Store(uint32(len(frame)))
	l.head++
	l.out.prod.Store(l.head)
	// The other side says that it sleeps and then looks at the ring; here it is
	// the other way round, and both are sequentially consistent.
	return true, l.out.asleep.Load() == 1
}

// Receive copies the next frame into buf, which has MaxFrame bytes, and returns its
// length; ok is false when there is none.
func (l *Lane) Receive(buf []byte) (n int, ok bool) {
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

// some tells whether there are frames from tail on.
func (l *Lane) some(tail uint32) bool {
	n := l.in.prod.Load() - tail
	return n != 0 && n <= Slots
}

// Ready tells whether there is a frame, by what this side has taken: the other one
// can write to the index in the ring. Any goroutine.
func (l *Lane) Ready() bool { return l.some(l.tail.Load()) }

// Sleep says whether this side wants the bell from now on. Who is about to sleep
// looks at Ready after it.
func (l *Lane) Sleep(on bool) {
	v := uint32(0)
	if on {
		v = 1
	}
	l.in.asleep.Store(v)
}
