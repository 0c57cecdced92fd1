package vipl_test

import (
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

// answering is a program that receives batches of messages and answers them one by one, as they are dequeued.
type answering struct {
	t      *testing.T
	n      *memoryNet
	va, vb *vipl.VI
	xa, xb *box // each half of the descriptors for sends, half for receives
	size   int  // of a message
	bell   *kicked
	taken  int // of the batch
}

// kicked counts the kicks of the kernel.
type kicked struct {
	*xdpnictest.Queue
	kicks int
}

func (k *kicked) Flush() error {
	if k.Pending() > 0 {
		k.kicks++
	}
	return k.Queue.Flush()
}

const answers = 12

func newAnswering(t *testing.T, size int) *answering {
	p := &answering{t: t, size: size, bell: &kicked{}}
	p.n, p.va, p.vb = connected(t, memoryConfig{bubble: true, port: over(p.bell, &p.bell.Queue)}, vipl.ReliableDelivery)
	polling(t, p.n, p.va, p.vb)
	p.xa, p.xb = newBox(t, p.n.a.NIC, 2*answers, size), newBox(t, p.n.b.NIC, 2*answers, size)
	return p
}

// ask sends a batch. b has received it, and not dequeued it, when it returns.
func (p *answering) ask() {
	p.t.Helper()
	ds := p.xa.desc[:answers]
	for k := range answers {
		postRecv(p.t, p.va, p.xa, answers+k, p.size)
		postRecv(p.t, p.vb, p.xb, answers+k, p.size)
		p.xa.prepare(k, p.size)
	}
	before := p.n.b.Counters().Messages
	listed(p.t, "sends", answers, nil)(p.va.PostSends(ds, p.xa.region.Handle()))
	p.n.b.Poll() // it waits for them
	time.Sleep(2 * time.Microsecond)
	for range 10 {
		p.n.a.Poll()
		p.n.b.Poll()
		if p.n.b.Counters().Messages == before+answers {
			break
		}
		time.Sleep(2 * time.Microsecond)
	}
	got := p.n.b.Counters().Messages - before
	fatalIf(p.t, got != answers, "%d messages have come, want %d", got, answers)
	p.taken = 0
}

// answer dequeues some messages and answers each.
func (p *answering) answer(count int) {
	p.t.Helper()
	for range count {
		d, err := p.vb.RecvDone()
		checkDone(p.t, "receive", d, err, vipl.StatusOpReceive)
		postSend(p.t, p.vb, p.xb, p.taken, p.size)
		p.taken++
	}
}

// end dequeues the rest of a batch and its answers.
func (p *answering) end() {
	p.t.Helper()
	p.answer(answers - p.taken)
	for k := range answers {
		var d *vipl.Descriptor
		for range 10 {
			if d, _ = p.va.RecvDone(); d != nil {
				break
			}
			time.Sleep(5 * time.Microsecond) // acknowledgements come soon
			p.n.b.Poll()
		}
		fatalIf(p.t, d != p.xa.desc[answers+k], "answer %d: another descriptor, or none", k)
	}
	for range answers {
		sent(p.t, p.va, 0)
		sent(p.t, p.vb, 0)
	}
}

// packed returns how many answers have shared frames since.
func (p *answering) packed(before uint64) uint64 { return p.n.b.Counters().Packed - before }

// The answers to messages that arrived together are sent together in a stream, although each is posted alone. After
// a pause the first of them is sent at once.
func TestAnswersShareFrames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newAnswering(t, 8)
		p.ask()
		p.end()
		n := p.packed(0)
		errorIf(t, n == 0 || n >= answers, "%d answers of the first %d shared frames: no stream begins", n, answers)
		for range 3 {
			before := p.n.b.Counters().Packed
			p.ask()
			p.end()
			equal(t, "answers that shared frames", p.packed(before), answers)
		}
		time.Sleep(time.Millisecond)
		p.ask()
		before := p.n.a.Counters().Messages
		p.answer(1)
		p.n.a.Poll()
		equal(t, "after a rest", p.n.a.Counters().Messages, before+1)
		p.end()
	})
}

// An answer that waits for others, which do not come, is sent when the program polls without result, sleeps, or is
// away.
func TestAnswersDoNotWaitLong(t *testing.T) {
	for name, leave := range map[string]func(*answering){
		"polls": func(p *answering) {
			for range vipl.CoalescePolls {
				p.n.b.Poll()
			}
		},
		"sleeps": func(p *answering) {
			must(p.t, errOf(p.vb.SendWait(ackDelay)))
			p.vb.SendWait(time.Millisecond)
		},
		"is away": func(p *answering) { time.Sleep(5 * time.Millisecond) },
	} {
		inBubble(t, name, func(t *testing.T) {
			p := newAnswering(t, 8)
			p.ask()
			p.end()
			p.ask()
			before := p.n.a.Counters().Messages
			p.answer(1)
			p.n.a.Poll()
			got := p.n.a.Counters().Messages
			fatalIf(t, got != before, "%d answers have arrived although others are expected", got-before)
			leave(p)
			p.n.a.Poll()
			equal(t, "Messages", p.n.a.Counters().Messages, before+1)
		})
	}
}

// Answers that are too long to share frames share the doorbell: in a stream the first
// of a batch rings, so that the peer can begin, and the last.
func TestLongAnswersShareADoorbell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newAnswering(t, 1000)
		p.ask()
		p.end()
		for range 3 {
			p.ask()
			before, frames := p.bell.kicks, p.n.b.queue.Stats().TxFrames
			p.end()
			if kicks, frames := p.bell.kicks-before, p.n.b.queue.Stats().TxFrames-frames; kicks > 2 || frames < answers {
				t.Errorf("%d doorbells for %d frames with %d answers", kicks, frames, answers)
			}
		}
	})
}
