package vianet_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"viaxdp/internal/lab/nstest"
	"viaxdp/vianet"
)

// Memory of the arena carries transfers like any other, can be freed between two of them, and is freed with the
// stack.
func TestAlloc(t *testing.T) {
	h := inMemory(t, vianet.Options{})
	a, b := h.pair(t)
	const n = 100_000
	for turn := range byte(3) {
		out, err := h.a.Alloc(n)
		nstest.FatalIf(t, err != nil || len(out) != n, "%d bytes, %v", len(out), err)
		in, err := h.b.Alloc(n)
		must(t, err)
		copy(out, randomBytes(n, turn))
		carryInto(t, a, b, out, in)
		if turn == 2 {
			break // the stack takes them with it
		}
		must(t, errors.Join(h.a.Free(out), h.b.Free(in)))
		isErr(t, "freed twice", h.a.Free(out), syscall.EINVAL)
	}
	isErr(t, "memory of the program", h.a.Free(make([]byte, 1)), syscall.EINVAL)
	isErr(t, "more than the arena has", nstest.Err(h.a.Alloc(1<<30)), syscall.ENOBUFS)
	isErr(t, "less than nothing", nstest.Err(h.a.Alloc(-1)), syscall.EINVAL)
	none, err := h.a.Alloc(0)
	nstest.ErrorIf(t, none != nil || err != nil || h.a.Free(none) != nil, "nothing: %v, %v", none, err)
}

// If frames are long, the NIC sends memory of the arena by reference, and no other memory.
func TestAllocByReference(t *testing.T) {
	h := overVeth(t, 9000, vianet.Options{})
	if !h.nicA.Info().NIC.MultiBuffer {
		t.Skip("the interface has no frames of several chunks")
	}
	a, b := h.pair(t)
	const n = 1 << 20
	arena, err := h.a.Alloc(n)
	must(t, err)
	in := make([]byte, n)
	for _, test := range []struct {
		out   []byte
		byRef bool
	}{{arena, true}, {make([]byte, n), false}, {arena, true}} {
		copy(test.out, randomBytes(n, byte(len(test.out))))
		before, counted := h.nicA.Counters().ByReference, h.a.Stats().ByReference.Bytes
		carryInto(t, a, b, test.out, in)
		byRef, want := h.nicA.Counters().ByReference-before, uint64(0)
		nstest.ErrorIf(t, (byRef > n/9000) != test.byRef, "%d frames were lent; memory of the arena: %v", byRef, test.byRef)
		if test.byRef {
			want = n
		}
		nstest.Equal(t, "bytes that are counted", h.a.Stats().ByReference.Bytes-counted, want)
	}
}

// What goes to a ring is copied also from memory of the arena, which is the program's again when Write returns.
func TestAllocIsCopiedToARing(t *testing.T) {
	h := overVeth(t, 9000, vianet.Options{})
	nstest.FatalIf(t, !h.nicA.Info().NIC.MultiBuffer, "the interface has no frames of several chunks")
	a, b := h.pair(t)
	const n, writes = 100_000, 20
	arena, err := h.a.Alloc(n)
	must(t, err)
	lent := func() uint64 { return h.nicA.Counters().ByReference }
	got := make(chan error, writes)
	go func() {
		in := make([]byte, n)
		for i := range byte(writes) {
			_, err := io.ReadFull(b, in)
			if err == nil && !bytes.Equal(in, randomBytes(n, i)) {
				err = fmt.Errorf("Write %d: other bytes came", i)
			}
			got <- err
		}
	}()
	ring := 0 // Writes to it
	for i := range byte(writes) {
		copy(arena, randomBytes(n, i))
		before, transfers := lent(), h.a.Stats().Written.Times
		must(t, nstest.Err(a.Write(arena)))
		clear(arena)
		must(t, <-got)
		if h.a.Stats().Written.Times > transfers {
			nstest.ErrorIf(t, lent() == before, "transfer %d is copied", i)
			continue
		}
		ring++
		nstest.ErrorIf(t, lent() > before, "Write %d to the ring is by reference", i)
	}
	nstest.ErrorIf(t, ring < writes-4, "%d Writes of %d went to the ring", ring, writes)
	balanced(t, a, b)
}

// After SetNoDelay(false) many small Writes make few messages.
func TestNoDelay(t *testing.T) {
	const writes, size = 1000, 64
	sent := func(noDelay bool) uint64 {
		h := inMemory(t, vianet.Options{})
		h.a.SetDelay(time.Hour)
		a, b := h.pair(t)
		must(t, a.SetNoDelay(noDelay))
		before := h.nicB.Counters().Messages
		want := randomBytes(writes*size, 3)
		go func() {
			for i := range writes {
				if _, err := a.Write(want[i*size : (i+1)*size]); err != nil {
					t.Error(err)
					break
				}
			}
			a.CloseWrite()
		}()
		b.SetReadDeadline(time.Now().Add(testTimeout))
		readsAll(t, b, want)
		return h.nicB.Counters().Messages - before
	}
	const full = 4136 // bytes of data that a message has room for
	least := uint64((writes*size + full - 1) / full)
	n := sent(false)
	nstest.ErrorIf(t, n < least || n > least+3, "%d messages, %d are needed", n, least) // the fin, and credits
	n = sent(true)
	nstest.ErrorIf(t, n < 3*least, "without delay %d messages, as with it", n) // some share one while the peer has no room
}

// Delayed bytes are sent when their writer reads, when time has passed, when the delay is switched off, and before
// large data.
func TestNoDelayEnds(t *testing.T) {
	h := inMemory(t, vianet.Options{})
	h.a.SetDelay(time.Hour)
	a, b := h.pair(t)
	a.SetDeadline(time.Now().Add(testTimeout))
	b.SetDeadline(time.Now().Add(testTimeout))
	must(t, a.SetNoDelay(false))
	write := func(n int) {
		t.Helper()
		must(t, nstest.Err(a.Write(make([]byte, n))))
	}
	comes := func(n int) {
		t.Helper()
		must(t, nstest.Err(io.ReadFull(b, make([]byte, n))))
	}
	for range 3 { // a question, of two Writes
		write(1)
		write(2)
		answered := goRead(a, 1)
		comes(3)
		must(t, nstest.Err(b.Write(make([]byte, 1))))
		must(t, <-answered)
	}
	write(5)
	must(t, a.SetNoDelay(true))
	comes(5)
	must(t, a.SetNoDelay(false))
	write(7)
	go a.Write(make([]byte, 100_000))
	comes(100_007)
	write(9)
	must(t, a.Close())
	comes(9)
	isErr(t, "after Close", a.SetNoDelay(true), net.ErrClosed)

	late := inMemory(t, vianet.Options{}) // with the delay as it is
	a, b = late.pair(t)
	b.SetDeadline(time.Now().Add(testTimeout))
	must(t, a.SetNoDelay(false))
	for range 3 {
		write(11)
		comes(11)
	}
}

// Completions of sends that no connection needs are still taken off their queue, by a poller or a driver, so the
// queue does not grow.
func TestSendsAreTidied(t *testing.T) {
	for _, spin := range []time.Duration{0, -1} {
		h := inMemory(t, vianet.Options{Spin: spin})
		a, b := h.pair(t)
		before := vianet.SendEntries(h.a)
		done := background(func() error { return nstest.Err(io.Copy(b, b)) })
		message := make([]byte, 64)
		for range 3 * before {
			must(t, nstest.Err(a.Write(message)))
			must(t, nstest.Err(io.ReadFull(a, message)))
		}
		nstest.Equal(t, "entries of the queue", vianet.SendEntries(h.a), before)
		a.Close()
		check(t, <-done)
	}
}

// A Read that polls in vain yields its CPU to other processes, which may be what it waits for.
func TestPollerYieldsCPU(t *testing.T) {
	if runtime.GOMAXPROCS(0) == 1 { // with one processor no call polls
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	}
	const wait = 20 * time.Millisecond
	h := inMemory(t, vianet.Options{Spin: wait})
	a, _ := h.pair(t)
	yielded := vianet.WatchYields(h.a)
	must(t, a.SetReadDeadline(time.Now().Add(wait)))
	_, err := a.Read(make([]byte, 1))
	isErr(t, "nothing came", err, os.ErrDeadlineExceeded)
	nstest.ErrorIf(t, !yielded(), "it has not yielded its CPU")
}
