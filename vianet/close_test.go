package vianet_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"viaxdp/internal/lab/await"
	"viaxdp/vianet"
)

// lingering is hosts with whom a Close goes on delivering for longer than any test.
func lingering(t *testing.T, o vianet.Options) *hosts {
	o.Linger = time.Hour
	h := inMemory(t, o)
	h.bearBreaks()
	return h
}

// fill writes until the peer, who does not read, has no room for more, nor has c.
func fill(t *testing.T, c *vianet.Conn) (written []byte) {
	t.Helper()
	for i := byte(0); !vianet.Full(c); i++ {
		b := randomBytes(100, i)
		c.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
		n, err := c.Write(b)
		written = append(written, b[:n]...)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
	}
	c.SetWriteDeadline(never)
	return written
}

// writesOn writes messages of a size until that fails, which comes by the channel, and waits until one waits.
func writesOn(t *testing.T, c *vianet.Conn, size int) <-chan error {
	t.Helper()
	ended := make(chan error, 1)
	go func() {
		for {
			if _, err := c.Write(make([]byte, size)); err != nil {
				ended <- err
				return
			}
		}
	}()
	await.Until(t, "a Write waits", func() bool { return vianet.Full(c) || vianet.Offered(c) })
	return ended
}

// A Close with bytes for which the peer has no room does not leave the peer in its Write for as long as it goes on
// delivering: the Write ends, and then everything can be read.
func TestCloseUnsent(t *testing.T) {
	for _, l := range shmLinks {
		t.Run(l.name, func(t *testing.T) {
			h := lingering(t, l.options)
			for _, size := range []int{100, 300_000} {
				a, b := h.pair(t)
				want := fill(t, a)
				b.SetDeadline(time.Now().Add(ackDelay))
				ended := writesOn(t, b, size)
				must(t, a.Close())
				if err := <-ended; !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("the peer's Write of %d bytes: %v", size, err)
				}
				if err := b.CloseWrite(); err != nil {
					t.Errorf("the peer's CloseWrite: %v", err)
				}
				if got, err := io.ReadAll(b); err != nil || !bytes.Equal(got, want) {
					t.Errorf("the peer reads %d bytes of %d, %v", len(got), len(want), err)
				}
				b.Close()
			}
			h.atRest(t)
		})
	}
}

// When both sides close with such bytes nobody is left who could read them, and the connection is gone at once.
func TestBothCloseUnsent(t *testing.T) {
	for _, l := range shmLinks {
		t.Run(l.name, func(t *testing.T) {
			h := lingering(t, l.options)
			for _, first := range []int{0, 1} {
				a, b := h.pair(t)
				fill(t, a)
				fill(t, b)
				for _, c := range [][]*vianet.Conn{{a, b}, {b, a}}[first] {
					check(t, c.Close())
				}
			}
			h.atRest(t)
		})
	}
}

// After CloseRead the peer's Writes fail, those that wait among them, and this side's Reads end; the other direction
// goes on.
func TestCloseRead(t *testing.T) {
	for _, l := range shmLinks {
		t.Run(l.name, func(t *testing.T) {
			h := lingering(t, l.options)
			for _, size := range []int{0, 100, 300_000} { // of Writes that wait
				a, b := h.pair(t)
				a.SetDeadline(time.Now().Add(ackDelay))
				b.SetDeadline(time.Now().Add(ackDelay))
				var ended <-chan error
				if size == 0 {
					ended = goRead(a, 100_000)
					await.Until(t, "a Read is under way", func() bool { return vianet.Reads(a) })
					time.Sleep(10 * time.Millisecond) // in which it mostly comes to wait
				} else {
					ended = writesOn(t, b, size)
				}
				for range 2 {
					check(t, a.CloseRead())
				}
				switch err := <-ended; {
				case size == 0 && err != io.EOF:
					t.Errorf("the Read that was under way: %v", err)
				case size > 0 && !errors.Is(err, syscall.ECONNRESET):
					t.Errorf("the peer's Write of %d bytes: %v", size, err)
				}
				if n, err := a.Read(make([]byte, 100_000)); n != 0 || err != io.EOF {
					t.Errorf("a Read after it: %d, %v", n, err)
				}
				for _, n := range []int{100, 300_000} {
					var err error
					for err == nil { // the first may still find room
						_, err = b.Write(make([]byte, n))
					}
					if !errors.Is(err, syscall.ECONNRESET) {
						t.Errorf("a later Write of the peer: %v", err)
					}
				}
				want := randomBytes(200_000, 1)
				wrote := goWrite(a, want)
				got := make([]byte, len(want))
				_, err := io.ReadFull(b, got)
				err = errors.Join(err, <-wrote, a.CloseWrite())
				if n, end := b.Read(make([]byte, 1)); n != 0 || end != io.EOF {
					t.Errorf("after the last byte: %d, %v", n, end)
				}
				if err != nil || !bytes.Equal(got, want) {
					t.Errorf("the other direction: %d bytes, %v", len(got), err)
				}
				check(t, errors.Join(a.Close(), b.Close()))
				if err := a.CloseRead(); !errors.Is(err, net.ErrClosed) {
					t.Errorf("after Close: %v", err)
				}
			}
			h.atRest(t)
		})
	}
}

// The two halves of a connection end in whichever order, on one side or on both, and at the end nothing is left.
func TestHalvesInEachOrder(t *testing.T) {
	h := lingering(t, vianet.Options{})
	type call = func(c *vianet.Conn) error
	read, write, all := (*vianet.Conn).CloseRead, (*vianet.Conn).CloseWrite, (*vianet.Conn).Close
	orders := [][]call{{read, write, all}, {write, read, all}, {read, all}, {write, all}, {all}}
	for i, ofA := range orders {
		for j, ofB := range orders {
			a, b := h.pair(t)
			for _, c := range []*vianet.Conn{a, b} {
				must(t, errOf(c.Write(make([]byte, 100))))
			}
			var both sync.WaitGroup
			for side, calls := range [][]call{ofA, ofB} {
				both.Go(func() {
					c := []*vianet.Conn{a, b}[side]
					for k, f := range calls {
						if err := f(c); err != nil && !errors.Is(err, syscall.ECONNRESET) {
							t.Errorf("orders %d and %d: call %d of side %d: %v", i, j, k, side, err)
						}
					}
				})
			}
			both.Wait()
		}
	}
	h.atRest(t)
}
