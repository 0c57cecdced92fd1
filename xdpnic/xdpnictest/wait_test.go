package xdpnictest_test

import (
	"encoding/binary"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"viaxdp/internal/lab/nstest"
	"viaxdp/xdpnic"
	"viaxdp/xdpnic/xdpnictest"
)

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := pair(t, xdpnictest.Config{})
		took := func(timeout time.Duration) time.Duration {
			start := time.Now()
			nstest.Check(t, b.Wait(timeout))
			return time.Since(start)
		}
		nstest.Equal(t, "time-out after", took(time.Second), time.Second)
		nstest.Equal(t, "without time it took", took(0), 0)
		b.Wake()
		b.Wake()
		nstest.Equal(t, "after Wake", took(time.Second), 0)
		nstest.Equal(t, "with one Wake for two it took", took(time.Second), time.Second)
		time.AfterFunc(time.Minute, b.Wake)
		nstest.Equal(t, "woken after", took(-1), time.Minute)
		time.AfterFunc(time.Minute, func() { sendAll(t, a, 0, 1) })
		nstest.Equal(t, "a frame woke after", took(-1), time.Minute)
		nstest.Equal(t, "with a frame there", took(-1), 0)
		receive(b)
		nstest.Equal(t, "with the frame received it took", took(time.Second), time.Second)
	})
}

func TestFrameWakesAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := pair(t, xdpnictest.Config{})
		var awake atomic.Int32
		for range 5 {
			go func() {
				nstest.Check(t, b.Wait(-1))
				awake.Add(1)
			}()
		}
		synctest.Wait()
		sendAll(t, a, 0, 1)
		synctest.Wait()
		nstest.Equal(t, "awake", awake.Load(), 5)
	})
}

func TestCloseEndsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b := pair(t, xdpnictest.Config{})
		done := make(chan error)
		for range 2 {
			go func() { done <- b.Wait(-1) }()
		}
		synctest.Wait()
		b.Close()
		for range 2 {
			nstest.WantErr(t, "closed", <-done, xdpnic.ErrClosed)
		}
	})
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const frameLen = 64

// pair joins two queues. At the end of the test chunks must be conserved and
// none be used wrongly.
func pair(t testing.TB, cfg xdpnictest.Config) (a, b *xdpnictest.Queue) {
	t.Helper()
	_, qs := joined(t, cfg, cfg)
	return qs[0], qs[1]
}

// joined is pair for any number of queues.
func joined(t testing.TB, cfgs ...xdpnictest.Config) (w *xdpnictest.Wire, qs []*xdpnictest.Queue) {
	t.Helper()
	w = xdpnictest.NewWire()
	for _, cfg := range cfgs {
		q, err := w.Queue(cfg)
		must(t, err)
		qs = append(qs, q)
	}
	t.Cleanup(func() {
		w.Close()
		for _, q := range qs {
			sound(t, q)
			q.Close()
		}
	})
	return w, qs
}

func sound(t testing.TB, q *xdpnictest.Queue) {
	t.Helper()
	nstest.Check(t, q.Audit())
}

// send queues a frame that carries number n.
func send(t testing.TB, q *xdpnictest.Queue, n int, retain bool) (addr uint64) {
	t.Helper()
	addr, b, ok := q.Alloc()
	nstest.FatalIf(t, !ok, "frame %d: no chunk", n)
	clear(b[:frameLen])
	binary.BigEndian.PutUint32(b[20:], uint32(n))
	nstest.FatalIf(t, !q.Send(addr, frameLen, retain), "frame %d refused", n)
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
	must(t, q.Flush())
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
