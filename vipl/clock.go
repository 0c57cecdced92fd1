package vipl

import (
	"math/bits"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/tsc"
)

// epoch lies far enough back for the clock of a testing/synctest bubble, which
// starts in the year 2000, to be positive, too.
var epoch = time.Now().Add(-60 * 365 * 24 * time.Hour)

// clock is the engine's time in ns: monotonic and never 0.
func clock() int64 { return int64(time.Since(epoch)) + 1 }

// steadyClock is clock by the processor's counter, which is read twice for each
// message and costs a third; or clock itself where there is no such counter. It
// runs at a rate that is measured once, and so drifts from clock by some 10 ppm.
func steadyClock() func() int64 {
	ns, ok := tsc.Rate()
	if !ok {
		return clock
	}
	ticks, start := tsc.Read(), clock()
	var lost atomic.Bool
	return func() int64 {
		passed := tsc.Read() - ticks
		if int64(passed) < 0 || lost.Load() {
			// Some machines begin to count anew when they wake up.
			lost.Store(true)
			return clock()
		}
		hi, lo := bits.Mul64(passed, ns)
		return start + int64(hi<<32|lo>>32)
	}
}

// cpuTime is what the process has used.
func cpuTime() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}
