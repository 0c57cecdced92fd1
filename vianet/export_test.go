package vianet

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"
)

// OnItsWay is how many bytes a Read that finds nothing assumes to be on their way.
func OnItsWay(c *Conn) int {
	_, _, bytes, _ := c.readNow(make([]byte, 1))
	return bytes
}

// SendEntries is the size of the queue of completed sends, which grows as needed.
func SendEntries(s *Stack) int { return s.sends.cq.Entries() }

// Waiting is how many connections of a listener wait for Accept or are on their way there.
func Waiting(l *Listener) int { return len(l.places) }

// ReleaseTime is how long a peer may take to release a Write's memory.
const ReleaseTime = releaseTime

// Pin stops the processing of a connection until release is called.
func Pin(c *Conn) (release func()) {
	c.mu.Lock()
	return c.mu.Unlock
}

// Unbalanced describes the buffers and credits that are missing from one end of an idle connection to the other,
// after everything was read; "" means none.
func Unbalanced(from, to *Conn) string {
	from.progress()
	from.mu.Lock()
	from.reap()
	free, credits, out, room, tail := len(from.pool.free), from.credits, from.out, from.peerRing, from.tail.n
	if from.fill >= 0 {
		free++
	}
	from.mu.Unlock()
	to.mu.Lock()
	defer to.mu.Unlock()
	ring, byRef := 0, room.free+to.ring.freed
	if to.ring.lease != nil {
		ring = to.ring.size
	}
	switch {
	case free != from.pool.half:
		return fmt.Sprintf("%d of %d buffers for sending are free\n", free, from.pool.half)
	case tail > 0:
		return fmt.Sprintf("%d bytes wait for more\n", tail)
	case out.open || out.flight > 0:
		return "the last transfer is not over\n"
	case to.held > 0 || to.in.flight > 0 || to.in.staged > 0 || to.in.open:
		return fmt.Sprintf("the receiver holds %d messages and %+v\n", to.held, to.in)
	case room.size != ring || byRef != ring || room.at != to.ring.at || ring > 0 && room.free != to.ring.open:
		return fmt.Sprintf("of a ring of %d bytes: %+v, %+v\n", ring, room, to.ring)
	case credits+to.acksDue+len(to.spent) != to.dataBuffers():
		return fmt.Sprintf("%d credits, %d owed, %d spent, %d data buffers\n", credits, to.acksDue, len(to.spent), to.dataBuffers())
	}
	return ""
}

// WatchYields returns a function that reports whether a poller of the stack has yielded its CPU to other processes since. No
// call polls at either time.
func WatchYields(s *Stack) (yielded func() bool) {
	s.yielder.Yielded(0)
	once := s.yielder // a further yield counts on, or begins at 0
	return func() bool { return s.yielder != once }
}

// looked is the result of look under the lock of a connection.
func looked[T any](c *Conn, look func() T) T {
	c.mu.Lock()
	defer c.mu.Unlock()
	return look()
}

// HasRing reports whether the peer of a connection writes to a ring of this side.
func HasRing(c *Conn) bool { return looked(c, func() bool { return c.ring.lease != nil }) }

// Ringed reports whether both sides of a connection write to a ring of the other's.
func Ringed(c *Conn) bool {
	return looked(c, func() bool { return c.ring.lease != nil && c.peerRing.size > 0 })
}

// Full reports whether a connection has bytes to send for which the peer has no room, and room for no more of them.
func Full(c *Conn) bool {
	return looked(c, func() bool { return c.credits == 0 && c.fill >= 0 && c.filled == c.longest })
}

// Offered reports whether a connection's transfer waits for the peer to take it.
func Offered(c *Conn) bool { return looked(c, func() bool { return c.out.open }) }

// Linger is how long Close delivers in the background.
func Linger(c *Conn) time.Duration { return looked(c, func() time.Duration { return c.linger }) }

// Rouse makes the waiting Write check again. The result reports whether it has.
func Rouse(c *Conn) (heard func() bool) {
	raise(c.writable)
	return func() bool { return len(c.writable) == 0 }
}

// Reads reports whether a Read is under way.
func Reads(c *Conn) bool {
	if c.reading.TryLock() {
		c.reading.Unlock()
		return false
	}
	return true
}

// Gone is closed when a connection has broken, or its peer has ended it.
func Gone(c *Conn) <-chan struct{} { return c.gone }

// SetDelay sets how long bytes wait for more of them on connections to come.
func (s *Stack) SetDelay(d time.Duration) { s.delay = d }

// Kept is the number of registrations that a stack keeps although no connection uses them, and a text about anything
// else that it keeps of connections; "" means nothing.
func Kept(s *Stack) (n int, besides string) {
	s.mu.Lock()
	conns, listeners, buffers := len(s.conns), len(s.listeners), len(s.buffers)
	s.mu.Unlock()
	s.ports.mu.Lock()
	used := len(s.ports.used)
	s.ports.mu.Unlock()
	s.regs.mu.Lock()
	n = buffers + s.regs.order.Len() + len(s.regs.stages)
	s.regs.mu.Unlock()
	if conns > 0 || used != listeners || s.sends.wanted.Load() != 0 || s.spinning.Load() {
		besides = fmt.Sprintf("%d connections, %d ports of %d listeners, %d want sends, ",
			conns, used, listeners, s.sends.wanted.Load())
	}
	return n, besides
}

// DialOrTo is DialOr to several addresses.
func DialOrTo(
	ctx context.Context, s *Stack, to []Addr, or func(context.Context) (net.Conn, error),
) (net.Conn, error) {
	return s.dialOr(ctx, to, or)
}

// DialTo is Dial to several addresses.
func DialTo(ctx context.Context, s *Stack, to []Addr) (net.Conn, error) { return s.dialAny(ctx, to) }

// TakeAllBut marks all ports that port 0 can stand for as in use, except free.
func TakeAllBut(s *Stack, free ...uint16) {
	s.ports.mu.Lock()
	defer s.ports.mu.Unlock()
	s.ports.used = make(map[uint16]bool)
	for port := firstPort; port <= lastPort; port++ {
		if !slices.Contains(free, uint16(port)) {
			s.ports.used[uint16(port)] = true
		}
	}
}

// Discriminator is how connection management knows a port.
func Discriminator(port uint16) []byte {
	return Addr{netip.AddrPortFrom(netip.IPv4Unspecified(), port)}.via().Discriminator
}

// Tail returns how many bytes of a Write wait for the next one.
func Tail(c *Conn) int { return looked(c, func() int { return c.tail.n }) }

// MayHold reports whether what does not fill a packet may wait.
func MayHold(c *Conn) bool { return looked(c, c.mayHold) }

// Packet returns how many bytes of a Write to the ring leave in one packet.
func Packet(c *Conn) int { return looked(c, func() int { return c.peerRing.packet }) }

// StagedWithoutBuffer has c ask for a transfer of its peer while no buffer is free to ask with, and returns how many staging
// buffers it then has.
func StagedWithoutBuffer(c *Conn) (staged int, err error) {
	staged = looked(c, func() int {
		free := c.pool.free
		c.pool.free, c.in = nil, incoming{open: true, read: true, length: stageSize}
		err = c.fetchAhead()
		staged := c.in.staged
		c.pool.free, c.in = free, incoming{}
		return staged
	})
	return staged, err
}
