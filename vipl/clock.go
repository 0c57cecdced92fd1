package vipl

import (
	"math/bits"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/base/tsc"
)

// epoch lies far enough back for the clock of a testing/synctest bubble, which starts in the year 2000, to be
// positive too.
var epoch = time.Now().Add(-60 * 365 * 24 * time.Hour)

// clock returns the engine's time in ns: monotonic and never 0.
func clock() int64 { return int64(time.Since(epoch)) + 1 }

// steadyClock returns a clock that reads the processor's time stamp counter, or clock itself where there is no
// usable counter. The engine reads the time twice for each message, and the counter costs a third as much. Its rate
// is measured once, so it drifts from clock by about 10 ppm.
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
			// Some machines restart the counter when they resume from suspend.
			lost.Store(true)
			return clock()
		}
		hi, lo := bits.Mul64(passed, ns)
		return start + int64(hi<<32|lo>>32)
	}
}

// cpuTime returns the CPU time that the process has used.
func cpuTime() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}
