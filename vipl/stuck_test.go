package vipl_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/base/shmlink"
	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

// A VI whose link is full, since the program at its other end has stopped, does not delay other VIs of the
// port, in whatever order they are served.
func TestFullLinkDelaysNobodyElse(t *testing.T) {
	const size, count = 64, 300 // more than a link has room for
	n := newMemoryNet(t, memoryConfig{noPacking: true, silence: time.Minute})
	stuck, _ := connect(t, n.a.NIC, n.b.NIC, vipl.UnreliableDelivery)
	end, _ := linkEnd(t, shmlink.Size, unix.F_SEAL_SHRINK) // at whose other end nothing is taken
	n.a.MoveToLink(t, stuck, end)
	xs := newBox(t, n.a.NIC, count, size)
	for i := range count {
		postSend(t, stuck, xs, i, size)
	}
	s := n.a.Status()
	fatalIf(t, s.VIs[0].SendPosted+s.VIs[1%len(s.VIs)].SendPosted == 0, "the lane is not full: %+v", s.VIs)
	// The other VI has an acknowledgement waiting, and comes up, just as one more is
	// posted on the VI that is stuck: from then on it is always behind.
	va, vb := connect(t, n.a.NIC, n.b.NIC, vipl.ReliableDelivery)
	goesOn(t, n, va, vb, stuck)
}

// goesOn checks that messages from va reach vb while stuck comes up again and again.
func goesOn(t *testing.T, n *memoryNet, va, vb, stuck *vipl.VI) {
	t.Helper()
	const size, window = 64, 600
	xa, xb := newBox(t, n.a.NIC, window, size), newBox(t, n.b.NIC, window, size)
	postRecvs(t, vb, xb, window, size)
	for i := range window {
		postSend(t, va, xa, i, size)
	}
	for i, end := 0, time.Now().Add(ackDelay); i < window; {
		fatalIf(t, time.Now().After(end), "%d of %d messages came", i, window)
		if _, err := vb.RecvDone(); err == nil {
			i++
		}
		n.a.ComesUp(stuck)
	}
}

// A VI that waits for room for a long frame, which takes many TX chunks at once, while connections with a
// silent peer have most of them, does not keep other VIs from using the few that are left. When the first of
// those connections has ended, it continues, too.
func TestLongFrameHoldsNobodyElse(t *testing.T) {
	const long, silence = 60_000, time.Minute
	c := longFrames
	c.noPacking, c.silence = true, silence
	c.queue.TxChunks = 50
	n := newMemoryNet(t, c)
	third := n.open(t, "c", c)
	var draining [3]*vipl.VI // one alone does not get as much
	for i := range draining {
		draining[i], _ = connect(t, n.a.NIC, third.NIC, vipl.ReliableDelivery)
	}
	vl, _ := connect(t, n.a.NIC, n.b.NIC, vipl.UnreliableDelivery) // its data is copied
	va, vb := connect(t, n.a.NIC, n.b.NIC, vipl.ReliableDelivery)
	xl := newBox(t, n.a.NIC, 1, long)
	third.queue.Cut(true)
	for _, v := range draining {
		xd := newBox(t, n.a.NIC, 80, 64)
		for i := range xd.desc {
			xd.prepare(i, 64)
		}
		// Under one lock: a time-out between two of them would take the window.
		must(t, errOf(v.PostSends(xd.desc, xd.region.Handle())))
	}
	postSend(t, vl, xl, 0, long)
	goesOn(t, n, va, vb, vl)
	nothingDone(t, vl.SendDone, vipl.ErrNotDone)
	must(t, draining[0].Disconnect())
	sent(t, vl, 0)
}

// It gets its room although others take chunks one by one.
func TestLongFrameAndShortOnes(t *testing.T) {
	const size, depth, most = 60_000, 64, 20_000
	c := longFrames
	c.noPacking, c.silence = true, time.Minute
	c.queue.TxChunks = 96 // as many as the short ones take
	n := newMemoryNet(t, c)
	vl, wl := connect(t, n.a.NIC, n.b.NIC, vipl.UnreliableDelivery) // its data is copied
	vs, ws := connect(t, n.a.NIC, n.b.NIC, vipl.ReliableDelivery)
	xl, yl := newBox(t, n.a.NIC, 1, size), newBox(t, n.b.NIC, 1, size)
	xs, ys := newBox(t, n.a.NIC, 4*depth, 64), newBox(t, n.b.NIC, 4*depth, 64)
	postRecv(t, wl, yl, 0, size)
	postRecvs(t, ws, ys, 4*depth, 64)
	posted, sent, taken := 0, 0, 0
	short := func() {
		for posted-taken < 4*depth && posted-sent < 4*depth {
			postSend(t, vs, xs, posted%(4*depth), 64)
			posted++
		}
		for taken < posted {
			if _, err := ws.RecvDone(); err != nil {
				break
			}
			postRecv(t, ws, ys, taken%(4*depth), 64)
			taken++
			if taken%8 == 0 {
				break // the receiver is slow
			}
		}
		for sent < posted {
			if _, err := vs.SendDone(); err != nil {
				break
			}
			sent++
		}
	}
	for range 100 {
		short()
	}
	postSend(t, vl, xl, 0, size)
	before := taken
	for end := time.Now().Add(ackDelay); ; short() {
		if d, err := vl.SendDone(); err == nil {
			t.Logf("sent after %d short messages: %v", taken-before, d.Status())
			break
		}
		fatalIf(t, taken-before > most || time.Now().After(end), "%d short messages have gone since the long one was posted", taken-before)
	}
}

// A silent peer leaves the chunks for acknowledgements, also if its frames complete late, one by one, as with a
// NIC that sends asynchronously.
func TestStoppedPeerLeavesRoomToAcknowledge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const chunks, late = 32, 20 * time.Microsecond
		c := memoryConfig{bubble: true, noPacking: true, queue: xdpnictest.Config{TxChunks: chunks}}
		n := newMemoryNet(t, c)
		third := n.open(t, "c", c)
		draining, _ := connect(t, n.a.NIC, third.NIC, vipl.ReliableDelivery)
		va, vb := connect(t, n.a.NIC, n.b.NIC, vipl.ReliableReception)
		xd, xa, xb := newBox(t, n.a.NIC, 2*chunks, 64), newBox(t, n.a.NIC, 1, 64), newBox(t, n.b.NIC, 1, 64)
		n.a.queue.SetLies(xdpnictest.Lies{LateCompletion: late})
		third.queue.Cut(true)
		for i := range 2 * chunks {
			postSend(t, draining, xd, i, 64)
			time.Sleep(2 * late)
		}
		o := n.a.queue.Owners()
		fatalIf(t, o.Free > chunks/2, "chunks are left for data: %+v", o)
		postRecv(t, va, xa, 0, 64)
		postSend(t, vb, xb, 0, 64)
		if _, err := vb.SendWait(10 * time.Millisecond); err != nil { // done when it is acknowledged
			t.Errorf("%v; chunks: %+v", err, n.a.queue.Owners())
		}
	})
}

// However few chunks there are to send from, data goes.
func TestFewChunks(t *testing.T) {
	for _, psk := range []*vipl.PSK{nil, testPSK(t, 1)} {
		for _, chunks := range []int{2, 4, 8, 9} {
			n, va, vb := connected(t, memoryConfig{psk: psk, queue: xdpnictest.Config{TxChunks: chunks}}, vipl.ReliableReception)
			transfer(t, va, vb, newBox(t, n.a.NIC, 4, 5000), newBox(t, n.b.NIC, 4, 5000), 20, 5000)
		}
	}
}

// An acknowledgement for which there is no chunk is tried again after a while, and not
// all the time.
func TestAcknowledgementWithoutChunk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		port := &emptyPort{}
		n, va, vb := connected(t, memoryConfig{bubble: true, port: over(port, &port.Queue)}, vipl.ReliableReception)
		xa, xb := newBox(t, n.a.NIC, 1, 64), newBox(t, n.b.NIC, 1, 64)
		postRecv(t, vb, xb, 0, 64)
		const most = 1000
		port.refuse.Store(most)
		postSend(t, va, xa, 0, 64)
		time.Sleep(10 * time.Millisecond)
		left := port.refuse.Swap(0)
		errorIf(t, left <= 0 || left == most, "tried %d times", most-left)
		sent(t, va, 0)
	})
}

// emptyPort is a queue without TX chunks for a number of calls of Alloc.
type emptyPort struct {
	*xdpnictest.Queue
	refuse atomic.Int32
}

func (p *emptyPort) Alloc() (addr uint64, buf []byte, ok bool) {
	if p.refuse.Load() > 0 {
		p.refuse.Add(-1)
		return 0, nil, false
	}
	return p.Queue.Alloc()
}

func (p *emptyPort) TxFree() int {
	if p.refuse.Load() > 0 {
		return 0
	}
	return p.Queue.TxFree()
}
