package vipl_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"viaxdp/vipl"
)

// Whoever waits for a request, or for its answer, stops when its context ends; the
// VI is then as it was. Requests that come while nobody waits are kept by a
// listener until it is closed.
func TestConnectContext(t *testing.T) {
	n := newMemoryNet(t, memoryConfig{})
	to := address(n.b, "x")
	v := newVI(t, n.a.Nic, vipl.ReliableDelivery)
	here := vipl.NetAddress{Discriminator: []byte("x")}
	l, err := n.b.Listen(here)
	if err != nil {
		t.Fatal(err)
	}
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

	w := newVI(t, n.b.Nic, vipl.ReliableDelivery)
	accepted := make(chan error, 1)
	go func() {
		time.Sleep(200 * time.Millisecond) // a request meets nobody who waits, and is kept
		c, err := l.Wait(t.Context())
		if err == nil {
			err = c.Accept(w)
		}
		accepted <- err
	}()
	if _, err := v.ConnectRequestContext(t.Context(), vipl.NetAddress{}, to); err != nil {
		t.Fatal(err)
	}
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
	for h, vi := range map[*memoryHost]*vipl.VI{n.a: v, n.b: w} {
		if s, err := vi.Query(); err != nil || s.Local != h.Query().Address {
			t.Errorf("local address %v (%v), the host is %v", s.Local, err, h.Query().Address)
		}
	}
	wantError(t, "disconnect", v.Disconnect(), nil)
	if s := stateIs(t, v, vipl.Idle); s.Local.IsValid() {
		t.Errorf("local address %v without a connection", s.Local)
	}

	_, err = n.b.Listen(here)
	wantError(t, "listen twice", err, vipl.ErrInvalidState)
	_, err = n.b.Listen(vipl.NetAddress{Discriminator: make([]byte, vipl.MaxDiscriminatorLen+1)})
	wantError(t, "long discriminator", err, vipl.ErrInvalidParameter)
	time.AfterFunc(20*time.Millisecond, func() { l.Close() })
	_, err = l.Wait(t.Context())
	wantError(t, "wait on what is closed meanwhile", err, vipl.ErrInvalidParameter)
	wantError(t, "second close", l.Close(), nil)
	_, err = v.ConnectRequestContext(t.Context(), vipl.NetAddress{}, to)
	wantError(t, "nobody listens", err, vipl.ErrNoMatch)
}

// Receives that were posted for a connection that does not come about are given
// back by Disconnect, in order.
func TestDisconnectIdleFlushes(t *testing.T) {
	n := newMemoryNet(t, memoryConfig{})
	v := openVI(t, n.a.Nic, vipl.ReliableDelivery)
	x := newBox(t, n.a.Nic, 3, 64)
	for i := range 3 {
		postRecv(t, v, x, i, 64)
	}
	wantError(t, "destroy with receives posted", v.Destroy(), vipl.ErrResource)
	wantError(t, "disconnect", v.Disconnect(), nil)
	for i := range 3 {
		if d, err := v.RecvDone(); d != x.desc[i] || err != vipl.ErrDescriptor || d.Status()&vipl.StatusFlushed == 0 {
			t.Fatalf("receive %d: %v, %v", i, d, err)
		}
	}
	wantError(t, "destroy", v.Destroy(), nil)
}
