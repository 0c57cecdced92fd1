package vipl_test

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/vipl"
	"viaxdp/xdpnic"
	"viaxdp/xdpnic/xdpnictest"
)

// Two hosts send to a third one, which dequeues only now and then and has little room, or the senders have few
// chunks. Everything arrives, and what the receiver's queue drops meanwhile is counted by name.
func TestTwoSendersIntoOneReceiver(t *testing.T) {
	const enough = 1500 // messages of each
	for _, c := range []struct {
		name  string
		queue xdpnictest.Config
		drops bool // frames must have been dropped
	}{
		{"few RX chunks", xdpnictest.Config{RxChunks: 16}, true},
		{"short RX ring", xdpnictest.Config{RxChunks: 64, RxRing: 8}, true},
		{"few TX chunks", xdpnictest.Config{TxChunks: 16}, false},
		{"room enough", xdpnictest.Config{}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var receiver *stoppedPort
			cfg := memoryConfig{queue: c.queue, silence: time.Minute, noPacking: true, port: func(q *xdpnictest.Queue) vipl.Port {
				receiver = &stoppedPort{Queue: q}
				return receiver
			}}
			n := newMemoryNet(t, cfg)
			flows := [2]*overloaded{overload(t, n.a.NIC, n.b.NIC), overload(t, n.open(t, "c", cfg).NIC, n.b.NIC)}
			rng := rand.New(rand.NewPCG(1, 2))
			for round, end := 0, time.Now().Add(time.Minute); flows[0].taken < enough || flows[1].taken < enough; round++ {
				if time.Now().After(end) {
					t.Fatalf("%d and %d of %d messages came", flows[0].taken, flows[1].taken, enough)
				}
				if round%64 == 0 { // the receiver does not run for a while
					receiver.stopped.Store(true)
					flows[1-round%2].send(t, enough)
				}
				flows[round%2].send(t, enough)
				if round == 0 && c.drops { // until what is sent again meets what has come
					comes(func() bool {
						flows[0].send(t, enough)
						s := n.b.queue.Stats()
						return s.RxNoFill+s.RxRingFull > 0
					})
				}
				receiver.stopped.Store(false)
				if rng.IntN(8) == 0 { // a slow receiver
					flows[0].take(t)
					flows[1].take(t)
				}
			}
			for _, f := range flows {
				stateIs(t, f.from, vipl.Connected)
				stateIs(t, f.to, vipl.Connected)
			}
			s := n.b.queue.Stats()
			named := s.RxQueued + s.RxNoFill + s.RxRingFull + s.RxCut + s.RxNotOurs + s.RxRefused + s.RxTooLong
			errorIf(t, s.Arrived != named, "%d frames arrived, %d were taken or dropped by name: %+v", s.Arrived, named, s)
			errorIf(t, c.drops && s.RxNoFill+s.RxRingFull == 0, "the receiver was not short of anything: %+v", s)
		})
	}
}

// stoppedPort is a queue from which nothing is taken while it is stopped.
type stoppedPort struct {
	*xdpnictest.Queue
	stopped atomic.Bool
}

func (p *stoppedPort) Ready() bool { return !p.stopped.Load() && p.Queue.Ready() }

func (p *stoppedPort) Receive(frames []xdpnic.Frame) int {
	if p.stopped.Load() {
		return 0
	}
	return p.Queue.Receive(frames)
}

// If the first frame of each of several streams is lost, the frames behind it do not take all of the receiver's
// room: the lost frames find some when they are retransmitted.
func TestOutOfOrderFramesLeaveRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var receiver *stoppedPort
		cfg := memoryConfig{queue: xdpnictest.Config{RxChunks: 16}, silence: time.Minute, noPacking: true, bubble: true,
			port: func(q *xdpnictest.Queue) vipl.Port {
				receiver = &stoppedPort{Queue: q}
				return receiver
			}}
		n := newMemoryNet(t, cfg)
		senders := []*memoryHost{n.a, n.open(t, "c", cfg), n.open(t, "d", cfg)}
		flows := make([]*overloaded, len(senders))
		for i, h := range senders {
			flows[i] = overload(t, h.NIC, n.b.NIC)
		}
		receiver.stopped.Store(true) // until all have come that find a chunk
		for i, f := range flows {
			senders[i].queue.SetFaults(xdpnictest.Faults{Loss: 1})
			f.send(t, 1)
			senders[i].queue.SetFaults(xdpnictest.Faults{})
			f.send(t, overloadDepth)
		}
		receiver.stopped.Store(false)
		for i, f := range flows {
			for f.taken < overloadDepth {
				d := received(t, f.to, 0)
				fatalIf(t, d != f.in.desc[f.taken], "stream %d: message %d is in another's descriptor", i, f.taken)
				checkPattern(t, f.in.buf[f.taken][:overloadBytes], f.taken)
				f.taken++
			}
		}
		if c := n.b.Counters(); c.OutOfOrder == 0 || c.OutOfOrderDropped == 0 {
			t.Errorf("nothing came early, or found no room: %+v", c)
		}
	})
}

// overloaded is a stream of numbered messages in a goroutine of the test's.
type overloaded struct {
	from, to     *vipl.VI
	out, in      *box
	posted, sent int // sends posted, and completed
	taken        int // messages that came
}

const (
	overloadDepth = 16
	overloadBytes = 900
)

func overload(t *testing.T, from, to *vipl.NIC) *overloaded {
	f := &overloaded{out: newBox(t, from, overloadDepth, overloadBytes), in: newBox(t, to, 2*overloadDepth, overloadBytes)}
	f.from, f.to = connect(t, from, to, vipl.ReliableDelivery)
	for i := range 2 * overloadDepth {
		postRecv(t, f.to, f.in, i, overloadBytes)
	}
	return f
}

// send posts as many messages, of most in all, as the receiver has receives for.
func (f *overloaded) send(t *testing.T, most int) {
	t.Helper()
	for f.sent < f.posted {
		d, err := f.from.SendDone()
		if err == vipl.ErrNotDone {
			break
		}
		fatalIf(t, err != nil, "send %d: %v %v", f.sent, err, d)
		f.sent++
	}
	for f.posted < most && f.posted-f.sent < overloadDepth && f.posted-f.taken < overloadDepth {
		fillPattern(f.out.buf[f.posted%overloadDepth][:overloadBytes], f.posted)
		postSend(t, f.from, f.out, f.posted%overloadDepth, overloadBytes)
		f.posted++
	}
}

// take takes what has come, checks it and posts its receive again.
func (f *overloaded) take(t *testing.T) {
	t.Helper()
	for {
		d, err := f.to.RecvDone()
		if err == vipl.ErrNotDone {
			return
		}
		fatalIf(t, err != nil, "message %d: %v %v", f.taken, err, d)
		i := f.taken % (2 * overloadDepth)
		checkPattern(t, f.in.buf[i][:overloadBytes], f.taken)
		f.taken++
		postRecv(t, f.to, f.in, i, overloadBytes)
	}
}
