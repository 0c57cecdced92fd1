package vipltest

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"viaxdp/vipl"
)

var reliabilityRules = slices.Concat([]Rule{
	rule("reliability/values", "The levels have the VIPL's values, and the NIC tells that it has all three.", func(t *T) {
		t.errorIf(vipl.UnreliableDelivery != 1 || vipl.ReliableDelivery != 2 || vipl.ReliableReception != 4, "the levels have other values")
		for _, n := range []*vipl.NIC{t.A, t.B} {
			equal(t, "levels", n.Query().ReliabilityLevels, 7)
		}
	}),
	rule("reliability/unreliable-at-most-once", "Unreliable Delivery: a message arrives intact and at most once, or not at all, and none overtakes another.", func(t *T) { stream(t, vipl.UnreliableDelivery) }),
	lossless("reliability/unreliable-loses-nothing-on-an-idle-link", "Unreliable Delivery loses nothing where the link does not.", func(t *T) {
		equal(t, "messages that arrived", stream(t, vipl.UnreliableDelivery), streamCount)
	}),
	rule("reliability/reliable-exactly-once-in-order", "The reliable levels deliver every message, once and in order.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		equal(t, "messages that arrived", stream(t, level), streamCount)
	})),
	rule("reliability/more-than-the-peer-takes-at-once", "A reliable sender that is faster than the receiving program loses nothing.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		const count, size = 1000, 1000
		a, b := t.ends(level, count, count, size)
		b.recvs(count, size)
		a.sends(count, size)
		for i := range count { // nothing is called on b meanwhile
			t.same(a.sent(), a.desc[i])
		}
		for i := range count {
			b.arrived(i, size, i)
		}
	})),
	rule("reliability/rdma-write-at-every-level", "RDMA write is there at all three levels.", everyLevel(func(t *T, level vipl.ReliabilityLevel) {
		a, b := t.ends(level, 1, 1, 64)
		fill(a.buf(0), 1)
		want := binary.NativeEndian.Uint64(a.buf(0)[56:])
		t.until("the write", func() bool { // an unreliable one may be lost
			a.writeWait(0, 64, b.remote(0))
			return load64(b.buf(0)[56:]) == want
		})
		t.holds("target", b.buf(0), 1)
	})),
	choice("reliability/delivery-completes-when-handed-over", "Unreliable and Reliable Delivery: a send or RDMA write is complete when it was handed to the network, whatever the target does.", "but at Reliable Delivery, of data that is sent from where the program has it: when the peer has it", func(t *T) {
		t.eachOf(allLevels[:2], func(t *T, level vipl.ReliabilityLevel) {
			a, b := t.ends(level, 2, 1, 64)
			b.recv(0, 64)
			a.send(0, 64)
			a.write(1, 64, b.remote(0))
			a.sent(0, vipl.StatusOpRDMAWrite)
			// Errors at the target do not appear in the descriptor.
			a.send(0, 64)
			t.handedOver(a, 0, a.desc[:1])
		})
	}),
	rule("reliability/reception-completes-when-there", "Reliable Reception: a send or RDMA write is complete when its data is in the target's memory, not before.", func(t *T) {
		const rounds, size = 20, 20_000
		a, b := t.ends(vipl.ReliableReception, 2, 2, size)
		for k := range rounds {
			d := b.recv(0, size)
			fill(a.buf(1), k)
			a.sendMessage(0, size, k)
			a.write(1, size, b.remote(1))
			a.sent()
			t.errorIf(!isDone(d), "the send is complete before the receive")
			a.sent(vipl.StatusOpRDMAWrite)
			t.errorIf(load64(b.buf(1)[size-8:]) != binary.NativeEndian.Uint64(a.buf(1)[size-8:]), "the write is complete before its data is there")
			b.arrived(0, size, k)
			t.holds("target", b.buf(1), k)
		}
	}),
	rule("reliability/disconnect-flushes", "Disconnect: what is posted completes with DESC_FLUSHED on both sides, the caller's VI becomes Idle, the other goes to Error.", everyLevel(func(t *T, level vipl.ReliabilityLevel) {
		disconnectFlushes(t, level)
		peerDisconnect(t, level)
	})),
	choice("reliability/disconnect-delivers", "What completed sends of a reliable VI handed over arrives before the disconnect does.", "unless the peer does not answer for 200 ms or four round trips, or has not taken it in five seconds", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		equal(t, "messages that arrived", disconnectBehindSends(t, level, true), sendsBefore)
	})),
	rule("reliability/peer-gone", "When the peer's NIC is closed the VI goes to Error and everything posted is flushed.", closeDisconnects),
	rule("reliability/mixed-traffic", "Sends, RDMA writes and RDMA reads of both sides over one reliable connection all do what they should, in the order of their queues.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		const atA, atB = 1000, 2000 // the patterns of a side begin with it
		a, b := t.ends(level, mixedRead+1, mixedRead+1, mixedSize)
		for i := mixedSends; i < mixedWrite; i++ {
			a.recv(i, mixedSize)
			b.recv(i, mixedSize)
		}
		fill(a.buf(mixedRead), atA)
		fill(b.buf(mixedRead), atB)
		done := starts(func() error { return exchange(a, b, atA) })
		t.must(exchange(b, a, atB))
		t.must(<-done)
		t.states(vipl.Connected, a.v, b.v)
		for i := range mixedRecvs {
			a.arrived(mixedSends+i, mixedSize, atB+3*i)
			b.arrived(mixedSends+i, mixedSize, atA+3*i)
			t.holds("read of a", a.buf(3*i+2), atB)
			t.holds("read of b", b.buf(3*i+2), atA)
		}
		t.holds("written at a", a.buf(mixedWrite), atB+mixedSends-2)
		t.holds("written at b", b.buf(mixedWrite), atA+mixedSends-2)
	})),
}, brokenRules)

const (
	streamCount = 300
	streamMost  = 6000
	streamDepth = 32 // receives posted
)

// stream sends messages of varying length, never more than there are receives for, and returns how many
// arrived.
func stream(t *T, level vipl.ReliabilityLevel) (arrived int) {
	a, b := t.ends(level, streamDepth/2, streamDepth, streamMost)
	length := func(k int) int { return 4 + k*977%(streamMost-4) }
	b.recvs(streamDepth, streamMost)
	next := 0 // the least number that may come
	// take dequeues messages until message end-1 has arrived, or none arrives within wait.
	take := func(end int, wait time.Duration) {
		for next < end {
			d, err := b.v.RecvWait(wait)
			if err == vipl.ErrTimeout {
				return
			}
			i := arrived % streamDepth
			t.completed("receive", d, err, vipl.StatusOpReceive|vipl.StatusImmediate)
			k := int(d.ImmediateData)
			if d != b.desc[i] || k < next || k >= streamCount || int(d.Length) != length(k) {
				t.Fatalf("message %d of %d bytes in receive %d, want %d or later", k, d.Length, arrived, next)
			}
			equal(t, "message", int(binary.BigEndian.Uint32(b.buf(i))), k)
			t.holdsFrom("message", b.buf(i)[4:length(k)], 4, k)
			b.recv(i, streamMost)
			next = k + 1
			arrived++
		}
	}
	wait := limit
	if t.config.Lossy && level == vipl.UnreliableDelivery {
		wait = moment / 4
	}
	for k := range streamCount {
		x := k % len(a.desc)
		if k >= len(a.desc) {
			a.sent()
		}
		binary.BigEndian.PutUint32(fill(a.buf(x)[:length(k)], k), uint32(k))
		a.sendImmediate(x, length(k), uint32(k))
		if k%8 == 7 { // at most 8 are under way; what unreliable ones lose does not come
			take(k+1, wait)
		}
	}
	for range a.desc {
		a.sent()
	}
	if level == vipl.UnreliableDelivery {
		wait = 5 * moment
	}
	take(streamCount, wait)
	return arrived
}

// The blocks of mixedTraffic: the send queue's descriptors, the receives, and the memory that the peer writes
// to and reads from.
const (
	mixedSends = 60
	mixedRecvs = mixedSends / 3
	mixedWrite = mixedSends + mixedRecvs // buffers
	mixedRead  = mixedWrite + 1
	mixedSize  = 4000
)

// exchange posts sends, RDMA writes and RDMA reads in turn and takes their completions.
func exchange(mine, theirs *end, first int) error {
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
		if err := mine.v.PostSend(d, mine.Handle()); err != nil {
			return err
		}
	}
	for i := range mixedSends {
		d, err := mine.v.SendWait(limit)
		if err != nil || d != mine.desc[i] || d.Status() != ops[i%3]|vipl.StatusDone {
			return fmt.Errorf("operation %d: descriptor %p, want %p: %v", i, d, mine.desc[i], err)
		}
	}
	return nil
}
