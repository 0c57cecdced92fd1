package vianet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"viaxdp/internal/base/thread"
	"viaxdp/vipl"
)

// Options of a Stack; the zero value means the defaults.
type Options struct {
	// Buffers is the number of control-message buffers of a connection, half of them for sending; 0: 74. At least
	// MinBuffers.
	Buffers int
	// BufferSize is the size of one in bytes, 64 for its descriptor and 24 for the header included; 0: 4224. A
	// multiple of 64, 320 to 1 MiB.
	//
	// A connection has Buffers*BufferSize bytes of memory: of the NIC's arena as long as there is any, then of the
	// program.
	BufferSize int
	// Threshold is the largest Write, in bytes, that goes through buffers; larger ones go by RDMA, and so do those
	// from 2 KiB on when many have come before. 0: 32 KiB; negative: all go through buffers.
	Threshold int
	// NoRDMARead keeps peers from reading this side's memory, and this side from reading theirs: large data is then
	// written.
	NoRDMARead bool
	// Registered is the number of bytes of the program's memory that may stay registered, and with that be kept from
	// the garbage collector, after a Read or Write by RDMA; 0: 16 MiB; negative: none.
	Registered int
	// Spin is the longest time for which a Read or Write that has to wait polls before it sleeps, counted from when
	// something last came for any connection of the stack; a deadline ends it at once. 0: 100 us; negative: never.
	Spin time.Duration
	// Linger is how long a closed connection goes on trying to deliver what was written; 0: 10 s.
	Linger time.Duration
	// Backlog is how many connections of a Listener may wait for Accept or be on their way there, each with its
	// memory; further ones are refused. 0: 128.
	Backlog int
	// Failed, if not nil, is called for each request that a Listener began to accept and could not: the pre-shared keys
	// do not match (EKEYREJECTED), there is no memory (ENOBUFS), or the peer has gone. The error is a [*net.OpError]
	// whose Addr is the peer. Several goroutines call it, and any host that sends requests can cause a call. It may
	// close the stack, and may still run when Close returns.
	Failed func(error)
}

// mostBacklog is that of a listener of TCP, whose number has 16 bits.
const mostBacklog = 1<<16 - 1

// MinBuffers is the smallest number of control-message buffers of a connection.
const MinBuffers = 2 * (controlBuffers + 2)

// Stack holds what connections over one NIC share. New makes one.
type Stack struct {
	nic  *vipl.NIC
	o    Options
	regs *registry

	longFrames bool // of more than a chunk
	delay      time.Duration

	arrivals *driver // completed receives of all connections
	sends    *driver // completed sends

	spinning atomic.Bool    // a goroutine of the program polls for all
	polls    atomic.Uint32  // times that one has begun to
	posted   atomic.Uint32  // sends
	stale    atomic.Bool    // completions of sends that have been seen lie on their queue, see poll.go
	alone    atomic.Int32   // Writes that ring by themselves, see poll.go
	yielder  thread.Yielder // the goroutine that polls has it
	rings    atomic.Int32   // that peers write to, see read.go

	ports  ports
	silent silence
	dials  context.Context // ends when Close begins
	end    context.CancelCauseFunc
	closed context.Context // ends when Close has waited long enough for connections
	leave  context.CancelFunc
	work   sync.WaitGroup // goroutines of connections and listeners
	keep   sync.WaitGroup // goroutines that wait for completions

	mu        sync.Mutex
	isClosed  bool
	empty     chan struct{}  // of Shutdown: closed when no connection is left; nil: it was not called
	conns     map[*Conn]bool // true: the program has it, or can accept it
	listeners map[*Listener]struct{}
	buffers   []buffer // of Alloc, by where they begin
	left      error    // why connections could not give back all that they had
	counts    Stats    // of connections that have ended, and what none counts
}

var errStackClosed = fmt.Errorf("the stack is closed: %w", net.ErrClosed)

// New makes a Stack over nic, which stays the program's: close it after the Stack. Several stacks may share a NIC.
//
// Errors: options out of range, ENOBUFS where the NIC has no completion queue or VI left.
func New(nic *vipl.NIC, o Options) (*Stack, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	s := &Stack{
		nic: nic, o: o, delay: delayMost,
		conns: make(map[*Conn]bool), listeners: make(map[*Listener]struct{}),
	}
	s.dials, s.end = context.WithCancelCause(context.Background())
	s.closed, s.leave = context.WithCancel(context.Background())
	var err error
	info := nic.Info()
	s.longFrames = info.NIC.MultiBuffer && info.MTU > info.NIC.ChunkSize
	if s.regs, err = newRegistry(nic, max(o.Registered, 0)); err != nil {
		return nil, systemError(err)
	}
	if s.arrivals, err = newDriver(s); err == nil {
		s.sends, err = newDriver(s)
	}
	if err != nil {
		return nil, errors.Join(systemError(err), s.release())
	}
	s.arrivals.want(1)
	s.keep.Go(s.arrivals.drive)
	s.keep.Go(s.sends.drive)
	return s, nil
}

// complete fills in the defaults and checks the rest.
func (o *Options) complete() error {
	o.Buffers = cmp.Or(o.Buffers, 74)
	o.BufferSize = cmp.Or(o.BufferSize, 4224) // 4096 bytes of data in a message
	o.Threshold = cmp.Or(o.Threshold, 32<<10)
	o.Registered = cmp.Or(o.Registered, 16<<20)
	o.Spin = cmp.Or(o.Spin, 100*time.Microsecond)
	o.Linger = cmp.Or(o.Linger, 10*time.Second)
	o.Backlog = cmp.Or(o.Backlog, 128)
	const least, most = vipl.DescriptorAlignment + minMessage, vipl.MaxTransferSize
	switch {
	case o.Buffers < MinBuffers || o.Buffers > vipl.MaxDescriptorsPerQueue:
		return fmt.Errorf("vianet: %d buffers: %d to %d", o.Buffers, MinBuffers, vipl.MaxDescriptorsPerQueue)
	case o.BufferSize < least || o.BufferSize > most || o.BufferSize%vipl.DescriptorAlignment != 0:
		return fmt.Errorf("vianet: buffers of %d bytes: a multiple of %d, %d to %d",
			o.BufferSize, vipl.DescriptorAlignment, least, most)
	case o.Linger < 0:
		return fmt.Errorf("vianet: negative linger time %v", o.Linger)
	case o.Backlog < 0 || o.Backlog > mostBacklog:
		return fmt.Errorf("vianet: a backlog of %d: 1 to %d", o.Backlog, mostBacklog)
	}
	return nil
}

// admit records an established connection, for Close to close, and counts it. It fails with ErrClosed after Close.
func (s *Stack) admit(c *Conn, counter *uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isClosed {
		return errStackClosed
	}
	s.conns[c] = true
	*counter++
	return nil
}

// remove forgets a connection that has ended; left is what it could not give back.
func (s *Stack) remove(c *Conn, left error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	s.counts.add(&c.counts)
	s.checkEmpty()
	s.left = errors.Join(s.left, left)
}

// enter begins what Close waits for, until s.work.Done. False: the stack is closed.
func (s *Stack) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.isClosed {
		s.work.Add(1)
	}
	return !s.isClosed
}

// closeTime is how long Close lets connections deliver what was written.
const closeTime = time.Second

// Close closes all listeners and connections, ends each Dial that is under way and waits until they are gone. Data
// that was written and not delivered has one second to get there; Shutdown gives it more. A second Close does
// nothing.
func (s *Stack) Close() error {
	s.mu.Lock()
	if s.isClosed {
		s.mu.Unlock()
		return nil
	}
	s.isClosed = true
	listeners := slices.Collect(maps.Keys(s.listeners))
	var conns []*Conn
	for c, admitted := range s.conns {
		if admitted {
			conns = append(conns, c)
		}
	}
	s.mu.Unlock()
	s.end(errStackClosed)
	for _, l := range listeners {
		l.Close()
	}
	for _, c := range conns {
		c.Close()
	}
	defer time.AfterFunc(closeTime, s.leave).Stop()
	s.work.Wait()
	return s.release()
}

// release ends what New has begun.
func (s *Stack) release() error {
	var errs []error
	for _, d := range []*driver{s.arrivals, s.sends} {
		if d != nil {
			d.stop()
		}
	}
	s.keep.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nicClosed() {
		return nil // all has gone with it
	}
	errs = append(errs, s.left)
	for _, d := range []*driver{s.arrivals, s.sends} {
		if d != nil {
			errs = append(errs, d.cq.Destroy())
		}
	}
	for _, b := range s.buffers {
		errs = append(errs, b.region.Deregister())
	}
	s.buffers = nil
	return errors.Join(append(errs, s.regs.close())...)
}

// nicClosed reports whether the NIC was closed, and everything on it with it.
func (s *Stack) nicClosed() bool {
	if s.arrivals == nil {
		return false
	}
	err := error(vipl.ErrNotDone)
	for errors.Is(err, vipl.ErrNotDone) { // the driver was woken, and had gone
		s.arrivals.drain() // Wait gives what there is before it looks
		_, _, err = s.arrivals.cq.Wait(0)
	}
	return errors.Is(err, fs.ErrClosed)
}

// fail ends all connections, because the NIC is closed.
func (s *Stack) fail(err error) {
	s.mu.Lock()
	conns := slices.Collect(maps.Keys(s.conns))
	s.mu.Unlock()
	for _, c := range conns {
		c.mu.Lock()
		c.fail(fmt.Errorf("%w: %w", net.ErrClosed, err))
		c.mu.Unlock()
		c.progress() // the drivers have ended
	}
}

// Shutdown closes all listeners, waits until the program has closed all connections and what it wrote is delivered,
// however long that takes within Options.Linger, and then closes the stack. If ctx ends first, it closes the stack
// as Close does, and returns the error of ctx. Listen fails at once. Dial works until the stack is closed, so that
// the program can finish its work. It does nothing after Close.
//
// Shutdown does not notify the users of connections. Shut down a server that keeps idle connections, such as HTTP's,
// first:
//
//	err := errors.Join(server.Shutdown(ctx), stack.Shutdown(ctx))
func (s *Stack) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	if s.isClosed {
		s.mu.Unlock()
		return nil
	}
	if s.empty == nil {
		s.empty = make(chan struct{})
	}
	empty, listeners := s.empty, slices.Collect(maps.Keys(s.listeners))
	s.mu.Unlock()
	for _, l := range listeners {
		l.Close()
	}
	s.mu.Lock()
	s.checkEmpty()
	s.mu.Unlock()
	select {
	case <-empty:
	case <-ctx.Done():
	}
	var err error
	if !isClosed(empty) {
		err = ctx.Err()
	}
	return errors.Join(err, s.Close())
}

// checkEmpty signals Shutdown when no connection is left. Under mu.
func (s *Stack) checkEmpty() {
	if s.empty != nil && len(s.conns) == 0 && !isClosed(s.empty) {
		close(s.empty)
	}
}

// Stats is what a Stack has counted since New, of connections that have ended, too.
type Stats struct {
	Dialed      uint64 // connections made by Dial and its like
	Accepted    uint64 // connections of listeners
	Refused     uint64 // requests that listeners refused; Dial asks again a few times
	FellBack    uint64 // connections that DialOr made the other way
	Broken      uint64 // connections that ended before this side's Close and the peer's
	Undelivered uint64 // connections that ended after Close, and not all written had got there

	Messages    Traffic // data messages sent
	Ring        Traffic // RDMA writes to a peer's ring
	Read        Traffic // transfers that a peer read
	Written     Traffic // transfers that were written to a peer
	ByReference Traffic // Writes of Written from memory of Alloc, without a copy
	Received    uint64  // bytes that Reads have given
	Stalls      uint64  // Writes that waited since the peer, whose program did not read, had no room

	Registered, Reused uint64 // the program's buffers registered for transfers; found registered
	NoMemory           uint64 // times that memory could not be had or registered

	Conns           int // now, those that are being made, or are delivering after Close, among them
	RegisteredBytes int // of the program's memory, that no transfer uses now
}

// Traffic is how often and how many bytes.
type Traffic struct{ Times, Bytes uint64 }

func (t *Traffic) count(n int) {
	if n == 0 {
		return
	}
	t.Times++
	t.Bytes += uint64(n)
}

func (t *Traffic) add(o Traffic) {
	t.Times += o.Times
	t.Bytes += o.Bytes
}

// add adds what a connection counts by itself.
func (s *Stats) add(c *Stats) {
	s.Broken += c.Broken
	s.Undelivered += c.Undelivered
	s.Messages.add(c.Messages)
	s.Ring.add(c.Ring)
	s.Read.add(c.Read)
	s.Written.add(c.Written)
	s.ByReference.add(c.ByReference)
	s.Received += c.Received
	s.Stalls += c.Stalls
}

// Stats takes a snapshot.
func (s *Stack) Stats() Stats {
	s.mu.Lock()
	sum := s.counts
	sum.Conns = len(s.conns)
	conns := slices.Collect(maps.Keys(s.conns))
	s.mu.Unlock()
	for _, c := range conns { // one that ends meanwhile is not in the sum yet
		c.mu.Lock()
		sum.add(&c.counts)
		c.mu.Unlock()
	}
	r := s.regs
	r.mu.Lock()
	defer r.mu.Unlock()
	sum.Registered, sum.Reused, sum.RegisteredBytes = r.misses, r.hits, r.bytes
	sum.NoMemory = r.failures.Load()
	return sum
}

// count adds one to a counter of the stack's own.
func (s *Stack) count(counter *uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*counter++
}

// failed counts an error that is for lack of memory. It returns the error.
func (r *registry) failed(err error) error {
	if errors.Is(err, vipl.ErrResource) {
		r.failures.Add(1)
	}
	return err
}
