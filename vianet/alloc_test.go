package vianet_test

import (
	"bytes"
	"errors"
	"io"
	"syscall"
	"testing"

	"viaxdp/vianet"
)

// Memory of the arena carries transfers as any other does, can be freed between two of them, and is gone with the
// stack.
func TestAlloc(t *testing.T) {
	h := inMemory(t, vianet.Options{})
	a, b := h.pair(t)
	const n = 100_000
	for turn := range byte(3) {
		out, err := h.a.Alloc(n)
		if err != nil || len(out) != n {
			t.Fatalf("%d bytes, %v", len(out), err)
		}
		in, err := h.b.Alloc(n)
		if err != nil {
			t.Fatal(err)
		}
		want := randomBytes(n, turn)
		copy(out, want)
		done := goWrite(a, out)
		_, err = io.ReadFull(b, in)
		if err = errors.Join(err, <-done); err != nil || !bytes.Equal(in, want) {
			t.Fatalf("turn %d: other bytes came, or %v", turn, err)
		}
		if turn == 2 {
			break // the stack takes them with it
		}
		if err := errors.Join(h.a.Free(out), h.b.Free(in)); err != nil {
			t.Fatal(err)
		}
		if err := h.a.Free(out); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("freed twice: %v", err)
		}
	}
	if err := h.a.Free(make([]byte, 1)); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("memory of the program: %v", err)
	}
	if _, err := h.a.Alloc(1 << 30); !errors.Is(err, syscall.ENOBUFS) {
		t.Errorf("more than the arena has: %v", err)
	}
	if none, err := h.a.Alloc(-1); none != nil || !errors.Is(err, syscall.EINVAL) {
		t.Errorf("less than nothing: %v, %v", none, err)
	}
	if none, err := h.a.Alloc(0); none != nil || err != nil || h.a.Free(none) != nil {
		t.Errorf("nothing: %v, %v", none, err)
	}
}

// Where frames are long the NIC sends memory of the arena as it lies there, and nothing else.
func TestAllocByReference(t *testing.T) {
	h := overVeth(t, 9000, vianet.Options{})
	if !h.nicA.Info().NIC.MultiBuffer {
		t.Skip("the interface has no frames of several chunks")
	}
	a, b := h.pair(t)
	const n = 1 << 20
	arena, err := h.a.Alloc(n)
	if err != nil {
		t.Fatal(err)
	}
	in := make([]byte, n)
	for _, test := range []struct {
		out   []byte
		byRef bool
	}{{arena, true}, {make([]byte, n), false}, {arena, true}} {
		want := randomBytes(n, byte(len(test.out)))
		copy(test.out, want)
		before, counted := h.nicA.Counters().ByReference, h.a.Stats().ByReference.Bytes
		done := goWrite(a, test.out)
		_, err := io.ReadFull(b, in)
		if err = errors.Join(err, <-done); err != nil || !bytes.Equal(in, want) {
			t.Fatalf("other bytes came, or %v", err)
		}
		if byRef := h.nicA.Counters().ByReference - before; (byRef > n/9000) != test.byRef {
			t.Errorf("%d frames were lent; memory of the arena: %v", byRef, test.byRef)
		}
		if counted = h.a.Stats().ByReference.Bytes - counted; (counted == n) != test.byRef || !test.byRef && counted > 0 {
			t.Errorf("%d bytes are counted; memory of the arena: %v", counted, test.byRef)
		}
	}
}
