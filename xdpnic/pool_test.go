package xdpnic

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"viaxdp/internal/lab/nstest"
)

// Random traffic, in any order, against a model of the chunks' owners: every chunk has one
// owner after every step, and every chunk is free in the end.
func TestChunkOwnership(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := Config{
			ChunkSize: 2048, MultiBuffer: true,
			RxChunks: rapid.IntRange(1, 9).Draw(t, "rx"), TxChunks: rapid.IntRange(1, 9).Draw(t, "tx"),
			PoolOffset: 4096 * rapid.IntRange(0, 1).Draw(t, "offset"),
		}
		if cfg.Unaligned = rapid.Bool().Draw(t, "unaligned"); cfg.Unaligned {
			cfg.ChunkSize = rapid.SampledFrom([]int{2048, 2560, 3000, 4096}).Draw(t, "size")
		}
		k := newFakeKernel(t, cfg, rapid.SampledFrom([]uint32{0, ^uint32(0) - 5}).Draw(t, "start"))
		q := k.q
		foreign := uint64((cfg.PoolOffset + (cfg.RxChunks+cfg.TxChunks)*cfg.ChunkSize + 4095) &^ 4095)
		var held []uint64 // ours: allocated, or retained and completed
		var wired []Desc
		retained := map[uint64]bool{} // in flight, ours afterwards
		var leased []uint64
		pick := func(t *rapid.T, list []uint64) int {
			if len(list) == 0 {
				t.Skip("none")
			}
			return rapid.IntRange(0, len(list)-1).Draw(t, "which")
		}
		drop := func(list *[]uint64, i int) uint64 {
			v := (*list)[i]
			*list = append((*list)[:i], (*list)[i+1:]...)
			return v
		}
		complete := func(i int) {
			d := wired[i]
			wired = append(wired[:i], wired[i+1:]...)
			k.complete(d.Addr)
			if q.Reap() != 1 {
				t.Fatal("Reap did not find the completion")
			}
			if retained[d.Addr] {
				delete(retained, d.Addr)
				held = append(held, d.Addr)
			}
			if d.Addr < foreign && q.InFlight(d.Addr) {
				t.Fatal("in flight after completion")
			}
		}
		transmit := func(max uint32) {
			if q.pend > 0 {
				q.publish()
			}
			wired = append(wired, k.transmit(max)...)
		}
		t.Repeat(map[string]func(*rapid.T){
			"Alloc": func(t *rapid.T) {
				free := q.TxFree()
				addr, buf, ok := q.Alloc()
				if ok != (free > 0) {
					t.Fatalf("Alloc: %v with %d free", ok, free)
				}
				if ok {
					if len(buf) != cfg.ChunkSize || cap(buf) != cfg.ChunkSize || &buf[0] != &q.pool.mem[addr] {
						t.Fatal("buffer is not the chunk")
					}
					held = append(held, addr)
				}
			},
			"Send": func(t *rapid.T) {
				i := pick(t, held)
				retain := rapid.Bool().Draw(t, "retain")
				room := q.tx.refresh() - q.pend
				if ok := q.Send(held[i], 64, retain); ok != (room > 0) {
					t.Fatalf("Send: %v with room for %d", ok, room)
				} else if ok {
					addr := drop(&held, i)
					if retain {
						retained[addr] = true
					}
					if !q.InFlight(addr) || q.Send(addr, 64, retain) {
						t.Fatal("a chunk in flight can be sent again")
					}
				}
			},
			"SendSegs": func(t *rapid.T) {
				i := pick(t, held)
				if q.tx.refresh()-q.pend < 2 {
					t.Skip("ring full")
				}
				if q.SendSegs([]Desc{{Addr: held[i], Len: 64}, {Addr: held[i], Len: 1}}, false) {
					t.Fatal("one chunk twice in a frame")
				}
				if !q.SendSegs([]Desc{{Addr: held[i], Len: 64}, {Addr: foreign, Len: 100}}, true) {
					t.Fatal("SendSegs refused")
				}
				retained[drop(&held, i)] = true
			},
			"Release held": func(t *rapid.T) { q.Release(drop(&held, pick(t, held))) },
			"Release in flight": func(t *rapid.T) {
				for addr := range retained {
					q.Release(addr)
					delete(retained, addr)
					return
				}
			},
			"transmit": func(t *rapid.T) { transmit(rapid.Uint32Range(1, 4).Draw(t, "n")) },
			"complete": func(t *rapid.T) {
				if len(wired) > 0 {
					complete(rapid.IntRange(0, len(wired)-1).Draw(t, "which"))
				}
			},
			"deliver": func(t *rapid.T) {
				k.deliver(rapid.SliceOfN(rapid.IntRange(14, 1700), 1, 4).Draw(t, "segments")...)
			},
			"Receive": func(t *rapid.T) {
				frames := make([]Frame, rapid.IntRange(4, 8).Draw(t, "batch"))
				n := q.Receive(frames)
				for _, f := range frames[:n] {
					leased = append(leased, f.Addr)
				}
				if n > 0 && frames[n-1].More {
					t.Fatal("a frame was split")
				}
			},
			"Recycle": func(t *rapid.T) { q.Recycle(drop(&leased, pick(t, leased))) },
			"Refill":  func(*rapid.T) { q.Refill() },
			"": func(t *rapid.T) {
				nstest.Must(t, q.Audit())
				if n := q.TxFree() + len(held) + int(q.pool.txOut); n != cfg.TxChunks {
					t.Fatalf("%d TX chunks accounted for, want %d", n, cfg.TxChunks)
				}
			},
		})
		// All come home.
		for q.Pending() > 0 {
			transmit(1)
		}
		for len(wired) > 0 {
			complete(0)
		}
		for _, addr := range held {
			q.Release(addr)
		}
		if q.TxFree() != cfg.TxChunks {
			t.Fatalf("%d of %d TX chunks free at the end", q.TxFree(), cfg.TxChunks)
		}
	})
}

// Wrong uses change nothing but the count, and Audit names the first.
func TestAuditNamesViolations(t *testing.T) {
	cfg := Config{ChunkSize: 2048, RxChunks: 2, TxChunks: 2}
	for _, tc := range []struct {
		name string
		do   func(k *fakeKernel)
		want string
	}{
		{"release twice", func(k *fakeKernel) {
			addr, _, _ := k.q.Alloc()
			k.q.Release(addr)
			k.q.Release(addr)
		}, `release of chunk at 0x1000, whose owner was "free"`},
		{"release of an RX chunk", func(k *fakeKernel) { k.q.Release(0) }, `release of chunk at 0x0, whose owner was "fill"`},
		{"release of nothing", func(k *fakeKernel) { k.q.Release(1 << 40) }, "which is no chunk"},
		{"recycle without lease", func(k *fakeKernel) { k.q.Recycle(2048) }, `recycle of chunk at 0x800, whose owner was "fill"`},
		{"recycle twice", func(k *fakeKernel) {
			k.deliver(64)
			var f [1]Frame
			k.q.Receive(f[:])
			k.q.Recycle(f[0].Addr)
			k.q.Recycle(f[0].Addr)
		}, "recycle of chunk"},
		{"completion out of nowhere", func(k *fakeKernel) { k.complete(4096); k.q.Reap() }, "completion of chunk at 0x1000"},
		{"lost chunk", func(k *fakeKernel) { k.q.pool.nfree-- }, "free stack: 1, but 2 chunks have that owner"},
		{"chunk twice on the stack", func(k *fakeKernel) { k.q.pool.free[0] = k.q.pool.free[1] }, "free stack: chunk 2 twice"},
		{"wrong kind", func(k *fakeKernel) { k.q.pool.own[0] = ownHeld }, "chunk 0 (2 RX, 2 TX chunks) has owner held"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			k := newFakeKernel(t, cfg, 0)
			nstest.Must(t, k.q.Audit())
			tc.do(k)
			k.q.fd = math.MaxInt32 // open, as far as Stats can see; the kernel's part is an error
			s, _ := k.q.Stats()
			if misuse := !strings.Contains(tc.want, "stack") && !strings.Contains(tc.want, "has owner"); misuse && s.ChunkErrors == 0 {
				t.Error("not counted among chunk_errors")
			}
			err := k.q.Audit()
			nstest.FatalIf(t, err == nil || !strings.Contains(err.Error(), tc.want), "Audit: %v; want %q", err, tc.want)
		})
	}
}

// Frames that do not fit a batch stay whole for the next; those that fit none
// are dropped, counted, and their chunks are not lost.
func TestReceiveKeepsFramesWhole(t *testing.T) {
	k := newFakeKernel(t, Config{ChunkSize: 2048, MultiBuffer: true, RxChunks: 8, TxChunks: 1}, ^uint32(0)-2)
	q := k.q
	k.deliver(64)
	k.deliver(1792, 1792, 100)
	k.deliver(65)
	frames := make([]Frame, 8)
	var got []int
	for _, batch := range []int{3, 2, 3, 8} {
		n := q.Receive(frames[:batch])
		got = append(got, n)
		for _, f := range frames[:n] {
			q.Recycle(f.Addr)
		}
	}
	// 1; the frame of three does not fit two and is dropped; then the last.
	nstest.Same(t, "what Receive gave", got, []int{1, 0, 1, 0})
	nstest.FatalIf(t, q.n.RxTooManySegs != 1 || q.n.RxFrames != 2 || q.n.Received != 2, "counters: %+v", q.n)
	q.Refill()
	for range 8 {
		nstest.FatalIf(t, !k.deliver(64), "a chunk was lost")
	}
	audit(t, q)
}

// An entry that names memory which was not given to the kernel is dropped,
// never handed out.
func TestReceiveRefusesForeignMemory(t *testing.T) {
	for _, addr := range []uint64{4096 + 256, 1 << 40, ^uint64(0), 2048 - 10} {
		k := newFakeKernel(t, Config{ChunkSize: 2048, RxChunks: 2, TxChunks: 2}, 0)
		k.rx.desc[0] = Desc{Addr: addr, Len: 64}
		k.rx.submit(1)
		k.deliver(64)
		var frames [4]Frame
		if n := k.q.Receive(frames[:]); n != 0 {
			t.Fatalf("%#x: handed out", addr)
		}
		if n := k.q.Receive(frames[:]); addr != 2048-10 && n != 1 {
			t.Fatalf("%#x: the frame behind is stuck", addr)
		}
		nstest.FatalIf(t, k.q.n.RxBadEntries+k.q.n.RxTooManySegs == 0, "%#x: not counted", addr)
	}
}

// A cancelled frame loses its Ethernet header, and names no memory of the caller any more, as
// far as the kernel has not taken its entries; nothing else changes. Its chunks come back.
func TestCancel(t *testing.T) {
	for _, copied := range []bool{true, false} {
		for taken := range uint32(5) {
			cfg := Config{ChunkSize: 2048, MultiBuffer: true, RxChunks: 2, TxChunks: 8, Rings: Rings{TX: 16, Completion: 16}}
			k := newFakeKernel(t, cfg, ^uint32(6))
			q := k.q
			q.info.TxCopied = copied
			mem := q.pool.mem
			for i := range mem {
				mem[i] = 1
			}
			reg := q.pool.addr(10) // behind the pool
			var frames [3]uint64
			for i := range frames {
				frames[i], _, _ = q.Alloc()
				more, _, _ := q.Alloc() // the second chunk of the frame
				segs := []Desc{{Addr: frames[i], Len: 100}, {Addr: more, Len: 64}, {Addr: reg, Len: 2048}, {Addr: reg + 2048, Len: 9}}
				if i == 1 {
					q.publish()
				}
				nstest.FatalIf(t, !q.SendSegs(segs, true), "refused")
			}
			for _, addr := range []uint64{0, reg, 1 << 63, q.pool.addr(9)} { // RX, none, nowhere, free
				nstest.FatalIf(t, q.Reading(addr) || !q.Cancel(addr), "%#x is taken for a frame on its way", addr)
			}
			nstest.FatalIf(t, slices.Contains(mem, 0), "something is cleared of what is no frame on its way")
			before := k.transmit(taken)
			if q.Reading(frames[0]) != (taken < 4 || !copied) {
				t.Errorf("%d entries taken, copied %v: reading %v", taken, copied, q.Reading(frames[0]))
			}
			// Where entries are not copied, one that was taken is read until it completes.
			if done := q.Cancel(frames[0]); done != (copied || taken <= 2) {
				t.Errorf("%d entries taken, copied %v: cancelled %v", taken, copied, done)
			}
			nstest.ErrorIf(t, !q.Cancel(frames[2]), "a frame that is not published is not cancelled")
			q.publish()
			after := k.transmit(100)
			for i, d := range append(before, after...) {
				frame, seg := i/4, i%4
				gone := seg >= 2 && (frame == 0 && i >= int(taken) || frame == 2)
				if named := d.Addr >= reg; seg >= 2 && named == gone || gone && (d.Addr >= q.pool.addr(1) || d.Len != 1) {
					t.Errorf("%d entries taken: segment %d of frame %d is %+v", taken, seg, frame, d)
				}
				if more := d.Options&pktContd != 0; more != (seg < 3) {
					t.Errorf("segment %d of frame %d goes on: %v", seg, frame, more)
				}
				k.complete(d.Addr)
			}
			if n := bytes.Count(mem, []byte{0}); n != 2*MinFrame || mem[frames[0]] != 0 || mem[frames[2]+MinFrame-1] != 0 {
				t.Errorf("%d bytes are cleared", n)
			}
			q.Reap()
			for _, addr := range frames {
				nstest.ErrorIf(t, q.Reading(addr) || q.InFlight(addr), "a frame that has completed is on its way")
			}
			mem[frames[0]] = 1
			nstest.ErrorIf(t, !q.Cancel(frames[0]) || mem[frames[0]] == 0, "a frame that has left is cancelled")
			for i := range uint64(6) {
				q.Release(q.pool.addr(2 + i))
			}
			audit(t, q)
		}
	}
}

// In zero-copy mode a driver may have read an entry that it has not taken yet: the first
// Cancel promises nothing, a later one that finds the entry still there does.
func TestCancelZeroCopy(t *testing.T) {
	k := newFakeKernel(t, Config{ChunkSize: 2048, MultiBuffer: true, RxChunks: 2, TxChunks: 4}, 0)
	q := k.q
	q.zc = true
	reg := q.pool.addr(6)
	first, _, _ := q.Alloc()
	second, _, _ := q.Alloc()
	for _, addr := range []uint64{first, second} {
		nstest.FatalIf(t, !q.SendSegs([]Desc{{Addr: addr, Len: 100}, {Addr: reg, Len: 100}}, false), "refused")
	}
	q.publish()
	nstest.ErrorIf(t, q.Cancel(first) || q.Cancel(second), "cancelled at once")
	read := k.transmit(2) // with the old or the new contents
	nstest.ErrorIf(t, q.Cancel(first) || !q.Reading(first), "cancelled although it has been taken")
	nstest.ErrorIf(t, !q.Cancel(second), "not cancelled, and still on the ring")
	for _, d := range append(read, k.transmit(2)...) {
		k.complete(d.Addr)
	}
	if q.Reap(); q.Reading(first) || q.TxFree() != 4 {
		t.Errorf("reading %v, %d free", q.Reading(first), q.TxFree())
	}
	audit(t, q)
}

// Send's and SendSegs' rules; a refused frame changes nothing.
func TestSendRules(t *testing.T) {
	k := newFakeKernel(t, Config{ChunkSize: 2048, MultiBuffer: true, RxChunks: 2, TxChunks: 32}, 0)
	q := k.q
	addr, _, _ := q.Alloc()
	other, _, _ := q.Alloc()
	reg := q.pool.addr(34) // behind the pool
	refused := uint64(0)
	send := func(want bool, addr uint64, n int) {
		t.Helper()
		nstest.FatalIf(t, q.Send(addr, n, false) != want, "Send(%#x, %d) = %v", addr, n, !want)
		if !want {
			refused++
		}
	}
	segs := func(want bool, s ...Desc) {
		t.Helper()
		nstest.FatalIf(t, q.SendSegs(s, false) != want, "SendSegs(%v) = %v", s, !want)
		if !want {
			refused++
		}
	}
	d := func(addr uint64, n uint32) Desc { return Desc{Addr: addr, Len: n, Options: 99} }
	send(false, addr, 13)
	send(false, addr, -1)
	send(false, addr, 2049)
	send(false, addr+1, 2048)
	send(false, 0, 64)          // an RX chunk
	send(false, 1<<63, 64)      // nowhere
	send(false, reg-2048*5, 64) // free
	segs(false)
	segs(false, d(addr, 64), d(other, 0))
	segs(false, d(addr, 64), d(reg, 2049))
	segs(false, d(addr, 64), d(reg+1, 2048)) // crosses a chunk boundary
	segs(false, d(addr, 64), d(uint64(len(q.pool.mem)-1), 2))
	segs(false, d(addr, 64), d(^uint64(0), 2))
	segs(false, d(addr, 13))
	many := []Desc{d(addr, 64)}
	for range MaxSegs {
		many = append(many, d(reg, 1))
	}
	segs(false, many...)
	if q.n.TxRefused != refused || q.Pending() != 0 || q.InFlight(addr) || q.InFlight(other) {
		t.Fatalf("after refusals: %+v, pending %d", q.n, q.Pending())
	}
	audit(t, q)
	segs(true, many[:MaxSegs]...)
	send(true, other+100, 1948)
	nstest.FatalIf(t, q.Pending() != MaxSegs+1, "pending %d", q.Pending())
	q.publish()
	for i, got := range k.transmit(100) {
		want := uint32(pktContd)
		if i >= MaxSegs-1 {
			want = 0
		}
		nstest.FatalIf(t, got.Options != want, "entry %d has options %d", i, got.Options)
		k.complete(got.Addr)
	}
	q.Reap()
	nstest.FatalIf(t, q.TxFree() != 32, "%d free", q.TxFree())
	audit(t, q)
}

// In zero-copy mode no segment crosses a page, where adjacent pages need not be contiguous for the NIC.
func TestSendRulesZeroCopy(t *testing.T) {
	k := newFakeKernel(t, Config{ChunkSize: 3000, Unaligned: true, MultiBuffer: true, RxChunks: 2, TxChunks: 2}, 0)
	reg := (k.q.pool.limit() + pageSize - 1) &^ (pageSize - 1)
	for _, c := range []struct {
		d            Desc
		copied, zero bool
	}{
		{Desc{Addr: reg + 1096, Len: 3000}, true, true},
		{Desc{Addr: reg + 1097, Len: 3000}, true, false},
		{Desc{Addr: reg, Len: 3001}, false, false},
	} {
		for zc, want := range map[bool]bool{false: c.copied, true: c.zero} {
			k.q.zc = zc
			nstest.ErrorIf(t, k.q.segOK(&c.d) != want, "zero-copy %v, %+v: want %v", zc, c.d, want)
		}
	}
}

// Both halves of a ring, joined, against a plain queue: what is submitted and
// only that arrives, in order, across the wrap of the 32-bit indices.
func TestRingAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := uint32(1) << rapid.IntRange(0, 6).Draw(t, "log2 size")
		start := rapid.SampledFrom([]uint32{0, 1, ^uint32(0) - 70, ^uint32(0), 1<<31 - 3}).Draw(t, "start")
		mem := fakeRing(int(size), addrSize, start)
		w, r := mem.fill(), mem.completion()
		var published []uint64      // submitted, not released
		var written, taken int      // entries ever submitted, ever released
		next := uint64(start) << 32 // the value of the next entry
		t.Repeat(map[string]func(*rapid.T){
			"write and submit": func(t *rapid.T) {
				n := rapid.Uint32Range(0, size+2).Draw(t, "n")
				free := size - uint32(len(published))
				if got := w.reserve(n); got != (n <= free) {
					t.Fatalf("reserve(%d) = %v with %d free", n, got, free)
				}
				n = min(n, free)
				for i := range n {
					w.addr[(w.head+i)&w.mask] = next + uint64(i)
				}
				if r.peek(size) != uint32(len(published)) {
					t.Fatal("entries are visible before submit")
				}
				k := rapid.Uint32Range(0, n).Draw(t, "k")
				w.submit(k)
				for i := range k {
					published = append(published, next+uint64(i))
				}
				next += uint64(k)
				written += int(k)
			},
			"peek and release": func(t *rapid.T) {
				most := rapid.Uint32Range(0, size+2).Draw(t, "max")
				n := r.peek(most)
				if n != min(most, uint32(len(published))) {
					t.Fatalf("peek(%d) = %d with %d published", most, n, len(published))
				}
				for i := range n {
					if got := r.addr[(r.tail+i)&r.mask]; got != published[i] {
						t.Fatalf("entry %d is %#x, want %#x", i, got, published[i])
					}
				}
				if r.ready() != (len(published) > 0) {
					t.Fatal("ready is wrong")
				}
				k := rapid.Uint32Range(0, n).Draw(t, "k")
				r.release(k)
				published = published[k:]
				taken += int(k)
			},
			"": func(t *rapid.T) {
				if w.left() != uint32(len(published)) {
					t.Fatalf("left() = %d, want %d", w.left(), len(published))
				}
				if w.prod.Load() != start+uint32(written) || w.cons.Load() != start+uint32(taken) {
					t.Fatal("shared indices are not what was submitted and released")
				}
			},
		})
	})
}

// A closed ring has nothing to read and no room.
func TestShutRings(t *testing.T) {
	p, c := shutProducer(), shutConsumer()
	nstest.FatalIf(t, p.reserve(1) || p.left() != 0 || p.needWakeup() || c.peek(^uint32(0)) != 0 || c.ready(),
		"a closed ring does something")
}

// An entry of the RX and TX rings lies in memory as struct xdp_desc does.
func TestDescLayout(t *testing.T) {
	m := fakeRing(2, descSize, 0)
	m.descs()[1] = Desc{Addr: 0x1122334455667788, Len: 0x99aabbcc, Options: pktContd}
	b := m.mem[m.off.Desc+16:]
	addr, n, options := binary.NativeEndian.Uint64(b), binary.NativeEndian.Uint32(b[8:]), binary.NativeEndian.Uint32(b[12:])
	nstest.ErrorIf(t, len(b) != 16 || addr != 0x1122334455667788 || n != 0x99aabbcc || options != pktContd, "% x", b)
}
