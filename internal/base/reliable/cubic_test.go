package reliable

import "testing"

// cubicStream is a Sender of CUBIC that fills its window each round, on a path that holds 1000 frames without a queue.
type cubicStream struct {
	s   *Sender
	now int64
}

const cubicTrip = 100_000_000

func (c *cubicStream) round() {
	for c.s.room() > 0 { // pacing does not change the window
		c.s.Send(c.now, 0, 1)
	}
	c.now += max(cubicTrip, int64(c.s.window())*cubicTrip/1000)
	for !c.s.Idle() {
		c.s.Ack(c.now, c.s.Unacked()+uint32(min(ackEvery, c.s.Outstanding())), MaxWindow)
	}
}

// pastLoss returns a stream whose last loss, at a window of 1000 frames, was longer ago than its curve takes back there.
func pastLoss() *cubicStream {
	c := &cubicStream{s: NewSender(1, MaxWindow), now: 1}
	c.s.UseCubic()
	c.round()
	c.s.cwnd = 1000 * fraction
	c.s.lossRound(c.now, 1000)
	for end := c.now + 20_000_000_000; c.now < end; {
		c.round()
	}
	return c
}

// RFC 9438, section 5.8: the time in which nothing is sent does not count for the curve. Otherwise the window grows by half
// each round afterwards.
func TestCurveWaitsWhileIdle(t *testing.T) {
	for _, idle := range []int64{1_000_000_000, 60_000_000_000, 1e9 * 86400 * 7} {
		busy, c := pastLoss(), pastLoss()
		c.now += idle
		for range 10 {
			busy.round()
			c.round()
		}
		if n, want := c.s.window(), busy.s.window(); n < want-1 || n > want+1 {
			t.Errorf("idle for %d s: window %d after ten rounds, %d without", idle/1e9, n, want)
		}
	}
}
