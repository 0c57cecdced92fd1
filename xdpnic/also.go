package xdpnic

import (
	"context"
	"slices"
)

// A socket receives only from its own queue. So a Queue that receives from several (Config.AlsoQueues) has a socket on
// each, with its own RX and fill ring and its own RX chunks. All are in one UMEM:
//
//	| pool of QueueID | pool of AlsoQueues[0] | pool of AlsoQueues[1] | ...
//
// It sends on the first socket only. The others have the shortest rings for sending that the kernel takes.

// MaxAlsoQueues is the largest number of queues from which a Queue receives beside its own.
const MaxAlsoQueues = 15

func (c *Config) checkAlso() error {
	if len(c.AlsoQueues) == 0 {
		return nil
	}
	switch {
	case len(c.AlsoQueues) > MaxAlsoQueues:
		return c.bad("%d further queues: must be at most %d", len(c.AlsoQueues), MaxAlsoQueues)
	case c.Share != nil:
		return c.bad("a queue with another's memory cannot have further queues")
	}
	for i, n := range c.AlsoQueues {
		if n < 0 || n == c.QueueID || slices.Contains(c.AlsoQueues[:i], n) {
			return c.bad("further queues %d: must be different from each other and from the queue itself", c.AlsoQueues)
		}
	}
	return nil
}

// also is the configuration of the socket on AlsoQueues[i]. c is complete.
func (c *Config) also(i int) Config {
	a := *c
	a.AlsoQueues, a.QueueID = nil, c.AlsoQueues[i]
	a.TxChunks, a.SendBuffer, a.TxBudget = 1, -1, -1
	if a.shared() {
		a.Sharing.TxChunks = 1
	}
	a.Rings.TX = 1
	a.Rings.Completion = a.completionRing()
	a.PoolOffset = c.PoolOffset + c.firstPoolBytes() + i*a.firstPoolBytes()
	return a
}

// completionRing is the default size of the completion ring.
func (c *Config) completionRing() int {
	l := c.layout()
	return powerOfTwo(max(c.Rings.TX, c.TxChunks) + l.guests*powerOfTwo(l.guest))
}

// openAlso opens the sockets on AlsoQueues.
func (q *Queue) openAlso(ctx context.Context) error {
	for i := range q.cfg.AlsoQueues {
		cfg := q.cfg.also(i)
		cfg.Share = q
		a := q.addAlso(cfg)
		if err := a.open(ctx); err != nil {
			return err
		}
	}
	return nil
}

// addAlso adds a socket that is still to be opened.
func (q *Queue) addAlso(cfg Config) *Queue {
	a := newQueue(cfg)
	if q.also == nil {
		q.alsoBase, q.alsoBytes = uint64(cfg.PoolOffset), uint64(cfg.firstPoolBytes())
	}
	q.also = append(q.also, a)
	return a
}

// RingBytes returns the memory that the kernel has allocated for the rings of all sockets, and SocketRingBytes that for RX and TX
// rings alone: see Rings.Bytes.
func (i *Info) RingBytes() int {
	a := i.alsoRings()
	return i.Rings.Bytes() + len(i.AlsoQueues)*a.Bytes()
}

// SocketRingBytes is described at RingBytes.
func (i *Info) SocketRingBytes() int {
	a := i.alsoRings()
	return i.Rings.SocketBytes() + len(i.AlsoQueues)*a.SocketBytes()
}

// alsoRings are the rings of a socket on one of AlsoQueues.
func (i *Info) alsoRings() Rings {
	r := i.Rings
	r.TX, r.Completion = 1, powerOfTwo(1+i.Sharing.Guests)
	return r
}

// FDs returns the descriptors of the sockets: FD, and those on AlsoQueues in their order. The Queue keeps ownership.
func (q *Queue) FDs() []int {
	all := []int{q.fd}
	for _, a := range q.also {
		all = append(all, a.fd)
	}
	return all
}

// receiveAlso is Receive from the queues in turn, so that none waits for another one. It returns 0 if it is the turn of the
// first queue, or if no other queue has a frame.
func (q *Queue) receiveAlso(frames []Frame) int {
	for range q.also {
		q.turn++
		if q.turn > len(q.also) {
			q.turn = 0
			if q.rx.ready() {
				return 0
			}
			q.turn = 1
		}
		if n := q.also[q.turn-1].Receive(frames); n != 0 {
			return n
		}
	}
	return 0
}

// poolOf returns the pool of an RX chunk. Other addresses give the first queue's.
func (q *Queue) poolOf(addr uint64) *pool {
	if i := (addr - q.alsoBase) / q.alsoBytes; i < uint64(len(q.also)) {
		return q.also[i].pool
	}
	return q.pool
}

func (q *Queue) alsoReady() bool {
	for _, a := range q.also {
		if a.look.ready() {
			return true
		}
	}
	return false
}
