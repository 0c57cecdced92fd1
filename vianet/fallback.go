package vianet

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"viaxdp/vipl"
)

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

// DialOr is DialContext, and where there is no VIA instead dials by or: where nobody listens there by VIA, the host
// cannot be reached, or does not answer within two seconds, or half the time that ctx leaves. A connection of or is
// that of another network, as net.Conn.LocalAddr tells.
//
//	c, err := stack.DialOr(ctx, "via", "10.0.0.2:80", func(ctx context.Context) (net.Conn, error) {
//		return dialer.DialContext(ctx, "tcp", "10.0.0.2:80")
//	})
//
// A host that did not answer is not asked again for a minute, unless or fails, too, and then by one DialOr at a time;
// what it says meanwhile, a request of its own among it, ends that.
//
// Where pre-shared keys do not go together or is not called: it would do without any.
//
// The error joins those of both.
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

// otherwise dials by or where err, of an attempt by VIA, says that there is none; nil: there was no attempt. Where
// that fails, too, it asks those that were silent.
func (s *Stack) otherwise(
	ctx context.Context, err error, silent []Addr, or func(context.Context) (net.Conn, error),
) (net.Conn, error) {
	if err != nil && (ctx.Err() != nil || !noVIA(err)) {
		return nil, err
	}
	c, other := s.fallBack(ctx, or)
	if other == nil {
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

// fallBack dials by or, and counts.
func (s *Stack) fallBack(ctx context.Context, or func(context.Context) (net.Conn, error)) (net.Conn, error) {
	c, err := or(ctx)
	if err == nil {
		s.count(&s.counts.FellBack)
	}
	return c, err
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

// noVIA says whether an error of Dial means that the other host does without.
func noVIA(err error) bool {
	if isKeyRejected(err) {
		return false
	}
	for _, e := range []error{syscall.ECONNREFUSED, syscall.EHOSTUNREACH, syscall.ETIMEDOUT} {
		if errors.Is(err, e) {
			return true
		}
	}
	return isTimeout(err)
}

// silence is the hosts that have not answered by VIA lately, and when they are asked again. The zero value has none.
// All methods may be called concurrently.
type silence struct {
	mu    sync.Mutex
	until map[netip.Addr]time.Time
}

// part gives those that are to be asked, and those that are not. Where it is time to ask one again that was silent,
// others do not wait for the same meanwhile.
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

// take takes note of what became of a request that was made at start. A host is silent that had the time to answer,
// whoever was kept from looking, and that was not given up.
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

// remember notes a silent host, if need be in the place of the one whose time is over first.
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

// forget notes that a host was heard of.
func (s *silence) forget(host netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.until, hostKey(host))
}

// hostKey is what a host is remembered by: a request of its own comes without a zone.
func hostKey(host netip.Addr) netip.Addr { return host.WithZone("") }
