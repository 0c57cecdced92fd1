package xdpnic

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/nstest"
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
	nstest.Must(t, b.q.Wait(-1))
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
	nstest.Must(t, b.q.Wait(-1))

	// The time: nothing is left over from before, so this one sleeps.
	begin := time.Now()
	for n := 0; ; n++ {
		nstest.Must(t, b.q.Wait(30*time.Millisecond))
		if time.Since(begin) >= 30*time.Millisecond {
			break
		}
		nstest.FatalIf(t, n > 2, "Wait does not sleep")
	}
	nstest.Must(t, b.q.Wait(0))

	// Close.
	done = start(-1)
	eventually(t, "a waiter", waiting(b.q))
	nstest.Must(t, b.q.Close())
	nstest.WantErr(t, "close", <-done, ErrClosed)
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
			nstest.Check(t, a.q.Wait(waitLimit))
			nstest.ErrorIf(t, time.Since(begin) >= waitLimit, "a Wait slept through a Wake")
			woke <- struct{}{}
		}
	})
	for range rounds {
		a.q.Wake()
		<-woke
	}
	wg.Wait()
}

// Refill wakes a driver that asks for it, in zero-copy mode, also when nothing was
// recycled: it may have asked after the Refill that brought the last chunks.
func TestRefillWakes(t *testing.T) {
	k := newFakeKernel(t, Config{ChunkSize: 2048, RxChunks: 8, TxChunks: 8}, 0)
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	nstest.Must(t, err)
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	k.q.fd = fds[0]
	// The kick is a recvfrom, which takes a datagram off.
	kicks := func() bool {
		nstest.Must(t, nstest.Err(unix.Write(fds[1], []byte{1})))
		k.q.Refill()
		_, _, err := unix.Recvfrom(fds[0], make([]byte, 1), unix.MSG_DONTWAIT)
		return errors.Is(err, unix.EAGAIN)
	}
	flags := k.q.pool.fill.flags
	want := uint64(0)
	for _, tc := range []struct{ zeroCopy, asks bool }{{false, false}, {false, true}, {true, false}, {true, true}} {
		k.q.zc = tc.zeroCopy
		flags.Store(0)
		if tc.asks {
			flags.Store(ringNeedWakeup)
		}
		for _, recycled := range []bool{false, true} {
			if recycled {
				var frames [1]Frame
				nstest.FatalIf(t, !k.deliver(64) || k.q.Receive(frames[:]) != 1, "no frame")
				k.q.Recycle(frames[0].Addr)
			}
			if got := kicks(); got != (tc.zeroCopy && tc.asks) {
				t.Errorf("zero-copy %v, asks %v, recycled %v: kicked %v", tc.zeroCopy, tc.asks, recycled, got)
			} else if got {
				want++
			}
			if s, _ := k.q.Stats(); s.RxKicks != want { // the error is of XDP_STATISTICS
				t.Errorf("zero-copy %v, asks %v, recycled %v: %d kicks counted of %d", tc.zeroCopy, tc.asks, recycled, s.RxKicks, want)
			}
		}
	}
}

// Drain waits for a NIC that sends in its own time, a second at most, and not for one
// that has stopped.
func TestDrain(t *testing.T) {
	for _, c := range []struct {
		frames int // which leave by two
		stops  bool
		left   int
	}{
		{20, false, 0},
		{20, true, 18},
		{40, false, 18},
	} {
		synctest.Test(t, func(t *testing.T) {
			frames, stops := c.frames, c.stops
			k := newFakeKernel(t, Config{ChunkSize: 2048}, ^uint32(10))
			q := k.q
			q.fd, q.zc = 1<<30, true // not a descriptor, so no system call has an effect
			for range frames {
				addr, _, _ := q.Alloc()
				nstest.FatalIf(t, !q.Send(addr, 64, false), "no room on the ring")
			}
			over := make(chan struct{})
			go func() {
				defer close(over)
				for range frames / 2 {
					time.Sleep(90 * time.Millisecond)
					for _, d := range k.transmit(2) {
						k.complete(d.Addr)
					}
					if stops {
						return
					}
				}
			}()
			begin := time.Now()
			nstest.Check(t, q.Drain())
			left, took := int(q.pool.txOut), time.Since(begin)
			nstest.ErrorIf(t, left != c.left || took > time.Second+10*time.Millisecond,
				"%+v: %d frames have not left after %v", c, left, took)
			<-over
		})
	}
}
