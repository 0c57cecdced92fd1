package bench

import (
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"viaxdp/internal/lab/nstest"
)

// polledCable is a cable that is polled.
type polledCable struct{ *cable }

func (w polledCable) poll() ([]byte, error) {
	select {
	case f := <-w.in:
		return f, nil
	default:
		runtime.Gosched()
		return nil, nil
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
	nstest.Must(t, errors.Join(a.Connect(wb.hello()), b.Connect(wa.hello())))
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
	err := together(func() error {
		_, err := a.Ping(r, rtt)
		return err
	}, func() error { return b.Echo(r) })
	nstest.Must(t, err)
	if !a.short() || slices.Contains(rtt, 0) || a.sent != 23 || a.received != 23 || b.received != 23 {
		t.Errorf("short %v, %d sent, %d and %d received, times %v", a.short(), a.sent, a.received, b.received, rtt)
	}
	wa.deliver = func(f []byte) [][]byte { copy(f[frameHeader:], "kept"); return [][]byte{f} }
	r.ID++
	if err := together(func() error { _, err := a.Ping(r, rtt); return err }, func() error { return b.Echo(r) }); err != nil {
		t.Fatal(err)
	}
	if string(into[:4]) != "kept" {
		t.Errorf("kept %q", into[:4])
	}
	wa.deliver = func(f []byte) [][]byte { return [][]byte{f} }
	for _, other := range []Round{{ID: 12, Bytes: 50, Messages: 2, Check: true}, {ID: 13, Bytes: 500, Messages: 2}} {
		if err := together(func() error { _, err := a.Ping(other, rtt); return err }, func() error { return b.Echo(other) }); err != nil || a.short() {
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
		go func() { _, err := a.Ping(r, make([]int64, r.Messages)); pinged <- err }()
		if err := b.Echo(r); err == nil || !strings.Contains(err.Error(), "frames were lost or changed order") {
			t.Errorf("%s: %v", fault, err)
		}
		a.watch.stop.Store(true)
		if err := <-pinged; !errors.Is(err, ErrStopped) {
			t.Errorf("%s: the other side ended with %v", fault, err)
		}
	}
}
