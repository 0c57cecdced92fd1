package testbed

import (
	"container/heap"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// lane carries the frames of one direction from one interface of the middle to
// the other. One goroutine does the work, run; the mutex guards what others
// look at.
//
//	in --recv--> fate --+--> out
//	                    +--> line, by the time at which they go on --> out
type lane struct {
	in, out int // packet sockets, closed by run
	stop    int // an eventfd that ends run
	epoch   time.Time
	ended   chan struct{}
	thread  chan int // the id of run's, once

	mu     sync.Mutex
	faults Faults
	n      LaneCounters
	kept   [][]byte // the last frames, for a forger

	// Of run alone.
	dice   dice
	line   line
	order  uint64
	queued int           // frames on the line that wait for the rate
	free   time.Duration // when the rate's turn comes again
	buf    []byte
	spare  [][]byte
}

// Room for any frame of a veth interface, and for what arrives while the
// forwarder does not run.
const (
	maxFrame   = MaxMTU + 64
	socketRoom = 32 << 20
)

// openLane makes a lane between two interfaces of the calling thread's network
// namespace, by their indices.
func openLane(in, out int) (_ *lane, err error) {
	l := &lane{
		in: -1, out: -1, stop: -1, epoch: time.Now(), ended: make(chan struct{}), thread: make(chan int, 1),
		dice: newDice(), buf: make([]byte, maxFrame),
	}
	defer func() {
		if err != nil {
			l.closeAll()
		}
	}()
	if l.in, err = packetSocket(in, unix.ETH_P_ALL); err != nil {
		return nil, err
	}
	if l.out, err = packetSocket(out, 0); err != nil { // protocol 0: receives nothing
		return nil, err
	}
	if l.stop, err = unix.Eventfd(0, unix.EFD_CLOEXEC); err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	return l, nil
}

func packetSocket(index, protocol int) (int, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, explain(err, "packet socket")
	}
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, socketRoom),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, socketRoom),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: bigEndian(protocol), Ifindex: index}))
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("packet socket: %w", err)
	}
	return fd, nil
}

// bigEndian gives a number the order of bytes that it has on the network.
func bigEndian(v int) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], uint16(v))
	return binary.NativeEndian.Uint16(b[:])
}

func (l *lane) closeAll() {
	for _, fd := range []*int{&l.in, &l.out, &l.stop} {
		if *fd >= 0 {
			unix.Close(*fd)
			*fd = -1
		}
	}
}

// setFaults takes effect with the next frame. The fates begin anew.
func (l *lane) setFaults(f Faults) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.faults = f
	l.dice = newDice()
}

func (l *lane) counters() LaneCounters {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.countOverrun()
	return l.n
}

// close ends the lane; frames on the way are lost.
func (l *lane) close() {
	unix.Write(l.stop, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	<-l.ended
	l.mu.Lock()
	defer l.mu.Unlock()
	l.countOverrun()
	l.closeAll()
}

// batch bounds how many frames are taken between two looks at the clock.
const batch = 64

// run forwards until close.
func (l *lane) run() {
	runtime.LockOSThread() // not unlocked: whatever its priority has become ends with it
	l.thread <- unix.Gettid()
	defer close(l.ended)
	fds := []unix.PollFd{{Fd: int32(l.in), Events: unix.POLLIN}, {Fd: int32(l.stop), Events: unix.POLLIN}}
	for {
		wait := l.turn()
		var limit *unix.Timespec
		if wait >= 0 {
			ts := unix.NsecToTimespec(int64(wait))
			limit = &ts
		}
		if _, err := unix.Ppoll(fds, limit, nil); err != nil && err != unix.EINTR {
			return
		}
		if fds[1].Revents != 0 {
			return
		}
	}
}

// turn does what there is to do and returns for how long there is nothing more:
// 0 if there may be, negative until a frame comes.
func (l *lane) turn() (wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Since(l.epoch)
	for len(l.line) > 0 && l.line[0].due <= now {
		w := heap.Pop(&l.line).(*waiting)
		if w.limited {
			l.queued--
		}
		l.pass(w.frame)
		l.spare = append(l.spare, w.frame[:0])
	}
	l.n.Waiting = uint64(len(l.line))
	for range batch {
		n, _, err := unix.Recvfrom(l.in, l.buf, unix.MSG_DONTWAIT|unix.MSG_TRUNC)
		switch err {
		case nil:
			l.take(l.buf[:min(n, len(l.buf))], now)
			continue
		case unix.EAGAIN:
			if len(l.line) == 0 {
				return -1
			}
			return max(l.line[0].due-time.Since(l.epoch), 0)
		}
		// ENETDOWN: said once; the socket goes on when the interface is up.
	}
	return 0
}

// countOverrun reads how many frames found no room; the kernel then counts from
// 0 again. Locked.
func (l *lane) countOverrun() {
	if l.in < 0 {
		return
	}
	if s, err := unix.GetsockoptTpacketStats(l.in, unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
		l.n.Overrun += uint64(s.Drops)
	}
}

// take lets a frame meet its fate.
func (l *lane) take(frame []byte, now time.Duration) {
	l.n.Taken++
	l.keep(frame)
	t := l.dice.next(&l.faults)
	switch {
	case t.inBurst:
		l.n.LostInBurst++
		return
	case t.lost:
		l.n.Lost++
		return
	}
	if t.duplicate {
		l.n.Duplicated++
		copied := append(l.buffer(), frame...)
		l.travel(copied, &t.copies[1], now)
		l.spare = append(l.spare, copied[:0])
	}
	l.travel(frame, &t.copies[0], now)
}

// travel sends one copy on its way, now or later.
func (l *lane) travel(frame []byte, p *passage, now time.Duration) {
	f := &l.faults
	if p.corrupt && canCorrupt(frame) {
		l.n.Corrupted++
		p.damage(frame)
	}
	w := waiting{due: now}
	if f.Rate > 0 {
		if l.queued >= orElse(f.Queue, defaultQueue) {
			l.n.Limited++
			return
		}
		l.free = max(l.free, now) + time.Duration(int64(len(frame))*8*int64(time.Second)/f.Rate)
		w.due = l.free
		w.limited = true
		l.queued++
	}
	w.due += f.Delay + time.Duration(p.jitter*float64(f.Jitter))
	if p.heldBack {
		l.n.Reordered++
		w.due += orElse(f.ReorderBy, defaultReorderBy)
	} else if w.due > now {
		l.n.Delayed++
	}
	if w.due <= now {
		l.pass(frame)
		return
	}
	l.order++
	w.order = l.order
	w.frame = append(l.buffer(), frame...)
	heap.Push(&l.line, &w)
	l.n.Waiting = uint64(len(l.line))
}

// pass hands a frame to the receiving side.
func (l *lane) pass(frame []byte) {
	if err := unix.Sendto(l.out, frame, 0, nil); err != nil {
		l.n.Refused++
		return
	}
	l.n.Passed++
}

func (l *lane) buffer() []byte {
	if n := len(l.spare); n > 0 {
		b := l.spare[n-1]
		l.spare = l.spare[:n-1]
		return b
	}
	return make([]byte, 0, 2048)
}

// waiting is a frame that goes on later.
type waiting struct {
	due     time.Duration
	order   uint64 // among those of one time
	limited bool   // it waits for the rate, too
	frame   []byte
}

// line is a heap, what is due first at its top.
type line []*waiting

func (l line) Len() int { return len(l) }
func (l line) Less(i, j int) bool {
	return l[i].due < l[j].due || l[i].due == l[j].due && l[i].order < l[j].order
}
func (l line) Swap(i, j int) { l[i], l[j] = l[j], l[i] }
func (l *line) Push(x any)   { *l = append(*l, x.(*waiting)) }
func (l *line) Pop() any {
	old := *l
	w := old[len(old)-1]
	old[len(old)-1] = nil
	*l = old[:len(old)-1]
	return w
}
