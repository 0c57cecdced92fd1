package xdpnictest_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	"viaxdp/internal/lab/nstest"
	"viaxdp/xdpnic"
	"viaxdp/xdpnic/xdpnictest"
)

var must = nstest.Must

func TestFramesArriveInOrder(t *testing.T) {
	a, b := pair(t, xdpnictest.Config{RxChunks: 16, TxChunks: 8})
	for round := range 10 {
		for n := range 8 {
			send(t, a, round*8+n, false)
		}
		nstest.Equal(t, "pending", a.Pending(), 8)
		nstest.FatalIf(t, b.Ready(), "frames arrived before the doorbell")
		flush(t, a)
		nstest.Same(t, "frames", receive(b), count(round*8, round*8+8))
	}
	if s := b.Stats(); s.RxFrames != 80 || s.RxNoFill+s.RxRingFull != 0 {
		t.Errorf("%+v", s)
	}
	want := xdpnictest.Owners{Free: 8, Filled: 16}
	nstest.Equal(t, "owners", a.Owners(), want)
	nstest.Equal(t, "owners", b.Owners(), want)
}

func TestStackIsLastInFirstOut(t *testing.T) {
	a, _ := pair(t, xdpnictest.Config{RxChunks: 1, TxChunks: 4})
	x, buf, _ := a.Alloc()
	y, _, _ := a.Alloc()
	if len(buf) != xdpnictest.DefaultChunkSize || cap(buf) != len(buf) {
		t.Errorf("chunk of %d bytes, capacity %d", len(buf), cap(buf))
	}
	a.Release(y)
	a.Release(x)
	if z, _, _ := a.Alloc(); z != x {
		t.Errorf("got %#x, want %#x", z, x)
	}
	a.Release(x)
	nstest.Equal(t, "free", a.TxFree(), 4)
}

func TestRetain(t *testing.T) {
	a, b := pair(t, xdpnictest.Config{RxChunks: 8, TxChunks: 2})
	addr := send(t, a, 1, true)
	nstest.ErrorIf(t, !a.InFlight(addr), "not in flight after Send")
	flush(t, a)
	nstest.ErrorIf(t, a.InFlight(addr) || a.TxFree() != 1, "in flight %v, free %d after completion", a.InFlight(addr), a.TxFree())
	nstest.FatalIf(t, !a.Send(addr, frameLen, true), "cannot be sent again")
	a.Release(addr)
	nstest.ErrorIf(t, a.TxFree() != 1, "free before completion")
	flush(t, a)
	nstest.ErrorIf(t, a.TxFree() != 2, "not free after completion")
	nstest.Same(t, "frames", receive(b), []int{1, 1})
}

// A frame that is cancelled before it leaves arrives nowhere, and its chunk comes back.
func TestCancel(t *testing.T) {
	mac := [6]byte{2, 1}
	a, b := pair(t, xdpnictest.Config{RxChunks: 8, TxChunks: 4, MAC: mac})
	put := func(n int) uint64 {
		t.Helper()
		addr, chunk, ok := a.Alloc()
		copy(chunk, mac[:])
		binary.BigEndian.PutUint32(chunk[20:], uint32(n))
		nstest.FatalIf(t, !ok || !a.Send(addr, frameLen, true), "frame %d refused", n)
		return addr
	}
	first, second := put(1), put(2)
	put(3)
	nstest.ErrorIf(t, !a.Reading(second) || !a.Cancel(second) || !a.Cancel(0), "a frame on the ring is not cancelled") // 0 is none
	flush(t, a)
	nstest.ErrorIf(t, !a.Cancel(first), "a frame is read that has left")
	nstest.Same(t, "frames", receive(b), []int{1, 3})
	nstest.ErrorIf(t, a.InFlight(second) || !a.Send(first, frameLen, false), "the chunks are not the program's again")
	flush(t, a)
	nstest.Same(t, "frames", receive(b), []int{1})
}

// Memory of the program in a frame is read when the kernel copies it, and in zero-copy mode when the NIC sends
// it, as Reading reports. The NIC takes entries off the TX ring at once, and one that has stalled sends them
// when it continues. A frame that was cancelled on the ring has none of that memory.
func TestReading(t *testing.T) {
	for _, c := range []struct {
		zeroCopy    bool
		ring, early int // entries on the ring behind a stalled doorbell, frames that leave without one
	}{{false, 4, 0}, {true, 2, 1}} {
		zeroCopy := c.zeroCopy
		cfg := xdpnictest.Config{ChunkSize: 2048, RxChunks: 8, TxChunks: 4, MultiBuffer: true, ZeroCopy: zeroCopy}
		cfg.Memory = make([]byte, cfg.PoolBytes()+2048)
		lent := cfg.Memory[cfg.PoolBytes():]
		_, qs := joined(t, cfg)
		a := qs[0]
		var left [][]byte
		a.SetFaults(xdpnictest.Faults{Drop: func(frame []byte) bool {
			left = append(left, bytes.Clone(frame))
			return true
		}})
		put := func(b byte) uint64 {
			t.Helper()
			addr, chunk, _ := a.Alloc()
			copy(chunk, bytes.Repeat([]byte{b}, frameLen))
			nstest.FatalIf(t, !a.SendSegs([]xdpnic.Desc{{Addr: addr, Len: frameLen}, {Addr: uint64(cfg.PoolBytes()), Len: 2048}}, false), "refused")
			return addr
		}
		lent[0] = 1
		a.SetLies(xdpnictest.Lies{Stall: 1})
		first := put(11)
		flush(t, a)
		second := put(12)
		nstest.Equal(t, fmt.Sprintf("zero-copy %v: entries on the ring", zeroCopy), a.Pending(), c.ring)
		nstest.ErrorIf(t, !a.Reading(first) || !a.Reading(second), "zero-copy %v: not read any more", zeroCopy)
		nstest.Equal(t, fmt.Sprintf("zero-copy %v: cancelled at once", zeroCopy), a.Cancel(second), !zeroCopy)
		nstest.ErrorIf(t, !a.Cancel(second), "zero-copy %v: not cancelled the second time", zeroCopy)
		lent[0] = 2
		nstest.ErrorIf(t, len(left) != 0 || !a.InFlight(first), "zero-copy %v: %d frames have left a NIC that stalls", zeroCopy, len(left))
		a.SetLies(xdpnictest.Lies{LateCompletion: time.Hour})
		nstest.Equal(t, fmt.Sprintf("zero-copy %v: frames that left without a doorbell", zeroCopy), len(left), c.early)
		flush(t, a)
		if len(left) != 2 || len(left[0]) != frameLen+2048 || left[0][frameLen] != 2 || bytes.IndexByte(left[1], 2) >= 0 {
			t.Errorf("zero-copy %v: %d frames left, or with other bytes", zeroCopy, len(left))
		}
		if a.Reading(first) != zeroCopy || !a.InFlight(first) {
			t.Errorf("zero-copy %v: read after it has left: %v", zeroCopy, a.Reading(first))
		}
	}
}

// Each bound drops or refuses, and is counted by name.
func TestFullRings(t *testing.T) {
	t.Run("fill", func(t *testing.T) {
		a, b := pair(t, xdpnictest.Config{RxChunks: 4, TxChunks: 8, RxRing: 8})
		sendAll(t, a, 0, 6)
		if s := b.Stats(); s.RxNoFill != 2 || s.RxRingFull != 0 {
			t.Errorf("%+v", s)
		}
		nstest.Same(t, "frames", receive(b), count(0, 4))
	})
	t.Run("rx", func(t *testing.T) {
		a, b := pair(t, xdpnictest.Config{RxChunks: 8, TxChunks: 8, RxRing: 4})
		sendAll(t, a, 0, 6)
		if s := b.Stats(); s.RxRingFull != 2 || s.RxNoFill != 0 {
			t.Errorf("%+v", s)
		}
	})
	t.Run("tx", func(t *testing.T) {
		a, _ := pair(t, xdpnictest.Config{RxChunks: 8, TxChunks: 8, TxRing: 2})
		send(t, a, 0, false)
		send(t, a, 1, false)
		addr, _, _ := a.Alloc()
		nstest.ErrorIf(t, a.Send(addr, frameLen, false), "sent into a full ring")
		flush(t, a)
		nstest.ErrorIf(t, !a.Send(addr, frameLen, false) || a.Stats().TxFull != 1, "%+v", a.Stats())
	})
	t.Run("completion", func(t *testing.T) {
		a, _ := pair(t, xdpnictest.Config{RxChunks: 8, TxChunks: 8, CompletionRing: 3})
		for n := range 8 {
			send(t, a, n, false)
		}
		flush(t, a)
		nstest.ErrorIf(t, a.Pending() != 0 || a.TxFree() != 8, "pending %d, free %d", a.Pending(), a.TxFree())
	})
	t.Run("chunk", func(t *testing.T) {
		a, b := pair(t, xdpnictest.Config{RxChunks: 8, TxChunks: 8})
		addr, _, _ := a.Alloc()
		_, rx := b.FrameCap()
		nstest.FatalIf(t, rx != 2048-256 || !a.Send(addr, rx+1, false), "largest frame %d", rx)
		flush(t, a)
		if s := b.Stats(); s.RxTooLong != 1 || b.Ready() {
			t.Errorf("%+v", s)
		}
	})
}

func TestMultiBuffer(t *testing.T) {
	mem := make([]byte, 16*2048+4096)
	_, qs := joined(t, xdpnictest.Config{Memory: mem, RxChunks: 8, TxChunks: 8, MultiBuffer: true},
		xdpnictest.Config{RxChunks: 8, TxChunks: 8, MultiBuffer: true})
	a, b := qs[0], qs[1]
	for i := range mem[16*2048:] {
		mem[16*2048+i] = byte(i % 251)
	}
	addr, buf, _ := a.Alloc()
	copy(buf, "header")
	clear(buf[6:20])
	nstest.FatalIf(t, !a.SendSegs([]xdpnic.Desc{{Addr: addr, Len: 20}, {Addr: 16 * 2048, Len: 2048}, {Addr: 17 * 2048, Len: 1952}}, false), "refused")
	flush(t, a)
	var frames [4]xdpnic.Frame
	if n := b.Receive(frames[:2]); n != 0 || b.Stats().RxTooManySegs != 1 {
		t.Fatalf("%d segments of a frame of three in a batch of two", n)
	}
	addr, buf, _ = a.Alloc()
	clear(buf[:20])
	a.SendSegs([]xdpnic.Desc{{Addr: addr, Len: 20}, {Addr: 16 * 2048, Len: 2048}, {Addr: 17 * 2048, Len: 1952}}, false)
	flush(t, a)
	n := b.Receive(frames[:])
	nstest.FatalIf(t, n != 3 || !frames[0].More || !frames[1].More || frames[2].More, "%d segments, %+v", n, frames)
	var all []byte
	for _, f := range frames[:n] {
		all = append(all, f.Data...)
		b.Recycle(f.Addr)
	}
	b.Refill()
	nstest.ErrorIf(t, !slices.Equal(all[20:], mem[16*2048:16*2048+4000]), "other bytes")
	nstest.ErrorIf(t, b.Owners().Filled != 8 || a.Owners().Free != 8, "%+v %+v", a.Owners(), b.Owners())
}

// Frames go to the queue of their hardware address, to the sender itself, to
// all, or nowhere.
func TestAddresses(t *testing.T) {
	var cfgs [3]xdpnictest.Config
	for i := range cfgs {
		cfgs[i] = xdpnictest.Config{RxChunks: 8, TxChunks: 8, MAC: [6]byte{2, 0, 0, 0, 0, byte(i)}}
	}
	_, qs := joined(t, cfgs[:]...)
	to := func(mac [6]byte) {
		addr, b, _ := qs[0].Alloc()
		clear(b[:frameLen])
		copy(b, mac[:])
		qs[0].Send(addr, frameLen, false)
		flush(t, qs[0])
	}
	to([6]byte{2, 0, 0, 0, 0, 1})
	to([6]byte{2, 0, 0, 0, 0, 0})
	to([6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	to([6]byte{2, 0, 0, 0, 0, 9})
	for i, want := range []int{1, 2, 1} {
		nstest.Equal(t, fmt.Sprintf("frames of queue %d", i), len(receive(qs[i])), want)
	}
	nstest.Equal(t, "Nowhere", qs[0].Stats().Nowhere, 1)
}

// Audit names each wrong use.
func TestMisuse(t *testing.T) {
	lease := func(a, b *xdpnictest.Queue) xdpnic.Frame {
		addr, _, _ := a.Alloc()
		a.Send(addr, frameLen, false)
		a.Flush()
		var f [1]xdpnic.Frame
		b.Receive(f[:])
		return f[0]
	}
	for _, c := range []struct {
		name, want string
		do         func(a, b *xdpnictest.Queue)
	}{
		{"release twice", "Release of chunk 4, which is free", func(a, b *xdpnictest.Queue) {
			addr, _, _ := a.Alloc()
			a.Release(addr)
			a.Release(addr)
		}},
		{"release of an unretained frame", "Release of chunk 4, which is in flight", func(a, b *xdpnictest.Queue) {
			addr, _, _ := a.Alloc()
			a.Send(addr, frameLen, false)
			a.Release(addr)
		}},
		{"send after release", "Send of chunk 4, which is free", func(a, b *xdpnictest.Queue) {
			addr, _, _ := a.Alloc()
			a.Release(addr)
			nstest.ErrorIf(t, a.Send(addr, frameLen, false), "sent")
		}},
		{"send in flight", "Send of chunk 4, which is in flight", func(a, b *xdpnictest.Queue) {
			addr, _, _ := a.Alloc()
			a.Send(addr, frameLen, true)
			a.Send(addr, frameLen, true)
		}},
		{"send past the chunk", "past the end of chunk 4", func(a, b *xdpnictest.Queue) {
			addr, _, _ := a.Alloc()
			a.Send(addr, 2049, false)
		}},
		{"send of no frame", "Send of 13 bytes, which is no frame", func(a, b *xdpnictest.Queue) {
			addr, _, _ := a.Alloc()
			a.Send(addr, 13, false)
		}},
		{"two segments without multi-buffer", "SendSegs of 2 segments", func(a, b *xdpnictest.Queue) {
			a.SendSegs(make([]xdpnic.Desc, 2), false)
		}},
		{"recycle twice", "Recycle of chunk 0, which is recycled", func(a, b *xdpnictest.Queue) {
			f := lease(b, a)
			a.Recycle(f.Addr)
			a.Recycle(f.Addr)
		}},
		{"recycle of nothing", "Recycle of address 0x1000000", func(a, b *xdpnictest.Queue) { a.Recycle(1 << 24) }},
		{"write in flight", "write to chunk 4 while it was in flight", func(a, b *xdpnictest.Queue) {
			addr, buf, _ := a.Alloc()
			a.Send(addr, frameLen, true)
			buf[30]++
			a.Flush()
		}},
		{"write after release", "write to chunk 4 while it was free (since Release)", func(a, b *xdpnictest.Queue) {
			addr, buf, _ := a.Alloc()
			a.Release(addr)
			buf[30]++
			a.Alloc()
		}},
		{"write after recycle", "write to chunk 0 while it was recycled (since Recycle)", func(a, b *xdpnictest.Queue) {
			f := lease(b, a)
			a.Recycle(f.Addr)
			f.Data[3]++
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := xdpnictest.NewWire()
			defer w.Close()
			a, _ := w.Queue(xdpnictest.Config{RxChunks: 4, TxChunks: 4})
			b, _ := w.Queue(xdpnictest.Config{RxChunks: 4, TxChunks: 4})
			c.do(a, b)
			nstest.ErrSays(t, "audit", a.Audit(), c.want)
			nstest.ErrorIf(t, a.Stats().Misuses == 0, "not counted")
			sound(t, b)
		})
	}
}

// A frame with a segment that has no bytes is refused, as by xdpnic.Queue: the kernel drops it and returns no chunk.
func TestSegmentWithoutBytes(t *testing.T) {
	w := xdpnictest.NewWire()
	defer w.Close()
	a, err := w.Queue(xdpnictest.Config{Memory: make([]byte, 9*2048), RxChunks: 4, TxChunks: 4, MultiBuffer: true})
	must(t, err)
	addr, _, _ := a.Alloc()
	nstest.ErrorIf(t, a.SendSegs([]xdpnic.Desc{{Addr: addr, Len: frameLen}, {Addr: 8 * 2048}}, false), "sent")
	nstest.ErrSays(t, "audit", a.Audit(), "of no bytes at 0x4000")
}

func TestReadAfterRecycleReadsGarbage(t *testing.T) {
	a, b := pair(t, xdpnictest.Config{RxChunks: 4, TxChunks: 4})
	sendAll(t, a, 7, 8)
	var f [1]xdpnic.Frame
	b.Receive(f[:])
	was := f[0].Data[23]
	b.Recycle(f[0].Addr)
	nstest.ErrorIf(t, f[0].Data[23] == was, "still there")
}

func TestClosed(t *testing.T) {
	a, b := pair(t, xdpnictest.Config{})
	sendAll(t, b, 0, 1)
	addr, _, _ := a.Alloc()
	a.Close()
	nstest.ErrorIf(t, a.Ready() || a.Receive(make([]xdpnic.Frame, 4)) != 0 || a.Send(addr, frameLen, false), "a closed queue moves frames")
	nstest.WantErr(t, "closed", a.Flush(), xdpnic.ErrClosed)
	nstest.WantErr(t, "closed", a.Wait(-1), xdpnic.ErrClosed)
	sendAll(t, b, 0, 1)
	nstest.Equal(t, "RxCut", a.Stats().RxCut, 1)
}

func TestConfigChecked(t *testing.T) {
	w := xdpnictest.NewWire()
	for _, c := range []xdpnictest.Config{
		{ChunkSize: 1000}, {RxChunks: -1}, {Memory: make([]byte, 4096)},
	} {
		nstest.ErrorIf(t, nstest.Err(w.Queue(c)) == nil, "%+v taken", c)
	}
}

func TestNoAllocation(t *testing.T) {
	a, b := pair(t, xdpnictest.Config{})
	var frames [4]xdpnic.Frame
	if n := testing.AllocsPerRun(100, func() {
		addr, _, _ := a.Alloc()
		a.Send(addr, frameLen, true)
		a.Flush()
		a.Release(addr)
		b.Wait(0)
		for _, f := range frames[:b.Receive(frames[:])] {
			b.Recycle(f.Addr)
		}
		b.Refill()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
