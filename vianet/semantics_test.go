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
		wait.Go(func() { check(t, nstest.Err(ends[0].Write([]byte{0xff}))) })
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

// Deadlines and Close end Reads and Writes, also in a transfer, in which nettest has none.
func TestBlockedEnds(t *testing.T) {
	eachConfiguration(t, func(t *testing.T, h *hosts) {
		a, b := h.pair(t)
		blockedEnds(t, a, b)
		a, b = h.pair(t)
		checkRacyWrite(t, a, b)
	})
}

// checkRacyWrite: Writes of several goroutines, with deadlines that keep passing.
func checkRacyWrite(t *testing.T, a, b *vianet.Conn) {
	var reader, writers sync.WaitGroup
	reader.Go(func() { io.Copy(io.Discard, b) })
	for range 10 {
		writers.Go(func() {
			for i := range 10 {
				a.SetWriteDeadline(time.Now().Add(time.Millisecond))
				if _, err := a.Write(make([]byte, []int{50_000, 35, 35}[i%3])); err != nil {
					isTimeout(t, "Write", err)
				}
			}
		})
	}
	writers.Wait()
	a.Close()
	reader.Wait()
}

func blockedEnds(t *testing.T, a, b *vianet.Conn) {
	t.Helper()
	checkFutureTimeout(t, a, b)
	checkCloseTimeout(t, a, b)
}

// checkFutureTimeout: a deadline passes while they are blocked. The stream goes on afterwards where it was.
func checkFutureTimeout(t *testing.T, a, b *vianet.Conn) {
	for _, size := range []int{1024, 100_000} {
		a.SetDeadline(time.Now().Add(20 * time.Millisecond))
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
		isErr(t, "Read", nstest.Err(a.Read(make([]byte, 100_000))), net.ErrClosed)
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

// The checks of golang.org/x/net for any net.Conn. Each check has a minute, in which two sides that sleep may not
// get the CPU a thousand times; TestModel and TestComeAndGo have that configuration.
func TestNettest(t *testing.T) {
	eachConfiguration(t, func(t *testing.T, h *hosts) {
		if strings.HasSuffix(t.Name(), "/asleep") {
			t.Skip("too slow for the limit of a check")
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
