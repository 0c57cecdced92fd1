package vianet

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"viaxdp/vipl"
)

const (
	// dialTime is how long a Dial may take that has no deadline.
	dialTime = 30 * time.Second
	// busyPause is the longest of the pauses in which a listener is asked again that has no place for a request; the
	// first is firstPause, and they double.
	firstPause = 5 * time.Millisecond
	busyPause  = 64 * firstPause
	// helloTime is how long a peer that has asked for a connection may take to greet, once connected: it does so at
	// once, but for the time that a busy host lets it wait. Until then it has a place of Options.Backlog.
	helloTime = 10 * time.Second
)

// Dial connects with the listener at address, host:port, within 30 seconds. name is "via" or "tcp", optionally with
// the suffix 4 or 6. A missing or unspecified host means the NIC's own address. The result is a [*Conn].
func (s *Stack) Dial(name, address string) (net.Conn, error) {
	return s.DialContext(context.Background(), name, address)
}

// DialContext is Dial, bounded by ctx as well as by the 30 seconds. Once connected, the end of ctx has no effect on
// the connection. If the host has several addresses, they are tried in turn. If the listener's backlog is full,
// DialContext retries seven times in two thirds of a second.
//
// Errors are [*net.OpError]: ECONNREFUSED, EHOSTUNREACH, ETIMEDOUT, ENOBUFS, ENODEV if the NIC's interface was removed,
// EKEYREJECTED if pre-shared keys do not match, and that of ctx; a passed deadline is also os.ErrDeadlineExceeded.
func (s *Stack) DialContext(ctx context.Context, name, address string) (net.Conn, error) {
	to, err := s.targets(ctx, name, address)
	if err != nil {
		return nil, dialError(nil, err)
	}
	return s.dialAny(ctx, to)
}

func dialError(to net.Addr, err error) error {
	return &net.OpError{Op: "dial", Net: network, Addr: to, Err: err}
}

// dialAny connects with the first of several addresses that accepts. The error is that of one whose pre-shared keys do not
// match, else that of ctx if it has ended, else that of the first.
func (s *Stack) dialAny(ctx context.Context, addrs []Addr) (net.Conn, error) {
	if ctx.Err() != nil { // an answer that comes at once may be looked at first
		return nil, dialError(addrs[0], contextError(ctx))
	}
	bounded, cancel := context.WithTimeoutCause(ctx, dialTime, syscall.ETIMEDOUT)
	defer cancel()
	var first error
	for i, to := range addrs {
		c, err := s.dial(bounded, to, len(addrs)-i)
		if err == nil {
			return c, nil
		}
		if first == nil || isKeyRejected(err) || ctx.Err() != nil && !isKeyRejected(first) {
			first = err
		}
		if bounded.Err() != nil {
			break
		}
	}
	return nil, dialError(addrs[0], first)
}

// targets finds what an address to connect with stands for.
func (s *Stack) targets(ctx context.Context, name, address string) ([]Addr, error) {
	addrs, err := s.resolve(ctx, name, address)
	if err != nil || !addrs[0].Addr().IsUnspecified() {
		return addrs, err
	}
	nic := s.nic.Query()
	if nic.Removed {
		return nil, syscall.ENODEV
	}
	own := nic.Address
	if fam, _ := family(name); !own.IsValid() || !fits(own, fam) {
		return nil, &net.AddrError{Err: "the NIC has no address of network " + name, Addr: address}
	}
	return []Addr{{netip.AddrPortFrom(own, addrs[0].Port())}}, nil
}

// dial connects with to, the first of left addresses, until ctx ends or the stack is closed. An address that does not
// answer uses only its share of the time.
func (s *Stack) dial(ctx context.Context, to Addr, left int) (*Conn, error) {
	if !s.enter() {
		return nil, errStackClosed
	}
	defer s.work.Done()
	if end, ok := ctx.Deadline(); ok && left > 1 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, time.Until(end)/time.Duration(left), syscall.ETIMEDOUT)
		defer cancel()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.dials, func() { cancel(errStackClosed) })()
	c, err := s.connect(ctx, to)
	if err != nil && ctx.Err() != nil && !isKeyRejected(err) {
		err = contextError(ctx)
	}
	return c, err
}

// connect makes a connection with to, in attempts as long as ctx lasts.
func (s *Stack) connect(ctx context.Context, to Addr) (*Conn, error) {
	port, err := s.ports.take(0)
	if err != nil {
		return nil, err
	}
	c, err := newConn(s)
	if err != nil {
		s.ports.release(port)
		return nil, systemError(err)
	}
	c.port, c.remote = port, to
	c.local = Addr{netip.AddrPortFrom(netip.Addr{}, port)} // the NIC knows the host best
	start := time.Now()
	peer, err := c.request(ctx)
	s.silent.take(ctx, to.Addr(), err, start)
	if err == nil {
		c.begin(peer, true)
		if err = c.greeting(ctx); err == nil { // a listener may have many to greet before
			err = s.admit(c, &s.counts.Dialed)
		}
	}
	if err != nil {
		s.work.Go(c.free) // which may take leave of the peer
		return nil, systemError(err)
	}
	return c, nil
}

// request asks for the connection until there is an answer. If ctx ends first, the error is that of the last refusal,
// if there was one.
func (c *Conn) request(ctx context.Context) (vipl.RemoteAttributes, error) {
	pause := firstPause
	var refusal error
	for {
		peer, err := c.vi.ConnectRequestContext(ctx, c.local.via(), c.remote.via())
		refused := errors.Is(err, vipl.ErrRejected) && !errors.Is(err, vipl.ErrSecurity)
		if errors.Is(err, vipl.ErrInvalidState) && refusal != nil {
			return peer, refusal // the peer had sent something before it refused: the VI is in Error
		}
		if again := errors.Is(err, vipl.ErrTimeout) || refused && pause <= busyPause; !again {
			return peer, err
		}
		if refused {
			refusal = err
		}
		select {
		case <-time.After(pause):
			pause *= 2
		case <-ctx.Done():
			return peer, cmp.Or(refusal, err)
		}
	}
}

// greeting waits for the peer's hello until ctx ends.
func (c *Conn) greeting(ctx context.Context) error {
	select {
	case <-c.ready:
		return nil
	case <-c.gone:
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.greeted {
			return nil // what it has sent before it went can be read
		}
		return c.err
	case <-c.stack.closed.Done():
		return errStackClosed
	case <-ctx.Done():
		return contextError(ctx)
	}
}

const (
	// fallbackTime is how long a host has to answer before it is taken for one without VIA.
	fallbackTime = 2 * time.Second
	// silentTime is how long it is taken for one then.
	silentTime = time.Minute
	// silentLeast is how long a host must have been silent to be remembered.
	silentLeast = fallbackTime / 4
	// silentMost is how many hosts are remembered.
	silentMost = 256
)

// DialOr is DialContext with a fallback: it calls or if there is no VIA. That is, no VIA listener at the address, an
// unreachable host, no answer within two seconds or half the time that ctx leaves, or a NIC whose interface was removed.
// A connection from or belongs to another network; its LocalAddr shows which.
//
//	c, err := stack.DialOr(ctx, "via", "10.0.0.2:80", func(ctx context.Context) (net.Conn, error) {
//		return dialer.DialContext(ctx, "tcp", "10.0.0.2:80")
//	})
//
// A host that did not answer is not asked again for a minute, unless or fails, too, and then by one DialOr at a time.
// Any message from the host, such as a request of its own, ends the minute.
//
// If pre-shared keys do not match, or is not called: the fallback would go without keys.
//
// The error joins that of VIA and that of or.
func (s *Stack) DialOr(
	ctx context.Context, name, address string, or func(context.Context) (net.Conn, error),
) (net.Conn, error) {
	to, err := s.targets(ctx, name, address)
	if err != nil {
		return s.otherwise(ctx, dialError(nil, err), nil, or)
	}
	return s.dialOr(ctx, to, or)
}

// dialOr is DialOr to the addresses that were found.
func (s *Stack) dialOr(ctx context.Context, to []Addr, or func(context.Context) (net.Conn, error)) (net.Conn, error) {
	ask, silent := s.silent.part(to)
	if len(ask) == 0 {
		if ctx.Err() != nil {
			return nil, dialError(to[0], contextError(ctx))
		}
		return s.otherwise(ctx, nil, silent, or)
	}
	c, err := s.dialShortly(ctx, ask)
	if err != nil {
		return s.otherwise(ctx, err, silent, or)
	}
	return c, nil
}

// otherwise calls or if err, the result of an attempt by VIA, means that there is no VIA; nil means that there was no
// attempt. If or fails, too, it asks the hosts that were silent.
func (s *Stack) otherwise(
	ctx context.Context, err error, silent []Addr, or func(context.Context) (net.Conn, error),
) (net.Conn, error) {
	if err != nil && (ctx.Err() != nil || !noVIA(err)) {
		return nil, err
	}
	c, other := or(ctx)
	if other == nil {
		s.count(&s.counts.FellBack)
		return c, nil
	}
	if len(silent) > 0 && ctx.Err() == nil {
		c, late := s.dialShortly(ctx, silent)
		if late == nil {
			return c, nil
		}
		err = errors.Join(err, late)
	}
	return nil, errors.Join(err, other)
}

// dialShortly dials as long as a host has to answer.
func (s *Stack) dialShortly(ctx context.Context, to []Addr) (net.Conn, error) {
	short, cancel := context.WithTimeout(ctx, answerTime(ctx))
	defer cancel()
	return s.dialAny(short, to)
}

// answerTime is how long a host has to answer: half the time of ctx at most.
func answerTime(ctx context.Context) time.Duration {
	if end, ok := ctx.Deadline(); ok {
		return min(fallbackTime, time.Until(end)/2)
	}
	return fallbackTime
}

// noVIA reports whether an error of Dial means that the other host does without, or that this one has lost its interface.
func noVIA(err error) bool {
	none := []error{syscall.ECONNREFUSED, syscall.EHOSTUNREACH, syscall.ETIMEDOUT, syscall.ENODEV}
	is := func(e error) bool { return errors.Is(err, e) }
	return !isKeyRejected(err) && (isTimeout(err) || slices.ContainsFunc(none, is))
}

// silence records the hosts that have not answered by VIA lately, and when to ask them again. The zero value has
// none. All methods may be called concurrently.
type silence struct {
	mu    sync.Mutex
	until map[netip.Addr]time.Time
}

// part splits addresses into those to ask and those to skip. When a silent host is due again, only one caller asks
// it; the others skip it meanwhile.
func (s *silence) part(to []Addr) (ask, silent []Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for _, a := range to {
		until, ok := s.until[hostKey(a.Addr())]
		if ok && now.Before(until) {
			silent = append(silent, a)
			continue
		}
		if ok {
			s.until[hostKey(a.Addr())] = now.Add(fallbackTime)
		}
		ask = append(ask, a)
	}
	return ask, silent
}

// take records the outcome of a request that was made at start. A host counts as silent if it had the time to answer
// and the request was not cancelled. It does not matter whether this process was descheduled meanwhile.
func (s *silence) take(ctx context.Context, host netip.Addr, err error, start time.Time) {
	switch {
	case err == nil, errors.Is(err, vipl.ErrNoMatch), errors.Is(err, vipl.ErrRejected):
		s.forget(host)
	case errors.Is(ctx.Err(), context.Canceled):
	case errors.Is(err, vipl.ErrTimeout), errors.Is(err, vipl.ErrNotReachable):
		had := time.Since(start)
		if end, ok := ctx.Deadline(); ok {
			had = min(had, end.Sub(start))
		}
		if had >= silentLeast {
			s.remember(host)
		}
	}
}

// remember records a silent host. A full table drops the host that expires first.
func (s *silence) remember(host netip.Addr) {
	host = hostKey(host)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.until == nil {
		s.until = make(map[netip.Addr]time.Time)
	}
	if _, known := s.until[host]; !known && len(s.until) == silentMost {
		var oldest netip.Addr
		for h, until := range s.until {
			if !oldest.IsValid() || until.Before(s.until[oldest]) {
				oldest = h
			}
		}
		delete(s.until, oldest)
	}
	s.until[host] = time.Now().Add(silentTime)
}

// forget removes a host from which a message has come.
func (s *silence) forget(host netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.until, hostKey(host))
}

// hostKey is the key of a host in the table. It has no zone, as the host's own requests arrive without one.
func hostKey(host netip.Addr) netip.Addr { return host.WithZone("") }
