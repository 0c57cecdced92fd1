package xdpnic

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const pktContd = unix.XDP_PKT_CONTD

// kick tells the kernel to look at the TX ring. In copy mode the call does all
// of the sending, on veth delivery into the peer's RX ring included; it does
// not sleep, and so need not tell the scheduler.
func kick(fd int) unix.Errno {
	_, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
	return errno
}

// kickRX tells the driver to look at the fill ring.
func kickRX(fd int) {
	// The answer does not matter: the next poll or Refill asks again.
	_, _, _ = unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
}

// maxIdleKicks is how often Flush kicks in a row without the kernel taking an
// entry before it leaves the rest for later.
const maxIdleKicks = 8

// Flush publishes what Send has put on the TX ring and kicks until the kernel
// has taken all that it will take now, then reaps completions. What is left
// (Pending) stays on the ring for the next Flush: the completion ring, the
// send buffer or the driver's queue is full.
//
// A frame that the driver's queue had no room for is lost (EBUSY) and counted
// as TxLostBusy; its completion comes all the same. Real errors are
// ErrLinkDown, ErrGone, ErrClosed, or an *OpError.
//
// Owner only; no allocation.
func (q *Queue) Flush() error {
	if q.pend != 0 {
		q.publish()
	} else if q.fd < 0 {
		return ErrClosed
	} else if q.tx.left() == 0 {
		q.pool.reap()
		return nil
	}
	if q.zc {
		return q.flushZeroCopy()
	}
	errno := kick(q.fd)
	q.n.txKicks++
	if errno == 0 && q.tx.left() == 0 {
		q.pool.reap()
		return nil
	}
	return q.flushRest(errno)
}

// publish submits what Send has put on the TX ring.
func (q *Queue) publish() {
	q.tx.submit(q.pend)
	q.n.txEntries += uint64(q.pend)
	q.pend = 0
}

// flushRest goes on after a kick that did not take everything. Copy mode hands
// over at most Info.TxBudget entries a kick (EAGAIN), stops at a lost frame
// (EBUSY) and waits for nothing.
func (q *Queue) flushRest(errno unix.Errno) error {
	// The kernel publishes its index late in some cases, so that a round
	// without visible progress is no proof; hence the count.
	left, idle := ^uint32(0), 0
	for {
		switch errno {
		case 0, unix.EINTR:
		case unix.EAGAIN:
			q.n.txAgain++
		case unix.ENOBUFS, unix.ENOMEM:
			q.n.txNoMemory++
		case unix.EBUSY:
			q.n.txLostBusy++
			idle = 0
		default:
			q.pool.reap()
			return kickError(errno)
		}
		q.pool.reap() // room on the completion ring
		now := q.tx.left()
		if now == 0 {
			return nil
		}
		if now < left {
			left, idle = now, 0
		} else if idle++; idle > maxIdleKicks {
			return nil
		}
		errno = kick(q.fd)
		q.n.txKicks++
	}
}

// flushZeroCopy wakes the driver if it asks for it. The NIC sends on its own;
// there is nothing to wait for here.
//
// The driver sets its flag and then looks at the ring; here it is the other way
// round, and the store must be seen before the flag is read.
func (q *Queue) flushZeroCopy() error {
	q.fence.Add(1)
	if q.tx.needWakeup() {
		q.n.txKicks++
		switch errno := kick(q.fd); errno {
		case 0, unix.EINTR:
		case unix.EAGAIN, unix.EBUSY, unix.ENOBUFS, unix.ENOMEM:
			q.n.txAgain++
		default:
			q.pool.reap()
			return kickError(errno)
		}
	}
	q.pool.reap()
	return nil
}

// How often Drain looks in vain before it gives up, and the pauses between: 100 ms.
// drainMost is the end in any case, as others wait for the queue to be closed.
const (
	drainMost  = time.Second
	drainLooks = 102
	drainSoon  = 50 * time.Microsecond
	drainLate  = time.Millisecond
)

// Drain is Flush until all frames have left, or none has for a tenth of a second, and for
// a second at most. A NIC in zero-copy mode sends in its own time, and drops what its
// rings hold when the program is detached or the socket closed: so it is called before.
// It waits for the frames of all sockets that share the queue. The error is Flush's.
//
// Owner only.
func (q *Queue) Drain() error {
	pause, end := drainSoon, time.Now().Add(drainMost)
	for looks, done := 0, uint64(0); looks < drainLooks && time.Now().Before(end); looks++ {
		if err := q.Flush(); err != nil {
			return err
		}
		if q.Pending() == 0 && q.pool.txOut == 0 {
			return nil
		}
		if now := q.pool.completed; now != done {
			done, looks, pause = now, 0, drainSoon
		}
		time.Sleep(pause)
		pause = min(2*pause, drainLate)
	}
	return nil
}

func kickError(errno unix.Errno) error {
	switch errno {
	case unix.ENETDOWN:
		return ErrLinkDown
	case unix.ENXIO:
		return ErrGone
	case unix.EBADF:
		return ErrClosed
	}
	return &OpError{Op: "kick", Ifindex: -1, Err: errno}
}

// waiter is what goroutines other than the owner touch.
type waiter struct {
	closed  atomic.Bool
	woken   atomic.Bool  // a Wake that no Wait has seen
	waiters atomic.Int32 // goroutines in Wait
	wakers  atomic.Int32 // goroutines about to signal
	fd      int          // the socket
	event   int          // eventfd(2)
}

// Ready reports whether the RX ring holds an entry; never after Close. Any
// goroutine, also beside Close; two loads, no system call.
func (q *Queue) Ready() bool { return q.look.ready() }

// Wait sleeps in poll(2) until the RX ring holds an entry, until Wake, or until
// the time is over (timeout < 0: for ever, 0: do not sleep). It returns nil in
// all of these cases, now and then also for no reason; look at Ready. The error
// is ErrClosed or an *OpError.
//
// While it sleeps in copy mode, poll also drives the TX ring (xsk_poll in
// net/xdp/xsk.c); a frame lost on the way is not counted.
//
// Any goroutine, several at a time: a Wake wakes at least one. No allocation.
func (q *Queue) Wait(timeout time.Duration) error {
	w := &q.wait
	w.waiters.Add(1)
	defer w.waiters.Add(-1)
	// Wake stores woken before it looks at waiters; here it is the other way
	// round, so that one of the two sees the other.
	if w.closed.Load() {
		return ErrClosed
	}
	if w.woken.Swap(false) || q.look.ready() || timeout == 0 {
		return nil
	}
	_, event, errno := pollIn(w.fd, w.event, timeout)
	if w.closed.Load() {
		return ErrClosed
	}
	if errno != 0 {
		return q.fail("poll", errno)
	}
	if event {
		var b [8]byte
		// Another waiter may have emptied it: EAGAIN.
		_, _ = unix.Read(w.event, b[:])
		w.woken.Store(false)
	}
	return nil
}

// Wake ends a Wait, or makes the next one return at once; several Wakes before that
// count as one. It makes a system call only while somebody waits. Any goroutine.
func (q *Queue) Wake() {
	w := &q.wait
	w.woken.Store(true)
	if w.waiters.Load() == 0 {
		return
	}
	w.wakers.Add(1)
	if !w.closed.Load() {
		w.signal()
	}
	w.wakers.Add(-1)
}

var one = []byte{1, 0, 0, 0, 0, 0, 0, 0}

func (w *waiter) signal() {
	// It fails only when the counter is full, and then it is readable anyway.
	_, _ = unix.Write(w.event, one)
}

// evict wakes all waiters of a queue that is closed and lets them and the
// wakers leave before their descriptors are closed. No waiter empties the event
// any more.
func (w *waiter) evict() {
	for w.event >= 0 && (w.waiters.Load() > 0 || w.wakers.Load() > 0) {
		w.signal()
		time.Sleep(50 * time.Microsecond)
	}
}
