package vianet_test

import (
	"io"
	"testing"
	"time"

	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
	"viaxdp/vianet"
)

// ringedByPackets returns a connection whose bytes leave in packets, and to whose peer it writes by a ring. The peer has
// read everything and given it back.
func ringedByPackets(t *testing.T) (h *hosts, a, b *vianet.Conn) {
	t.Helper()
	h = inMemoryBy(t, vianet.Options{}, packets)
	a, b = h.pair(t)
	got := make([]byte, 100_000)
	for range 3 { // the ring comes about
		wrote := goWrite(a, got)
		must(t, nstest.Err(io.ReadFull(b, got)))
		must(t, <-wrote)
	}
	nstest.FatalIf(t, vianet.Packet(a) < 60_000, "no ring, or packets of %d bytes", vianet.Packet(a))
	b.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := b.Read(got)
	isTimeout(t, "Read", err)
	b.SetReadDeadline(never)
	await.Until(t, "a Read that finds nothing gives the ring back", func() bool { return !vianet.MayHold(a) })
	return h, a, b
}

// In a stream that the peer does not read at once, the bytes of several Writes leave in full packets, but for the first
// ones. They all arrive when it reads.
func TestStreamFillsPackets(t *testing.T) {
	h, a, b := ringedByPackets(t)
	const size, writes = 16 << 10, 16
	before := h.a.Stats().Ring
	data := randomBytes(size*writes, 1)
	for i := range writes {
		must(t, nstest.Err(a.Write(data[i*size:][:size])))
		nstest.ErrorIf(t, i < 2 && vianet.Tail(a) > 0, "Write %d: %d bytes wait", i, vianet.Tail(a))
	}
	after := h.a.Stats().Ring
	times, bytes := after.Times-before.Times, int(after.Bytes-before.Bytes)
	nstest.ErrorIf(t, times > 9, "%d RDMA writes for %d bytes", times, bytes)
	nstest.ErrorIf(t, bytes+vianet.Tail(a) != len(data) || vianet.Tail(a) == 0, "%d bytes have left, and %d wait", bytes, vianet.Tail(a))
	got := make([]byte, len(data))
	must(t, nstest.Err(io.ReadFull(b, got)))
	nstest.ErrorIf(t, firstDifference(got, data) < len(data), "other bytes from %d on", firstDifference(got, data))
	balanced(t, a, b)
}

// Bytes do not wait for more if the peer may answer them, or this side does something else. The peer need not read
// first.
func TestTailLeaves(t *testing.T) {
	const size = 40_000
	for _, c := range []struct {
		name string
		then func(t *testing.T, a *vianet.Conn) <-chan error // of a Write that is under way, or nil
		more int                                             // bytes that it writes
	}{
		{"when a Read waits", func(t *testing.T, a *vianet.Conn) <-chan error {
			goRead(a, 1) // until the connection ends
			return nil
		}, 0},
		{"before a short Write", func(t *testing.T, a *vianet.Conn) <-chan error { return goWrite(a, make([]byte, 100)) }, 100},
		{"before a transfer", func(t *testing.T, a *vianet.Conn) <-chan error { return goWrite(a, make([]byte, 1<<20)) }, 1 << 20},
		{"at the end of the stream", func(t *testing.T, a *vianet.Conn) <-chan error {
			must(t, a.CloseWrite())
			return nil
		}, 0},
		{"at Close", func(t *testing.T, a *vianet.Conn) <-chan error {
			must(t, a.Close())
			return nil
		}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, a, b := ringedByPackets(t)
			sent := 0
			for vianet.Tail(a) == 0 {
				must(t, nstest.Err(a.Write(randomBytes(size, byte(sent)))))
				sent += size
				nstest.FatalIf(t, sent > 5*size, "nothing waits of %d bytes", sent)
			}
			wrote := c.then(t, a)
			await.Until(t, "the tail leaves", func() bool { return vianet.Tail(a) == 0 })
			got := make([]byte, sent+c.more)
			must(t, nstest.Err(io.ReadFull(b, got)))
			if wrote != nil {
				must(t, <-wrote)
			}
			for i := 0; i < sent; i += size {
				want := randomBytes(size, byte(i))
				nstest.ErrorIf(t, firstDifference(got[i:i+size], want) < size, "other bytes from %d on", i)
			}
		})
	}
}

// What is answered does not wait.
func TestAnswersHoldNothing(t *testing.T) {
	_, a, b := ringedByPackets(t)
	for i, size := range []int{16 << 10, 40_000, 64 << 10, 100_000, 128 << 10, 30_000} {
		for range 8 {
			for _, ends := range [][2]*vianet.Conn{{a, b}, {b, a}} {
				data := randomBytes(size, byte(i))
				wrote := goWrite(ends[0], data)
				got := make([]byte, size)
				must(t, nstest.Err(io.ReadFull(ends[1], got)))
				must(t, <-wrote)
				nstest.ErrorIf(t, firstDifference(got, data) < size, "other bytes")
				nstest.ErrorIf(t, vianet.Tail(ends[0]) > 0, "%d bytes of a message of %d wait", vianet.Tail(ends[0]), size)
			}
		}
	}
	balanced(t, a, b)
	balanced(t, b, a)
}

// A program that reads between its Writes answers: what it writes then leaves whole, whatever the peer has to read.
func TestAnswerToReaderThatIsBehind(t *testing.T) {
	_, a, b := ringedByPackets(t)
	const size = 40_000
	for range 3 {
		must(t, nstest.Err(a.Write(make([]byte, size))))
	}
	nstest.FatalIf(t, vianet.Tail(a) == 0, "nothing waits in a stream")
	must(t, nstest.Err(b.Write(make([]byte, 10))))
	must(t, nstest.Err(io.ReadFull(a, make([]byte, 10))))
	must(t, nstest.Err(a.Write(make([]byte, size))))
	nstest.ErrorIf(t, vianet.Tail(a) > 0, "%d bytes of an answer wait", vianet.Tail(a))
	must(t, nstest.Err(io.ReadFull(b, make([]byte, 4*size))))
	balanced(t, a, b)
}
