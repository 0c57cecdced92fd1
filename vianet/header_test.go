package vianet

import (
	"bytes"
	"errors"
	"testing"

	"viaxdp/vipl"
)

// FuzzParse: whatever comes, parsing gives an error or a header that says of the message what is true, and from which
// the same bytes come again.
func FuzzParse(f *testing.F) {
	for k := kind(0); k <= kindEnd; k++ {
		for _, h := range []header{
			{kind: k}, {kind: k, id: version, credits: 3, length: 4096}, {kind: k, length: 4},
			{kind: k, id: 2, length: 9, handle: 7, addr: 1 << 40}, {kind: k, length: 9, handle: 7, addr: 1<<64 - 9},
		} {
			b := make([]byte, headerLen+int(h.length&7))
			h.put(b)
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, payload, err := parse(b)
		if err != nil {
			return
		}
		if h.kind == 0 || h.kind >= kindEnd || len(payload) != len(b)-headerLen {
			t.Fatalf("%v with %d of %d bytes", h.kind, len(payload), len(b))
		}
		if h.kind == kindData && int(h.length) != len(payload) {
			t.Fatalf("%d bytes of data that are said to be %d", len(payload), h.length)
		}
		if h.kind != kindData && len(payload) > 0 {
			t.Fatalf("%v with %d bytes", h.kind, len(payload))
		}
		if h.kind == kindAnnounce && h.addr+uint64(h.length) < h.addr {
			t.Fatal("memory past the end of the address space")
		}
		again := make([]byte, headerLen)
		h.put(again)
		if !bytes.Equal(again, b[:headerLen]) {
			t.Fatalf("%x became %x", b[:headerLen], again)
		}
	})
}

// A header comes out as it went in, at the offsets of the table.
func TestHeaderLayout(t *testing.T) {
	h := header{kind: kindRoom, credits: 0x0203, id: 0x04050607, length: 0x08090a0b, handle: 0x0c0d0e0f, addr: 0x1011121314151617}
	b := make([]byte, headerLen)
	h.put(b)
	want := []byte{byte(kindRoom), 0}
	for i := byte(2); i < 0x18; i++ {
		want = append(want, i)
	}
	if !bytes.Equal(b, want) {
		t.Errorf("%x, want %x", b, want)
	}
	got, _, err := parse(b)
	if err != nil || got != h {
		t.Errorf("%+v, %v", got, err)
	}
	for k := range kindEnd + 1 {
		if k.String() == "" {
			t.Errorf("kind %d has no name", k)
		}
	}
}

// system errors say of themselves what package net's do.
func TestSystemError(t *testing.T) {
	for _, code := range []vipl.Return{vipl.ErrNoMatch, vipl.ErrRejected, vipl.ErrNotReachable, vipl.ErrResource, vipl.ErrTimeout} {
		err := systemError(&vipl.OpError{Op: "ConnectRequest", Return: code})
		if !errors.Is(err, code) {
			t.Errorf("%v is not %v any more", err, code)
		}
		if isTimeout(err) != (code == vipl.ErrTimeout) {
			t.Errorf("%v: Timeout is %v", err, isTimeout(err))
		}
	}
	if err := systemError(errOrder); err != errOrder {
		t.Errorf("%v", err)
	}
}
