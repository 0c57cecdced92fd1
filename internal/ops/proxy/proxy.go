// Package proxy forwards byte streams between the kernel's TCP and package vianet, so that programs which know
// nothing of VIs can use them.
//
//	program --TCP--> proxy ==VIA==> proxy --TCP--> server
//	         tcp:127.0.0.1:5432     via::5432      tcp:127.0.0.1:5432
//
// Each side is an address: tcp:HOST:PORT or via:HOST:PORT. A half-closed stream is half-closed on the other side, and
// a broken stream ends with a reset, so that it does not look complete. Urgent data breaks it, since VIA does not
// carry any.
package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"viaxdp/vianet"
)

// Address is one side of a proxy.
type Address struct {
	Network string // "tcp" or "via"
	Address string // host:port
}

// ParseAddress reads tcp:HOST:PORT or via:HOST:PORT; a bare HOST:PORT is tcp.
func ParseAddress(s string) (Address, error) {
	a := Address{Network: "tcp", Address: strings.TrimPrefix(s, "tcp:")}
	if rest, ok := strings.CutPrefix(s, "via:"); ok {
		a = Address{"via", rest}
	}
	if _, _, err := net.SplitHostPort(a.Address); err != nil {
		return a, fmt.Errorf("%q: %w: want tcp:HOST:PORT or via:HOST:PORT", s, err)
	}
	return a, nil
}

// String is the address as ParseAddress reads it.
func (a Address) String() string { return a.Network + ":" + a.Address }

// Proxy forwards what comes to one address to another one.
type Proxy struct {
	Listen, To Address
	Stack      *vianet.Stack // for via; nil: neither address is
	// Fallback is the port at To's host to connect with by TCP if there is no VIA listener at To (vianet.Stack.DialOr).
	// Empty: no fallback.
	Fallback string
	// Most is how many connections are forwarded at once; those beyond it wait to be accepted. 0: 4096.
	Most int
	// Failed, if not nil, is called with the error of each connection that could not be forwarded, and when none can be
	// accepted for a while. Several goroutines call it.
	Failed func(error)

	listener net.Listener
	refusals seldom
	count    atomic.Int64
	fell     atomic.Int64
}

// Open begins to listen.
func (p *Proxy) Open() (err error) {
	if p.Stack == nil && (p.Listen.Network == "via" || p.To.Network == "via") {
		return errors.New("an address of VIA needs an interface")
	}
	if p.Listen.Network == "via" {
		p.listener, err = p.Stack.Listen("via", p.Listen.Address)
	} else {
		p.listener, err = net.Listen("tcp", p.Listen.Address)
	}
	return err
}

// Addr is where it listens.
func (p *Proxy) Addr() net.Addr { return p.listener.Addr() }

// Connections is how many were forwarded so far, and how many of them by TCP for lack of VIA.
func (p *Proxy) Connections() (all, fell int64) { return p.count.Load(), p.fell.Load() }

// Serve forwards connections until ctx ends, which is no error, and then closes all of them. While the system is
// short of descriptors or memory, those that there are go on, and new ones wait.
func (p *Proxy) Serve(ctx context.Context) error {
	inner, cancel := context.WithCancel(ctx)
	var wait sync.WaitGroup
	defer wait.Wait()
	defer cancel()
	defer context.AfterFunc(inner, func() { p.listener.Close() })()
	defer p.listener.Close() // whatever ends it
	places := make(chan struct{}, cmp.Or(max(p.Most, 0), defaultMost))
	short := false
	for {
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		from, err := p.listener.Accept()
		switch {
		case err == nil:
			short = false
			wait.Go(func() {
				defer func() { <-places }()
				p.failed(inner, p.forward(inner, from))
			})
			continue
		case ctx.Err() != nil:
			return nil
		case !p.passes(err):
			return err
		case !short: // report it once, not 20 times a second
			short = true
			p.failed(inner, fmt.Errorf("accept: %w: new connections wait", err))
		}
		<-places
		select {
		case <-time.After(acceptPause):
		case <-ctx.Done():
			return nil
		}
	}
}

const (
	defaultMost = 4096
	acceptPause = 50 * time.Millisecond // until Accept is tried again
	dialTime    = 10 * time.Second      // that the other side has to answer
	drainTime   = 10 * time.Second      // that a program has to end its stream once it has the whole answer
)

// passes reports whether an error of Accept is temporary. A VIA listener that has failed has ended.
func (p *Proxy) passes(err error) bool {
	if p.Listen.Network == "via" {
		return false
	}
	var errno syscall.Errno
	return errors.As(err, &errno) && slices.Contains([]syscall.Errno{
		syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED,
	}, errno)
}

// failed reports an error, unless it is due to the proxy's end.
func (p *Proxy) failed(ctx context.Context, err error) {
	switch {
	case err == nil, ctx.Err() != nil, p.Failed == nil:
	case errors.Is(err, syscall.EKEYREJECTED): // as on the other side, where each connection fails, too
		p.Refused(err)
	default:
		p.Failed(err)
	}
}

// Refused is for Options.Failed of Stack: it reports requests that Stack has refused to Failed. It reports at most
// one a second, since any host on the network can make requests.
func (p *Proxy) Refused(err error) {
	tell, untold := p.refusals.turn(time.Now())
	if !tell || p.Failed == nil {
		return
	}
	if untold > 0 {
		err = fmt.Errorf("%w; %d before it were not told", err, untold)
	}
	p.Failed(err)
}

// seldom allows one report a second, and counts the others.
type seldom struct {
	mu     sync.Mutex
	next   time.Time
	untold int
}

func (s *seldom) turn(now time.Time) (tell bool, untold int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Before(s.next) {
		s.untold++
		return false, 0
	}
	untold, s.untold, s.next = s.untold, 0, now.Add(time.Second)
	return true, untold
}

func (p *Proxy) forward(ctx context.Context, from net.Conn) error {
	defer from.Close()
	defer hold(from)()
	to, err := p.dial(ctx)
	if err != nil {
		abort(from)
		return fmt.Errorf("for %v: %w", from.RemoteAddr(), err)
	}
	defer to.Close()
	defer hold(to)()
	p.count.Add(1)
	from, to = asTCP(from), asTCP(to)
	defer context.AfterFunc(ctx, func() {
		abort(from)
		abort(to)
	})()
	asked, answered := make(chan struct{}), make(chan struct{})
	var back error
	go func() {
		defer close(answered)
		back = pipe(from, to, asked)
	}()
	err = pipe(to, from, answered)
	close(asked)
	<-answered
	return errors.Join(err, back)
}

func (p *Proxy) dial(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	var tcp net.Dialer
	if p.To.Network == "tcp" {
		return tcp.DialContext(ctx, "tcp", p.To.Address)
	}
	if p.Fallback == "" {
		return p.Stack.DialContext(ctx, "via", p.To.Address)
	}
	host, _, err := net.SplitHostPort(p.To.Address)
	if err != nil {
		return nil, err
	}
	c, err := p.Stack.DialOr(ctx, "via", p.To.Address, func(ctx context.Context) (net.Conn, error) {
		return tcp.DialContext(ctx, "tcp", net.JoinHostPort(host, p.Fallback))
	})
	if _, fell := c.(*net.TCPConn); fell {
		p.fell.Add(1)
	}
	return c, err
}
