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
	settled                     chan struct{} // raised when the end of the connection should look again
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
	departed  bool  // by the peer's Disconnect
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
	starved   bool  // something is to be sent and no buffer was free
	wanting   bool  // progress needs to hear of sends
	slotShort bool  // a Write waits for a buffer
	later     bool  // the doorbell may wait for who polls
	breaks    bool  // Close breaks the connection
	linger    time.Duration

	// Sending.
	longest int         // length of the longest message that the peer takes
	window  int         // data messages that the peer has room for in all
	credits int         // and now
	fill    int         // buffer that is being filled with data, or -1
	filled  int         // bytes in it, the header among them
	stalled bool        // the peer had no room for what was to be sent
	wish    bool        // its bytes would rather go through a ring
	delays  bool        // it waits for more bytes, see delay.go
	urged   bool        // no longer
	delayed *time.Timer // ends that; nil: nothing has waited yet
	timing  bool        // it is set
	out     outgoing
	due     due

	peerRing peerRing

	// Receiving.
	queue   segments // what has arrived, in order
	held    int      // data messages in it
	spent   []int    // buffers that are read, and not yet posted again
	acksDue int      // buffers that the peer has not been given back
	in      incoming
	ring    ring
	fin     bool // the peer sends no more data
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
		readable: make(chan struct{}, 1), writable: make(chan struct{}, 1), settled: make(chan struct{}, 1),
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

// begin starts the protocol on a VI that is connected with a peer of these attributes. The side that has asked for
// the connection speaks first: until then the other does not, and this one need not have receives posted.
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
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isClosed {
		return c.opError("set", net.ErrClosed)
	}
	for _, d := range ds {
		d.set(t)
	}
	return nil
}

// SetLinger sets what Close does with data that the peer's side has not got yet, as that of [net.TCPConn] does. With
// sec < 0 the data is delivered in the background, for at most Options.Linger; with sec > 0, for at most so many
// seconds. With 0 it is dropped, and the peer's Read ends with ECONNRESET instead of [io.EOF].
//
// The error is [net.ErrClosed] after Close.
func (c *Conn) SetLinger(sec int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isClosed {
		return c.opError("set", net.ErrClosed)
	}
	const most = math.MaxInt64 / int64(time.Second) // for ever, as far as a Duration goes
	if c.linger = time.Duration(min(int64(sec), most)) * time.Second; sec < 0 {
		c.linger = c.stack.o.Linger
	}
	c.breaks = sec == 0
	return nil
}

// lower forgets a signal that was raised before. Signals are raised under mu, after the change of the state that they
// tell of; who is about to look at the state, under mu, lowers what is old. It says whether the signal was raised.
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
	raise(c.settled)
}

// fail ends a connection that broke, or whose peer breaks the rules. Under mu.
func (c *Conn) fail(err error) {
	if c.down {
		return
	}
	c.err, c.down = err, true
	if c.greeted && !c.isClosed && !(c.departed && c.fin) {
		c.counts.Broken++
	}
	c.dropRooms()
	close(c.gone)
	c.raiseAll()
	// Disconnect may take a while, and needs locks that the caller may hold.
	c.stack.work.Go(c.cut)
}
