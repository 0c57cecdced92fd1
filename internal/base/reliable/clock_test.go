package reliable

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// station runs one end on a goroutine of its own with a time.Timer for the
// Sender's deadline, as a program without a simulated network would.
type station struct {
	s       *Sender
	r       *Receiver
	in      chan packet
	out     func(packet)
	total   uint64
	placed  uint64
	origin  time.Time
	stopped chan struct{}
}

func (c *station) now() int64 { return int64(time.Since(c.origin)) + 1 }

func (c *station) run() {
	timer := time.NewTimer(time.Hour)
	delayed := time.NewTimer(time.Hour)
	delayed.Stop()
	for sent := uint64(0); ; {
		for seq, ok := c.s.NextLost(); ok; seq, ok = c.s.NextLost() {
			c.data(seq, true)
			c.s.Resent(c.now(), seq)
		}
		for ; sent < c.total && c.s.Room() > 0; sent++ {
			c.data(c.s.Send(c.now(), sent, 1), false)
		}
		switch {
		case c.r.Urgent() || c.r.Unacked() >= ackEvery:
			c.ack()
		case c.r.Unacked() > 0:
			delayed.Reset(50 * time.Microsecond)
		}
		timer.Stop()
		if due := c.s.Deadline(); due != 0 {
			timer.Reset(time.Duration(due - c.now()))
		}
		select {
		case p := <-c.in:
			c.take(p)
		case <-timer.C:
			if seq, probe := c.s.Timeout(c.now()); probe {
				c.data(seq, true)
				c.s.Resent(c.now(), seq)
			}
		case <-delayed.C:
			c.ack()
		case <-c.stopped:
			return
		}
	}
}

func (c *station) data(seq uint32, again bool) {
	c.out(packet{data: true, again: again, seq: seq, id: c.s.Tag(seq), ack: c.r.Next(), window: 64})
}

func (c *station) ack() {
	ranges := make([]Range, 32)
	c.out(packet{ack: c.r.Next(), window: 64, ranges: ranges[:c.r.Ranges(ranges)]})
	c.r.Acked()
}

func (c *station) take(p packet) {
	c.s.Ack(c.now(), p.ack, p.window)
	for _, r := range p.ranges {
		c.s.AckRange(c.now(), r.Start, r.End)
	}
	c.s.DetectLosses(c.now())
	if !p.data {
		return
	}
	switch c.r.Arrive(p.seq, p.again) {
	case OutOfOrder:
		c.r.Buffer(p.seq, p.id)
	case InOrder:
		for id, ok := p.id, true; ok; id, ok = c.r.Pop() {
			if id != c.placed {
				panic("out of order")
			}
			c.placed++
		}
	}
}

// Two goroutines with real timers exchange streams over channels that lose
// every seventh frame, and come to rest: no timer is left to fire.
func TestRunsOnTimers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const frames = 1000
		stopped, origin := make(chan struct{}), time.Now()
		ends := [2]*station{}
		for i := range ends {
			ends[i] = &station{
				s: NewSender(1<<32-50, 64), r: NewReceiver(1<<32-50, 64), in: make(chan packet, 4096),
				total: frames, origin: origin, stopped: stopped,
			}
		}
		for i, c := range ends {
			n, peer := 0, ends[1-i]
			c.out = func(p packet) {
				if n++; n%7 != 0 {
					time.AfterFunc(20*time.Microsecond, func() { peer.in <- p })
				}
			}
		}
		var running sync.WaitGroup
		for _, c := range ends {
			running.Go(c.run)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		close(stopped)
		running.Wait()
		for _, c := range ends {
			if c.placed != frames || !c.s.Idle() || c.s.Deadline() != 0 || c.r.Buffered() != 0 || c.r.Unacked() != 0 {
				t.Errorf("placed %d, idle %v, deadline %d, held %d, unacknowledged %d; %+v",
					c.placed, c.s.Idle(), c.s.Deadline(), c.r.Buffered(), c.r.Unacked(), c.s.Stats())
			}
			if c.s.Stats().Resent == 0 {
				t.Error("nothing was lost")
			}
		}
	})
}
