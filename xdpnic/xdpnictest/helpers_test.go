package xdpnictest_test

import (
	"encoding/binary"
	"testing"

	"go.uber.org/goleak"

	"viaxdp/xdpnic"
	"viaxdp/xdpnic/xdpnictest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const frameLen = 64

// pair joins two queues. At the end of the test chunks must be conserved and
// none be used wrongly.
func pair(t testing.TB, cfg xdpnictest.Config) (a, b *xdpnictest.Queue) {
	t.Helper()
	w := xdpnictest.NewWire()
	qs := make([]*xdpnictest.Queue, 2)
	for i := range qs {
		q, err := w.Queue(cfg)
		if err != nil {
			t.Fatal(err)
		}
		qs[i] = q
	}
	t.Cleanup(func() {
		w.Close()
		for _, q := range qs {
			sound(t, q)
			q.Close()
		}
	})
	return qs[0], qs[1]
}

func sound(t testing.TB, q *xdpnictest.Queue) {
	t.Helper()
	if err := q.Audit(); err != nil {
		t.Error(err)
	}
}

// send queues a frame that carries number n.
func send(t testing.TB, q *xdpnictest.Queue, n int, retain bool) (addr uint64) {
	t.Helper()
	addr, b, ok := q.Alloc()
	if !ok {
		t.Fatalf("frame %d: no chunk", n)
	}
	clear(b[:frameLen])
	binary.BigEndian.PutUint32(b[20:], uint32(n))
	if !q.Send(addr, frameLen, retain) {
		t.Fatalf("frame %d refused", n)
	}
	return addr
}

func sendAll(t testing.TB, q *xdpnictest.Queue, from, to int) {
	t.Helper()
	for n := from; n < to; n++ {
		send(t, q, n, false)
		flush(t, q)
	}
}

func flush(t testing.TB, q *xdpnictest.Queue) {
	t.Helper()
	if err := q.Flush(); err != nil {
		t.Fatal(err)
	}
}

// receive takes all frames that are there and returns their numbers.
func receive(q *xdpnictest.Queue) (numbers []int) {
	var frames [16]xdpnic.Frame
	for {
		n := q.Receive(frames[:])
		if n == 0 {
			return numbers
		}
		for _, f := range frames[:n] {
			if len(f.Data) >= 24 {
				numbers = append(numbers, int(binary.BigEndian.Uint32(f.Data[20:])))
			} else {
				numbers = append(numbers, -1)
			}
			q.Recycle(f.Addr)
		}
		q.Refill()
	}
}

func count(from, to int) (n []int) {
	for i := from; i < to; i++ {
		n = append(n, i)
	}
	return n
}
