package vianet_test

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/nettest"

	"viaxdp/internal/lab/nstest"
	"viaxdp/vianet"
)

// What TestNettest checks, without its limit of a minute, and with transfers by RDMA. Also what else programs of
// package net rely on: which errors occur, and that they lose nothing.

var (
	longAgo = time.Unix(233431200, 0)
	never   time.Time
)

// isTimeout checks an error of a deadline.
func isTimeout(t *testing.T, what string, err error) {
	t.Helper()
	var ne net.Error
	var oe *net.OpError
	if !errors.As(err, &ne) || !ne.Timeout() || !errors.Is(err, os.ErrDeadlineExceeded) || !errors.As(err, &oe) {
		t.Errorf("%s: %v, want an OpError that is a time-out", what, err)
	}
}

// resync resynchronizes a connection whose streams were cut off anywhere: it reads on both sides until a mark
// comes.
func resync(t *testing.T, a, b net.Conn) {
	t.Helper()
	a.SetDeadline(never)
	b.SetDeadline(never)
	var wait sync.WaitGroup
	for _, ends := range [][2]net.Conn{{a, b}, {b, a}} {
		wait.Go(func() { check(t, errOf(ends[0].Write([]byte{0xff}))) })
		wait.Go(func() {
			one := make([]byte, 1)
			for one[0] != 0xff {
				if _, err := io.ReadFull(ends[1], one); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wait.Wait()
}

func TestConn(t *testing.T) {
	eachConfiguration(t, func(t *testing.T, h *hosts) {
		for _, check := range []struct {
			name string
			f    func(t *testing.T, a, b *vianet.Conn)
		}{
			{"RacyRead", checkRacyRead}, {"RacyWrite", checkRacyWrite},
			{"PresentTimeout", checkPresentTimeout}, {"FutureTimeout", checkFutureTimeout},
			{"CloseTimeout", checkCloseTimeout}, {"Closed", checkClosed}, {"Empty", checkEmpty},
		} {
			t.Run(check.name, func(t *testing.T) {
				a, b := h.pair(t)
				check.f(t, a, b)
			})
		}
	})
}

// checkRacyRead: Reads of several goroutines, with deadlines that keep passing.
func checkRacyRead(t *testing.T, a, b *vianet.Conn) {
	var writer sync.WaitGroup
	writer.Go(func() {
		data := randomBytes(40_000, 1)
		for {
			if _, err := b.Write(data); err != nil {
				return
			}
		}
	})
	var wait sync.WaitGroup
	for range 10 {
		wait.Go(func() {
			small, large := make([]byte, 1024), make([]byte, 70_000)
			for i := range 10 {
				buf := small
				if i%3 == 0 {
					buf = large
				}
				a.SetReadDeadline(time.Now().Add(time.Millisecond))
				if _, err := a.Read(buf); err != nil {
					isTimeout(t, "Read", err)
				}
			}
		})
	}
	wait.Wait()
	b.Close()
	writer.Wait()
}

// checkRacyWrite: the same for Writes.
func checkRacyWrite(t *testing.T, a, b *vianet.Conn) {
	var reader sync.WaitGroup
	reader.Go(func() { io.Copy(io.Discard, b) })
	data := randomBytes(50_000, 1)
	var wait sync.WaitGroup
	for range 10 {
		wait.Go(func() {
			for i := range 10 {
				n := 35
				if i%3 == 0 {
					n = len(data)
				}
				a.SetWriteDeadline(time.Now().Add(time.Millisecond))
				if _, err := a.Write(data[:n]); err != nil {
					isTimeout(t, "Write", err)
				}
			}
		})
	}
	wait.Wait()
	a.Close()
	reader.Wait()
}

// checkPresentTimeout: a deadline that is set while a Read and a Write are blocked ends them. The stream goes on
// afterwards where it was.
func checkPresentTimeout(t *testing.T, a, b *vianet.Conn) {
	blocked(t, a, b, func() {
		time.AfterFunc(20*time.Millisecond, func() { a.SetDeadline(longAgo) })
	})
}

// checkFutureTimeout: a deadline in the future passes while they are blocked.
func checkFutureTimeout(t *testing.T, a, b *vianet.Conn) {
	blocked(t, a, b, func() { a.SetDeadline(time.Now().Add(20 * time.Millisecond)) })
}

// blocked runs end while a Read and a Write block, and waits for its effect.
func blocked(t *testing.T, a, b *vianet.Conn, end func()) {
	for _, size := range []int{1024, 100_000} {
		end()
		var wait sync.WaitGroup
		wait.Go(func() {
			_, err := a.Read(make([]byte, size))
			isTimeout(t, "Read", err)
		})
		wait.Go(func() {
			var err error
			for err == nil {
				_, err = a.Write(make([]byte, size))
			}
			isTimeout(t, "Write", err)
		})
		wait.Wait()
		resync(t, a, b)
		exchange(t, a, b, 100_000)
		balanced(t, a, b)
	}
}

// checkCloseTimeout: Close ends a Read and a Write that are blocked.
func checkCloseTimeout(t *testing.T, a, b *vianet.Conn) {
	var wait sync.WaitGroup
	wait.Go(func() {
		time.Sleep(10 * time.Millisecond)
		a.Close()
	})
	wait.Go(func() {
		isErr(t, "Read", errOf(a.Read(make([]byte, 100_000))), net.ErrClosed)
	})
	wait.Go(func() {
		var err error
		for err == nil {
			_, err = a.Write(make([]byte, 100_000))
		}
		nstest.WantErr(t, "Write", err, net.ErrClosed)
	})
	wait.Wait()
}

// checkClosed: after Close everything but the addresses fails, and again.
func checkClosed(t *testing.T, a, b *vianet.Conn) {
	if a.LocalAddr().String() != b.RemoteAddr().String() || a.RemoteAddr().String() != b.LocalAddr().String() {
		t.Errorf("%v-%v and %v-%v", a.LocalAddr(), a.RemoteAddr(), b.LocalAddr(), b.RemoteAddr())
	}
	check(t, a.Close())
	_, readErr := a.Read(make([]byte, 1))
	_, writeErr := a.Write(make([]byte, 1))
	for i, err := range []error{readErr, writeErr, a.Close(), a.CloseWrite(), a.SetDeadline(never)} {
		nstest.ErrorIf(t, !errors.Is(err, net.ErrClosed), "call %d after Close: %v", i, err)
	}
	if n, err := b.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("the peer reads %d bytes, %v", n, err)
	}
}

// checkEmpty: Reads and Writes of nothing wait for nothing.
func checkEmpty(t *testing.T, a, b *vianet.Conn) {
	if n, err := a.Write(nil); n != 0 || err != nil {
		t.Errorf("Write: %d, %v", n, err)
	}
	if n, err := b.Read(nil); n != 0 || err != nil {
		t.Errorf("Read: %d, %v", n, err)
	}
	a.CloseWrite()
	isErr(t, "Write of nothing after CloseWrite", errOf(a.Write(nil)), net.ErrClosed)
}

// The checks of golang.org/x/net for any net.Conn. Each check has a minute, in which two sides that sleep may not
// get the CPU a thousand times; only TestConn has that configuration.
func TestNettest(t *testing.T) {
	eachConfiguration(t, func(t *testing.T, h *hosts) {
		if strings.HasSuffix(t.Name(), "/asleep") {
			t.Skip("TestConn has these checks without a limit")
		}
		h.conforms(t)
	})
}

func (h *hosts) conforms(t *testing.T) {
	nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
		a, b := h.pair(t)
		return a, b, func() { a.Close(); b.Close() }, nil
	})
}
