package xdpnic

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const pktContd = unix.XDP_PKT_CONTD

// kick makes the kernel process the TX ring. In copy mode the call does all of the sending; on veth that
// includes delivery into the peer's RX ring. It does not sleep, so a raw system call suffices and Go's
// scheduler need not know.
func kick(fd int) unix.Errno {
	_, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
	return errno
}

// kickRX makes the driver process the fill ring.
func kickRX(fd int) {
	// The result does not matter: the next poll or Refill kicks again.
	_, _, _ = unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
}

// maxIdleKicks is the number of consecutive kicks without progress after which
// Flush leaves the remaining entries for later.
const maxIdleKicks = 8

// Flush publishes what Send has put on the TX ring, kicks until the kernel takes
// no more, and reaps completions. Entries remain (Pending) if the completion
// ring, the send buffer or the driver's queue is full; the next Flush sends them.
//
// A frame that the driver's queue had no room for, or that found no carrier, is lost
// (EBUSY) and counted as TxLostBusy; it still completes. Flush returns ErrLinkDown, ErrGone, ErrClosed
// or an *OpError.
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
	q.n.TxKicks++
	if errno == 0 && q.tx.left() == 0 {
		q.pool.reap()
		return nil
	}
	return q.flushRest(errno)
}

// publish submits what Send has put on the TX ring.
func (q *Queue) publish() {
	q.tx.submit(q.pend)
	q.n.Transmitted += uint64(q.pend)
	q.pend = 0
}

// flushRest continues after a kick that did not take everything. In copy mode a
// kick hands over at most Info.TxBudget entries (EAGAIN), stops at a lost frame
// (EBUSY) and never sleeps.
func (q *Queue) flushRest(errno unix.Errno) error {
	// The kernel sometimes publishes its index late. One round without visible
	// progress therefore proves nothing; maxIdleKicks rounds end the loop.
	left, idle := ^uint32(0), 0
	for {
		switch errno {
		case 0, unix.EINTR:
		case unix.EAGAIN:
			q.n.TxAgain++
		case unix.ENOBUFS, unix.ENOMEM:
			q.n.TxNoMemory++
		case unix.EBUSY:
			q.n.TxLostBusy++
			idle = 0
		default:
			q.pool.reap()
			return kickError(errno)
		}
		q.pool.reap() // makes room on the completion ring
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
		q.n.TxKicks++
	}
}

// flushZeroCopy wakes the driver if it asks for it. The NIC sends on its own, so
// there is nothing to wait for.
//
// The driver sets its flag and then reads the ring. This side stores to the ring
// and then reads the flag, so the store must be visible before the load.
func (q *Queue) flushZeroCopy() error {
	q.fence.Add(1)
	if q.tx.needWakeup() {
		q.n.TxKicks++
		switch errno := kick(q.fd); errno {
		case 0, unix.EINTR:
		case unix.EAGAIN, unix.EBUSY, unix.ENOBUFS, unix.ENOMEM:
			q.n.TxAgain++
		default:
			q.pool.reap()
			return kickError(errno)
		}
	}
	q.pool.reap()
	return nil
}

// Drain gives up after drainLooks checks without progress, which with the pauses
// between them take 100 ms. It ends after drainMost in any case, because other code
// waits for the queue to be closed.
const (
	drainMost  = time.Second
	drainLooks = 102
	drainSoon  = 50 * time.Microsecond
	drainLate  = time.Millisecond
)

// Drain repeats Flush until all frames have left, but gives up after 100 ms without
// progress and after one second in any case. Call it before the program is detached or
// the socket is closed: a NIC in zero-copy mode sends in its own time, and these drop what
// is on its rings. It waits for the frames of all sockets that share the queue. It returns
// the error of Flush.
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

// waiter holds the state that goroutines other than the owner use.
type waiter struct {
	closed  atomic.Bool
	woken   atomic.Bool  // a Wake that no Wait has seen
	waiters atomic.Int32 // goroutines in Wait
	wakers  atomic.Int32 // goroutines about to signal
	fd      int          // the socket
	event   int          // eventfd(2)
}

// Ready reports whether an RX ring holds an entry. It returns false after Close.
// Any goroutine may call it, also during Close. It costs two loads and no system
// call.
func (q *Queue) Ready() bool { return q.look.ready() || q.extra != nil && q.extraReady() }

// Wait sleeps in poll(2) until an RX ring holds an entry, until Wake, or until
// timeout has passed (timeout < 0: no limit, 0: do not sleep). It returns nil in
// all of these cases. It may also return nil spuriously, so check Ready. Its error
// is ErrClosed or an *OpError.
//
// In copy mode poll also drives the TX ring (xsk_poll in net/xdp/xsk.c). A frame
// that it loses is not counted.
//
// Several goroutines may wait at a time; a Wake wakes at least one. Wait does not
// allocate.
func (q *Queue) Wait(timeout time.Duration) error {
	w := &q.wait
	w.waiters.Add(1)
	defer w.waiters.Add(-1)
	// Wake stores woken and then loads waiters. This side stores waiters and then
	// loads woken, so at least one of the two sees the other's store.
	if w.closed.Load() {
		return ErrClosed
	}
	if w.woken.Swap(false) || q.Ready() || timeout == 0 {
		return nil
	}
	event, errno := pollIn(w.event, w.fd, q.extra, timeout)
	if w.closed.Load() {
		return ErrClosed
	}
	if errno != 0 {
		return q.fail("poll", errno)
	}
	if event {
		var b [8]byte
		// EAGAIN if another waiter has emptied it.
		_, _ = unix.Read(w.event, b[:])
		w.woken.Store(false)
	}
	return nil
}

// Wake ends a Wait, or makes the next one return at once; several Wakes before it
// count as one. It makes a system call only while a goroutine is in Wait. Any
// goroutine may call it.
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
	// The write fails only if the counter is full, and then it is readable.
	_, _ = unix.Write(w.event, one)
}

// evict wakes all waiters of a closed queue. It returns once they and the wakers
// have left, so that the descriptors can be closed. From then on no waiter empties
// the event.
func (w *waiter) evict() {
	for w.event >= 0 && (w.waiters.Load() > 0 || w.wakers.Load() > 0) {
		w.signal()
		time.Sleep(50 * time.Microsecond)
	}
}
