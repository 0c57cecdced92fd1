package vianet

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"viaxdp/vipl"
)

// Options of a Stack; the zero value means the defaults.
type Options struct {
	// Buffers is the number of control-message buffers of a connection, half of
	// them for sending; 0: 64. At least MinBuffers.
	Buffers int
	// BufferSize is the size of one in bytes, 64 for its descriptor and 24 for
	// the header included; 0: 4096. A multiple of 64, 320 to 1 MiB.
	//
	// A connection has Buffers*BufferSize bytes of memory: of the NIC's arena as
	// long as there is any, then of the program.
	BufferSize int
	// Threshold is the largest Write, in bytes, that goes through buffers;
	// larger ones go by RDMA. 0: 32 KiB; negative: all go through buffers.
	Threshold int
	// NoRDMARead keeps peers from reading this side's memory, and this side from
	// reading theirs: large data is then written.
	NoRDMARead bool
	// Registered is the number of bytes of the program's memory that may stay
	// registered, and with that be kept from the garbage collector, after a
	// Read or Write by RDMA; 0: 16 MiB; negative: none.
	Registered int
	// Spin is the longest time for which a Read or Write that has to wait polls
	// before it sleeps; 0: 100 us; negative: never.
	Spin time.Duration
	// Linger is how long a closed connection goes on trying to deliver what was
	// written; 0: 10 s.
	Linger time.Duration
}

// MinBuffers is the smallest number of control-message buffers of a connection.
const MinBuffers = 2 * (controlBuffers + 2)

// Stack is what connections over one NIC have in common. New makes one.
type Stack struct {
	nic  *vipl.Nic
	o    Options
	regs *registry

	arrivals *driver // completed receives of all connections
	sends    *driver // completed sends

	spinning atomic.Bool   // a goroutine of the program polls for all
	polls    atomic.Uint32 // times that one has begun to
	posted   atomic.Uint32 // sends

	ports  ports
	conns  sync.Map // *vipl.VI -> *Conn
	closed chan struct{}
	work   sync.WaitGroup // goroutines of connections and listeners
	keep   sync.WaitGroup // goroutines that wait for completions

	mu        sync.Mutex
	isClosed  bool
	open      map[*Conn]struct{}
	listeners map[*Listener]struct{}
	spares    []*Conn // see spare
	left      error   // why connections could not give back all that they had
}

var errStackClosed = fmt.Errorf("the stack is closed: %w", net.ErrClosed)

// New makes a Stack over nic, which stays the program's: it is to be closed
// after the Stack. Several stacks may share a NIC.
//
// Errors: options out of range, ENOBUFS where the NIC has no completion queue
// or VI left.
func New(nic *vipl.Nic, o Options) (*Stack, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	s := &Stack{
		nic: nic, o: o, closed: make(chan struct{}),
		open: make(map[*Conn]struct{}), listeners: make(map[*Listener]struct{}),
	}
	var err error
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
	s.keep.Go(s.arrivals.keeper)
	s.keep.Go(s.sends.keeper)
	return s, nil
}

// complete fills in the defaults and checks the rest.
func (o *Options) complete() error {
	o.Buffers = cmp.Or(o.Buffers, 64)
	o.BufferSize = cmp.Or(o.BufferSize, 4096)
	o.Threshold = cmp.Or(o.Threshold, 32<<10)
	o.Registered = cmp.Or(o.Registered, 16<<20)
	o.Spin = cmp.Or(o.Spin, 100*time.Microsecond)
	o.Linger = cmp.Or(o.Linger, 10*time.Second)
	const least, most = vipl.DescriptorAlignment + minMessage, vipl.MaxTransferSize
	switch {
	case o.Buffers < MinBuffers || o.Buffers > vipl.MaxDescriptorsPerQueue:
		return fmt.Errorf("vianet: %d buffers: %d to %d", o.Buffers, MinBuffers, vipl.MaxDescriptorsPerQueue)
	case o.BufferSize < least || o.BufferSize > most || o.BufferSize%vipl.DescriptorAlignment != 0:
		return fmt.Errorf("vianet: buffers of %d bytes: a multiple of %d, %d to %d",
			o.BufferSize, vipl.DescriptorAlignment, least, most)
	case o.Linger < 0:
		return fmt.Errorf("vianet: negative linger time %v", o.Linger)
	}
	return nil
}

// admit notes a connection that has come about, for Close to close. ErrClosed
// after that.
func (s *Stack) admit(c *Conn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isClosed {
		return errStackClosed
	}
	s.open[c] = struct{}{}
	return nil
}

// remove forgets a connection that has ended; left is what it could not give back.
func (s *Stack) remove(c *Conn, left error) {
	s.conns.Delete(c.vi)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, c)
	s.left = errors.Join(s.left, left)
}

// start runs f on a goroutine that Close waits for. False: the stack is closed.
func (s *Stack) start(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isClosed {
		return false
	}
	s.work.Go(f)
	return true
}

// closeTime is how long Close lets connections deliver what was written.
const closeTime = time.Second

// Close closes all listeners and connections and waits until they are gone: for
// a Dial that is under way at most five seconds, for data that is written and
// not delivered one second. A second Close does nothing.
func (s *Stack) Close() error {
	s.mu.Lock()
	if s.isClosed {
		s.mu.Unlock()
		return nil
	}
	s.isClosed = true
	conns, listeners := make([]*Conn, 0, len(s.open)), make([]*Listener, 0, len(s.listeners))
	for c := range s.open {
		conns = append(conns, c)
	}
	for l := range s.listeners {
		listeners = append(listeners, l)
	}
	s.mu.Unlock()
	for _, l := range listeners {
		l.Close()
	}
	for _, c := range conns {
		c.Close()
	}
	hurry := time.AfterFunc(closeTime, func() { close(s.closed) })
	s.work.Wait()
	if hurry.Stop() {
		close(s.closed)
	}
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
	if s.nicClosed() || len(s.spares) > 0 {
		return nil // all has gone with the NIC; or, held by the spares, will
	}
	errs = append(errs, s.left)
	for _, d := range []*driver{s.arrivals, s.sends} {
		if d != nil {
			errs = append(errs, d.release())
		}
	}
	return errors.Join(append(errs, s.regs.close())...)
}

// nicClosed says whether the NIC was closed, and everything on it with it.
func (s *Stack) nicClosed() bool {
	if s.arrivals == nil {
		return false
	}
	s.arrivals.drain() // Wait gives what there is before it looks
	_, _, err := s.arrivals.cq.Wait(0)
	return errors.Is(err, fs.ErrClosed)
}

// fail ends all connections, because the NIC is closed.
func (s *Stack) fail(err error) {
	s.conns.Range(func(_, v any) bool {
		c := v.(*Conn)
		c.mu.Lock()
		c.fail(fmt.Errorf("%w: %w", net.ErrClosed, err))
		c.mu.Unlock()
		c.progress() // nobody else does now
		return true
	})
}
