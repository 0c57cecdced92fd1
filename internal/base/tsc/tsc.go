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

// point is a moment by both clocks.
type point struct {
	ticks uint64
	at    time.Time
}

// look reads both clocks as close together as it gets in a few tries.
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

// began is when the program did: the longer ago, the better Rate is known.
var began = look()

// calibration is the least time over which Rate measures: reading both clocks is
// good to some 50 ns, and so the rate to one part in 100,000.
const calibration = 5 * time.Millisecond

// Rate is the length of a tick in ns << 32, measured once against the monotonic
// clock, over the time since the program began but at least 5 ms; the first
// call may sleep for that. false: there is no steady TSC, or it makes no sense.
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
