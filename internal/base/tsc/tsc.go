package tsc

import (
	"os"
	"strings"
	"sync"
	"time"
)

const source = "/sys/devices/system/clocksource/clocksource0/current_clocksource"

// Steady reports whether the kernel keeps time by the TSC.
var Steady = sync.OnceValue(func() bool {
	if !exists {
		return false
	}
	b, err := os.ReadFile(source)
	return err == nil && strings.TrimSpace(string(b)) == "tsc"
})

// point is one moment on both clocks.
type point struct {
	ticks uint64
	at    time.Time
}

// look reads both clocks, in the attempt of a few that took the least time.
func look() (p point) {
	least := ^uint64(0)
	for range 5 {
		before := Read()
		at := time.Now()
		if took := Read() - before; took < least {
			least = took
			p = point{before + took/2, at}
		}
	}
	return p
}

// began is the start of the program. The longer ago it is, the more accurate Rate is.
var began = look()

// calibration is the least time over which Rate measures. Reading both clocks has an error of about 50 ns, so the
// rate has one of 1 in 100,000.
const calibration = 5 * time.Millisecond

// Rate returns the length of a tick in ns << 32. It is measured once against the monotonic clock, over the time
// since the program's start but at least 5 ms; the first call may sleep for that. false: there is no steady TSC, or
// the result is implausible.
func Rate() (ns uint64, ok bool) {
	ns = rate()
	return ns, ns != 0
}

var rate = sync.OnceValue(func() uint64 {
	if !Steady() {
		return 0
	}
	if missing := calibration - time.Since(began.at); missing > 0 {
		time.Sleep(missing)
	}
	end := look()
	ticks, elapsed := end.ticks-began.ticks, end.at.Sub(began.at)
	if ticks == 0 || elapsed <= 0 {
		return 0
	}
	ns := float64(elapsed) / float64(ticks)
	if ns < 0.05 || ns > 20 { // 20 GHz, 50 MHz
		return 0
	}
	return uint64(ns * (1 << 32))
})
