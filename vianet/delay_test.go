package vianet_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"viaxdp/vianet"
)

// After SetNoDelay(false) many small Writes are few messages.
func TestNoDelay(t *testing.T) {
	const writes, size = 1000, 64
	sent := func(noDelay bool) uint64 {
		h := inMemory(t, vianet.Options{})
		h.a.SetDelay(time.Hour)
		a, b := h.pair(t)
		if err := a.SetNoDelay(noDelay); err != nil {
			t.Fatal(err)
		}
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
		b.SetReadDeadline(time.Now().Add(ackDelay))
		if got, err := io.ReadAll(b); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
		return h.nicB.Counters().Messages - before
	}
	const full = 4136 // bytes of data that a message has room for
	least := uint64((writes*size + full - 1) / full)
	if n := sent(false); n < least || n > least+3 { // the fin, and credits
		t.Errorf("%d messages, %d are needed", n, least)
	}
	if n := sent(true); n < 3*least { // some share one while the peer has no room
		t.Errorf("without delay %d messages, as with it", n)
	}
}

// What waits for more bytes goes when its writer reads, when time has passed, when the delay is switched off and
// before large data.
func TestNoDelayEnds(t *testing.T) {
	h := inMemory(t, vianet.Options{})
	h.a.SetDelay(time.Hour)
	a, b := h.pair(t)
	a.SetDeadline(time.Now().Add(ackDelay))
	b.SetDeadline(time.Now().Add(ackDelay))
	if err := a.SetNoDelay(false); err != nil {
		t.Fatal(err)
	}
	write := func(n int) {
		t.Helper()
		if _, err := a.Write(make([]byte, n)); err != nil {
			t.Fatal(err)
		}
	}
	comes := func(n int) {
		t.Helper()
		if _, err := io.ReadFull(b, make([]byte, n)); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 { // a question, of two Writes
		write(1)
		write(2)
		answered := goRead(a, 1)
		comes(3)
		if _, err := b.Write(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		if err := <-answered; err != nil {
			t.Fatal(err)
		}
	}
	write(5)
	if err := a.SetNoDelay(true); err != nil {
		t.Fatal(err)
	}
	comes(5)
	if err := a.SetNoDelay(false); err != nil {
		t.Fatal(err)
	}
	write(7)
	go a.Write(make([]byte, 100_000))
	comes(100_007)
	write(9)
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	comes(9)
	if err := a.SetNoDelay(true); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}

	late := inMemory(t, vianet.Options{}) // with the delay as it is
	a, b = late.pair(t)
	b.SetDeadline(time.Now().Add(ackDelay))
	if err := a.SetNoDelay(false); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		write(11)
		comes(11)
	}
}
