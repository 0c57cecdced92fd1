package vianet_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/memorynic"
	"viaxdp/internal/lab/nstest"
	"viaxdp/vianet"
)

// randomBytes are n bytes that are always the same.
func randomBytes(n int, seed byte) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{seed})
	r.Read(b)
	return b
}

// writeAll writes b in pieces of random size, some of them large.
func writeAll(w io.Writer, b []byte, seed uint64) error {
	r := rand.New(rand.NewPCG(seed, 1))
	for len(b) > 0 {
		n := 1 + r.IntN(1<<r.IntN(19))
		n = min(n, len(b))
		k, err := w.Write(b[:n])
		if err != nil {
			return err
		}
		if k != n {
			return errors.New("a Write without error took less than all")
		}
		b = b[n:]
	}
	return nil
}

// readAll reads n bytes in pieces of random size.
func readAll(c io.Reader, n int, seed uint64) ([]byte, error) {
	r := rand.New(rand.NewPCG(seed, 2))
	got := make([]byte, 0, n)
	for len(got) < n {
		size := min(1+r.IntN(1<<r.IntN(19)), n-len(got))
		k, err := c.Read(got[len(got) : len(got)+size])
		got = got[:len(got)+k]
		if err != nil {
			return got, err
		}
	}
	return got, nil
}

// exchange sends n bytes in both directions at once and compares them.
func exchange(t *testing.T, a, b net.Conn, n int) {
	t.Helper()
	var wait sync.WaitGroup
	defer wait.Wait()
	for i, ends := range [][2]net.Conn{{a, b}, {b, a}} {
		data := randomBytes(n, byte(i))
		wait.Go(func() {
			if err := writeAll(ends[0], data, uint64(i)); err != nil {
				t.Errorf("direction %d: %v", i, err)
				a.Close()
				b.Close()
			}
		})
		wait.Go(func() {
			got, err := readAll(ends[1], n, uint64(i))
			if err != nil {
				t.Errorf("direction %d: after %d of %d bytes: %v", i, len(got), n, err)
				a.Close()
				b.Close()
				return
			}
			nstest.ErrorIf(t, !bytes.Equal(got, data), "direction %d: other bytes, from %d on", i, firstDifference(got, data))
		})
	}
}

func firstDifference(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return len(a)
}

// balanced checks that no buffer and no credit of an idle connection is lost.
func balanced(t *testing.T, a, b *vianet.Conn) {
	t.Helper()
	why := ""
	if !await.Comes(func() bool { why = vianet.Unbalanced(a, b) + vianet.Unbalanced(b, a); return why == "" }) {
		t.Error(why)
	}
}

// The data written before CloseWrite or Close is read to its end, then EOF. After CloseWrite the other direction
// goes on.
func TestHalfClose(t *testing.T) {
	eachConfiguration(t, func(t *testing.T, h *hosts) {
		a, b := h.pair(t)
		const n = 200_000
		data := randomBytes(n, 3)
		wrote := background(func() error { return errors.Join(nstest.Err(a.Write(data)), a.CloseWrite()) })
		got, err := io.ReadAll(b)
		nstest.FatalIf(t, err != nil || !bytes.Equal(got, data), "%d bytes, %v", len(got), err)
		must(t, <-wrote)
		isErr(t, "Write after CloseWrite", nstest.Err(a.Write(data)), net.ErrClosed)
		wrote = background(func() error { return errors.Join(nstest.Err(b.Write(data)), b.Close()) })
		readsAll(t, a, data)
		check(t, <-wrote)
	})
}

// Once the peer has closed the connection, CloseWrite is no error: forwarders would take the error for one of the
// data that they still have to read.
func TestCloseWriteAfterClose(t *testing.T) {
	eachConfiguration(t, func(t *testing.T, h *hosts) {
		a, b := h.pair(t)
		data := randomBytes(200, 9)
		must(t, nstest.Err(a.Write(data)))
		a.Close()
		<-vianet.Gone(b)
		for range 2 {
			check(t, b.CloseWrite())
		}
		isErr(t, "a Write after it", nstest.Err(b.Write(data)), net.ErrClosed)
		readsAll(t, b, data)

		for _, ended := range []bool{false, true} { // the peer's stream, before it breaks the connection
			a, b = h.pair(t)
			if ended {
				must(t, a.CloseWrite())
			}
			a.SetLinger(0)
			a.Close()
			<-vianet.Gone(b)
			isErr(t, "of a connection that was broken", b.CloseWrite(), syscall.ECONNRESET)
			_, err := b.Write(data)
			nstest.WantErr(t, "a Write on a connection that was broken", err, syscall.ECONNRESET)
			nstest.ErrorIf(t, errors.Is(err, vianet.ErrReadClosed), "ended %v: a Write on a broken connection: %v", ended, err)
		}
	})
}

// A peer that has ended its stream may still wait for this side's end. If the connection loses that end, CloseWrite
// returns an error.
func TestCloseWriteAfterSilence(t *testing.T) { synctest.Test(t, closeWriteAfterSilence) }

func closeWriteAfterSilence(t *testing.T) {
	h := toBeSilent(t)
	a, b := h.pair(t)
	must(t, a.CloseWrite())
	must(t, nstest.Err(io.ReadAll(b)))
	h.wire.Cut(true)
	must(t, nstest.Err(b.Write([]byte("the answer"))))
	<-vianet.Gone(b)
	for range 2 {
		isErr(t, "CloseWrite", b.CloseWrite(), syscall.ECONNRESET)
	}
	isErr(t, "a Write after it", nstest.Err(b.Write([]byte("more"))), syscall.ECONNRESET)
}

// CloseWrite also returns an error if the peer leaves before all was sent.
func TestCloseWriteUnsent(t *testing.T) {
	h := inMemory(t, vianet.Options{})
	l := h.listen(t)
	p := h.meet(t, l, false)
	p.send(message{kind: hello, id: version, credits: 1, length: 1000})
	c := accept(t, l)
	defer c.Close()
	p.send(message{kind: fin})
	must(t, nstest.Err(io.ReadAll(c)))
	must(t, nstest.Err(c.Write(make([]byte, 1500)))) // two messages
	p.receive(data)
	p.vi.Disconnect()
	<-vianet.Gone(c)
	isErr(t, "CloseWrite", c.CloseWrite(), syscall.ECONNRESET)
}

// SetLinger decides whether written data is delivered, and whether the peer reads EOF or an error.
func TestLinger(t *testing.T) {
	eachConfiguration(t, func(t *testing.T, h *hosts) {
		for sec, want := range map[int]error{-1: nil, 60: nil, 0: syscall.ECONNRESET} {
			a, b := h.pair(t)
			must(t, nstest.Err(a.Write(randomBytes(200, 9))))
			must(t, nstest.Err(io.ReadFull(b, make([]byte, 100))))
			reading := goRead(a, 1)
			must(t, errors.Join(a.SetLinger(sec), a.Close()))
			isErr(t, "the Read that was under way", <-reading, net.ErrClosed)
			b.SetReadDeadline(time.Now().Add(testTimeout))
			got, err := io.ReadAll(b)
			nstest.ErrorIf(t, len(got) != 100 || !errors.Is(err, want), "%d: %d bytes more, %v", sec, len(got), err)
			isErr(t, "SetLinger after Close", a.SetLinger(sec), net.ErrClosed)
		}
		a, _ := h.pair(t)
		check(t, a.SetLinger(math.MaxInt))
		nstest.ErrorIf(t, vianet.Linger(a) < 100*365*24*time.Hour, "more seconds than a Duration has: %v", vianet.Linger(a))
	})
}

// When both sides only write, both block, and their data arrives once they read.
func TestBothOnlyWrite(t *testing.T) {
	eachConfiguration(t, func(t *testing.T, h *hosts) {
		a, b := h.pair(t)
		for _, size := range []int{100, 300_000} {
			short := time.Now().Add(50 * time.Millisecond)
			var sum [2][]byte
			var wait sync.WaitGroup
			for i, c := range []*vianet.Conn{a, b} {
				c.SetDeadline(short)
				wait.Go(func() {
					data := randomBytes(size, byte(i))
					for {
						n, err := c.Write(data)
						sum[i] = append(sum[i], data[:n]...)
						if err != nil {
							nstest.ErrorIf(t, !errors.Is(err, os.ErrDeadlineExceeded), "%v", err)
							return
						}
					}
				})
			}
			wait.Wait()
			for i, c := range []*vianet.Conn{b, a} {
				c.SetDeadline(time.Now().Add(testTimeout))
				got := make([]byte, len(sum[i]))
				must(t, nstest.Err(io.ReadFull(c, got)))
				nstest.ErrorIf(t, sha256.Sum256(got) != sha256.Sum256(sum[i]), "%d bytes that are not what was written", len(got))
			}
		}
	})
}

// toBeSilent returns hosts in memory with a short silence.
func toBeSilent(t *testing.T) *hosts {
	h := inMemoryBy(t, asleep, memorynic.Config{Silence: 2 * time.Second}) // long enough to connect
	h.bearBreaks()
	return h
}

// A connection whose peer falls silent breaks; calls that wait in it fail.
func TestPeerLost(t *testing.T) { synctest.Test(t, peerLost) }

func peerLost(t *testing.T) {
	h := toBeSilent(t)
	a, b := h.pair(t)
	h.wire.Cut(true)
	var wait sync.WaitGroup
	for _, c := range []net.Conn{a, b} {
		c.SetDeadline(time.Now().Add(testTimeout))
		wait.Go(func() {
			isErr(t, "Read", nstest.Err(c.Read(make([]byte, 100_000))), syscall.ECONNRESET)
		})
		wait.Go(func() {
			isErr(t, "Write", nstest.Err(c.Write(make([]byte, 100_000))), syscall.ECONNRESET)
		})
	}
	wait.Wait()
	isErr(t, "CloseWrite", a.CloseWrite(), syscall.ECONNRESET)
}
