package vipl_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/vipl"
	"viaxdp/xdpnic"
	"viaxdp/xdpnic/xdpnictest"
)

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
		receiver := &stoppedPort{}
		cfg := memoryConfig{queue: xdpnictest.Config{RxChunks: 16}, silence: time.Minute, noPacking: true, bubble: true,
			port: over(receiver, &receiver.Queue)}
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
		c := n.b.Counters()
		errorIf(t, c.OutOfOrder == 0 || c.OutOfOrderDropped == 0, "nothing came early, or found no room: %+v", c)
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
