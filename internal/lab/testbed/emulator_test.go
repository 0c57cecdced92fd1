package testbed

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/nstest"
)

// A forwarder that delays frames sleeps until the next is due, but wakes for those that come before: only for the last hundredth
// of the delay do they wait. It takes and passes frames in turns.
func TestNap(t *testing.T) {
	const delay, frames = 100 * time.Second, batch + 8
	var in, out [2]int
	for _, pair := range []*[2]int{&in, &out} {
		var err error
		*pair, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK, 0)
		nstest.Must(t, err)
		defer unix.Close(pair[0])
		defer unix.Close(pair[1])
	}
	e := &emulator{in: in[0], out: out[0], epoch: time.Now(), faults: Faults{Delay: delay}, randomSource: newRandomSource(), buf: make([]byte, maxFrame)}
	for range frames {
		_, err := unix.Write(in[1], make([]byte, 60))
		nstest.Must(t, err)
	}
	for _, c := range []struct {
		what        string
		later       time.Duration // than the turn before
		least, most time.Duration // to wait
		nap         bool
		passed      uint64
	}{
		{"frames have come", 0, 0, 0, false, 0},
		{"the rest of them", 0, delay / 2, delay, false, 0},
		{"one is due soon", delay * 995 / 1000, delay / napShare, delay / napShare, true, 0},
		{"they are due", delay / 100, 0, 0, false, batch},
		{"the rest of them", 0, -1, -1, false, frames},
	} {
		e.epoch = e.epoch.Add(-c.later)
		wait, nap := e.turn()
		if wait < c.least || wait > c.most || nap != c.nap || e.n.Passed != c.passed {
			t.Errorf("%s: wait %v, nap %v, %d passed", c.what, wait, nap, e.n.Passed)
		}
	}
}
