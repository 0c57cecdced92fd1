package bench

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"viaxdp/internal/lab/fail"
	"viaxdp/internal/lab/nstest"
)

// cable joins two fake frame transports in memory; deliver decides what becomes
// of each frame.
type cable struct {
	payload, window int
	in, out         chan []byte
	deliver         func(frame []byte) [][]byte
	buf             []byte
	queue           [][]byte
	head            []byte // received by wait, for poll
}

func newCables(payload, window int) (a, b *cable) {
	x, y := make(chan []byte, 2*window), make(chan []byte, 2*window)
	pass := func(f []byte) [][]byte { return [][]byte{f} }
	a = &cable{payload: payload, window: window, in: x, out: y, deliver: pass}
	b = &cable{payload: payload, window: window, in: y, out: x, deliver: pass}
	return a, b
}

func (w *cable) hello() Hello        { return Hello{Payload: w.payload, Window: w.window} }
func (w *cable) connect(Hello) error { return nil }
func (w *cable) round()              {}
func (w *cable) next() []byte        { w.buf = make([]byte, w.payload); return w.buf }

func (w *cable) commit(n int) {
	w.queue = append(w.queue, bytes.Clone(w.buf[:n]))
}

func (w *cable) flush() {
	for _, f := range w.queue {
		for _, f := range w.deliver(f) {
			select {
			case w.out <- f:
			default:
				fail.With("the receiver's rings overflowed")
			}
		}
	}
	w.queue = nil
}

func (w *cable) poll() []byte {
	f := w.head
	w.head = nil
	return f
}

func (w *cable) wait() {
	select {
	case w.head = <-w.in:
	case <-time.After(10 * time.Millisecond):
	}
}

func (w *cable) close() error { return nil }

// twoFramed are two connected sides over a wire.
func twoFramed(t *rapid.T, payload, window int) (a, b *framed, wa, wb *cable) {
	wa, wb = newCables(payload, window)
	a, b = &framed{io: wa, sleeps: true}, &framed{io: wb, sleeps: true}
	for _, c := range []struct{ own, peer *framed }{{a, b}, {b, a}} {
		nstest.Must(t, fail.Try(func() { c.own.Connect(c.peer.Hello()) }))
	}
	return a, b, wa, wb
}

// For any sizes of messages, frames and windows, all bytes arrive, and no more frames
// are under way than the window and its credits allow.
func TestFramedProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		payload := rapid.IntRange(frameHeader+1, 200).Draw(t, "payload")
		window := rapid.IntRange(4, 40).Draw(t, "window")
		a, b, wa, wb := twoFramed(t, payload, window)
		for _, d := range []struct{ from, to *cable }{{wa, wb}, {wb, wa}} {
			ch := make(chan []byte, window+otherFrames)
			d.from.out, d.to.in = ch, ch
		}
		r := Round{
			ID: 1, Check: true,
			Bytes:    rapid.IntRange(1, 2000).Draw(t, "bytes"),
			Messages: rapid.IntRange(1, 20).Draw(t, "messages"),
			Lead:     rapid.IntRange(0, 3).Draw(t, "lead"),
		}
		err := together(
			func() error { return fail.Try(func() { a.Ping(r, make([]int64, r.Messages)) }) },
			func() error { return fail.Try(func() { b.Echo(r) }) })
		if err != nil {
			t.Fatalf("ping: %v", err)
		}
		r.ID = 2
		err = together(
			func() error { return fail.Try(func() { a.Send(r) }) },
			func() error { return fail.Try(func() { b.Receive(r) }) })
		if err != nil {
			t.Fatalf("stream: %v", err)
		}
	})
}

// A lost, duplicated, changed or reordered frame of a stream is an error, not an
// endless wait.
func TestFramedNoticesFaults(t *testing.T) {
	for _, c := range []struct {
		fault string
		do    func(n int, f []byte) [][]byte
		want  string
	}{
		{"lost", func(n int, f []byte) [][]byte {
			if n == 5 {
				return nil
			}
			return [][]byte{f}
		}, "frames were lost"},
		{"doubled", func(n int, f []byte) [][]byte {
			if n == 5 {
				return [][]byte{f, f}
			}
			return [][]byte{f}
		}, "changed order"},
		{"changed", func(n int, f []byte) [][]byte {
			if n == 5 {
				f[len(f)-1] ^= 1
			}
			return [][]byte{f}
		}, "byte"},
		{"cut", func(n int, f []byte) [][]byte {
			if n == 5 {
				f = f[:len(f)-1]
			}
			return [][]byte{f}
		}, "bytes, not"},
	} {
		t.Run(c.fault, func(t *testing.T) {
			wa, wb := newCables(100, 64)
			n := 0
			wa.deliver = func(f []byte) [][]byte { n++; return c.do(n, f) }
			a, b := &framed{io: wa, sleeps: true}, &framed{io: wb, sleeps: true}
			nstest.Must(t, fail.Try(func() { a.Connect(wb.hello()); b.Connect(wa.hello()) }))
			r := Round{ID: 1, Bytes: 50, Messages: 20, Check: true}
			var stop atomic.Bool
			a.watch.stop = &stop
			sent := make(chan error, 1)
			go func() { sent <- fail.Try(func() { a.Send(r) }) }()
			defer func() {
				stop.Store(true) // it waits for credits
				if err := <-sent; !errors.Is(err, ErrStopped) {
					t.Errorf("the sender ended with %v", err)
				}
			}()
			if err := fail.Try(func() { b.Receive(r) }); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want a word about %q", err, c.want)
			}
		})
	}
}

// Frames of an earlier round are skipped.
func TestFramedStrayFrames(t *testing.T) {
	wa, wb := newCables(100, 8)
	a, b := &framed{io: wa, sleeps: true}, &framed{io: wb, sleeps: true}
	nstest.Must(t, fail.Try(func() { a.Connect(wb.hello()); b.Connect(wa.hello()) }))
	wa.out <- []byte{kindData, 0, 9, 0, 0, 0, 0, 0, 'x'}
	wa.out <- []byte{kindData}
	r := Round{ID: 10, Bytes: 1, Messages: 3, Check: true}
	err := together(
		func() error { return fail.Try(func() { a.Send(r) }) },
		func() error { return fail.Try(func() { b.Receive(r) }) })
	nstest.Must(t, err)
}

func TestFramedRefuses(t *testing.T) {
	wa, _ := newCables(frameHeader, 8)
	if err := fail.Try(func() { (&framed{io: wa}).Connect(Hello{Payload: 100, Window: 100}) }); err == nil {
		t.Error("frames without room for content")
	}
	wa, _ = newCables(100, 3)
	if err := fail.Try(func() { (&framed{io: wa}).Connect(Hello{Payload: 100, Window: 100}) }); err == nil {
		t.Error("a window of 3")
	}
	for _, r := range []Round{{Messages: 1}, {Bytes: 1}, {Bytes: MaxMessage + 1, Messages: 1}, {Bytes: 1, Messages: 1, Lead: -1}} {
		if r.check() == nil {
			t.Errorf("%+v is accepted", r)
		}
	}
}

// Every byte of a message counts, and every message differs from its
// neighbours.
func TestPattern(t *testing.T) {
	for i := range 3 {
		got := bytes.Clone(content(i, 10, 100))
		nstest.Must(t, verify(i, 10, got))
		if verify(i+1, 10, got) == nil || verify(i, 11, got) == nil {
			t.Error("another message, or another place, has the same bytes")
		}
		got[99] ^= 0x80
		if err := verify(i, 10, got); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("message %d: byte 109", i)) {
			t.Errorf("got %v", err)
		}
	}
	// The last byte of the largest message of any number exists.
	for i := range patternShift {
		content(i, 0, MaxMessage)
	}
}

// polledCable is a cable that is polled.
type polledCable struct{ *cable }

func (w polledCable) poll() []byte {
	select {
	case f := <-w.in:
		return f
	default:
		runtime.Gosched()
		return nil
	}
}

// shortPair is two ends that exchange messages of one frame without a check.
func shortPair(t *testing.T, into []byte) (a, b *framed, wa, wb *cable) {
	t.Helper()
	wa, wb = newCables(100, 8)
	var stop atomic.Bool
	t.Cleanup(func() { stop.Store(true) })
	a, b = &framed{io: polledCable{wa}}, &framed{io: polledCable{wb}, into: into}
	a.watch.stop, b.watch.stop = &stop, &stop
	nstest.Must(t, fail.Try(func() { a.Connect(wb.hello()); b.Connect(wa.hello()) }))
	return a, b, wa, wb
}

// Messages of one frame go back and forth, past frames of an earlier round and with
// later frames of a stream. Kept messages are copied.
func TestFramedShort(t *testing.T) {
	into := make([]byte, 100)
	a, b, wa, _ := shortPair(t, into)
	wa.out <- []byte{kindData, 0, 9, 0, 0, 0, 0, 0, 'x'}
	wa.out <- []byte{kindData}
	wa.out <- []byte{kindCredit, 0, 10, 0, 7, 0, 0, 0}
	r := Round{ID: 10, Bytes: 50, Messages: 20, Lead: 3}
	rtt := make([]int64, r.Messages)
	err := together(func() error { return fail.Try(func() { a.Ping(r, rtt) }) }, func() error { return fail.Try(func() { b.Echo(r) }) })
	nstest.Must(t, err)
	if !a.short() || slices.Contains(rtt, 0) || a.sent != 23 || a.received != 23 || b.received != 23 {
		t.Errorf("short %v, %d sent, %d and %d received, times %v", a.short(), a.sent, a.received, b.received, rtt)
	}
	wa.deliver = func(f []byte) [][]byte { copy(f[frameHeader:], "kept"); return [][]byte{f} }
	r.ID++
	nstest.Must(t, together(func() error { return fail.Try(func() { a.Ping(r, rtt) }) }, func() error { return fail.Try(func() { b.Echo(r) }) }))
	if string(into[:4]) != "kept" {
		t.Errorf("kept %q", into[:4])
	}
	wa.deliver = func(f []byte) [][]byte { return [][]byte{f} }
	for _, other := range []Round{{ID: 12, Bytes: 50, Messages: 2, Check: true}, {ID: 13, Bytes: 500, Messages: 2}} {
		if err := together(func() error { return fail.Try(func() { a.Ping(other, rtt) }) }, func() error { return fail.Try(func() { b.Echo(other) }) }); err != nil || a.short() {
			t.Errorf("%+v: %v, short %v", other, err, a.short())
		}
	}
}

// A duplicated or truncated frame is an error.
func TestFramedShortNoticesFaults(t *testing.T) {
	for fault, do := range map[string]func(f []byte) [][]byte{
		"doubled": func(f []byte) [][]byte { return [][]byte{f, f} },
		"cut":     func(f []byte) [][]byte { return [][]byte{f[:len(f)-1]} },
	} {
		a, b, wa, _ := shortPair(t, nil)
		n := 0
		wa.deliver = func(f []byte) [][]byte {
			if n++; n == 5 {
				return do(f)
			}
			return [][]byte{f}
		}
		r := Round{ID: 1, Bytes: 50, Messages: 20}
		pinged := make(chan error, 1)
		go func() { pinged <- fail.Try(func() { a.Ping(r, make([]int64, r.Messages)) }) }()
		if err := fail.Try(func() { b.Echo(r) }); err == nil || !strings.Contains(err.Error(), "frames were lost or changed order") {
			t.Errorf("%s: %v", fault, err)
		}
		a.watch.stop.Store(true)
		if err := <-pinged; !errors.Is(err, ErrStopped) {
			t.Errorf("%s: the other side ended with %v", fault, err)
		}
	}
}
