package testbed

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/fail"
)

// Faults are what a [Middle] does to the frames that go through it in one direction. The zero value
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

	Delay  time.Duration // least time under way; a hundredth more at times
	Jitter time.Duration // a random part of it comes on top, and reorders

	Rate       int64 // bits per second of whole frames; 0: no limit
	Queue      int   // frames that wait for the rate's turn at most, others are lost; 0: 1000
	QueueBytes int   // their bytes at most, instead of Queue; 0: any
	PerFlow    bool  // each flow (protocol, addresses, ports) has such a queue of its own, and queues are served in turn
	Mark       int   // bytes in the queue above which frames that are ECN-capable are marked; 0: none is
}

const (
	defaultBurstLen  = 8
	defaultReorderBy = time.Millisecond
	defaultQueue     = 1000
	mostFlips        = 3
)

// EmulatorCounters count what became of the frames of one direction. At rest,
//
//	Taken + Duplicated = Passed + Lost + LostInBurst + Limited + Refused
//
// and Waiting is 0; otherwise Waiting belongs on the right side, too.
type EmulatorCounters struct {
	Taken      uint64 // frames that came from the sending side
	Passed     uint64 // frames handed to the receiving side
	Duplicated uint64 // second copies made
	Corrupted  uint64 // frames, or copies, with bits flipped; they are passed on
	Reordered  uint64 // frames, or copies, held back; they are passed on
	Delayed    uint64 // frames, or copies, that waited for another reason
	Marked     uint64 // frames, or copies, marked because the queue was long (ECN); they are passed on
	Queued     uint64 // bytes of frames times the nanoseconds that they waited for Rate: by the time it took, the mean queue

	Lost        uint64 // drop: by Loss
	LostInBurst uint64 // drop: by Burst
	Limited     uint64 // drop: too many waited for Rate
	Refused     uint64 // drop: the kernel did not take the frame, as when the interface is down

	Overrun uint64 // drop before Taken: the forwarder was too slow for its socket
	Waiting uint64 // frames that are under way now
}

// Plus is the sum of two ways.
func (n EmulatorCounters) Plus(o EmulatorCounters) EmulatorCounters {
	return n.with(o, func(a, b uint64) uint64 { return a + b })
}

// Since is what came after an earlier look; Waiting stays as it is now.
func (n EmulatorCounters) Since(before EmulatorCounters) EmulatorCounters {
	before.Waiting = 0
	return n.with(before, func(a, b uint64) uint64 { return a - b })
}

func (n EmulatorCounters) with(o EmulatorCounters, f func(a, b uint64) uint64) EmulatorCounters {
	all, other := reflect.ValueOf(&n).Elem(), reflect.ValueOf(o)
	for i := range all.NumField() {
		all.Field(i).SetUint(f(all.Field(i).Uint(), other.Field(i).Uint()))
	}
	return n
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
	kind := binary.BigEndian.Uint16(frame[etherTypeAt:])
	return kind == unix.ETH_P_IP || kind == unix.ETH_P_IPV6
}

// damage flips the bits that p chose, behind the Ethernet header.
func (p *copyPlan) damage(frame []byte) {
	body := frame[etherLen:]
	for _, r := range p.flip[:p.flips] {
		bit := r % uint64(8*len(body))
		body[bit/8] ^= 1 << (bit % 8)
	}
}

// emulator is a link emulator. It carries the frames of one direction from one interface of the middle to the other. One
// goroutine does the work, run; the mutex guards what other goroutines access.
//
//	in --recv--> decision --+--------------------------------------------------> out
//	                        +--> bottleneck --+--> line, by the time at which --> out
//	                        +-----------------+    they go on
type emulator struct {
	in, out int // packet sockets; guarded by mu
	wake    int // an eventfd that has run look at in and ending again
	epoch   time.Time
	ended   chan struct{}
	thread  chan int // the id of run's, once

	mu     sync.Mutex
	ending bool
	faults Faults
	n      EmulatorCounters
	kept   [][]byte // the last frames, for a forger
	watch  func(frame []byte) bool
	seen   EmulatorCounters // of the frames that watch is for

	// Of run alone.
	apart        bool // the frame at hand is one that watch is for
	randomSource randomSource
	bottleneck   bottleneck
	line         []waiting // what is due first at its beginning
	buf          []byte
	spare        [][]byte
}

// Room for any frame of a veth interface, and for what arrives while the
// forwarder does not run.
const (
	maxFrame   = MaxMTU + 64
	socketRoom = 32 << 20
)

// openEmulator makes an emulator between two interfaces of the calling thread's network
// namespace, by their indices.
func openEmulator(in, out int) (_ *emulator, err error) {
	e := &emulator{
		in: -1, out: -1, wake: -1, epoch: time.Now(), ended: make(chan struct{}), thread: make(chan int, 1),
		randomSource: newRandomSource(), buf: make([]byte, maxFrame),
	}
	defer func() {
		if err != nil {
			e.closeAll()
		}
	}()
	defer fail.Catch(&err)
	e.in = fail.Must(packetSocket(in, unix.ETH_P_ALL))
	e.out = fail.Must(packetSocket(out, 0)) // protocol 0: receives nothing
	e.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	return e, err
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

// readFrom has the emulator take what comes from another interface of the calling thread's network
// namespace from now on.
func (e *emulator) readFrom(index int) error {
	fd, err := packetSocket(index, unix.ETH_P_ALL)
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.countOverrun()
	unix.Close(e.in)
	e.in = fd
	e.nudge()
	return nil
}

// writeTo has the emulator give what it takes to another interface of that namespace.
func (e *emulator) writeTo(index int) error {
	fd, err := packetSocket(index, 0)
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	unix.Close(e.out)
	e.out = fd
	return nil
}

func (e *emulator) nudge() { unix.Write(e.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }

func (e *emulator) closeAll() {
	for _, fd := range []*int{&e.in, &e.out, &e.wake} {
		if *fd >= 0 {
			unix.Close(*fd)
			*fd = -1
		}
	}
}

// setFaults takes effect with the next frame, and restarts the decisions.
func (e *emulator) setFaults(f Faults) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.faults = f
	e.randomSource = newRandomSource()
}

func (e *emulator) counters() EmulatorCounters {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.countOverrun()
	return e.n
}

func (e *emulator) watched() EmulatorCounters {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.seen
}

// close ends the emulator; frames under way are lost.
func (e *emulator) close() {
	e.mu.Lock()
	e.ending = true
	e.nudge()
	e.mu.Unlock()
	<-e.ended
	e.mu.Lock()
	defer e.mu.Unlock()
	e.countOverrun()
	e.closeAll()
}

// batch bounds how many frames are passed before others are taken, and taken before others are passed.
const batch = 32

// run forwards until close. Its thread ends with it, because its priority may have changed.
func (e *emulator) run() {
	e.thread <- unix.Gettid()
	defer close(e.ended)
	fds := []unix.PollFd{{Events: unix.POLLIN}, {Fd: int32(e.wake), Events: unix.POLLIN}}
	for {
		wait, nap := e.turn()
		fds[0].Events = unix.POLLIN
		if nap {
			fds[0].Events = 0
		}
		var ending bool
		if fds[0].Fd, ending = e.source(); ending {
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
			unix.Read(e.wake, make([]byte, 8))
		}
	}
}

// source is where to wait for frames, unless the emulator is to end.
func (e *emulator) source() (fd int32, ending bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return int32(e.in), e.ending
}

// Frames may be late by 1/napShare of the delay. A timer and a wake-up for each frame of a fast stream cost more processor time
// than the frame, and the forwarder shares the processors with the programs.
const napShare = 100

// turn does what there is to do and returns for how long there is nothing more:
// 0 if there may be, negative until a frame comes. If nap is true, frames that come in that time can wait, too.
func (e *emulator) turn() (wait time.Duration, nap bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Since(e.epoch)
	e.serve(now)
	passed := 0
	for ; passed < batch && len(e.line) > 0 && e.line[0].due <= now; passed++ {
		x := e.line[0]
		e.line = e.line[1:]
		e.apart = x.apart
		e.pass(x.frame)
		e.spare = append(e.spare, x.frame[:0])
	}
	defer e.countWaiting()
	for range batch {
		n, _, err := unix.Recvfrom(e.in, e.buf, unix.MSG_DONTWAIT|unix.MSG_TRUNC)
		now = time.Since(e.epoch) // what came before may have taken longer than frames wait in a queue
		switch err {
		case nil:
			e.receive(e.buf[:min(n, len(e.buf))], now)
			continue
		case unix.EAGAIN:
			e.serve(now)
			switch {
			case len(e.line) == 0: // then no frame waits for the rate: the last one that was sent is due later
				return -1, false
			case passed == batch:
				return 0, false
			}
			wait, least := max(e.line[0].due-now, 0), e.faults.Delay/napShare
			return max(wait, least), wait < least
		}
		// ENETDOWN is reported once; the socket works again when the interface is up.
	}
	return 0, false
}

// countOverrun reads how many frames found no room; the kernel then counts from
// 0 again. Locked.
func (e *emulator) countOverrun() {
	if e.in < 0 {
		return
	}
	if s, err := unix.GetsockoptTpacketStats(e.in, unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
		e.n.Overrun += uint64(s.Drops)
	}
}

// receive takes a frame from the sending side.
func (e *emulator) receive(frame []byte, now time.Duration) {
	e.apart = e.watch != nil && e.watch(frame)
	e.count(func(n *EmulatorCounters) { n.Taken++ })
	e.keep(frame)
	e.decide(frame, now)
}

// count counts something about the frame at hand, which may be one that is watched. Locked.
func (e *emulator) count(add func(n *EmulatorCounters)) {
	add(&e.n)
	if e.apart {
		add(&e.seen)
	}
}

// decide decides what becomes of a frame.
func (e *emulator) decide(frame []byte, now time.Duration) {
	t := e.randomSource.next(&e.faults)
	switch {
	case t.inBurst:
		e.count(func(n *EmulatorCounters) { n.LostInBurst++ })
		return
	case t.lost:
		e.count(func(n *EmulatorCounters) { n.Lost++ })
		return
	}
	if t.duplicate {
		e.count(func(n *EmulatorCounters) { n.Duplicated++ })
		copied := append(e.buffer(), frame...)
		e.travel(copied, &t.copies[1], now)
		e.spare = append(e.spare, copied[:0])
	}
	e.travel(frame, &t.copies[0], now)
}

// travel sends one copy on, now or later.
func (e *emulator) travel(frame []byte, p *copyPlan, now time.Duration) {
	f := &e.faults
	if p.corrupt && canCorrupt(frame) {
		e.count(func(n *EmulatorCounters) { n.Corrupted++ })
		p.damage(frame)
	}
	x := waiting{since: now, due: now, after: f.Delay + time.Duration(p.jitter*float64(f.Jitter)), apart: e.apart}
	if p.heldBack {
		e.count(func(n *EmulatorCounters) { n.Reordered++ })
		x.after += cmp.Or(f.ReorderBy, defaultReorderBy)
	}
	if f.Rate > 0 {
		e.serve(now)
		q := e.bottleneck.queueOf(frame, f.PerFlow)
		if q.full(f, len(frame)) {
			e.count(func(n *EmulatorCounters) { n.Limited++ })
			return
		}
		if f.Mark > 0 && q.bytes > f.Mark && markCE(frame) {
			e.count(func(n *EmulatorCounters) { n.Marked++ })
		}
		x.frame = append(e.buffer(), frame...)
		e.bottleneck.push(q, x)
	} else if x.after > 0 {
		x.frame = append(e.buffer(), frame...)
		e.later(x)
	} else {
		e.pass(frame)
		return
	}
	if !p.heldBack {
		e.count(func(n *EmulatorCounters) { n.Delayed++ })
	}
}

// serve moves frames from the bottleneck to the line that the link has begun to send by now.
func (e *emulator) serve(now time.Duration) {
	for x, ok := e.bottleneck.pop(now, e.faults.Rate); ok; x, ok = e.bottleneck.pop(now, e.faults.Rate) {
		queued := uint64(len(x.frame)) * uint64(x.due-x.since)
		e.n.Queued += queued
		if x.apart { // e.apart is of the frame at hand
			e.seen.Queued += queued
		}
		e.later(x)
	}
}

// pass hands a frame to the receiving side.
func (e *emulator) pass(frame []byte) {
	if err := unix.Sendto(e.out, frame, 0, nil); err != nil {
		e.count(func(n *EmulatorCounters) { n.Refused++ })
		return
	}
	e.count(func(n *EmulatorCounters) { n.Passed++ })
}

func (e *emulator) buffer() []byte {
	if n := len(e.spare); n > 0 {
		b := e.spare[n-1]
		e.spare = e.spare[:n-1]
		return b
	}
	return make([]byte, 0, 2048)
}

// waiting is a frame that goes on later.
type waiting struct {
	since time.Duration // when it came
	due   time.Duration // when it goes on; in the bottleneck, when it has been sent
	after time.Duration // that it is under way behind the bottleneck
	apart bool          // it is one that is watched
	frame []byte
}

// later adds to the line, behind those that are due at the same time, a frame that the bottleneck has sent.
func (e *emulator) later(x waiting) {
	x.due += x.after
	i, _ := slices.BinarySearchFunc(e.line, x.due, func(other waiting, due time.Duration) int {
		if other.due <= due {
			return -1
		}
		return 1
	})
	e.line = slices.Insert(e.line, i, x)
}

func (e *emulator) countWaiting() { e.n.Waiting = uint64(len(e.line) + e.bottleneck.frames) }
