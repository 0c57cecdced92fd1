package vianet

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"
)

// fallbackTime is how long a host has to answer before it is taken for one
// without VIA.
const fallbackTime = 2 * time.Second

// DialOr is DialContext, and where there is no VIA instead dials by or: where
// nobody listens there by VIA, the host cannot be reached, or does not answer
// within two seconds. A connection of or is that of another network, as
// net.Conn.LocalAddr tells.
//
//	c, err := stack.DialOr(ctx, "via", "10.0.0.2:80", func(ctx context.Context) (net.Conn, error) {
//		return dialer.DialContext(ctx, "tcp", "10.0.0.2:80")
//	})
//
// The error joins those of both.
func (s *Stack) DialOr(
	ctx context.Context, name, address string, or func(context.Context) (net.Conn, error),
) (net.Conn, error) {
	short, cancel := context.WithTimeout(ctx, fallbackTime)
	c, err := s.DialContext(short, name, address)
	cancel()
	if err == nil || ctx.Err() != nil || !noVIA(err) {
		return c, err
	}
	c, other := or(ctx)
	if other != nil {
		return nil, errors.Join(err, other)
	}
	return c, nil
}

// noVIA says whether an error of Dial means that the other host does without.
func noVIA(err error) bool {
	for _, e := range []error{syscall.ECONNREFUSED, syscall.EHOSTUNREACH, syscall.ETIMEDOUT} {
		if errors.Is(err, e) {
			return true
		}
	}
	return isTimeout(err)
}
