package vipl_test

import (
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/await"
	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

// A program that posts, looks at its memory and never polls is one that is away:
// what arrives is placed at once by the background goroutine, not a tick later, and
// not only when it stops posting.
func TestPostsDoNotKeepBackgroundAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const messages = 20
		_, va, vb, xa, xb := connectedBoxes(t, memoryConfig{bubble: true}, vipl.ReliableDelivery, messages, messages, 8)
		time.Sleep(5 * time.Millisecond) // of no call at all
		for k := range messages {
			postRecv(t, vb, xb, k, 8)
			postSend(t, va, xa, k, 8)
			time.Sleep(100 * time.Microsecond)
			fatalIf(t, xb.desc[k].Status()&vipl.StatusDone == 0, "message %d is not there after 100us", k)
			time.Sleep(300 * time.Microsecond)
		}
	})
}

// A program that only waits sleeps: its background goroutine does not run each millisecond beside the one that waits.
func TestWaitSleeps(t *testing.T) {
	n, _, vb := connected(t, memoryConfig{}, vipl.ReliableDelivery)
	postRecv(t, vb, newBox(t, n.b.NIC, 1, 8), 0, 8)
	switches := func() int64 {
		var r unix.Rusage
		must(t, unix.Getrusage(unix.RUSAGE_SELF, &r))
		return r.Nvcsw
	}
	before := switches()
	_, err := vb.RecvWait(time.Second)
	errorIf(t, !errors.Is(err, vipl.ErrTimeout), "%v", err)
	count := switches() - before
	errorIf(t, count > 500, "%d context switches in a second", count)
}

// After long waits, the background goroutine takes over within three milliseconds from the goroutine that has waited.
func TestBackgroundFollowsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const waits = 10 // the background goroutine sleeps in the NIC during the first one
		_, va, vb, xa, xb := connectedBoxes(t, memoryConfig{bubble: true}, vipl.ReliableDelivery, waits+1, waits+1, 8)
		for k := range waits + 1 {
			postRecv(t, vb, xb, k, 8)
		}
		go func() {
			for k := range waits {
				time.Sleep(101 * time.Millisecond)
				postSend(t, va, xa, k, 8)
			}
		}()
		for range waits {
			noError(t, errOf(vb.RecvWait(time.Minute)))
		}
		postSend(t, va, xa, waits, 8)
		time.Sleep(3 * time.Millisecond)
		errorIf(t, xb.desc[waits].Status()&vipl.StatusDone == 0, "the message after the wait is not there")
	})
}

// Polls in vain of a VI, of a CQ and of a C program's loop yield the CPU, but not while another queue of the process has work,
// or soon after a post, which may wait for a few polls.
func TestPollsInVainYield(t *testing.T) {
	const posts = 64
	n, idle, _, x, _ := connectedBoxes(t, memoryConfig{}, vipl.UnreliableDelivery, posts, 1, 8)
	n.a.ShareCPU()
	cq := createCQ(t, n.a.NIC, 1)
	var yields int
	vipl.OnYield(t, func() { yields++ })
	for name, poll := range map[string]func(){
		"VI": func() { _, _ = idle.RecvDone() },
		"CQ": func() { _, _, _ = cq.Done() },
		"C":  n.a.Tend,
	} {
		yields = 0
		await.Until(t, name+": a yield", func() bool {
			for range 512 {
				poll()
			}
			return yields > 0
		})
	}
	_, va, vb, xa, xb := connectedBoxes(t, memoryConfig{}, vipl.ReliableDelivery, 1, 1, 8)
	yields = 0
	for range 2000 {
		postRecv(t, vb, xb, 0, 8)
		postSend(t, va, xa, 0, 8)
		noError(t, errOf(vb.RecvWait(time.Minute)))
		noError(t, errOf(va.SendWait(time.Minute)))
		_, _ = idle.RecvDone()
		n.a.Tend()
	}
	errorIf(t, yields > 0, "%d yields beside a queue with work", yields)
	yields = 0
	for k := range posts {
		postSend(t, idle, x, k, 8)
		for range 256 {
			_, _ = idle.RecvDone()
		}
	}
	errorIf(t, yields > 0, "%d yields of a program that posts", yields)
}

// A driver that sleeps for lack of chunks may announce it too late for the Refill that brought them, and for a
// goroutine that waits in the NIC, which wakes only a driver that sleeps already. The background goroutine
// checks in any case.
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
			noError(t, errOf(r.v.RecvWait(time.Minute)))
		}},
		"away": {40 * time.Millisecond, func(r receive) {
			for r.d.Status()&vipl.StatusDone == 0 {
				time.Sleep(100 * time.Microsecond)
			}
		}},
	} {
		inBubble(t, name, func(t *testing.T) {
			nic := &sleepyNIC{}
			n, va, vb := connected(t, memoryConfig{bubble: true, zeroCopy: true, port: over(nic, &nic.Queue)}, vipl.UnreliableDelivery)
			xa, xb := newBox(t, n.a.NIC, 1, 8), newBox(t, n.b.NIC, 1, 8)
			postRecv(t, vb, xb, 0, 8)
			got := make(chan struct{})
			go func() {
				defer close(got)
				program.wait(receive{vb, xb.desc[0]})
			}()
			time.Sleep(101500 * time.Microsecond) // until it is seen what the program does
			nic.stopped.Store(true)
			start := time.Now()
			postSend(t, va, xa, 0, 8)
			<-got
			took := time.Since(start)
			errorIf(t, took > program.within, "the driver slept for %v", took)
		})
	}
}

// sleepyNIC delivers nothing, and wakes no goroutine, while its driver sleeps: it is stopped then.
type sleepyNIC struct {
	stoppedPort
	woken atomic.Bool
}

func (n *sleepyNIC) Refill() {
	n.stopped.Store(false)
	n.Queue.Refill()
}

func (n *sleepyNIC) Wait(timeout time.Duration) error {
	n.stopped.Store(false)
	n.woken.Store(false)
	end := time.Now().Add(timeout)
	err := n.Queue.Wait(timeout)
	for n.stopped.Load() && !n.woken.Load() && time.Now().Before(end) {
		time.Sleep(100 * time.Microsecond)
	}
	return err
}

func (n *sleepyNIC) Wake() {
	n.woken.Store(true)
	n.Queue.Wake()
}

// A goroutine that goes to sleep for the port first lets those run that it has woken: its processor is given to
// another only when the runtime detects that its call blocks.
func TestSleeperYields(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	synctest.Test(t, func(t *testing.T) {
		const rounds = 50
		nic := &watchedNIC{}
		n, va, vb := connected(t, memoryConfig{bubble: true, port: over(nic, &nic.Queue)}, vipl.UnreliableDelivery)
		_, other := connect(t, n.a.NIC, n.b.NIC, vipl.UnreliableDelivery)
		xa, xb := newBox(t, n.a.NIC, rounds, 8), newBox(t, n.b.NIC, rounds, 8)
		go other.RecvWait(time.Hour) // sleeps for the port, until the NIC is closed
		synctest.Wait()
		for k := range rounds {
			postRecv(t, vb, xb, k, 8)
			got := starts(func() error {
				_, err := vb.RecvWait(time.Minute)
				nic.acksDue.Store(false)
				return err
			})
			synctest.Wait()
			nic.acksDue.Store(true)
			postSend(t, va, xa, k, 8)
			must(t, <-got)
		}
		if late := nic.late.Load(); late > rounds/2 { // the runtime lets the sleeper go on now and then
			t.Errorf("%d of %d goroutines had not run when the one that had woken them went to sleep", late, rounds)
		}
	})
}

// watchedNIC counts the sleeps that begin while a woken goroutine has yet to run.
type watchedNIC struct {
	*xdpnictest.Queue
	acksDue atomic.Bool
	late    atomic.Int32
}

func (n *watchedNIC) Wait(timeout time.Duration) error {
	if n.acksDue.Load() {
		n.late.Add(1)
	}
	return n.Queue.Wait(timeout)
}

// What is posted for later goes with Ring, with the fourth frame, with a send of
// another VI or with what arrives, and not before.
func TestPostSendLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const count = 16
		n, va, vb := connected(t, memoryConfig{bubble: true, noPacking: true}, vipl.ReliableDelivery)
		wa, wb := connect(t, n.a.NIC, n.b.NIC, vipl.ReliableDelivery)
		xa, xb := newBox(t, n.a.NIC, count, 64), newBox(t, n.b.NIC, count, 64)
		ya, yb := newBox(t, n.a.NIC, 1, 64), newBox(t, n.b.NIC, 1, 64)
		postRecvs(t, vb, xb, count, 64)
		polling(t, n, va, vb) // else the background goroutine rings at once
		posted, got := 0, 0
		later := func(frames int) {
			t.Helper()
			for range frames {
				xa.prepare(posted, 64)
				must(t, va.PostSendLater(xa.desc[posted], xa.region.Handle()))
				posted++
			}
		}
		arrived := func(when string, want int) {
			t.Helper()
			synctest.Wait() // b's background goroutine may be at it
			for d, _ := vb.RecvDone(); d != nil; d, _ = vb.RecvDone() {
				got++
			}
			fatalIf(t, got != want, "%s: %d of %d messages have come, want %d", when, got, posted, want)
		}
		later(1)
		arrived("posted", 0)
		nothingDone(t, va.SendDone, vipl.ErrNotDone)
		n.a.Ring()
		arrived("rung", 1)
		sent(t, va, 0)
		synctest.Wait()
		n.a.Poll() // takes other frames that b may have sent: they would ring
		n.a.Ring()
		later(3)
		arrived("three posted", 1)
		later(1)
		arrived("the fourth", 5)
		postRecv(t, wb, yb, 0, 64)
		later(2)
		postSend(t, wa, ya, 0, 64)
		arrived("another VI rings", 7)
		received(t, wb, 0)
		later(1)
		postRecv(t, wa, ya, 0, 64)
		postSend(t, wb, yb, 0, 64)
		synctest.Wait()
		if d, err := wa.RecvDone(); d == nil {
			t.Fatal(err)
		}
		arrived("something has come", 8)
	})
}

// What waits for Ring is sent within milliseconds also if Ring is never called: while the program does nothing,
// while it polls now and then, and after it has spun, so that the background goroutine runs seldom.
func TestPostSendLaterIsNotForgotten(t *testing.T) {
	spin := func(n *memoryNet) {
		for range 72 { // ms, after which it looks in every 32
			for range 3000 {
				n.a.Poll()
			}
			time.Sleep(time.Millisecond)
		}
	}
	for _, c := range []struct {
		name          string
		before, while func(n *memoryNet)
	}{
		{"asleep", func(*memoryNet) { time.Sleep(100 * time.Millisecond) }, func(*memoryNet) {}},
		{"looks in", func(*memoryNet) {}, func(n *memoryNet) { n.a.Poll() }},
		{"has spun", spin, func(n *memoryNet) { n.a.Poll() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			eachLevelInBubble(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
				n, va, vb, xa, xb := connectedBoxes(t, memoryConfig{bubble: true}, level, 1, 1, 64)
				polling(t, n, va, vb)
				postRecv(t, vb, xb, 0, 64)
				c.before(n)
				xa.prepare(0, 64)
				start := time.Now()
				must(t, va.PostSendLater(xa.desc[0], xa.region.Handle()))
				for d, _ := vb.RecvDone(); d == nil; d, _ = vb.RecvDone() {
					fatalIf(t, time.Since(start) > 5*time.Millisecond, "the doorbell was not rung")
					time.Sleep(300 * time.Microsecond)
					c.while(n)
				}
			})
		})
	}
}

// incoming sends count messages to b, one every pace, and polls b behind each.
// It returns how many of the polls found something, and checks that no message
// waited longer than most, nor longer than an eighth of what the stream had
// lasted until then.
func incoming(t *testing.T, c memoryConfig, count int, pace, most time.Duration, after func(k int)) (looks int) {
	t.Helper()
	c.bubble = true
	n, va, vb, xa, xb := connectedBoxes(t, c, vipl.UnreliableDelivery, 1, count, 64)
	postRecvs(t, vb, xb, count, 64)
	n.b.Poll()
	before := n.b.Counters().Frames
	seen := 0
	for k := range count {
		postSend(t, va, xa, 0, 64)
		sent(t, va, 0)
		time.Sleep(pace)
		synctest.Wait() // the background goroutine may look in at the same moment
		n.b.Poll()
		if now := int(n.b.Counters().Frames - before); now != seen {
			seen = now
			looks++
		}
		late := time.Duration(k+1-seen) * pace
		lasted := time.Duration(k+1) * pace
		fatalIf(t, late > most+pace || late > lasted/8+pace, "message %d: %v late, in a stream of %v", seen, late, lasted)
		if after != nil {
			after(k)
		}
	}
	time.Sleep(most)
	synctest.Wait()
	n.b.Poll()
	equal(t, "frames", int(n.b.Counters().Frames-before), count)
	return looks
}

// In a stream the ring is looked at now and then, and the longer it lasts, the
// more seldom; bursts are hardly delayed.
func TestStreamPauses(t *testing.T) {
	bursts := func(k int) {
		if k%8 == 7 {
			time.Sleep(50 * time.Microsecond)
		}
	}
	small := memoryConfig{}
	small.queue.RxChunks = 16
	for name, c := range map[string]struct {
		config       memoryConfig
		count        int
		pace, most   time.Duration // in microseconds
		after        func(k int)
		least, looks int
	}{
		"pauses":              {memoryConfig{}, 800, 1, 16, nil, 800 / 16, 800 / 5}, // one look for some ten messages
		"no pauses asked for": {memoryConfig{noPollPause: true}, 400, 1, 0, nil, 400, 400},
		"a slow one does not": {memoryConfig{}, 300, 3, 16, nil, 300, 300},
		"what begins again after a gap is a new one":    {memoryConfig{}, 600, 1, 16, bursts, 600, 600},
		"no longer than a quarter of a window, here 12": {small, 400, 1, 3, nil, 0, 400},
	} {
		inBubble(t, name, func(t *testing.T) {
			looks := incoming(t, c.config, c.count, c.pace*time.Microsecond, c.most*time.Microsecond, c.after)
			errorIf(t, looks < c.least || looks > c.looks, "%d looks at %d messages, want %d to %d", looks, c.count, c.least, c.looks)
		})
	}
}

// A program that answers gets each message as it comes, however fast, and its answers carry all acknowledgements.
func TestAnsweredStreamDoesNotPause(t *testing.T) {
	for name, c := range map[string]struct {
		level vipl.ReliabilityLevel
		size  int
		gso   string
		most  uint64 // acknowledgements that go alone
	}{
		"one frame":                   {vipl.ReliableDelivery, 64, "", 1},
		"12 frames":                   {vipl.ReliableDelivery, 16 << 10, "", 1},
		"12 frames in a packet":       {vipl.ReliableDelivery, 16 << 10, "whole", 1},
		"12 frames, unreliable":       {vipl.UnreliableDelivery, 16 << 10, "whole", 800 * 12 / 512}, // packets that ask
		"12 frames, until it arrives": {vipl.ReliableReception, 16 << 10, "whole", 1},
	} {
		inBubble(t, name, func(t *testing.T) {
			config := memoryConfig{bubble: true, gso: c.gso, queue: gsoQueue, arena: 8 << 20}
			n, va, vb, xa, xb := connectedBoxes(t, config, c.level, 2, 2, c.size)
			turn := func(from, to *vipl.VI, x, y *box) {
				postRecv(t, to, y, 0, c.size)
				postSend(t, from, x, 1, c.size)
				time.Sleep(500 * time.Nanosecond)
				synctest.Wait() // the background goroutine may look in at the same moment
				d, err := to.RecvDone()
				fatalIf(t, err != nil || d != y.desc[0], "a message that is there: %v, %v", d, err)
			}
			acks := func() uint64 { return n.a.Counters().Acks + n.b.Counters().Acks }
			var before uint64
			for k := range 500 {
				if k == 100 {
					before = acks()
				}
				turn(va, vb, xa, xb)
				if k > 0 {
					sent(t, vb, 0)
				}
				turn(vb, va, xb, xa)
				sent(t, va, 0)
			}
			sent(t, vb, 0)
			errorIf(t, acks()-before > c.most, "%d acknowledgements of 800 messages went alone", acks()-before)
		})
	}
}

// A send of several frames that completes only when they have arrived waits for no delayed acknowledgement.
func TestLongSendIsAcknowledgedSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := memoryConfig{bubble: true, gso: "whole", queue: gsoQueue, arena: 8 << 20}
		n, va, vb, xa, xb := connectedBoxes(t, c, vipl.ReliableReception, 1, 1, 16<<10)
		for k := range 20 {
			postRecv(t, vb, xb, 0, 16<<10)
			begin := time.Now()
			postSend(t, va, xa, 0, 16<<10)
			for d, _ := va.SendDone(); d == nil; d, _ = va.SendDone() {
				time.Sleep(500 * time.Nanosecond)
				for range 300 { // they read the clock now and then
					n.b.Poll()
				}
			}
			received(t, vb, 0)
			took := time.Since(begin)
			errorIf(t, k > 0 && took > 6*time.Microsecond, "send %d was complete after %v", k, took) // ackSoon and two looks
		}
	})
}

// A sender that had to wait is not made to wait again: the stream starts over.
func TestWaitingSenderEndsPollPause(t *testing.T) {
	var s vipl.Influx
	now := int64(1_000_000)
	for range 400 {
		now += 1000
		s.Came(1, now, 256, false)
	}
	until := s.Came(1, now+1000, 256, false)
	fatalIf(t, until <= now+1000, "no rest in a stream")
	equal(t, "a rest", s.Came(1, now+2000, 256, true), 0)
	for i := range int64(6) {
		equal(t, "a rest", s.Came(1, now+3000+i*1000, 256, false), 0)
	}
}
