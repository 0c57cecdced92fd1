package vianet_test

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"

	"viaxdp/vianet"
)

// DialOr connects by VIA where somebody listens, else by the other way; it says of
// both why neither went.
func TestDialOr(t *testing.T) {
	h := inMemory(t, vianet.Options{})
	l := h.listen(t)
	defer l.Close()
	pipe, end := net.Pipe()
	defer pipe.Close()
	defer end.Close()
	calls := 0
	or := func(context.Context) (net.Conn, error) { calls++; return pipe, nil }

	c, err := h.a.DialOr(t.Context(), "via", l.Addr().String(), or)
	if _, ok := c.(*vianet.Conn); !ok || err != nil || calls != 0 {
		t.Fatalf("%T, %v, %d calls", c, err, calls)
	}
	c.Close()
	nobody := net.JoinHostPort(h.nicB.Query().Address.String(), "7")
	for i, address := range []string{nobody, "10.9.9.9:7"} {
		if c, err := h.a.DialOr(t.Context(), "via", address, or); c != pipe || err != nil || calls != i+1 {
			t.Errorf("%s: %v, %v, %d calls", address, c, err, calls)
		}
	}
	_, err = h.a.DialOr(t.Context(), "via", nobody, func(context.Context) (net.Conn, error) { return nil, syscall.EPERM })
	if !errors.Is(err, syscall.ECONNREFUSED) || !errors.Is(err, syscall.EPERM) {
		t.Errorf("neither: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := h.a.DialOr(ctx, "via", nobody, or); !errors.Is(err, context.Canceled) || calls != 2 {
		t.Errorf("cancelled: %v, %d calls", err, calls)
	}
	if _, err := h.a.DialOr(t.Context(), "via", "nonsense", or); err == nil || calls != 2 {
		t.Errorf("no address: %v, %d calls", err, calls)
	}
}
