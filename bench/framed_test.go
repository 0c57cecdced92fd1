package bench

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
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

func (w *cable) hello() Hello  { return Hello{Payload: w.payload, Window: w.window} }
func (w *cable) connect(Hello) {}
func (w *cable) next() []byte  { w.buf = make([]byte, w.payload); return w.buf }

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

// twoFramed are two connected sides over a wire that wait for frames.
func twoFramed(t interface {
	Helper()
	Fatal(...any)
}, payload, window int) (a, b *framed, wa, wb *cable) {
	wa, wb = newCables(payload, window)
	a, b = &framed{io: wa, sleeps: true}, &framed{io: wb, sleeps: true}
	nstest.Must(t, fail.Try(func() { a.Connect(wb.hello()); b.Connect(wa.hello()) }))
	return a, b, wa, wb
}

// pingEcho and sendReceive run a round on both sides.
func pingEcho(a, b *framed, r Round, rtt []int64) error {
	return together(func() error { return fail.Try(func() { a.Ping(r, rtt) }) }, func() error { return fail.Try(func() { b.Echo(r) }) })
}

func sendReceive(a, b *framed, r Round) error {
	return together(func() error { return fail.Try(func() { a.Send(r) }) }, func() error { return fail.Try(func() { b.Receive(r) }) })
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
		nstest.Must(t, pingEcho(a, b, r, make([]int64, r.Messages)))
		r.ID = 2
		nstest.Must(t, sendReceive(a, b, r))
	})
}

// A lost, duplicated, changed or truncated frame is an error, not an
// endless wait: of a stream, and of a ping-pong of one frame without a check.
func TestFramedNoticesFaults(t *testing.T) {
	for _, c := range []struct {
		fault string
		do    func(f []byte) [][]byte
		want  string // of a stream
		short string // of a ping-pong; empty: it is not noticed there
	}{
		{"lost", func([]byte) [][]byte { return nil }, "frames were lost", ""},
		{"doubled", func(f []byte) [][]byte { return [][]byte{f, f} }, "changed order", "changed order"},
		{"changed", func(f []byte) [][]byte { f[len(f)-1] ^= 1; return [][]byte{f} }, "byte", ""},
		{"cut", func(f []byte) [][]byte { return [][]byte{f[:len(f)-1]} }, "bytes, not", "frames were lost or changed order"},
	} {
		for _, short := range []bool{false, true} {
			if short && c.short == "" {
				continue
			}
			a, b, wa, _ := twoFramed(t, 100, 64)
			r, want := Round{ID: 1, Bytes: 50, Messages: 20, Check: !short}, c.want
			client, server := func() { a.Send(r) }, func() { b.Receive(r) }
			if short {
				a, b, wa, _ = shortPair(t, nil)
				want, client, server = c.short, func() { a.Ping(r, make([]int64, r.Messages)) }, func() { b.Echo(r) }
			}
			n := 0
			wa.deliver = func(f []byte) [][]byte {
				if n++; n == 5 {
					return c.do(f)
				}
				return [][]byte{f}
			}
			var stop func()
			a.watch.ctx, stop = stopping(t)
			ended := make(chan error, 1)
			go func() { ended <- fail.Try(client) }()
			nstest.ErrSays(t, fmt.Sprintf("%s, short %v", c.fault, short), fail.Try(server), want)
			stop() // it waits for credits, or an echo
			nstest.WantErr(t, c.fault+": the other side", <-ended, ErrStopped)
		}
	}
}

// Frames of an earlier round are skipped.
func TestFramedStrayFrames(t *testing.T) {
	a, b, wa, _ := twoFramed(t, 100, 8)
	wa.out <- []byte{kindData, 0, 9, 0, 0, 0, 0, 0, 'x'}
	wa.out <- []byte{kindData}
	r := Round{ID: 10, Bytes: 1, Messages: 3, Check: true}
	nstest.Must(t, sendReceive(a, b, r))
}

func TestFramedRefuses(t *testing.T) {
	wa, _ := newCables(frameHeader, 8)
	nstest.ErrorIf(t, fail.Try(func() { (&framed{io: wa}).Connect(Hello{Payload: 100, Window: 100}) }) == nil, "frames without room for content")
	wa, _ = newCables(100, 3)
	nstest.ErrorIf(t, fail.Try(func() { (&framed{io: wa}).Connect(Hello{Payload: 100, Window: 100}) }) == nil, "a window of 3")
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
		nstest.ErrSays(t, "a changed byte", verify(i, 10, got), fmt.Sprintf("message %d: byte 109", i))
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
	a, b = &framed{io: polledCable{wa}}, &framed{io: polledCable{wb}, into: into}
	a.watch.ctx, b.watch.ctx = t.Context(), t.Context()
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
	nstest.Must(t, pingEcho(a, b, r, rtt))
	if !a.short() || slices.Contains(rtt, 0) || a.sent != 23 || a.received != 23 || b.received != 23 {
		t.Errorf("short %v, %d sent, %d and %d received, times %v", a.short(), a.sent, a.received, b.received, rtt)
	}
	wa.deliver = func(f []byte) [][]byte { copy(f[frameHeader:], "kept"); return [][]byte{f} }
	r.ID++
	nstest.Must(t, pingEcho(a, b, r, rtt))
	nstest.Equal(t, "kept", string(into[:4]), "kept")
	wa.deliver = func(f []byte) [][]byte { return [][]byte{f} }
	for _, other := range []Round{{ID: 12, Bytes: 50, Messages: 2, Check: true}, {ID: 13, Bytes: 500, Messages: 2}} {
		if err := pingEcho(a, b, other, rtt); err != nil || a.short() {
			t.Errorf("%+v: %v, short %v", other, err, a.short())
		}
	}
}
