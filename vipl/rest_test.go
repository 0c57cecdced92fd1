package vipl_test

import (
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/vipl"
)

// incoming is incomingTo for a queue of the usual size.
func incoming(t *testing.T, count int, pace, most time.Duration, after func(k int)) (looks int) {
	t.Helper()
	return incomingTo(t, memoryConfig{}, vipl.UnreliableDelivery, count, pace, most, after)
}

// incomingTo sends count messages to b, one every pace, and polls b behind each.
// It returns how many of the polls found something, and checks that no message
// waited longer than most, nor longer than an eighth of what the stream had
// lasted until then.
func incomingTo(t *testing.T, c memoryConfig, level vipl.ReliabilityLevel, count int, pace, most time.Duration, after func(k int)) (looks int) {
	t.Helper()
	c.bubble = true
	n, va, vb := connected(t, c, level)
	xa, xb := newBox(t, n.a.Nic, 1, 64), newBox(t, n.b.Nic, count, 64)
	for i := range count {
		postRecv(t, vb, xb, i, 64)
	}
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
		if lasted := time.Duration(k+1) * pace; late > most+pace || late > lasted/8+pace {
			t.Fatalf("message %d: %v late, in a stream of %v", seen, late, lasted)
		}
		if after != nil {
			after(k)
		}
	}
	time.Sleep(most)
	synctest.Wait()
	n.b.Poll()
	if got := int(n.b.Counters().Frames - before); got != count {
		t.Errorf("%d of %d messages are there after the rest", got, count)
	}
	return looks
}

// In a stream the ring is looked at now and then, and the longer it lasts, the
// more seldom; bursts are hardly delayed.
func TestStreamRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if looks := incoming(t, 800, time.Microsecond, 16*time.Microsecond, nil); looks < 800/16 || looks > 800/5 {
			t.Errorf("%d looks at 800 messages, want one for some ten of them", looks)
		}
	})
}

// Without rests every frame is found at once.
func TestNoRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := memoryConfig{noRest: true}
		if looks := incomingTo(t, c, vipl.UnreliableDelivery, 400, time.Microsecond, 0, nil); looks != 400 {
			t.Errorf("%d looks at 400 messages, want as many", looks)
		}
	})
}

// Frames that come slowly are found at once.
func TestSlowStreamDoesNotRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if looks := incoming(t, 300, 3*time.Microsecond, 16*time.Microsecond, nil); looks != 300 {
			t.Errorf("%d looks found something, want 300", looks)
		}
	})
}

// What begins again after a pause is a new stream.
func TestPauseEndsRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks := incoming(t, 600, time.Microsecond, 16*time.Microsecond, func(k int) {
			if k%8 == 7 {
				time.Sleep(50 * time.Microsecond)
			}
		})
		if looks != 600 {
			t.Errorf("%d looks at 600 messages in bursts of 8, want as many", looks)
		}
	})
}

// A ring rests for no more frames than a quarter of what the sender may be ahead:
// here of 12.
func TestSmallWindowRestsLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := memoryConfig{}
		c.queue.RxChunks = 16
		incomingTo(t, c, vipl.UnreliableDelivery, 400, time.Microsecond, 3*time.Microsecond, nil)
	})
}

// A program that answers gets each message as it comes, however fast.
func TestAnsweredStreamDoesNotRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, va, vb := connected(t, memoryConfig{bubble: true}, vipl.ReliableDelivery)
		xa, xb := newBox(t, n.a.Nic, 2, 64), newBox(t, n.b.Nic, 2, 64)
		turn := func(from, to *vipl.VI, x, y *box) {
			postRecv(t, to, y, 0, 64)
			postSend(t, from, x, 1, 64)
			time.Sleep(500 * time.Nanosecond)
			synctest.Wait() // the background goroutine may look in at the same moment
			if d, err := to.RecvDone(); err != nil || d != y.desc[0] {
				t.Fatalf("a message that is there: %v, %v", d, err)
			}
			sent(t, from, 0)
		}
		for range 500 {
			turn(va, vb, xa, xb)
			turn(vb, va, xb, xa)
		}
	})
}

// A sender that had to wait is not kept waiting again: the stream begins anew.
func TestWaitingSenderEndsRest(t *testing.T) {
	var s vipl.Influx
	now := int64(1_000_000)
	for range 400 {
		now += 1000
		s.Came(1, now, 256, false)
	}
	if until := s.Came(1, now+1000, 256, false); until <= now+1000 {
		t.Fatal("no rest in a stream")
	}
	if until := s.Came(1, now+2000, 256, true); until != 0 {
		t.Errorf("a rest of %d ns while the sender waits", until-now-2000)
	}
	for i := range int64(6) {
		if until := s.Came(1, now+3000+i*1000, 256, false); until != 0 {
			t.Errorf("a rest of %d ns in a stream of %d frames", until-now-3000-i*1000, i)
		}
	}
}
