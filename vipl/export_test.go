package vipl

import (
	"io"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/names"
	"viaxdp/internal/base/reliable"
	"viaxdp/internal/base/wire"
	"viaxdp/xdpnic"
)

// OnSteadyClock is p with the clock of OpenNIC.
func OnSteadyClock(p Provider) Provider {
	p.steady = true
	return p
}

// OnYield calls f instead of each yield of the CPU, until the test ends, and takes so long that yields do not become rare. Nothing
// polls when it is called, or at the end.
func OnYield(t testing.TB, f func()) {
	was := yield
	yield = func() {
		f()
		time.Sleep(100 * time.Microsecond) // as another thread that wants the CPU
	}
	t.Cleanup(func() { yield = was })
}

// ShareCPU has polls in vain yield the CPU, as those of OpenNIC do.
func (n *NIC) ShareCPU() { n.port.poller.shareCPU(true) }

// NextFrame returns the number of the next frame.
func (v *VI) NextFrame() uint32 {
	v.port.mu.Lock()
	defer v.port.mu.Unlock()
	return v.conn.nextSeq()
}

// ToPeer returns what a frame to v's peer has in its header: the peer's VI and key, its number, and the acknowledgement.
func (v *VI) ToPeer() wire.Header {
	v.port.mu.Lock()
	defer v.port.mu.Unlock()
	c := v.conn
	return wire.Header{VI: c.header.VI, Key: c.header.Key, Seq: c.sender.Next(), Ack: c.receiver.Next(), Window: 32}
}

// PostSendSeen is PostSend during which rings calls f at the port's doorbell, with the number of the next
// frame. No other goroutine rings meanwhile.
func (v *VI) PostSendSeen(d *Descriptor, h MemHandle, rings *func(), f func(nextFrame uint32)) error {
	p := v.port
	p.mu.Lock()
	defer p.mu.Unlock()
	*rings = func() { f(v.conn.nextSeq()) }
	defer func() { *rings = nil }()
	if err := v.join("PostSend", &v.send, d, h); err != nil {
		return err
	}
	v.sendPosted(false)
	return nil
}

// CancelSettles is how long a cancelled frame stays on the ring of a zero-copy NIC before its
// memory is the program's.
const CancelSettles = time.Duration(cancelSettles)

// ArriveByLink has a frame arrive on a link that no connection uses.
func (n *NIC) ArriveByLink(frame []byte) {
	p := n.port
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rx.from = new(shmLink)
	p.receive([]xdpnic.Frame{{Data: frame}}, p.now())
	p.rx.from = nil
}

// EnterLink is enterLink. send sends a frame of n bytes, and leave is leaveLink.
func (n *NIC) EnterLink(end *kagent.ShmLinkEnd) (send func(n int) bool, leave func(), err error) {
	p := n.port
	p.mu.Lock()
	l, err := p.enterLink(end)
	p.mu.Unlock()
	if err != nil {
		return nil, nil, err
	}
	return func(size int) bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			addr, _, ok := p.nic.Alloc()
			return ok && p.sendLink(l, addr, size, false)
		}, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.leaveLink(l)
		}, nil
}

// MoveToLink makes a connection use a link from now on.
func (n *NIC) MoveToLink(t interface{ Fatal(...any) }, v *VI, end *kagent.ShmLinkEnd) {
	p := n.port
	p.mu.Lock()
	defer p.mu.Unlock()
	l, err := p.enterLink(end)
	if err != nil {
		t.Fatal(err)
	}
	v.conn.shm = l
}

// ComesUp has a VI's sends examined next.
func (n *NIC) ComesUp(v *VI) {
	p := n.port
	p.mu.Lock()
	defer p.mu.Unlock()
	p.receiveAll(p.now()) // others come up, and
	if i := slices.Index(p.ready.conns, v.conn); i >= 0 {
		p.ready.conns = append(slices.Delete(p.ready.conns, i, i+1), v.conn)
	}
	p.finish(p.now(), false)
}

// DeregisterAround is Deregister, during which f is called: the region has ended, and its
// memory is not free.
func (r *Region) DeregisterAround(f func()) error {
	if err := r.deregister(); err != nil {
		return err
	}
	f()
	return r.free()
}

// SetSystemResolver starts the name service with nothing but r, in place of
// the system's resolver, and with all the time that it wants.
func (n *NIC) SetSystemResolver(r *net.Resolver) error {
	resolver, err := names.New(names.Config{System: r, Timeout: time.Hour})
	if err == nil {
		n.names.Store(resolver)
	}
	return err
}

// PopBeside completes descriptors of a queue one by one and dequeues them, while another goroutine dequeues
// without the lock. It returns how many were taken, and whether one was taken that is not complete.
func PopBeside(rounds uint64) (taken uint64, early bool) {
	var q workQueue
	q.init(&VI{nic: new(NIC)}, nil, true)
	q.open()
	var end atomic.Bool
	others := make(chan uint64)
	go func() {
		n := uint64(0)
		for !end.Load() {
			if head := q.dequeued.Load(); q.completed.Load() != head && q.claim(head) {
				n++
			}
		}
		others <- n
	}()
	d := new(Descriptor)
	for i := range rounds {
		q.at(i).desc = d
		q.commit()
		q.completed.Store(i + 1)
		for q.ready() && !early {
			if got, _ := q.pop(); got != nil {
				taken++
			}
			early = q.dequeued.Load() > i+1
		}
		if early {
			break
		}
	}
	end.Store(true)
	return taken + <-others, early
}

// PlaceAtHead places b in the receive at the head, as the first frame of a message does.
func (v *VI) PlaceAtHead(b []byte) {
	v.port.mu.Lock()
	defer v.port.mu.Unlock()
	v.recv.waiting().place(b)
}

// PlacedAtHead is how many bytes of a message are in the receive at the head.
func (v *VI) PlacedAtHead() int {
	v.port.mu.Lock()
	defer v.port.mu.Unlock()
	return int(v.recv.waiting().moved)
}

const LeastWindow = leastWindow

// Expects is the head of the frame that would come next of the peer of v: VI, key, number, and what it would
// acknowledge. ok is false when frames do not flow.
func (v *VI) Expects() (h wire.Header, ok bool) {
	p := v.port
	p.mu.Lock()
	defer p.mu.Unlock()
	c := v.conn
	if c == nil || !c.open {
		return h, false
	}
	h.VI, h.Key, h.Seq = v.num, c.key, c.expect
	if c.receiver != nil {
		h.Seq, h.Ack = c.receiver.Next(), c.sender.Unacked()
	}
	return h, true
}

// Skip makes the connection between v and its peer, on which nothing is under way, one
// on which frames more have gone from v. False: something is under way.
func (v *VI) Skip(peer *VI, frames uint32) bool {
	from, to := v.port, peer.port
	from.mu.Lock()
	defer from.mu.Unlock()
	to.mu.Lock()
	defer to.mu.Unlock()
	s, r := v.conn.sender, peer.conn.receiver
	if !s.Idle() || r.Next() != s.Next() {
		return false
	}
	v.conn.sender = reliable.NewSender(s.Next()+frames, maxWindow)
	peer.conn.receiver = reliable.NewReceiver(r.Next()+frames, maxWindow)
	return true
}

// CopyAscending is how RDMA writes reach memory.
var CopyAscending = copyAscending

// WithoutBackground stops the background goroutine of n's engine, which is not in use yet, until back is
// called. Everything then happens in the goroutines that call.
func (n *NIC) WithoutBackground() (back func()) {
	p := n.port
	close(p.poller.closed)
	p.nic.Wake()
	p.poller.stopped.Wait()
	p.poller.closed = make(chan struct{})
	return func() { p.poller.stopped.Go(p.background) }
}

// Influx is a stream that comes in, by itself.
type Influx struct{ influx }

// Came calls came.
func (s *Influx) Came(n int, now int64, window int, asked bool) (until int64) {
	return s.came(n, now, window, asked)
}

// Seal is the frame to v's peer with that header and payload, sealed as if v had sent it. plain is then of no use.
func (v *VI) Seal(plain []byte) []byte {
	v.port.mu.Lock()
	defer v.port.mu.Unlock()
	return v.conn.sealedFrame(plain)
}

func (c *conn) sealedFrame(plain []byte) []byte {
	frame := make([]byte, c.template.Len()+len(plain)+wire.SealOverhead)
	c.vi.port.seal(c, c.template.Put(frame, len(plain)+wire.SealOverhead), plain)
	return frame
}

// Unseal is what v's peer has sealed in a frame, which v has not received. The frame is then of no use.
func (v *VI) Unseal(frame []byte) ([]byte, error) {
	v.port.mu.Lock()
	defer v.port.mu.Unlock()
	var pkt wire.Packet
	if err := pkt.Decode(frame); err != nil {
		return nil, err
	}
	clear, sealed := pkt.Sealed()
	if err := v.conn.secure.Open(sealed, clear, pkt.Epoch(), pkt.Number()); err != nil {
		return nil, err
	}
	err := pkt.Opened()
	return pkt.Payload, err
}

// Settle completes the oldest receive of v as the engine does. beside runs between the store of its status and
// everything else, without the lock that the engine holds.
func (v *VI) Settle(beside func()) {
	p := v.port
	p.mu.Lock()
	defer p.mu.Unlock()
	q := &v.recv
	n, cq := q.completed.Load(), q.cq
	e := q.at(n)
	q.settling.Store(n + 1)
	if cq != nil {
		cq.settling.Store(1)
	}
	e.desc.setStatus(StatusDone | e.op)
	beside()
	q.current++
	p.complete(v, q, e, 0)
}

// Captures returns the number of captures of the handle's queue.
func (n *NIC) Captures() int {
	n.port.mu.Lock()
	defer n.port.mu.Unlock()
	return len(n.port.taps)
}

// FillTap fills a capture's buffers with frames of that size, until lost frames were left out. drain returns
// what the capture's writer reads.
func FillTap(size, lost int) (drain func() []byte) {
	t := newTap(size, 1)
	for frame := make([]byte, size); t.lost < uint64(lost); {
		t.put(1, frame)
	}
	return t.drain
}

// LockedWriter is what the captures of several queues write to.
func LockedWriter(w io.Writer) io.Writer { return &lockedWriter{w: w} }

// Hesitant is a queue whose waiters can be delayed between their check of it and their sleep, as by a scheduler
// that runs other threads.
type Hesitant struct {
	port *port
	nic  *NIC
	sig  signal
	done atomic.Int32 // what has completed and was not taken

	Looks atomic.Int32  // checks that found nothing
	Pin   chan struct{} // a waiter that has checked waits until it is closed
}

// NewHesitant makes one. Until leave, another goroutine sleeps for the port and is not woken.
func (n *NIC) NewHesitant() (h *Hesitant, leave func()) {
	h = &Hesitant{port: n.port, nic: n, Pin: make(chan struct{})}
	h.sig.init()
	for {
		n.port.poll() // so that background does not sleep any more
		n.port.nic.Wake()
		select {
		case n.port.poller.sleeping <- struct{}{}:
			return h, func() { <-n.port.poller.sleeping }
		case <-time.After(time.Millisecond):
		}
	}
}

func (h *Hesitant) ready() bool     { return h.done.Load() > 0 }
func (h *Hesitant) notify() *signal { return &h.sig }
func (h *Hesitant) handle() *NIC    { return h.nic }

// destroyed is called by a waiter that has found nothing and is about to sleep.
func (h *Hesitant) destroyed() error {
	h.Looks.Add(1)
	<-h.Pin
	return nil
}

// Complete completes several at once.
func (h *Hesitant) Complete(n int) {
	h.port.mu.Lock()
	defer h.port.mu.Unlock()
	for range n {
		h.done.Add(1)
		h.port.raise(&h.sig)
	}
}

// WakeInVain wakes a waiter for which nothing is left.
func (h *Hesitant) WakeInVain() {
	h.port.mu.Lock()
	defer h.port.mu.Unlock()
	h.port.raise(&h.sig)
}

// Wait waits for one, and takes it.
func (h *Hesitant) Wait(timeout time.Duration) error {
	for end := h.port.deadline(timeout); ; {
		if err := h.port.wait(h, end); err != nil {
			return err
		}
		if n := h.done.Load(); n > 0 && h.done.CompareAndSwap(n, n-1) {
			return nil
		}
	}
}

// wakes is a port that counts how often it is woken.
type wakes struct {
	Port
	n int
}

func (w *wakes) Wake() { w.n++ }

// WakesOfSleep returns how often a goroutine that sleeps for a port is woken if this many descriptors complete,
// and as much becomes due earlier, before it has checked again.
func WakesOfSleep(completions int) int {
	w := &wakes{}
	p := &port{nic: w}
	p.poller.due.Store(never)
	s := signal{waiters: 1}
	s.init()
	p.poller.sleepBy.Store(never)
	for range completions {
		p.raise(&s)
		p.doorbell.lazy = true
		p.doorbell.unrung.Store(1)
		p.finish(0, false)
	}
	return w.n
}

// Unlocked reports whether the lock of n's engine is free at this moment.
func (n *NIC) Unlocked() bool {
	ok := n.port.mu.TryLock()
	if ok {
		n.port.mu.Unlock()
	}
	return ok
}
