package vipl_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"viaxdp/vipl"
)

func address(n *memoryHost, disc string) vipl.NetAddress {
	return vipl.NetAddress{Host: n.Query().Address, Discriminator: []byte(disc)}
}

// request repeats a request until a server waits.
func request(v *vipl.VI, to vipl.NetAddress) error { return requestFor(v, to, ackDelay) }

// requestFor is request with that time for an answer.
func requestFor(v *vipl.VI, to vipl.NetAddress, timeout time.Duration) (err error) {
	comes(func() bool {
		_, err = v.ConnectRequest(vipl.NetAddress{Discriminator: []byte("from")}, to, timeout)
		return !errors.Is(err, vipl.ErrNoMatch)
	})
	return err
}

// A wait for a request, or for its answer, ends when its context ends; the VI is then as before. A listener
// keeps requests that arrive without a wait, until it is closed.
func TestConnectContext(t *testing.T) {
	n := newMemoryNet(t, memoryConfig{})
	to := address(n.b, "x")
	v := newVI(t, n.a.NIC, vipl.ReliableDelivery)
	here := vipl.NetAddress{Discriminator: []byte("x")}
	l, err := n.b.Listen(here)
	must(t, err)
	waits := func(ctx context.Context) error {
		_, err := l.Wait(ctx)
		return err
	}
	asks := func(ctx context.Context) error {
		_, err := v.ConnectRequestContext(ctx, vipl.NetAddress{}, to)
		stateIs(t, v, vipl.Idle)
		return err
	}
	for name, call := range map[string]func(context.Context) error{"Listener.Wait": waits, "ConnectRequestContext": asks} {
		n.fabric.Cut(n.b.agent.Addr(), true)
		late, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		if err := call(late); !errors.Is(err, vipl.ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s, at its deadline: %v", name, err)
		}
		cancel()
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(20*time.Millisecond, cancel)
		if err := call(ctx); !errors.Is(err, vipl.ErrTimeout) || !errors.Is(err, context.Canceled) {
			t.Errorf("%s, cancelled: %v", name, err)
		}
		n.fabric.Cut(n.b.agent.Addr(), false)
	}

	w := newVI(t, n.b.NIC, vipl.ReliableDelivery)
	accepted := starts(func() error {
		time.Sleep(200 * time.Millisecond) // the request finds no wait, and is kept
		return <-acceptsNext(t.Context(), l, w)
	})
	must(t, errOf(v.ConnectRequestContext(t.Context(), vipl.NetAddress{}, to)))
	must(t, <-accepted)
	for h, vi := range map[*memoryHost]*vipl.VI{n.a: v, n.b: w} {
		if s, err := vi.Query(); err != nil || s.Local != h.Query().Address {
			t.Errorf("local address %v (%v), the host is %v", s.Local, err, h.Query().Address)
		}
	}
	wantError(t, "disconnect", v.Disconnect(), nil)
	s := stateIs(t, v, vipl.Idle)
	errorIf(t, s.Local.IsValid(), "local address %v without a connection", s.Local)

	wantError(t, "listen twice", errOf(n.b.Listen(here)), vipl.ErrInvalidState)
	wantError(t, "long discriminator", errOf(n.b.Listen(vipl.NetAddress{Discriminator: make([]byte, vipl.MaxDiscriminatorLen+1)})), vipl.ErrInvalidParameter)
	time.AfterFunc(20*time.Millisecond, func() { l.Close() })
	wantError(t, "wait on what is closed meanwhile", errOf(l.Wait(t.Context())), vipl.ErrInvalidParameter)
	wantError(t, "second close", l.Close(), nil)
	wantError(t, "without a listener", errOf(v.ConnectRequestContext(t.Context(), vipl.NetAddress{}, to)), vipl.ErrNoMatch)
}
