package vianet_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/memorynic"
	"viaxdp/internal/lab/nstest"
	"viaxdp/vianet"
)

// lingering returns hosts on which Close goes on delivering for longer than any test runs.
func lingering(t *testing.T, o vianet.Options, c memorynic.Config) *hosts {
	o.Linger = time.Hour
	h := inMemoryBy(t, o, c)
	h.bearBreaks()
	return h
}

func eachLingering(t *testing.T, f func(t *testing.T, h *hosts)) {
	t.Helper()
	for _, l := range configurations {
		t.Run(l.name, func(t *testing.T) {
			h := lingering(t, l.options, l.nics)
			f(t, h)
			h.atRest(t)
		})
	}
}

// fill writes until neither the peer, which does not read, nor c has room for more.
func fill(t *testing.T, c *vianet.Conn) (written []byte) {
	t.Helper()
	for i := byte(0); !vianet.Full(c); i++ {
		b := randomBytes(100, i)
		c.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
		n, err := c.Write(b)
		written = append(written, b[:n]...)
		nstest.FatalIf(t, err != nil && !errors.Is(err, os.ErrDeadlineExceeded), "%v", err)
	}
	c.SetWriteDeadline(never)
	return written
}

// writesOn writes messages of a size until a Write fails, and sends that error on the channel. It returns once a
// Write blocks.
func writesOn(t *testing.T, c *vianet.Conn, size int) <-chan error {
	t.Helper()
	ended := background(func() (err error) {
		for err == nil {
			_, err = c.Write(make([]byte, size))
		}
		return err
	})
	await.Until(t, "a Write waits", func() bool { return vianet.Full(c) || vianet.Offered(c) })
	return ended
}

// A Close with bytes for which the peer has no room does not block the peer's Write while it goes on delivering: the
// Write ends, and then everything can be read.
func TestCloseUnsent(t *testing.T) {
	eachLingering(t, func(t *testing.T, h *hosts) {
		for _, size := range []int{100, 300_000} {
			a, b := h.pair(t)
			want := fill(t, a)
			b.SetDeadline(time.Now().Add(testTimeout))
			ended := writesOn(t, b, size)
			must(t, a.Close())
			nstest.WantErr(t, fmt.Sprintf("the peer's Write of %d bytes", size), <-ended, syscall.ECONNRESET)
			nstest.WantErr(t, "the peer's CloseWrite", b.CloseWrite(), nil)
			readsAll(t, b, want)
			b.Close()
		}
	})
}

// If both sides close with unsent bytes, no reader is left, and the connection is gone at once.
func TestBothCloseUnsent(t *testing.T) {
	eachLingering(t, func(t *testing.T, h *hosts) {
		for _, first := range []int{0, 1} {
			a, b := h.pair(t)
			fill(t, a)
			fill(t, b)
			for _, c := range [][]*vianet.Conn{{a, b}, {b, a}}[first] {
				check(t, c.Close())
			}
		}
	})
}

// After CloseRead the peer's Writes fail, including blocked ones, and this side's Reads end. The other direction
// goes on.
func TestCloseRead(t *testing.T) {
	eachLingering(t, func(t *testing.T, h *hosts) {
		for _, size := range []int{0, 100, 300_000} { // of Writes that wait
			a, b := h.pair(t)
			a.SetDeadline(time.Now().Add(testTimeout))
			b.SetDeadline(time.Now().Add(testTimeout))
			var ended <-chan error
			want := error(syscall.ECONNRESET)
			if size == 0 {
				ended, want = goRead(a, 100_000), io.EOF
				await.Until(t, "a Read is under way", func() bool { return vianet.Reads(a) })
				time.Sleep(10 * time.Millisecond) // in which it mostly comes to wait
			} else {
				ended = writesOn(t, b, size)
			}
			for range 2 {
				check(t, a.CloseRead())
			}
			nstest.WantErr(t, fmt.Sprintf("the Read that was under way, or the peer's Write of %d bytes", size), <-ended, want)
			readsNothing(t, "a Read after it", a, 100_000, io.EOF)
			for _, n := range []int{100, 300_000} {
				var err error
				for err == nil { // the first may still find room
					_, err = b.Write(make([]byte, n))
				}
				nstest.WantErr(t, "a later Write of the peer", err, syscall.ECONNRESET)
				nstest.WantErr(t, "a later Write of the peer", err, vianet.ErrReadClosed)
			}
			carry(t, a, b, randomBytes(200_000, 1)) // the other direction
			check(t, a.CloseWrite())
			readsNothing(t, "after the last byte", b, 1, io.EOF)
			check(t, errors.Join(a.Close(), b.Close()))
			isErr(t, "after Close", a.CloseRead(), net.ErrClosed)
		}
	})
}

// shutDown begins a Shutdown. Its listener is closed when it returns.
func shutDown(t *testing.T, ctx context.Context, s *vianet.Stack, l *vianet.Listener) (ended <-chan error) {
	t.Helper()
	ended = background(func() error { return s.Shutdown(ctx) })
	isErr(t, "Accept", nstest.Err(l.Accept()), net.ErrClosed)
	return ended
}

// Shutdown delivers what was written before a Close for as long as the peer takes; Close of the stack does not.
// Shutdown waits no longer than that.
func TestShutdownDelivers(t *testing.T) {
	const late = 20 * time.Second
	for _, graceful := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			h := onPath(t, vianet.Options{Linger: time.Hour}, 0)
			a, b := h.pair(t)
			want := fill(t, a)
			a.Close()
			start := time.Now()
			end := h.a.Close
			if graceful {
				end = func() error { return h.a.Shutdown(t.Context()) }
			}
			ended := background(end)
			time.Sleep(late)
			got, err := io.ReadAll(b)
			nstest.ErrorIf(t, (err == nil && bytes.Equal(got, want)) != graceful, "graceful: %v: %d bytes of %d were read, %v", graceful, len(got), len(want), err)
			check(t, <-ended)
			nstest.ErrorIf(t, graceful && time.Since(start) > late+time.Second, "it took %v", time.Since(start))
			b.Close()
		})
	}
}

// Until the last connection is closed, the stack can dial but accepts no connections.
func TestShutdownWaits(t *testing.T) {
	h := lingering(t, vianet.Options{}, memorynic.Config{})
	a, b := h.pair(t)
	c, d := h.pair(t)
	l, other := h.listen(t), h.listen(t)
	waiting := h.dial(t, l.Addr())
	back, err := h.a.Listen("via", ":0")
	must(t, err)
	await.Until(t, "a connection waits for Accept", func() bool { return h.b.Stats().Accepted == 3 })
	ended := shutDown(t, t.Context(), h.b, other)
	isErr(t, "a connection that nobody has accepted", nstest.Err(waiting.Read(make([]byte, 1))), syscall.ECONNRESET)
	isErr(t, "Dial of a listener", nstest.Err(h.a.Dial("via", l.Addr().String())), syscall.ECONNREFUSED)
	isErr(t, "Listen", nstest.Err(h.b.Listen("via", ":0")), net.ErrClosed)
	_, port, _ := net.SplitHostPort(back.Addr().String())
	e, err := h.b.Dial("via", net.JoinHostPort(h.nicA.Query().Address.String(), port))
	nstest.FatalIf(t, err != nil, "Dial: %v", err)
	exchange(t, a, b, 100_000)
	for _, c := range []net.Conn{b, d, e} {
		select {
		case err := <-ended:
			t.Fatalf("it has ended before a connection: %v", err)
		default:
		}
		check(t, c.Close())
	}
	check(t, <-ended)
	for _, c := range []*vianet.Conn{a, c} {
		readsNothing(t, "the peer of one that was closed", c, 1, io.EOF)
	}
	isErr(t, "Dial of a closed stack", nstest.Err(h.b.Dial("via", "10.0.0.9:1")), net.ErrClosed)
	nstest.WantErr(t, "a second one", h.b.Shutdown(t.Context()), nil)
}

// When its time is over, Shutdown closes what is left. If nothing is left by then, it returns no error.
func TestShutdownEnds(t *testing.T) {
	for _, left := range []bool{true, false} {
		h := inMemory(t, vianet.Options{})
		a, b := h.pair(t)
		ctx, cancel := context.WithCancel(t.Context())
		if !left {
			b.Close()
			await.Until(t, "it is gone", func() bool { return h.b.Stats().Conns == 0 })
			cancel()
		}
		l := h.listen(t)
		ended := shutDown(t, ctx, h.b, l)
		cancel()
		want := error(nil)
		if left {
			want = context.Canceled
		}
		nstest.WantErr(t, fmt.Sprint("Shutdown, connections are left: ", left), <-ended, want)
		readsNothing(t, "the peer", a, 1, io.EOF)
		isErr(t, "Write", nstest.Err(b.Write([]byte{1})), net.ErrClosed)
	}
}

// Close of the stack ends a Shutdown.
func TestCloseEndsShutdown(t *testing.T) {
	h := inMemory(t, vianet.Options{})
	h.pair(t)
	ended := shutDown(t, context.Background(), h.b, h.listen(t))
	check(t, h.b.Close())
	check(t, <-ended)
}

// A peer that has connected and not greeted does not delay the end of a stack: its connection was for Accept.
func TestShutdownBesideSilentPeer(t *testing.T) {
	h := inMemory(t, vianet.Options{})
	l := h.listen(t)
	p := h.meet(t, l, true)
	await.Until(t, "the connection waits for a greeting", func() bool { return h.b.Stats().Conns == 1 })
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	nstest.WantErr(t, "Shutdown", h.b.Shutdown(ctx), nil)
	p.isOver()
}

// A peer that was accepted and does not confirm delays the end of a stack by a second at most.
func TestCloseBesideUnconfirmed(t *testing.T) {
	for name, end := range map[string]func(*vianet.Stack) error{
		"Close":    (*vianet.Stack).Close,
		"Shutdown": func(s *vianet.Stack) error { return s.Shutdown(context.Background()) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { closeBesideUnconfirmed(t, end) })
		})
	}
}

func closeBesideUnconfirmed(t *testing.T, end func(*vianet.Stack) error) {
	h := inMemoryOf(t, asleep, memorynic.Config{Agent: memorynic.Unconfirming}, memorynic.Config{})
	l := h.listen(t)
	ctx, cancel := context.WithCancel(t.Context())
	asked := background(func() error { return nstest.Err(h.a.DialContext(ctx, "via", l.Addr().String())) })
	synctest.Wait()
	nstest.Equal(t, "connections on their way to Accept", vianet.Waiting(l), 1)
	start := time.Now()
	check(t, end(h.b))
	nstest.ErrorIf(t, time.Since(start) > 2*time.Second, "it took %v", time.Since(start))
	cancel()
	isErr(t, "Dial", <-asked, context.Canceled)
}

// Accept of a closed listener says so, also if SetDeadline with a time that has passed runs beside Close.
func TestCloseBesideDeadline(t *testing.T) {
	h := inMemory(t, vianet.Options{})
	for range 500 {
		l := h.listen(t)
		go l.Close()
		for l.SetDeadline(time.Unix(1, 0)) == nil {
		}
		isErr(t, "Accept", nstest.Err(l.Accept()), net.ErrClosed)
		if t.Failed() {
			return
		}
	}
}
