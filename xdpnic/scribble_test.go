package xdpnic

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"viaxdp/internal/lab/nstest"
)

// A socket that is closed while others use its chunks takes back only chunks that are on its TX ring, whatever was
// written there.
func TestScribbledReclaim(t *testing.T) {
	for _, scribbled := range []bool{false, true} {
		k := newFakeKernel(t, Config{ChunkSize: 2048, RxChunks: 8, TxChunks: 8}, 1<<32-2)
		for range 4 {
			addr, _, _ := k.q.Alloc()
			k.q.Send(addr, 64, false)
		}
		k.q.publish()
		k.transmit(1) // the kernel has it, and not completed
		want := 7
		if scribbled {
			k.q.tx.cons.Store(k.q.tx.head + 1)
			want = 4
		}
		k.q.reclaim()
		nstest.Equal(t, fmt.Sprintf("free chunks, scribbled %v", scribbled), k.q.TxFree(), want)
		if err := k.q.Audit(); err != nil {
			t.Errorf("scribbled %v: %v", scribbled, err)
		}
	}
}

// An RX entry that does not lie in a chunk of the kernel's is dropped, and its chunk stays in use.
func TestRXEntryOutsideItsChunk(t *testing.T) {
	k := newFakeKernel(t, Config{ChunkSize: 2048, RxChunks: 8, TxChunks: 8}, 0)
	q := k.q
	base, tx := q.pool.addr(0), q.pool.addr(8)
	for _, d := range []Desc{
		{Addr: base + 256, Len: 2048 - 256 + 1}, {Addr: base, Len: 2049}, {Addr: base, Len: 1<<32 - 1},
		{Addr: tx, Len: 64}, {Addr: tx + 8*2048, Len: 64}, {Addr: 1<<48 - 1, Len: 64}, {Addr: ^uint64(0), Len: 64},
	} {
		q.rx.desc[q.rx.tail&q.rx.mask] = d
		q.rx.prod.Store(q.rx.tail + 1)
		nstest.ErrorIf(t, q.Receive(make([]Frame, 4)) != 0, "%+v was received", d)
		nstest.ErrorIf(t, q.rx.peek(4) != 0, "%+v is still on the ring", d)
	}
	if c := q.n; c.RxBadEntries+c.RxTooManySegs != 7 || c.RxFrames != 0 {
		t.Errorf("%+v", c)
	}
}

// A chunk that was received is not the kernel's: an RX entry that names it once more is dropped, and counted as wrong.
func TestRXEntryTwice(t *testing.T) {
	k := newFakeKernel(t, Config{ChunkSize: 2048, RxChunks: 8, TxChunks: 8}, 0)
	q, frames := k.q, make([]Frame, 4)
	nstest.FatalIf(t, !k.deliver(64) || q.Receive(frames) != 1, "not received")
	k.rx.desc[k.rx.head&k.rx.mask] = Desc{Addr: frames[0].Addr, Len: 64}
	k.rx.submit(1)
	nstest.FatalIf(t, !k.deliver(65), "the frame behind it")
	if n := q.Receive(frames[1:]); n != 0 || q.n.RxBadEntries != 1 || q.n.RxTooManySegs != 0 {
		t.Errorf("%d frames, %+v", n, q.n)
	}
	if n := q.Receive(frames[1:]); n != 1 || len(frames[1].Data) != 65 {
		t.Errorf("the frame behind it: %d of %d bytes", n, len(frames[1].Data))
	}
}

// For any contents of the rings (indices, entries and flags of both sides), no call loops or panics, what is handed
// out lies in the chunks of this queue, and no TX chunk is handed out twice.
func TestScribbledRings(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := newFakeKernel(t, Config{
			ChunkSize: 2048, RxChunks: 8, TxChunks: 8,
			MultiBuffer: rapid.Bool().Draw(t, "multi-buffer"), Unaligned: rapid.Bool().Draw(t, "unaligned"),
		}, rapid.Uint32().Draw(t, "start"))
		q := k.q
		p := q.pool
		words := map[string]interface{ Store(uint32) }{
			"TX producer": q.tx.prod, "TX consumer": q.tx.cons, "TX flags": q.tx.flags,
			"RX producer": q.rx.prod, "RX consumer": q.rx.cons,
			"fill producer": p.fill.prod, "fill consumer": p.fill.cons, "fill flags": p.fill.flags,
			"completion producer": p.comp.prod, "completion consumer": p.comp.cons,
		}
		names := []string{
			"TX producer", "TX consumer", "TX flags", "RX producer", "RX consumer", "fill producer", "fill consumer",
			"fill flags", "completion producer", "completion consumer",
		}
		address := rapid.OneOf(rapid.Uint64(), rapid.Uint64Max(40*2048), rapid.Just(^uint64(0)))
		held := map[uint64]bool{}
		var leased []uint64
		frames := make([]Frame, 4)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 11).Draw(t, "step") {
			case 0, 1, 2:
				words[rapid.SampledFrom(names).Draw(t, "word")].Store(rapid.OneOf(rapid.Uint32(), rapid.Uint32Max(64)).Draw(t, "value"))
			case 3:
				d := &q.rx.desc[rapid.IntRange(0, len(q.rx.desc)-1).Draw(t, "RX entry")]
				d.Addr, d.Len, d.Options = address.Draw(t, "address"), rapid.Uint32().Draw(t, "length"), rapid.Uint32().Draw(t, "options")
			case 4:
				p.comp.addr[rapid.IntRange(0, len(p.comp.addr)-1).Draw(t, "completion")] = address.Draw(t, "address")
			case 5:
				p.fill.addr[rapid.IntRange(0, len(p.fill.addr)-1).Draw(t, "fill entry")] = address.Draw(t, "address")
			case 6:
				if addr, buf, ok := q.Alloc(); ok {
					if held[addr] || len(buf) != 2048 {
						t.Fatalf("chunk %#x of %d bytes, held before: %v", addr, len(buf), held[addr])
					}
					held[addr] = true
				}
			case 7:
				for addr := range held {
					if q.Send(addr, 64, false) {
						delete(held, addr)
					}
					break
				}
			case 8:
				q.publish()
				q.Reap()
			case 9:
				n := q.Receive(frames)
				for _, f := range frames[:n] {
					leased = append(leased, f.Addr)
					for i := range f.Data {
						f.Data[i]++ // is there
					}
				}
			case 10:
				for _, addr := range leased {
					q.Recycle(addr)
				}
				leased = leased[:0]
				q.Refill()
			case 11:
				q.Ready()
				q.InFlight(address.Draw(t, "address"))
				if n := q.TxFree(); n < 0 || n > 8 {
					t.Fatalf("%d chunks are free", n)
				}
			}
		}
	})
}

// The kernel refuses overwritten entries. It counts those of the TX ring and skips those of
// the fill ring; the frames after them arrive.
func TestScribbledEntriesAreRefused(t *testing.T) {
	a, b := openPair(t, pairOptions{generic: true})
	const nowhere = 1 << 40

	// The TX ring.
	tx := &a.q.tx
	nstest.FatalIf(t, !tx.reserve(1), "the TX ring is full")
	tx.desc[tx.head&tx.mask] = Desc{Addr: nowhere, Len: 64}
	a.q.pend++
	nstest.Must(t, a.q.Flush())
	eventually(t, "a TX entry that is refused", func() bool { return stats(t, a.q).KernelStats.Tx_invalid_descs == 1 })
	a.mustSend(t, b, 64, 1)
	eventually(t, "the frame behind it", b.q.Ready)
	receive(t, b.q)

	// The next entry of the fill ring that the kernel takes; all of them are published.
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
		if err := k.q.flushRest(errno); err != nil || k.q.n.TxNoMemory != 1 {
			t.Errorf("%v: %v, counted %d times", errno, err, k.q.n.TxNoMemory)
		}
	}
}
