package vianet

import (
	"errors"
	"math"
	"net"
	"net/netip"
	"sync"
	"time"

	"viaxdp/vipl"
)

// Conn is a connection: a stream of bytes in each direction. All methods may be called concurrently.
type Conn struct {
	stack         *Stack
	vi            *vipl.VI
	tag           *vipl.Ptag // of all memory that the peer may get at
	local, remote Addr
	reads         bool   // large data may be read by the receiver; else the sender writes it
	port          uint16 // to give back in the end, or 0

	reading, writing            sync.Mutex // held by the Read or Write that is under way
	readDeadline, writeDeadline limit
	readSpin, writeSpin         spinner       // guarded by reading and writing
	readable, writable          chan struct{} // raised when a Read or Write should look again
	checkEnd                    chan struct{} // raised when the end of the connection should look again
	ready                       chan struct{} // closed when the peer's hello has come
	gone                        chan struct{} // closed when the connection has broken or ended
	cut                         func()        // ends the VI's connection, once
	free                        func()        // gives back all that the connection has, once

	// mu guards what follows. It is taken after reading and writing, and before the locks of the stack; never held
	// while waiting.
	mu   sync.Mutex
	pool *pool

	counts    Stats // what is counted of each connection
	err       error // why the connection broke
	departed  bool  // by the peer's Close without SetLinger(0)
	unsent    bool  // bytes that a Write has handed over were not sent
	begun     bool  // the VI is connected
	losing    bool  // it is about to turn out that it broke
	down      bool  // nothing is posted any more
	spoke     bool  // this side's hello has gone
	isClosed  bool  // Close was called
	noWrites  bool  // Close or CloseWrite was called
	noReads   bool  // CloseRead was called
	unheard   bool  // the peer's side reads no more
	greeted   bool  // the peer's hello has come
	wanting   bool  // progress needs completions of sends
	slotShort bool  // a Write waits for a buffer
	later     bool  // the doorbell may wait for a poller
	breaks    bool  // Close breaks the connection
	linger    time.Duration

	// Sending.
	longest int  // length of the longest message that the peer takes
	window  int  // data messages that the peer has room for in all
	credits int  // and now
	fill    int  // buffer that is being filled with data, or -1
	filled  int  // bytes in it, the header among them
	stalled bool // the peer had no room for what was to be sent
	wish    bool // its bytes would rather go through a ring
	nagle   nagle
	out     outgoing
	due     due

	peerRing peerRing
	tail     tail

	// Receiving.
	queue   segments // what has arrived, in order
	held    int      // data messages in it
	spent   []int    // buffers that are read, and not yet posted again
	acksDue int      // buffers that the peer has not been given back
	in      incoming
	ring    ring
	fin     bool // the peer sends no more data
}

// nagle is the waiting of small writes for more bytes, after SetNoDelay(false).
type nagle struct {
	on    bool
	urged bool        // what is in the buffer goes with the next push
	timer *time.Timer // ends the wait; nil: nothing has waited yet
	armed bool        // the timer is set
}

// due is what is to be sent as soon as there is a buffer.
type due struct {
	messages
	fin, finSent, finAcked bool
	takenID, takenLen      uint32
}

// messages are those that may be due before the next data; mostly none is.
type messages struct {
	hello, announce, ask, withdraw bool
	room, taken, credit, ring      bool
	finack, stop                   bool
}

var (
	_ net.Conn = (*Conn)(nil)

	errNoPool = errors.New("no memory for the connection's buffers")
)

// newConn makes this host's side of a connection, Idle.
func newConn(s *Stack) (*Conn, error) {
	c := &Conn{
		stack: s, fill: -1, linger: s.o.Linger,
		readable: make(chan struct{}, 1), writable: make(chan struct{}, 1), checkEnd: make(chan struct{}, 1),
		ready: make(chan struct{}), gone: make(chan struct{}),
		readSpin: newSpinner(s.o.Spin), writeSpin: newSpinner(s.o.Spin),
	}
	c.readDeadline.signal, c.writeDeadline.signal = c.readable, c.writable
	var err error
	if c.tag, err = s.nic.CreatePtag(); err != nil {
		return nil, err
	}
	c.vi, err = s.nic.CreateVI(vipl.VIAttributes{
		Level: vipl.ReliableDelivery, Ptag: c.tag, EnableRDMAWrite: true, EnableRDMARead: !s.o.NoRDMARead,
	}, s.sends.cq, s.arrivals.cq)
	if err != nil {
		c.tag.Destroy()
		return nil, err
	}
	c.cut = sync.OnceFunc(func() { c.vi.Disconnect() })
	if c.pool, err = newPool(s.regs, c.tag, s.o.Buffers, s.o.BufferSize); err != nil {
		c.vi.Destroy()
		c.tag.Destroy()
		return nil, errors.Join(errNoPool, err)
	}
	c.pool.vi = c.vi
	c.free = sync.OnceFunc(c.release)
	c.vi.SetValue(c)
	s.mu.Lock()
	s.conns[c] = false
	s.mu.Unlock()
	return c, nil
}

// post posts all receives. Under mu.
func (c *Conn) post() error {
	for i := range c.pool.half {
		if err := c.pool.postReceive(c.pool.half + i); err != nil {
			return err
		}
	}
	return nil
}

// begin starts the protocol on a VI that is connected with a peer of these attributes. The side that requested the
// connection sends first. Until its hello arrives the other side sends nothing, so the requester need not have
// receives posted before.
func (c *Conn) begin(peer vipl.RemoteAttributes, first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begun, c.reads = true, peer.EnableRDMARead && !c.stack.o.NoRDMARead
	if s, err := c.vi.Query(); err == nil {
		c.local = Addr{netip.AddrPortFrom(s.Local, c.local.Port())}
	}
	if first {
		if c.post() != nil {
			c.lost()
		}
		c.due.hello = true
	}
	c.progressLocked() // the other side may have been quick
}

// LocalAddr is the address of this side, an [Addr].
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr is the peer's address, an [Addr].
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline sets the time after which a Read or Write that is under way or still comes ends with
// [os.ErrDeadlineExceeded]; the zero time means never.
func (c *Conn) SetDeadline(t time.Time) error {
	return c.setDeadlines(t, &c.readDeadline, &c.writeDeadline)
}

// SetReadDeadline is SetDeadline for Read.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setDeadlines(t, &c.readDeadline) }

// SetWriteDeadline is SetDeadline for Write. What a Write has put into a buffer by then is delivered nevertheless.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setDeadlines(t, &c.writeDeadline) }

func (c *Conn) setDeadlines(t time.Time, ds ...*limit) error {
	return c.unlessClosed("set", func() {
		for _, d := range ds {
			d.set(t)
		}
	})
}

// unlessClosed calls f under mu. After Close it returns [net.ErrClosed] instead, as the error of op.
func (c *Conn) unlessClosed(op string, f func()) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isClosed {
		return c.opError(op, net.ErrClosed)
	}
	f()
	return nil
}

// SetLinger sets what Close does with data that the peer has not received yet, like SetLinger of [net.TCPConn]. If
// sec < 0, the data is delivered in the background, for at most Options.Linger; if sec > 0, for at most sec seconds.
// If sec is 0, the data is dropped, and the peer's Read ends with ECONNRESET instead of [io.EOF].
//
// The error is [net.ErrClosed] after Close.
func (c *Conn) SetLinger(sec int) error {
	const most = math.MaxInt64 / int64(time.Second) // the longest time that a Duration holds
	return c.unlessClosed("set", func() {
		if c.linger = time.Duration(min(int64(sec), most)) * time.Second; sec < 0 {
			c.linger = c.stack.o.Linger
		}
		c.breaks = sec == 0
	})
}

// delayMost is how long bytes wait for more of them after SetNoDelay(false).
const delayMost = time.Millisecond

// SetNoDelay(true), the default, has each Write send what it can. With false, bytes that do not fill a message wait
// for more, like Nagle's algorithm of TCP: it is for programs that make small writes without a buffer of their own.
// The bytes are sent when they fill a message, when a Read of this connection begins to wait (perhaps for the reply),
// when the stream ends, or after a millisecond. A Read that was waiting before they were written does not send them.
//
// The error is [net.ErrClosed] after Close.
func (c *Conn) SetNoDelay(noDelay bool) error {
	return c.unlessClosed("set", func() {
		c.nagle.on = !noDelay
		c.push()
	})
}

// waitsForMore reports whether the buffer that is being filled, which is not empty, should wait for more bytes. Under
// mu.
func (c *Conn) waitsForMore() bool {
	if !c.nagle.on || c.nagle.urged || c.due.fin || c.filled == c.longest {
		return false
	}
	if !c.nagle.armed {
		c.nagle.armed = true
		if c.nagle.timer == nil {
			c.nagle.timer = time.AfterFunc(c.stack.delay, c.late)
		} else {
			c.nagle.timer.Reset(c.stack.delay)
		}
	}
	return true
}

// urge has what waits for more bytes sent by the next push. Under mu.
func (c *Conn) urge() {
	c.tail.urged = c.tail.n > 0
	if c.nagle.on && !c.emptied() {
		c.nagle.urged = true
	}
}

// late is called by the timer.
func (c *Conn) late() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.nagle.armed = false; c.down {
		return
	}
	c.urge()
	c.push()
}

// lower clears a signal that was raised before, and reports whether it was raised. A goroutine raises a signal under
// mu, after it has changed the state. A waiter lowers the old signal under mu before it checks the state, so it
// misses no change.
func lower(sig <-chan struct{}) (raised bool) {
	if len(sig) == 0 { // without a call
		return false
	}
	select {
	case <-sig:
		return true
	default:
		return false
	}
}

// raise wakes the goroutine that waits for a signal, now or when it next waits.
func raise(sig chan struct{}) {
	select {
	case sig <- struct{}{}:
	default:
	}
}

func (c *Conn) raiseAll() {
	raise(c.readable)
	raise(c.writable)
	raise(c.checkEnd)
}

// Close ends the connection: Reads and Writes that are under way return [net.ErrClosed], as later ones do. It returns
// at once; what was written is delivered in the background, for at most Options.Linger, or as SetLinger says. The
// peer's Writes fail from then on, also while its side has not read everything.
//
// The error is [net.ErrClosed] the second time.
func (c *Conn) Close() error {
	return c.unlessClosed("close", func() {
		c.isClosed, c.noWrites = true, true
		c.raiseAll()
		if c.breaks {
			c.fail(resetError(net.ErrClosed))
		}
		c.stack.work.Go(c.finish)
	})
}

// CloseWrite ends the stream to the peer, which then reads [io.EOF]. The other direction goes on.
//
// The error is [net.ErrClosed] after Close, or that of a connection that broke. It is nil if the peer has closed the
// connection after everything written was sent: the peer no longer needs the end of the stream.
func (c *Conn) CloseWrite() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.isClosed:
		return c.opError("close", net.ErrClosed)
	case c.err != nil && !c.dismissed():
		return c.opError("close", c.err)
	case c.noWrites:
		return nil
	}
	c.noWrites = true
	raise(c.writable)
	c.due.fin = true
	c.push()
	return nil
}

// CloseRead ends the stream from the peer: Reads return [io.EOF], what has come and was not read is lost, and the
// peer's Writes fail with ECONNRESET. The other direction goes on. If the peer does not release the memory of a Read
// within two seconds, the connection is reset.
//
// The error is [net.ErrClosed] after Close.
func (c *Conn) CloseRead() error {
	return c.unlessClosed("close", func() {
		if !c.noReads {
			c.noReads = true
			raise(c.readable)
			c.stop()
		}
	})
}

// stop sends a stop message: this side does not read what the peer sends. Under mu, once.
func (c *Conn) stop() {
	c.due.stop = !c.fin // else it sends nothing
	c.push()
}

// dismissed reports whether the peer closed the connection and nothing written was left to send.
func (c *Conn) dismissed() bool {
	c.reap()
	return c.left() && !c.unsent && !c.out.open && c.emptied() && c.tail.n == 0
}

// left reports whether the peer closed the connection, and this side has all that it still wants of the stream. A peer may
// be unable to end a stream that this side does not read.
func (c *Conn) left() bool { return c.departed && (c.fin || c.noReads) }

// finish sends what was written on a closed connection, then the fin, and waits until the peer has confirmed it.
func (c *Conn) finish() {
	c.writing.Lock() // the last Write has returned
	c.mu.Lock()
	c.due.fin = !c.due.finSent
	if !c.noReads {
		c.stop() // without it the peer takes the end for that of SetLinger(0)
	}
	c.push()
	linger := c.linger
	c.mu.Unlock()
	c.writing.Unlock()
	late := time.NewTimer(linger)
	defer late.Stop()
	for !c.isOver() {
		select {
		case <-c.checkEnd:
			continue
		case <-late.C:
		case <-c.stack.closed.Done():
		}
		break
	}
	c.mu.Lock()
	if !c.due.finAcked && !c.breaks && c.counts.Broken == 0 && !c.dismissed() {
		c.counts.Undelivered++
	}
	c.mu.Unlock()
	c.free()
}

// isOver reports whether nothing is left to deliver, or the peer takes nothing.
func (c *Conn) isOver() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.down || c.due.finAcked || c.unheard && !c.due.finSent
}

// fail ends a connection that broke, or whose peer breaks the rules. Under mu.
func (c *Conn) fail(err error) {
	if c.down {
		return
	}
	c.err, c.down = err, true
	if c.greeted && !c.isClosed && !c.left() {
		c.counts.Broken++
	}
	c.dropRooms()
	close(c.gone)
	c.raiseAll()
	// Disconnect may take a while, and needs locks that the caller may hold.
	c.stack.work.Go(c.cut)
}

// release takes the connection down and gives back all that it had.
func (c *Conn) release() {
	c.mu.Lock()
	if !c.down {
		c.down = true
		c.dropRooms()
		close(c.gone)
	}
	c.isClosed, c.noWrites = true, true
	if c.nagle.timer != nil {
		c.nagle.timer.Stop()
	}
	c.readDeadline.set(time.Time{}) // whose timers have the connection
	c.writeDeadline.set(time.Time{})
	c.raiseAll()
	c.mu.Unlock()
	c.cut()
	c.progress() // everything has completed: Reads and Writes release their memory
	c.reading.Lock()
	defer c.reading.Unlock()
	c.writing.Lock()
	defer c.writing.Unlock()
	c.mu.Lock()
	c.progressLocked()
	for !c.queue.empty() {
		if l := c.queue.first().land; l != nil {
			c.unstage(l)
		}
		c.queue.drop()
	}
	c.endRing()
	c.endTail()
	c.mu.Unlock()
	c.stack.remove(c, errors.Join(c.vi.Destroy(), c.pool.region.Deregister(), c.tag.Destroy()))
	if c.port != 0 {
		c.stack.ports.release(c.port)
	}
}
