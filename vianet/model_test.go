package vianet_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"viaxdp/internal/lab/memorynic"
	"viaxdp/vianet"
	"viaxdp/xdpnic/xdpnictest"
)

// The model of a connection: what each side has written and the other has not read is a queue of bytes. A Write
// appends the bytes that it returns as written. A Read takes some from the front, and waits only if there are none.
// A stream that has ended is read to its end, even after the end of the other stream.
type streams struct {
	sides    [2]*vianet.Conn
	unread   [2][]byte // of what a side has written
	over     [2]bool   // it writes no more
	ended    [2]bool   // the other side sees an end of stream
	closed   [2]bool
	draining [2]bool // it reads no more
	breaks   [2]bool // it was closed so that nothing is delivered
	spoken   int
	lost     bool // a call took so long that the connection may have been reset: nothing is known any more
}

// sizes are lengths of Writes and Reads: around that of a message, the threshold of transfers, and a staging buffer.
var sizes = rapid.OneOf(
	rapid.SampledFrom([]int{0, 1, 200, 320 - 88, 1999, 2001, 4136, 4137, 32768, 32769, 65535, 65536, 200_000}),
	rapid.IntRange(0, 150_000))

const shortly = 500 * time.Microsecond

// write has side i write, while the other side reads or no side does.
func (m *streams) write(r *rapid.T, i int) {
	if m.lost {
		return
	}
	n, heard := sizes.Draw(r, "bytes"), rapid.Bool().Draw(r, "heard")
	heard = heard && !m.over[i] && !m.closed[1-i] && !m.draining[1-i]
	from := m.spoken * 7919 % (len(speeches) - 200_000)
	m.spoken++
	b := speeches[from : from+n]
	c := m.sides[i]
	done := make(chan string, 1)
	if heard {
		c.SetWriteDeadline(time.Now().Add(testTimeout))
		want := append(m.unread[i], b...)
		piece := max(1, len(want)/1000, sizes.Draw(r, "read")) // at most about 1000 Reads
		m.unread[i] = nil
		go func() { done <- reads(m.sides[1-i], want, piece) }()
	} else {
		c.SetWriteDeadline(time.Now().Add(shortly))
		done <- ""
	}
	start := time.Now()
	k, err := c.Write(b)
	m.lost = m.lost || time.Since(start) > vianet.ReleaseTime
	why := <-done
	switch {
	case m.lost:
		return
	case m.over[i]:
		if k != 0 || !errors.Is(err, net.ErrClosed) {
			r.Fatalf("a Write after the end: %d, %v", k, err)
		}
	case heard:
		if k != n || err != nil || why != "" {
			r.Fatalf("%d bytes of %d written, %v; the reader: %s", k, n, err, why)
		}
		return
	case err == nil && k == n:
	case errors.Is(err, os.ErrDeadlineExceeded) && k <= n:
	case errors.Is(err, syscall.ECONNRESET) && (m.closed[1-i] || m.draining[1-i]):
	default:
		r.Fatalf("%d bytes of %d written, %v", k, n, err)
	}
	if !m.closed[1-i] && !m.draining[1-i] {
		m.unread[i] = append(m.unread[i], b[:k]...)
	}
}

// reads reads the expected bytes and returns what is wrong with them.
func reads(c *vianet.Conn, want []byte, piece int) string {
	c.SetReadDeadline(time.Now().Add(testTimeout))
	buf := make([]byte, piece)
	for len(want) > 0 {
		n, err := c.Read(buf)
		switch {
		case err != nil:
			return err.Error()
		case n > len(want) || !bytes.Equal(buf[:n], want[:n]):
			return "other bytes"
		}
		want = want[n:]
	}
	return ""
}

// read has side i read.
func (m *streams) read(r *rapid.T, i int) {
	if m.lost {
		return
	}
	n := sizes.Draw(r, "bytes")
	c, from := m.sides[i], 1-i
	waits := n > 0 && len(m.unread[from]) == 0 && !m.over[from] && !m.draining[i]
	if waits {
		c.SetReadDeadline(time.Now().Add(shortly))
	} else {
		c.SetReadDeadline(time.Now().Add(testTimeout))
	}
	buf := make([]byte, n)
	k, err := c.Read(buf)
	if k > len(m.unread[from]) || !bytes.Equal(buf[:k], m.unread[from][:k]) {
		r.Fatalf("%d bytes that are not what is to come", k)
	}
	m.unread[from] = m.unread[from][k:]
	switch {
	case m.closed[i]:
		if k != 0 || !errors.Is(err, net.ErrClosed) {
			r.Fatalf("a Read after Close: %d, %v", k, err)
		}
	case n > 0 && m.draining[i]:
		if k != 0 || err != io.EOF {
			r.Fatalf("a Read after CloseRead: %d, %v", k, err)
		}
	case m.breaks[from] && errors.Is(err, syscall.ECONNRESET):
	case n == 0:
		if err != nil {
			r.Fatalf("a Read of nothing: %v", err)
		}
	case k > 0:
		if err != nil {
			r.Fatalf("%d bytes and %v", k, err)
		}
	case waits:
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			r.Fatalf("there is nothing to read: %v", err)
		}
	case err != io.EOF || !m.ended[from] || len(m.unread[from]) > 0:
		r.Fatalf("%v, with %d bytes to come", err, len(m.unread[from]))
	}
}

// closeWrite has side i end its stream.
func (m *streams) closeWrite(r *rapid.T, i int) {
	if m.lost {
		return
	}
	err := m.sides[i].CloseWrite()
	switch {
	case m.closed[i]:
		if !errors.Is(err, net.ErrClosed) {
			r.Fatalf("CloseWrite after Close: %v", err)
		}
	case err == nil:
		m.over[i], m.ended[i] = true, true
	case !errors.Is(err, syscall.ECONNRESET) || !m.closed[1-i]:
		r.Fatal(err)
	}
}

// closeRead makes side i read no more.
func (m *streams) closeRead(r *rapid.T, i int) {
	if m.lost {
		return
	}
	if err := m.sides[i].CloseRead(); m.closed[i] != errors.Is(err, net.ErrClosed) || err != nil && !m.closed[i] {
		r.Fatal(err)
	}
	m.draining[i], m.unread[1-i] = true, nil
}

// close closes side i; its data is delivered unless breaks is set.
func (m *streams) close(r *rapid.T, i int, breaks bool) {
	if m.lost {
		return
	}
	var err error
	if breaks {
		err = m.sides[i].SetLinger(0)
	}
	err = errors.Join(err, m.sides[i].Close())
	if m.closed[i] != errors.Is(err, net.ErrClosed) || err != nil && !m.closed[i] {
		r.Fatal(err)
	}
	if !m.closed[i] {
		m.breaks[i], m.ended[i] = breaks, m.ended[i] || !breaks
	}
	m.closed[i], m.over[i], m.unread[1-i] = true, true, nil
}

// past sets a deadline of side i in the past, which ends all calls at once.
func (m *streams) past(r *rapid.T, i int) {
	if m.lost {
		return
	}
	c := m.sides[i]
	if err := c.SetDeadline(longAgo); m.closed[i] != errors.Is(err, net.ErrClosed) {
		r.Fatal(err)
	}
	n := 1 + sizes.Draw(r, "bytes")
	k, err := c.Read(make([]byte, n))
	if want := map[bool]error{true: net.ErrClosed, false: os.ErrDeadlineExceeded}[m.closed[i]]; k != 0 || !errors.Is(err, want) {
		r.Fatalf("a Read past its deadline: %d, %v", k, err)
	}
	k, err = c.Write(make([]byte, n))
	if want := map[bool]error{true: net.ErrClosed, false: os.ErrDeadlineExceeded}[m.over[i]]; k != 0 || !errors.Is(err, want) {
		r.Fatalf("a Write past its deadline: %d, %v", k, err)
	}
}

// delay switches SetNoDelay.
func (m *streams) delay(r *rapid.T, i int) {
	if m.lost {
		return
	}
	if err := m.sides[i].SetNoDelay(rapid.Bool().Draw(r, "at once")); m.closed[i] != errors.Is(err, net.ErrClosed) {
		r.Fatal(err)
	}
}

// finish reads everything, checks that nothing is missing, and closes both sides.
func (m *streams) finish(t *testing.T, r *rapid.T) {
	if whole := m.closed == [2]bool{} && m.draining == [2]bool{} && !m.lost; whole {
		for i, c := range m.sides {
			c.SetNoDelay(true)
			if why := reads(m.sides[1-i], m.unread[i], 100_000); why != "" {
				r.Fatalf("in the end, %d bytes of side %d: %s", len(m.unread[i]), i, why)
			}
		}
		balanced(t, m.sides[0], m.sides[1])
	}
	for _, c := range m.sides {
		c.Close()
	}
}

// For any sequence of operations of two programs, a connection does what the model says, and no credit or buffer is
// lost.
func TestModel(t *testing.T) {
	config := func(name string, o vianet.Options, c memorynic.Config, f xdpnictest.Faults) {
		t.Run(name, func(t *testing.T) {
			o.Linger = testTimeout
			h := inMemoryBy(t, o, c)
			h.wire.SetFaults(f)
			h.bearBreaks()
			rapid.Check(t, func(r *rapid.T) {
				a, b := h.pair(t)
				m := &streams{sides: [2]*vianet.Conn{a, b}}
				defer a.Close() // also when it fails
				defer b.Close()
				either := func(f func(*rapid.T, int)) func(*rapid.T) {
					return func(r *rapid.T) { f(r, rapid.IntRange(0, 1).Draw(r, "side")) }
				}
				seldom := func(f func(*rapid.T, int)) func(*rapid.T) {
					return either(func(r *rapid.T, i int) {
						if rapid.IntRange(0, 7).Draw(r, "this time") == 0 {
							f(r, i)
						}
					})
				}
				r.Repeat(map[string]func(*rapid.T){
					"write": either(m.write), "write again": either(m.write), "read": either(m.read), "read again": either(m.read),
					"past": either(m.past), "delay": either(m.delay), "close write": seldom(m.closeWrite), "close read": seldom(m.closeRead),
					"close": seldom(func(r *rapid.T, i int) { m.close(r, i, rapid.Bool().Draw(r, "breaks")) }),
				})
				m.finish(t, r)
			})
			h.atRest(t)
			if f.Loss > 0 {
				h.wasLossy(t)
			}
		})
	}
	for _, l := range configurations {
		config(l.name, l.options, l.nics, xdpnictest.Faults{})
	}
	// A case has only a few dozen frames, so the share of faults must be high.
	torn := xdpnictest.Faults{Seed: 5, Loss: 0.1, Dup: 0.05, Reorder: 0.1}
	config("read, loss", vianet.Options{}, memorynic.Config{}, torn)
	config("write, loss", vianet.Options{NoRDMARead: true}, memorynic.Config{}, torn)
	config("packets, loss", vianet.Options{}, packets, torn)
}
