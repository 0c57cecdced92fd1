package vianet

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"viaxdp/vipl"
)

// Listener accepts connections at one address. All methods may be called concurrently.
type Listener struct {
	stack    *Stack
	addr     Addr
	family   string // of hosts that may ask: "" is all
	requests *vipl.Listener
	deadline limit
	places   chan struct{} // one for each connection that is on its way to Accept
	accepted chan *Conn
	ctx      context.Context // ends when it is closed
	accepts  context.Context // ends closeTime later, as confirmations may be on their way
	close    func()

	mu  sync.Mutex
	err error // why it ended by itself
}

var _ net.Listener = (*Listener)(nil)

// Listen listens at address, host:port. Without a host, or with [::], it is for all addresses of the NIC, with
// 0.0.0.0 for those of IPv4. Port 0 is a free one. name is as for Dial. The result is a [*Listener].
//
// Errors are [*net.OpError]: EADDRINUSE when another listener or a connection of the stack has the port, at any
// address, or another program of the same Kernel Agent listens at the address; ENODEV if the NIC's interface was
// removed; [net.ErrClosed] after Close or Shutdown of the stack.
func (s *Stack) Listen(name, address string) (net.Listener, error) {
	addrs, err := s.resolve(context.Background(), name, address)
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Err: err}
	}
	fam, _ := family(name)
	l, err := s.listen(fam, addrs[0])
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Addr: addrs[0], Err: err}
	}
	return l, nil
}

func (s *Stack) listen(fam string, at Addr) (*Listener, error) {
	if at.Addr() == netip.IPv4Unspecified() {
		fam = "4"
	}
	addr, requests, err := s.claim(at)
	if err != nil {
		return nil, err
	}
	ctx, end := context.WithCancel(context.Background())
	accepts, leave := context.WithCancel(context.Background())
	l := &Listener{
		stack: s, addr: addr, family: fam, requests: requests, ctx: ctx, accepts: accepts,
		places: make(chan struct{}, s.o.Backlog), accepted: make(chan *Conn, s.o.Backlog),
		deadline: limit{signal: make(chan struct{}, 1)},
	}
	l.close = sync.OnceFunc(func() {
		end()
		time.AfterFunc(closeTime, leave)
		l.deadline.set(time.Time{}) // its timer has the listener
		l.requests.Close()
		s.ports.release(addr.Port())
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isClosed || s.empty != nil {
		l.close()
		return nil, errStackClosed
	}
	s.listeners[l] = struct{}{}
	s.work.Go(l.serve)
	return l, nil
}

// claim reserves a port and begins to listen on it. For port 0 it picks one that no program of the same Kernel Agent
// uses.
func (s *Stack) claim(at Addr) (Addr, *vipl.Listener, error) {
	port, err := s.ports.take(at.Port())
	if err != nil {
		return Addr{}, nil, err
	}
	addr := Addr{netip.AddrPortFrom(at.Addr(), port)}
	requests, err := s.nic.Listen(addr.via())
	if err == nil {
		return addr, requests, nil
	}
	defer s.ports.release(port) // not before another is found, which is another one then
	switch {
	case !errors.Is(err, vipl.ErrInvalidState):
		return Addr{}, nil, systemError(err)
	case at.Port() == 0:
		return s.claim(at)
	}
	return Addr{}, nil, syscall.EADDRINUSE
}

// serve takes requests until the listener is closed.
func (l *Listener) serve() {
	s := l.stack
	for !l.closed() {
		request, err := l.requests.Wait(context.Background())
		switch {
		case err == nil && l.closed():
			l.refuse(request)
		case err == nil:
			l.take(request)
		case !l.closed():
			l.fail(systemError(err))
		}
	}
	s.mu.Lock()
	delete(s.listeners, l)
	s.mu.Unlock()
	l.dropAccepted()
}

// take accepts a request in the background, if there is a place for it.
func (l *Listener) take(request *vipl.Conn) {
	remote, err := addrOf(request.Remote())
	if err != nil || !fits(remote.Addr(), l.family) {
		l.refuse(request)
		return
	}
	l.stack.silent.forget(remote.Addr())
	select {
	case l.places <- struct{}{}:
	default:
		l.refuse(request)
		return
	}
	l.stack.work.Go(func() {
		c, err := l.establish(request, remote)
		if err != nil { // the other side sees the rejection
			<-l.places
			go l.failed(remote, err) // Close does not wait for it, as it may close the stack
			return
		}
		l.accepted <- c
		if l.closed() {
			l.dropAccepted()
		}
	})
}

// failed reports a request that has not become a connection to Options.Failed.
func (l *Listener) failed(remote Addr, err error) {
	if f := l.stack.o.Failed; f != nil && !l.closed() {
		f(&net.OpError{Op: "accept", Net: network, Source: l.addr, Addr: remote, Err: systemError(err)})
	}
}

func (l *Listener) refuse(request *vipl.Conn) {
	request.Reject()
	l.stack.count(&l.stack.counts.Refused)
}

// establish accepts a request. It posts the connection's receives first, because the other side sends first.
func (l *Listener) establish(request *vipl.Conn, remote Addr) (*Conn, error) {
	c, err := newConn(l.stack)
	if err != nil {
		l.refuse(request)
		return nil, err
	}
	c.remote, c.local = remote, l.addr
	c.mu.Lock()
	c.breaks = true // until Accept
	err = c.post()
	c.mu.Unlock()
	if err == nil {
		err = request.AcceptContext(l.accepts, c.vi)
	}
	if err != nil {
		l.refuse(request)
		c.free()
		return nil, err
	}
	c.begin(request.RemoteAttributes(), false)
	ctx, cancel := context.WithTimeout(l.ctx, helloTime)
	defer cancel()
	if err = c.greeting(ctx); err == nil {
		err = l.stack.admit(c, &l.stack.counts.Accepted)
	}
	if err != nil {
		c.free()
		return nil, err
	}
	return c, nil
}

// dropAccepted breaks connections that will not be accepted: what was written there is lost.
func (l *Listener) dropAccepted() {
	for {
		select {
		case c := <-l.accepted:
			c.Close()
		default:
			return
		}
	}
}

// fail ends the listener with an error, which Accept returns.
func (l *Listener) fail(err error) {
	l.mu.Lock()
	l.err = err
	l.mu.Unlock()
	l.close()
}

// Accept waits for the next connection.
//
// Errors are [*net.OpError]: [net.ErrClosed] after Close, a deadline, ENODEV if the NIC's interface was removed.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		switch {
		case l.closed():
			return nil, l.opError("accept", l.ended())
		case l.deadline.passed():
			raise(l.deadline.signal) // for the others that wait
			return nil, l.opError("accept", os.ErrDeadlineExceeded)
		}
		select {
		case c := <-l.accepted:
			<-l.places
			_ = c.SetLinger(-1) // the stack may have closed it
			return c, nil
		case <-l.ctx.Done():
		case <-l.deadline.signal:
		}
	}
}

func (l *Listener) closed() bool { return l.ctx.Err() != nil }

func (l *Listener) ended() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.err
	}
	return net.ErrClosed
}

func (l *Listener) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: network, Addr: l.addr, Err: err}
}

// SetDeadline sets the time after which an Accept ends with [os.ErrDeadlineExceeded]; the zero time means never.
func (l *Listener) SetDeadline(t time.Time) error {
	if l.closed() {
		return l.opError("set", net.ErrClosed)
	}
	l.deadline.set(t)
	return nil
}

// Close ends the listener: connections that were not accepted are reset. The port is free again. The error is
// [net.ErrClosed] the second time.
func (l *Listener) Close() error {
	if l.closed() {
		return l.opError("close", net.ErrClosed)
	}
	l.close()
	return nil
}

// Addr is the address, an [Addr]; its host is 0.0.0.0 or :: where the listener is for all.
func (l *Listener) Addr() net.Addr { return l.addr }
