package bench

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// stopwatch measures a Span.
type stopwatch struct {
	wall     time.Time
	cpu      time.Duration
	switches int
	stolen   time.Duration
}

// startWatch looks at the clock last, and span first: what the other looks
// cost is no part of the span.
func startWatch() stopwatch {
	s := stopwatch{stolen: stolenTime()}
	s.cpu, s.switches = usage()
	s.wall = time.Now()
	return s
}

func (s stopwatch) span() Span {
	wall := time.Since(s.wall)
	cpu, switches := usage()
	return Span{
		Wall: wall, CPU: cpu - s.cpu, Switches: switches - s.switches, Stolen: stolenTime() - s.stolen,
	}
}

// usage is the user and system time of this process, and how often one of its
// threads had to leave a CPU that it would have used.
func usage() (cpu time.Duration, switches int) {
	var ru unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &ru); err != nil {
		return 0, 0
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano()), int(ru.Nivcsw)
}

// userTick is the unit of the times in /proc/stat, 1/sysconf(_SC_CLK_TCK).
const userTick = 10 * time.Millisecond

// stolenTime is the steal time of all CPUs since the machine started; 0 where
// the kernel does not tell.
func stolenTime() time.Duration {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	line, _, _ := bytes.Cut(b, []byte("\n"))
	fields := bytes.Fields(line) // cpu user nice system idle iowait irq softirq steal ...
	if len(fields) < 9 {
		return 0
	}
	ticks, err := strconv.ParseInt(string(fields[8]), 10, 64)
	if err != nil {
		return 0
	}
	return time.Duration(ticks) * userTick
}

// A measurement is disturbed when a hypervisor took more than stealShare of the
// machine's CPU time away meanwhile, or when a worker that polls, and so has a
// CPU for itself, had to leave it more often than switchRate times a second.
// Less than two ticks of stolen time may be one that began long before.
const (
	stealShare = 0.01
	stealTicks = 2
	switchRate = 200
	switchSlip = 10 // switches that a short measurement may have all the same
)

// disturbances says why a measurement is doubtful; nil: it is not.
func disturbances(client, server Span, polls bool) []string {
	var reasons []string
	// Steal is that of the machine: both sides of a bed see the same.
	if span := longer(client, server); span.Stolen >= stealTicks*userTick &&
		float64(span.Stolen) > stealShare*float64(span.Wall)*float64(runtime.NumCPU()) {
		reasons = append(reasons, "CPU time was stolen by the hypervisor")
	}
	if !polls {
		return reasons
	}
	for _, side := range []struct {
		name string
		span Span
	}{{"client", client}, {"server", server}} {
		if n := side.span.Switches; n > switchSlip && float64(n) > switchRate*side.span.Wall.Seconds() {
			reasons = append(reasons, fmt.Sprintf("the %s was put off its CPU more than %d times a second", side.name, switchRate))
		}
	}
	return reasons
}

func longer(a, b Span) Span {
	if b.Wall > a.Wall {
		return b
	}
	return a
}

// joinReasons adds those that are not there yet.
func joinReasons(to, more []string) []string {
	for _, m := range more {
		if !slices.Contains(to, m) {
			to = append(to, m)
		}
	}
	return to
}
