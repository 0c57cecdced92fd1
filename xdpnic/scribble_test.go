package xdpnic

import (
	"testing"

	"golang.org/x/sys/unix"
)

// Entries that somebody has scribbled on are refused by the kernel, which counts those of
// the TX ring and passes over those of the fill ring; the frames behind them travel.
func TestScribbledEntriesAreRefused(t *testing.T) {
	a, b := openPair(t, pairOptions{generic: true})
	const nowhere = 1 << 40

	// The TX ring.
	tx := &a.q.tx
	if !tx.reserve(1) {
		t.Fatal("the TX ring is full")
	}
	tx.desc[tx.head&tx.mask] = Desc{Addr: nowhere, Len: 64}
	a.q.pend++
	must(t, a.q.Flush())
	eventually(t, "a TX entry that is refused", func() bool { return stats(t, a.q).KernelStats.Tx_invalid_descs == 1 })
	a.mustSend(t, b, 64, 1)
	eventually(t, "the frame behind it", b.q.Ready)
	receive(t, b.q)

	// The fill ring, of which every entry was published: the next one that the kernel takes.
	fill := &b.q.pool.fill
	next := fill.cons.Load() & fill.mask
	kept := fill.addr[next]
	fill.addr[next] = nowhere
	a.mustSend(t, b, 64, 2)
	eventually(t, "the frame behind it", b.q.Ready)
	// The kernel publishes what it took of the fill ring after the frame.
	eventually(t, "both fill ring entries taken", func() bool { return fill.cons.Load()&fill.mask == (next+2)&fill.mask })
	data, _ := receive(t, b.q)
	wantPattern(t, data, 64, 2)
	b.q.pool.fill.addr[next] = kept
}

// A kick for which the kernel had no memory is counted, and tried again later: nothing
// is lost.
func TestKickWithoutMemoryIsCounted(t *testing.T) {
	for _, errno := range []unix.Errno{unix.ENOBUFS, unix.ENOMEM} {
		k := newFakeKernel(t, Config{ChunkSize: 2048, RxChunks: 2, TxChunks: 2}, 0)
		if err := k.q.flushRest(errno); err != nil || k.q.n.txNoMemory != 1 {
			t.Errorf("%v: %v, counted %d times", errno, err, k.q.n.txNoMemory)
		}
	}
}
