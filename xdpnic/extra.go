package xdpnic

import (
	"context"
	"slices"
)

// A socket receives only from its own queue. So a Queue that receives from several (Config.ExtraQueues) has a socket on
// each, with its own RX and fill ring and its own RX chunks. All are in one UMEM:
//
//	| pool of QueueID | pool of ExtraQueues[0] | pool of ExtraQueues[1] | ...
//
// It sends on the first socket only. The others have the shortest rings for sending that the kernel takes.

// MaxExtraQueues is the largest number of queues from which a Queue receives beside its own.
const MaxExtraQueues = 15

func (c *Config) checkExtra() error {
	if len(c.ExtraQueues) == 0 {
		return nil
	}
	switch {
	case len(c.ExtraQueues) > MaxExtraQueues:
		return c.bad("%d further queues: must be at most %d", len(c.ExtraQueues), MaxExtraQueues)
	case c.Share != nil:
		return c.bad("a queue with another's memory cannot have further queues")
	}
	for i, n := range c.ExtraQueues {
		if n < 0 || n == c.QueueID || slices.Contains(c.ExtraQueues[:i], n) {
			return c.bad("further queues %d: must be different from each other and from the queue itself", c.ExtraQueues)
		}
	}
	return nil
}

// checkSockets refuses another number of further sockets than of ExtraQueues.
func (c *Config) checkSockets(extra []int) error {
	if len(extra) != len(c.ExtraQueues) {
		return c.bad("%d sockets for %d further queues", len(extra), len(c.ExtraQueues))
	}
	return nil
}

// extra is the configuration of the socket on ExtraQueues[i]. c is complete.
func (c *Config) extra(i int) Config {
	a := *c
	a.ExtraQueues, a.QueueID = nil, c.ExtraQueues[i]
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

// openExtra opens the sockets on ExtraQueues.
func (q *Queue) openExtra(ctx context.Context) error {
	for i := range q.cfg.ExtraQueues {
		cfg := q.cfg.extra(i)
		cfg.Share = q
		a := q.addExtra(cfg)
		if err := a.open(ctx); err != nil {
			return err
		}
	}
	return nil
}

// addExtra adds a socket that is still to be opened.
func (q *Queue) addExtra(cfg Config) *Queue {
	a := newQueue(cfg)
	if q.extra == nil {
		q.extraBase, q.extraBytes = uint64(cfg.PoolOffset), uint64(cfg.firstPoolBytes())
	}
	q.extra = append(q.extra, a)
	return a
}

// RingBytes returns the memory that the kernel has allocated for the rings of all sockets, and SocketRingBytes that for RX and TX
// rings alone: see Rings.Bytes.
func (i *Info) RingBytes() int {
	a := i.extraRings()
	return i.Rings.Bytes() + len(i.ExtraQueues)*a.Bytes()
}

// SocketRingBytes is described at RingBytes.
func (i *Info) SocketRingBytes() int {
	a := i.extraRings()
	return i.Rings.SocketBytes() + len(i.ExtraQueues)*a.SocketBytes()
}

// extraRings are the rings of a socket on one of ExtraQueues.
func (i *Info) extraRings() Rings {
	r := i.Rings
	r.TX, r.Completion = 1, powerOfTwo(1+i.Sharing.Guests)
	return r
}

// FDs returns the descriptors of the sockets: FD, and those on ExtraQueues in their order. The Queue keeps ownership.
func (q *Queue) FDs() []int {
	all := []int{q.fd}
	for _, a := range q.extra {
		all = append(all, a.fd)
	}
	return all
}

// receiveExtra is Receive from the queues in turn, so that none waits for another one. It returns 0 if it is the turn of the
// first queue, or if no other queue has a frame.
func (q *Queue) receiveExtra(frames []Frame) int {
	for range q.extra {
		q.turn++
		if q.turn > len(q.extra) {
			q.turn = 0
			if q.rx.ready() {
				return 0
			}
			q.turn = 1
		}
		if n := q.extra[q.turn-1].Receive(frames); n != 0 {
			return n
		}
	}
	return 0
}

// poolOf returns the pool of an RX chunk. Other addresses give the first queue's.
func (q *Queue) poolOf(addr uint64) *pool {
	if i := (addr - q.extraBase) / q.extraBytes; i < uint64(len(q.extra)) {
		return q.extra[i].pool
	}
	return q.pool
}

func (q *Queue) extraReady() bool {
	for _, a := range q.extra {
		if a.look.ready() {
			return true
		}
	}
	return false
}
