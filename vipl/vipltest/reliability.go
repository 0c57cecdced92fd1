package vipltest

import (
	"encoding/binary"
	"fmt"
	"slices"

	"viaxdp/vipl"
)

var reliabilityRules = slices.Concat([]Rule{
	{
		ID: "reliability/values", Text: "The levels have the VIPL's values, and the NIC tells that it has all three.",
		run: levelValues,
	},
	{
		ID: "reliability/unreliable-at-most-once", Text: "Unreliable Delivery: a message arrives intact and at most once, or not at all, and none overtakes another.",
		run: func(t *T) { stream(t, vipl.UnreliableDelivery) },
	},
	{
		ID: "reliability/unreliable-loses-nothing-on-an-idle-link", Text: "Unreliable Delivery loses nothing where the link does not.", Lossless: true,
		run: func(t *T) {
			if n := stream(t, vipl.UnreliableDelivery); n != streamCount {
				t.Errorf("%d of %d messages arrived", n, streamCount)
			}
		},
	},
	{
		ID: "reliability/reliable-exactly-once-in-order", Text: "The reliable levels deliver every message, once and in order.",
		run: eachReliable(func(t *T, level vipl.ReliabilityLevel) {
			if n := stream(t, level); n != streamCount {
				t.Errorf("%d of %d messages arrived", n, streamCount)
			}
		}),
	},
	{
		ID: "reliability/more-than-the-peer-takes-at-once", Text: "A reliable sender that is faster than the receiving program loses nothing.",
		run: eachReliable(flood),
	},
	{
		ID: "reliability/rdma-write-at-every-level", Text: "RDMA write is there at all three levels.",
		run: func(t *T) { t.eachOf(allLevels, writeEveryLevel) },
	},
	{
		ID: "reliability/delivery-completes-when-handed-over", Text: "Unreliable and Reliable Delivery: a send or RDMA write is complete when it was handed to the network, whatever the target does.",
		Choice: "but at Reliable Delivery, of data that is sent from where the program has it: when the peer has it",
		run:    handedToNetwork,
	},
	{
		ID: "reliability/reception-completes-when-there", Text: "Reliable Reception: a send or RDMA write is complete when its data is in the target's memory, not before.",
		run: receptionComplete,
	},
	{
		ID: "reliability/disconnect-flushes", Text: "Disconnect: what is posted completes with DESC_FLUSHED on both sides, the caller's VI becomes Idle, the other goes to Error.",
		run: eachLevel(disconnectFlushes),
	},
	{
		ID: "reliability/disconnect-delivers", Text: "What completed sends of a reliable VI handed over arrives before the disconnect does.",
		Choice: "unless the peer does not answer for 200 ms, or has not taken it in five seconds",
		run:    eachReliable(disconnectDelivers),
	},
	{
		ID: "reliability/peer-gone", Text: "When the peer's NIC is closed the VI goes to Error and everything posted is flushed.",
		run: peerGone,
	},
	{
		ID: "reliability/mixed-traffic", Text: "Sends, RDMA writes and RDMA reads of both sides over one reliable connection all do what they should, in the order of their queues.",
		run: eachReliable(mixedTraffic),
	},
}, brokenRules, silentRules)

func levelValues(t *T) {
	if vipl.UnreliableDelivery != 1 || vipl.ReliableDelivery != 2 || vipl.ReliableReception != 4 {
		t.Error("the levels have other values")
	}
	for _, n := range []*vipl.Nic{t.A, t.B} {
		if got := n.Query().ReliabilityLevels; got != 7 {
			t.Errorf("levels %#x", got)
		}
	}
}

const (
	streamCount = 300
	streamMost  = 6000
	streamDepth = 32 // receives posted
)

// stream sends messages of changing length, never more than there are receives
// for, and returns how many arrived.
func stream(t *T, level vipl.ReliabilityLevel) (arrived int) {
	va, vb := t.pair(level)
	a, b := t.block(t.A, streamDepth/2, streamMost), t.block(t.B, streamDepth, streamMost)
	length := func(k int) int { return 4 + k*977%(streamMost-4) }
	for i := range streamDepth {
		b.recv(vb, i, streamMost)
	}
	next := 0 // the least number that may come
	take := func(d *vipl.Descriptor, err error) {
		t.Helper()
		buf := b.buf(arrived % streamDepth)
		t.completed("receive", d, err, vipl.StatusOpReceive|vipl.StatusImmediate)
		k := int(d.ImmediateData)
		if d != b.desc[arrived%streamDepth] || k < next || k >= streamCount || int(d.Length) != length(k) {
			t.Fatalf("message %d of %d bytes in receive %d, want %d or later", k, d.Length, arrived, next)
		}
		if got := binary.BigEndian.Uint32(buf); int(got) != k {
			t.Fatalf("message %d with the bytes of %d", k, got)
		}
		t.holdsFrom("message", buf[4:length(k)], 4, k)
		b.recv(vb, arrived%streamDepth, streamMost)
		next = k + 1
		arrived++
	}
	for k := range streamCount {
		x := k % len(a.desc)
		if k >= len(a.desc) {
			t.sent(va, 0)
		}
		binary.BigEndian.PutUint32(fill(a.buf(x)[:length(k)], k), uint32(k))
		a.sendImmediate(va, x, length(k), uint32(k))
		if k%8 == 7 { // at most 8 are under way; what unreliable ones lose does not come
			wait := patience
			if t.config.Lossy && level == vipl.UnreliableDelivery {
				wait = moment / 4
			}
			for next <= k {
				d, err := vb.RecvWait(wait)
				if err == vipl.ErrTimeout {
					break
				}
				take(d, err)
			}
		}
	}
	for range a.desc {
		t.sent(va, 0)
	}
	for next < streamCount {
		wait := patience
		if level == vipl.UnreliableDelivery {
			wait = 5 * moment
		}
		d, err := vb.RecvWait(wait)
		if err == vipl.ErrTimeout {
			break
		}
		take(d, err)
	}
	return arrived
}

func flood(t *T, level vipl.ReliabilityLevel) {
	const count, size = 1000, 1000
	va, vb := t.pair(level)
	a, b := t.block(t.A, count, size), t.block(t.B, count, size)
	for i := range count {
		b.recv(vb, i, size)
	}
	for i := range count {
		fill(a.buf(i), i)
		a.send(va, i, size)
	}
	// Nothing is called on b meanwhile.
	for i := range count {
		if d := t.sent(va, 0); d != a.desc[i] {
			t.Fatalf("send %d: another descriptor", i)
		}
	}
	for i := range count {
		if d := t.received(vb, 0); d != b.desc[i] {
			t.Fatalf("receive %d: another descriptor", i)
		}
		t.holds("message", b.buf(i), i)
	}
}

func writeEveryLevel(t *T, level vipl.ReliabilityLevel) {
	va, _ := t.pair(level)
	a, b := t.block(t.A, 1, 64), t.block(t.B, 1, 64)
	fill(a.buf(0), 1)
	want := binary.NativeEndian.Uint64(a.buf(0)[56:])
	t.until("the write", func() bool { // an unreliable one may be lost
		a.write(va, 0, 64, b.remote(0))
		t.sent(va, vipl.StatusOpRDMAWrite)
		return load64(b.buf(0)[56:]) == want
	})
	t.holds("target", b.buf(0), 1)
}

func handedToNetwork(t *T) {
	t.eachOf(allLevels[:2], func(t *T, level vipl.ReliabilityLevel) {
		va, vb := t.pairOf(vipl.ViAttributes{Level: level}, vipl.ViAttributes{Level: level, EnableRdmaWrite: true})
		a, b := t.block(t.A, 2, 64), t.block(t.B, 1, 64)
		b.recv(vb, 0, 64)
		a.send(va, 0, 64)
		a.write(va, 1, 64, b.remote(0))
		t.sent(va, 0)
		t.sent(va, vipl.StatusOpRDMAWrite)
		// What goes wrong at the target does not come back in the descriptor.
		a.send(va, 0, 64)
		d, err := va.SendWait(patience)
		if d == nil || d.Status()&^(vipl.StatusDone|vipl.StatusFlushed) != 0 {
			t.Errorf("a send that finds no receive: %v %v", d, err)
		}
	})
}

func receptionComplete(t *T) {
	const rounds, size = 20, 20_000
	va, vb := t.pair(vipl.ReliableReception)
	a, b := t.block(t.A, 2, size), t.block(t.B, 2, size)
	for k := range rounds {
		d := b.recv(vb, 0, size)
		fill(a.buf(0), k)
		fill(a.buf(1), k)
		a.send(va, 0, size)
		a.write(va, 1, size, b.remote(1))
		t.sent(va, 0)
		if d.Status()&vipl.StatusDone == 0 {
			t.Fatal("the send is complete before the receive")
		}
		t.sent(va, vipl.StatusOpRDMAWrite)
		if got, want := load64(b.buf(1)[size-8:]), binary.NativeEndian.Uint64(a.buf(1)[size-8:]); got != want {
			t.Fatal("the write is complete before its data is there")
		}
		t.received(vb, 0)
		t.holds("message", b.buf(0), k)
		t.holds("target", b.buf(1), k)
	}
}

func disconnectFlushes(t *T, level vipl.ReliabilityLevel) {
	va, vb := t.pair(level)
	a, b := t.block(t.A, 3, 64), t.block(t.B, 3, 64)
	for i := range 3 {
		a.recv(va, i, 64)
		b.recv(vb, i, 64)
	}
	t.must(va.Disconnect())
	if s, err := va.Query(); err != nil || s.State != vipl.Idle {
		t.Errorf("the caller's VI is %v (%v)", s.State, err)
	}
	for range 3 {
		d, err := va.RecvDone() // at once
		t.completed("receive", d, err, vipl.StatusOpReceive|vipl.StatusFlushed)
	}
	t.state(vb, vipl.Error)
	for range 3 {
		t.received(vb, vipl.StatusFlushed)
	}
	t.asyncErrors(vb, vipl.ErrorConnLost)
	t.asyncErrors(va) // it was its own doing
	t.must(va.Disconnect())
}

func disconnectDelivers(t *T, level vipl.ReliabilityLevel) {
	const count, size = 20, 3000
	va, vb := t.pair(level)
	a, b := t.block(t.A, count, size), t.block(t.B, count, size)
	for i := range count {
		b.recv(vb, i, size)
	}
	for i := range count {
		fill(a.buf(i), i)
		a.send(va, i, size)
	}
	for range count {
		t.sent(va, 0)
	}
	t.must(va.Disconnect())
	for i := range count {
		t.received(vb, 0)
		t.holds("message", b.buf(i), i)
	}
	t.state(vb, vipl.Error)
}

func peerGone(t *T) {
	a, b := t.openPair()
	for _, level := range t.levels() {
		va := t.vi(a, vipl.ViAttributes{Level: level})
		vb := t.vi(b, vipl.ViAttributes{Level: level})
		t.join(va, vb)
		x := t.block(a, 2, 64)
		x.recv(va, 0, 64)
		x.recv(va, 1, 64)
	}
	t.must(b.Close())
	for i := range t.levels() {
		va := t.vis[2*i]
		t.state(va, vipl.Error)
		t.received(va, vipl.StatusFlushed)
		t.received(va, vipl.StatusFlushed)
		t.asyncErrors(va, vipl.ErrorConnLost)
	}
}

// The blocks of mixedTraffic: first the send queue's descriptors, then the
// receives, at last what the peer writes to and what it reads.
const (
	mixedSends = 60
	mixedRecvs = mixedSends / 3
	mixedWrite = mixedSends + mixedRecvs // buffers
	mixedRead  = mixedWrite + 1
	mixedSize  = 4000
)

func mixedTraffic(t *T, level vipl.ReliabilityLevel) {
	const atA, atB = 1000, 2000 // the patterns of a side begin with it
	va, vb := t.pair(level)
	a, b := t.block(t.A, mixedRead+1, mixedSize), t.block(t.B, mixedRead+1, mixedSize)
	for i := mixedSends; i < mixedWrite; i++ {
		a.recv(va, i, mixedSize)
		b.recv(vb, i, mixedSize)
	}
	fill(a.buf(mixedRead), atA)
	fill(b.buf(mixedRead), atB)
	done := make(chan error, 2)
	go func() { done <- exchange(va, a, b, atA) }()
	go func() { done <- exchange(vb, b, a, atB) }()
	t.must(<-done)
	t.must(<-done)
	t.state(va, vipl.Connected)
	t.state(vb, vipl.Connected)
	for i := range mixedRecvs {
		t.received(va, 0)
		t.received(vb, 0)
		t.holds("message to a", a.buf(mixedSends+i), atB+3*i)
		t.holds("message to b", b.buf(mixedSends+i), atA+3*i)
		t.holds("read of a", a.buf(3*i+2), atB)
		t.holds("read of b", b.buf(3*i+2), atA)
	}
	t.holds("written at a", a.buf(mixedWrite), atB+mixedSends-2)
	t.holds("written at b", b.buf(mixedWrite), atA+mixedSends-2)
}

// exchange posts sends, RDMA writes and RDMA reads in turns and takes their
// completions.
func exchange(v *vipl.VI, mine, theirs *block, first int) error {
	ops := []vipl.Status{vipl.StatusOpSend, vipl.StatusOpRDMAWrite, vipl.StatusOpRDMARead}
	for i := range mixedSends {
		d := mine.desc[i]
		switch ops[i%3] {
		case vipl.StatusOpSend:
			fill(mine.buf(i), first+i)
			d.SetSegments(mine.seg(i, mixedSize))
		case vipl.StatusOpRDMAWrite:
			fill(mine.buf(i), first+i)
			d.SetRDMAWrite(theirs.remote(mixedWrite), mine.seg(i, mixedSize))
		default:
			d.SetRDMARead(theirs.remote(mixedRead), mine.seg(i, mixedSize))
		}
		if err := v.PostSend(d, mine.Handle()); err != nil {
			return err
		}
	}
	for i := range mixedSends {
		d, err := v.SendWait(patience)
		if err != nil || d != mine.desc[i] || d.Status() != ops[i%3]|vipl.StatusDone {
			return fmt.Errorf("operation %d: descriptor %p, want %p: %v", i, d, mine.desc[i], err)
		}
	}
	return nil
}
