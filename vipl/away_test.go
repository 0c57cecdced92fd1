package vipl_test

import (
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/vipl"
	"viaxdp/xdpnic"
	"viaxdp/xdpnic/xdpnictest"
)

// A program that posts, looks at its memory and never polls is one that is away:
// what arrives is placed at once by the background goroutine, not a tick later, and
// not only when it stops posting.
func TestPostsDoNotKeepBackgroundAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const messages = 20
		n, va, vb := connected(t, memoryConfig{bubble: true}, vipl.ReliableDelivery)
		xa, xb := newBox(t, n.a.Nic, messages, 8), newBox(t, n.b.Nic, messages, 8)
		time.Sleep(5 * time.Millisecond) // of no call at all
		for k := range messages {
			postRecv(t, vb, xb, k, 8)
			postSend(t, va, xa, k, 8)
			time.Sleep(100 * time.Microsecond)
			if xb.desc[k].Status()&vipl.StatusDone == 0 {
				t.Fatalf("message %d is not there after 100us", k)
			}
			time.Sleep(300 * time.Microsecond)
		}
	})
}

// A driver that sleeps for want of chunks may say so too late for the Refill that
// brought them, and for who waits in the NIC, which wakes one that sleeps already:
// whatever the program does, the background goroutine asks.
func TestSleepingDriverIsWoken(t *testing.T) {
	type receive struct {
		v *vipl.VI
		d *vipl.Descriptor
	}
	poller := func(pause time.Duration) func(receive) {
		return func(r receive) {
			for _, err := r.v.RecvDone(); err != nil; _, err = r.v.RecvDone() {
				time.Sleep(pause)
			}
		}
	}
	for name, program := range map[string]struct {
		within time.Duration
		wait   func(receive)
	}{
		"polls": {3 * time.Millisecond, poller(10 * time.Microsecond)},
		"spins": {3 * time.Millisecond, poller(500 * time.Nanosecond)},
		"waits": {3 * time.Millisecond, func(r receive) {
			if _, err := r.v.RecvWait(time.Minute); err != nil {
				t.Error(err)
			}
		}},
		"away": {40 * time.Millisecond, func(r receive) {
			for r.d.Status()&vipl.StatusDone == 0 {
				time.Sleep(100 * time.Microsecond)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var nic *sleepyNIC
				n, va, vb := connected(t, memoryConfig{bubble: true, zeroCopy: true, port: func(q *xdpnictest.Queue) vipl.Port {
					nic = &sleepyNIC{Queue: q}
					return nic
				}}, vipl.UnreliableDelivery)
				xa, xb := newBox(t, n.a.Nic, 1, 8), newBox(t, n.b.Nic, 1, 8)
				postRecv(t, vb, xb, 0, 8)
				got := make(chan struct{})
				go func() {
					defer close(got)
					program.wait(receive{vb, xb.desc[0]})
				}()
				time.Sleep(101500 * time.Microsecond) // until it is seen what the program does
				nic.asleep.Store(true)
				start := time.Now()
				postSend(t, va, xa, 0, 8)
				<-got
				if took := time.Since(start); took > program.within {
					t.Errorf("the driver slept for %v", took)
				}
			})
		})
	}
}

// sleepyNIC hands out nothing, and wakes nobody, while its driver sleeps.
type sleepyNIC struct {
	*xdpnictest.Queue
	asleep, woken atomic.Bool
}

func (n *sleepyNIC) Ready() bool { return !n.asleep.Load() && n.Queue.Ready() }

func (n *sleepyNIC) Receive(frames []xdpnic.Frame) int {
	if n.asleep.Load() {
		return 0
	}
	return n.Queue.Receive(frames)
}

func (n *sleepyNIC) Refill() {
	n.asleep.Store(false)
	n.Queue.Refill()
}

func (n *sleepyNIC) Wait(timeout time.Duration) error {
	n.asleep.Store(false)
	n.woken.Store(false)
	end := time.Now().Add(timeout)
	err := n.Queue.Wait(timeout)
	for n.asleep.Load() && !n.woken.Load() && time.Now().Before(end) {
		time.Sleep(100 * time.Microsecond)
	}
	return err
}

func (n *sleepyNIC) Wake() {
	n.woken.Store(true)
	n.Queue.Wake()
}

// Who goes to sleep for the port lets those run first whom it has woken: its processor is
// another's only when somebody notices that its call waits.
func TestSleeperYields(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	synctest.Test(t, func(t *testing.T) {
		const rounds = 50
		nic := &watchedNIC{}
		n, va, vb := connected(t, memoryConfig{bubble: true, port: func(q *xdpnictest.Queue) vipl.Port {
			nic.Queue = q
			return nic
		}}, vipl.UnreliableDelivery)
		_, other := connect(t, n.a.Nic, n.b.Nic, vipl.UnreliableDelivery)
		xa, xb := newBox(t, n.a.Nic, rounds, 8), newBox(t, n.b.Nic, rounds, 8)
		go other.RecvWait(time.Hour) // sleeps for the port, until the NIC is closed
		synctest.Wait()
		for k := range rounds {
			postRecv(t, vb, xb, k, 8)
			got := make(chan error, 1)
			go func() {
				_, err := vb.RecvWait(time.Minute)
				nic.owed.Store(false)
				got <- err
			}()
			synctest.Wait()
			nic.owed.Store(true)
			postSend(t, va, xa, k, 8)
			if err := <-got; err != nil {
				t.Fatal(err)
			}
		}
		if late := nic.late.Load(); late > rounds/2 { // the runtime lets the sleeper go on now and then
			t.Errorf("%d of %d goroutines had not run when the one that had woken them went to sleep", late, rounds)
		}
	})
}

// watchedNIC counts the sleeps that begin while somebody has yet to run.
type watchedNIC struct {
	*xdpnictest.Queue
	owed atomic.Bool
	late atomic.Int32
}

func (n *watchedNIC) Wait(timeout time.Duration) error {
	if n.owed.Load() {
		n.late.Add(1)
	}
	return n.Queue.Wait(timeout)
}
