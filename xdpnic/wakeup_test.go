package xdpnic

import (
	"errors"
	"sync"
	"testing"
	"time"
)

// Wait ends with a frame, with Wake, with the time, and with Close.
func TestWait(t *testing.T) {
	a, b := openPair(t, pairOptions{generic: true})
	waiting := func(q *Queue) func() bool { return func() bool { return q.wait.waiters.Load() > 0 } }
	start := func(timeout time.Duration) chan error {
		c := make(chan error, 1)
		go func() { c <- b.q.Wait(timeout) }()
		return c
	}

	// A frame comes while it sleeps.
	done := start(-1)
	eventually(t, "a waiter", waiting(b.q))
	select {
	case err := <-done:
		t.Fatalf("Wait ended for no reason: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	a.mustSend(t, b, 64, 1)
	if err := <-done; err != nil || !b.q.Ready() {
		t.Fatalf("frame: %v", err)
	}
	// A frame is there already.
	if err := b.q.Wait(-1); err != nil {
		t.Fatal(err)
	}
	receive(t, b.q)

	// Wake while it sleeps, and before.
	done = start(-1)
	eventually(t, "a waiter", waiting(b.q))
	b.q.Wake()
	if err := <-done; err != nil || b.q.Ready() {
		t.Fatalf("wake: %v", err)
	}
	b.q.Wake()
	b.q.Wake()
	if err := b.q.Wait(-1); err != nil {
		t.Fatal(err)
	}

	// The time: nothing is left over from before, so this one sleeps.
	begin := time.Now()
	for n := 0; ; n++ {
		if err := b.q.Wait(30 * time.Millisecond); err != nil {
			t.Fatal(err)
		}
		if time.Since(begin) >= 30*time.Millisecond {
			break
		}
		if n > 2 {
			t.Fatal("Wait does not sleep")
		}
	}
	if err := b.q.Wait(0); err != nil {
		t.Fatal(err)
	}

	// Close.
	done = start(-1)
	eventually(t, "a waiter", waiting(b.q))
	if err := b.q.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, ErrClosed) {
		t.Fatalf("close: %v", err)
	}
}

// No Wake is lost, whatever the order: each is answered by a Wait that returns
// after it.
func TestNoWakeIsLost(t *testing.T) {
	a, _ := openPair(t, pairOptions{generic: true})
	var wg sync.WaitGroup
	woke := make(chan struct{})
	const rounds = 2000
	wg.Go(func() {
		for range rounds {
			begin := time.Now()
			if err := a.q.Wait(patience); err != nil {
				t.Error(err)
			}
			if time.Since(begin) >= patience {
				t.Error("a Wait slept through a Wake")
			}
			woke <- struct{}{}
		}
	})
	for range rounds {
		a.q.Wake()
		<-woke
	}
	wg.Wait()
}
