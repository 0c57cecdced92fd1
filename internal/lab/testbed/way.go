package testbed

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Faults are what a [Middle] does to the frames that go one way through it. The zero value
// passes each on at once, in order. Shares are from 0 to 1.
//
// The choices for the n-th frame depend only on Seed and n, and one kind of fault does not
// change those of another. So a failed run can be repeated with its seed.
type Faults struct {
	Seed uint64

	Loss     float64 // share of frames that are lost, each by itself
	Burst    float64 // share of frames with which a run of losses begins
	BurstLen int     // frames of such a run; 0: 8

	Duplicate float64 // share that arrives twice
	Corrupt   float64 // share of the IP frames with up to three bits flipped behind the Ethernet header

	Reorder   float64       // share that is held back, so that later ones overtake it
	ReorderBy time.Duration // for how long; 0: 1 ms

	Delay  time.Duration // least time on the way
	Jitter time.Duration // a random part of it comes on top, and reorders

	Rate  int64 // bits per second of whole frames; 0: no limit
	Queue int   // frames that wait for the rate's turn at most, others are lost; 0: 1000
}

const (
	defaultBurstLen  = 8
	defaultReorderBy = time.Millisecond
	defaultQueue     = 1000
	mostFlips        = 3
)

// WayCounters count what became of the frames that went one way. At rest,
//
//	Taken + Duplicated = Passed + Lost + LostInBurst + Limited + Refused
//
// and Waiting is 0; otherwise Waiting belongs on the right side, too.
type WayCounters struct {
	Taken      uint64 // frames that came from the sending side
	Passed     uint64 // frames handed to the receiving side
	Duplicated uint64 // second copies made
	Corrupted  uint64 // frames, or copies, with bits flipped; they are passed on
	Reordered  uint64 // frames, or copies, held back; they are passed on
	Delayed    uint64 // frames, or copies, that waited for another reason

	Lost        uint64 // drop: by Loss
	LostInBurst uint64 // drop: by Burst
	Limited     uint64 // drop: too many waited for Rate
	Refused     uint64 // drop: the kernel did not take the frame, as when the interface is down

	Overrun uint64 // drop before Taken: the forwarder was too slow for its socket
	Waiting uint64 // frames that are on the way now
}

// Plus is the sum of two ways.
func (n WayCounters) Plus(o WayCounters) WayCounters {
	n.each(&o, func(a *uint64, b uint64) { *a += b })
	return n
}

// Since is what came after an earlier look; Waiting stays as it is now.
func (n WayCounters) Since(before WayCounters) WayCounters {
	before.Waiting = 0
	n.each(&before, func(a *uint64, b uint64) { *a -= b })
	return n
}

func (n *WayCounters) each(o *WayCounters, f func(a *uint64, b uint64)) {
	f(&n.Taken, o.Taken)
	f(&n.Passed, o.Passed)
	f(&n.Duplicated, o.Duplicated)
	f(&n.Corrupted, o.Corrupted)
	f(&n.Reordered, o.Reordered)
	f(&n.Delayed, o.Delayed)
	f(&n.Lost, o.Lost)
	f(&n.LostInBurst, o.LostInBurst)
	f(&n.Limited, o.Limited)
	f(&n.Refused, o.Refused)
	f(&n.Overrun, o.Overrun)
	f(&n.Waiting, o.Waiting)
}

// faultDecision is what is to become of one frame.
type faultDecision struct {
	lost, inBurst bool
	copies        [2]copyPlan // the second one if duplicate
	duplicate     bool
}

// copyPlan is how one copy of a frame travels.
type copyPlan struct {
	corrupt  bool
	flips    int
	flip     [mostFlips]uint64 // random numbers that choose the bits
	heldBack bool
	jitter   float64 // share of Faults.Jitter
}

// randomSource draws the decisions for one direction's frames.
type randomSource struct {
	n     uint64 // frames so far
	burst int    // frames of the run of losses that are to come
	pcg   *rand.PCG
	rng   *rand.Rand
}

func newRandomSource() randomSource {
	pcg := rand.NewPCG(0, 0)
	return randomSource{pcg: pcg, rng: rand.New(pcg)}
}

// next is the decision for the next frame. It draws the same number of times for any faults.
func (d *randomSource) next(f *Faults) (t faultDecision) {
	d.n++
	d.pcg.Seed(f.Seed, d.n)
	hit := func(share float64) bool { return d.rng.Float64() < share }
	t.lost = hit(f.Loss)
	begins := hit(f.Burst)
	t.duplicate = hit(f.Duplicate)
	for i := range t.copies {
		c := &t.copies[i]
		c.corrupt = hit(f.Corrupt)
		c.flips = 1 + d.rng.IntN(mostFlips)
		for k := range c.flip {
			c.flip[k] = d.rng.Uint64()
		}
		c.heldBack = hit(f.Reorder)
		c.jitter = d.rng.Float64()
	}
	switch {
	case d.burst > 0:
		d.burst--
		t.inBurst = true
	case begins:
		d.burst = cmp.Or(f.BurstLen, defaultBurstLen) - 1
		t.inBurst = true
	}
	return t
}

// Bytes of an Ethernet frame that matter here.
const (
	etherTypeAt = 12
	etherLen    = 14
)

// canCorrupt reports whether damage to a frame is detected: all of IP has
// checksums, ARP has none, and a wrong address learned from it would stay.
func canCorrupt(frame []byte) bool {
	if len(frame) <= etherLen {
		return false
	}
	switch uint16(frame[etherTypeAt])<<8 | uint16(frame[etherTypeAt+1]) {
	case 0x0800, 0x86dd:
		return true
	}
	return false
}

// damage flips the bits that p chose, behind the Ethernet header.
func (p *copyPlan) damage(frame []byte) {
	body := frame[etherLen:]
	for _, r := range p.flip[:p.flips] {
		bit := r % uint64(8*len(body))
		body[bit/8] ^= 1 << (bit % 8)
	}
}

// way carries the frames of one direction from one interface of the middle to the other. One
// goroutine does the work, run; the mutex guards what other goroutines access.
//
//	in --recv--> decision --+--> out
//	                        +--> line, by the time at which they go on --> out
type way struct {
	in, out int // packet sockets; guarded by mu
	wake    int // an eventfd that has run look at in and ending again
	epoch   time.Time
	ended   chan struct{}
	thread  chan int // the id of run's, once

	mu     sync.Mutex
	ending bool
	faults Faults
	n      WayCounters
	kept   [][]byte // the last frames, for a forger
	watch  func(frame []byte) bool
	seen   WayCounters // of the frames that watch is for

	// Of run alone.
	apart        bool // the frame that is taken is one that watch is for
	randomSource randomSource
	line         []waiting     // what is due first at its beginning
	queued       int           // frames on the line that wait for the rate
	free         time.Duration // when the rate's turn comes again
	buf          []byte
	spare        [][]byte
}

// Room for any frame of a veth interface, and for what arrives while the
// forwarder does not run.
const (
	maxFrame   = MaxMTU + 64
	socketRoom = 32 << 20
)

// openWay makes a way between two interfaces of the calling thread's network
// namespace, by their indices.
func openWay(in, out int) (_ *way, err error) {
	w := &way{
		in: -1, out: -1, wake: -1, epoch: time.Now(), ended: make(chan struct{}), thread: make(chan int, 1),
		randomSource: newRandomSource(), buf: make([]byte, maxFrame),
	}
	defer func() {
		if err != nil {
			w.closeAll()
		}
	}()
	if w.in, err = packetSocket(in, unix.ETH_P_ALL); err != nil {
		return nil, err
	}
	if w.out, err = packetSocket(out, 0); err != nil { // protocol 0: receives nothing
		return nil, err
	}
	if w.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	return w, nil
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

// readFrom has the way take what comes from another interface of the calling thread's network
// namespace from now on.
func (w *way) readFrom(index int) error {
	fd, err := packetSocket(index, unix.ETH_P_ALL)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.countOverrun()
	unix.Close(w.in)
	w.in = fd
	w.nudge()
	return nil
}

// writeTo has the way give what it takes to another interface of that namespace.
func (w *way) writeTo(index int) error {
	fd, err := packetSocket(index, 0)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	unix.Close(w.out)
	w.out = fd
	return nil
}

func (w *way) nudge() { unix.Write(w.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }

func (w *way) closeAll() {
	for _, fd := range []*int{&w.in, &w.out, &w.wake} {
		if *fd >= 0 {
			unix.Close(*fd)
			*fd = -1
		}
	}
}

// setFaults takes effect with the next frame, and restarts the decisions.
func (w *way) setFaults(f Faults) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults = f
	w.randomSource = newRandomSource()
}

func (w *way) counters() WayCounters {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.countOverrun()
	return w.n
}

func (w *way) watched() WayCounters {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seen
}

// close ends the way; frames on the way are lost.
func (w *way) close() {
	w.mu.Lock()
	w.ending = true
	w.nudge()
	w.mu.Unlock()
	<-w.ended
	w.mu.Lock()
	defer w.mu.Unlock()
	w.countOverrun()
	w.closeAll()
}

// batch bounds how many frames are taken between two readings of the clock.
const batch = 64

// run forwards until close. Its thread ends with it, because its priority may have changed.
func (w *way) run() {
	w.thread <- unix.Gettid()
	defer close(w.ended)
	fds := []unix.PollFd{{Events: unix.POLLIN}, {Fd: int32(w.wake), Events: unix.POLLIN}}
	for {
		wait := w.turn()
		var ending bool
		if fds[0].Fd, ending = w.source(); ending {
			return
		}
		var limit *unix.Timespec
		if wait >= 0 {
			ts := unix.NsecToTimespec(int64(wait))
			limit = &ts
		}
		if _, err := unix.Ppoll(fds, limit, nil); err != nil && err != unix.EINTR {
			return
		}
		if fds[1].Revents != 0 {
			unix.Read(w.wake, make([]byte, 8))
		}
	}
}

// source is where to wait for frames, unless the way is to end.
func (w *way) source() (fd int32, ending bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return int32(w.in), w.ending
}

// turn does what there is to do and returns for how long there is nothing more:
// 0 if there may be, negative until a frame comes.
func (w *way) turn() (wait time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Since(w.epoch)
	for len(w.line) > 0 && w.line[0].due <= now {
		x := w.line[0]
		w.line = w.line[1:]
		if x.limited {
			w.queued--
		}
		before := w.n
		w.pass(x.frame)
		w.countApart(x.apart, before)
		w.spare = append(w.spare, x.frame[:0])
	}
	w.n.Waiting = uint64(len(w.line))
	for range batch {
		n, _, err := unix.Recvfrom(w.in, w.buf, unix.MSG_DONTWAIT|unix.MSG_TRUNC)
		switch err {
		case nil:
			w.receive(w.buf[:min(n, len(w.buf))], now)
			continue
		case unix.EAGAIN:
			if len(w.line) == 0 {
				return -1
			}
			return max(w.line[0].due-time.Since(w.epoch), 0)
		}
		// ENETDOWN is reported once; the socket works again when the interface is up.
	}
	return 0
}

// countOverrun reads how many frames found no room; the kernel then counts from
// 0 again. Locked.
func (w *way) countOverrun() {
	if w.in < 0 {
		return
	}
	if s, err := unix.GetsockoptTpacketStats(w.in, unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
		w.n.Overrun += uint64(s.Drops)
	}
}

// receive takes a frame from the sending side.
func (w *way) receive(frame []byte, now time.Duration) {
	before := w.n
	w.apart = w.watch != nil && w.watch(frame)
	w.n.Taken++
	w.keep(frame)
	w.decide(frame, now)
	w.countApart(w.apart, before)
}

// countApart adds the counts of one frame, those since before, to the watched counters if
// apart is set. Locked.
func (w *way) countApart(apart bool, before WayCounters) {
	if apart {
		w.seen = w.seen.Plus(w.n.Since(before))
		w.seen.Waiting = 0
	}
}

// decide decides what becomes of a frame.
func (w *way) decide(frame []byte, now time.Duration) {
	t := w.randomSource.next(&w.faults)
	switch {
	case t.inBurst:
		w.n.LostInBurst++
		return
	case t.lost:
		w.n.Lost++
		return
	}
	if t.duplicate {
		w.n.Duplicated++
		copied := append(w.buffer(), frame...)
		w.travel(copied, &t.copies[1], now)
		w.spare = append(w.spare, copied[:0])
	}
	w.travel(frame, &t.copies[0], now)
}

// travel sends one copy on its way, now or later.
func (w *way) travel(frame []byte, p *copyPlan, now time.Duration) {
	f := &w.faults
	if p.corrupt && canCorrupt(frame) {
		w.n.Corrupted++
		p.damage(frame)
	}
	x := waiting{due: now, apart: w.apart}
	if f.Rate > 0 {
		if w.queued >= cmp.Or(f.Queue, defaultQueue) {
			w.n.Limited++
			return
		}
		w.free = max(w.free, now) + time.Duration(int64(len(frame))*8*int64(time.Second)/f.Rate)
		x.due = w.free
		x.limited = true
		w.queued++
	}
	x.due += f.Delay + time.Duration(p.jitter*float64(f.Jitter))
	if p.heldBack {
		w.n.Reordered++
		x.due += cmp.Or(f.ReorderBy, defaultReorderBy)
	} else if x.due > now {
		w.n.Delayed++
	}
	if x.due <= now {
		w.pass(frame)
		return
	}
	x.frame = append(w.buffer(), frame...)
	w.later(x)
}

// pass hands a frame to the receiving side.
func (w *way) pass(frame []byte) {
	if err := unix.Sendto(w.out, frame, 0, nil); err != nil {
		w.n.Refused++
		return
	}
	w.n.Passed++
}

func (w *way) buffer() []byte {
	if n := len(w.spare); n > 0 {
		b := w.spare[n-1]
		w.spare = w.spare[:n-1]
		return b
	}
	return make([]byte, 0, 2048)
}

// waiting is a frame that goes on later.
type waiting struct {
	due     time.Duration
	limited bool // it waits for the rate, too
	apart   bool // it is one that is watched
	frame   []byte
}

// later queues a frame after those that are due at the same time.
func (w *way) later(x waiting) {
	i, _ := slices.BinarySearchFunc(w.line, x.due, func(other waiting, due time.Duration) int {
		if other.due <= due {
			return -1
		}
		return 1
	})
	w.line = slices.Insert(w.line, i, x)
	w.n.Waiting = uint64(len(w.line))
}
