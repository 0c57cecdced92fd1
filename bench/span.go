package bench

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Span is how long a round took and what it cost this process.
type Span struct {
	Wall time.Duration `json:"wall"`
	CPU  time.Duration `json:"cpu"` // user and system time of all threads, getrusage(2)

	Waited time.Duration `json:"waited"` // that the measuring thread was ready to run and had no CPU
	Stolen time.Duration `json:"stolen"` // that all CPUs waited for a hypervisor that ran others, proc_stat(5)
}

func (s *Span) add(o Span) {
	s.Wall, s.CPU = s.Wall+o.Wall, s.CPU+o.CPU
	s.Waited, s.Stolen = s.Waited+o.Waited, s.Stolen+o.Stolen
}

// cpuEach is the CPU time in microseconds of each of so many messages.
func (s Span) cpuEach(messages int64) float64 {
	return round3(float64(s.CPU) / 1e3 / float64(max(messages, 1)))
}

// stopwatch measures a Span.
type stopwatch struct {
	wall   time.Time
	cpu    time.Duration
	waited time.Duration
	stolen time.Duration
}

// startStopwatch looks at the clock last, and span first: what the other looks
// cost is no part of the span.
func startStopwatch() stopwatch {
	s := stopwatch{stolen: stolenTime(), waited: waitTime(), cpu: usage()}
	s.wall = time.Now()
	return s
}

func (s stopwatch) span() Span {
	wall := time.Since(s.wall)
	return Span{
		Wall: wall, CPU: usage() - s.cpu, Waited: max(0, waitTime()-s.waited), Stolen: max(0, stolenTime()-s.stolen),
	}
}

// usage is the user and system time of this process.
func usage() time.Duration {
	var ru unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &ru); err != nil {
		return 0
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

// waitTime is how long this thread has waited for a CPU while it could have run
// (Documentation/scheduler/sched-stats.rst); 0 where the kernel does not tell.
func waitTime() time.Duration {
	b, err := os.ReadFile("/proc/thread-self/schedstat")
	if err != nil {
		return 0
	}
	return waitIn(b)
}

// waitIn reads schedstat: time on a CPU, time waiting for one, in ns; slices.
func waitIn(b []byte) time.Duration {
	return timeIn(bytes.Fields(b), 1, time.Nanosecond)
}

// timeIn is a field in such units; 0 where it is none.
func timeIn(fields [][]byte, at int, unit time.Duration) time.Duration {
	if len(fields) <= at {
		return 0
	}
	n, err := strconv.ParseInt(string(fields[at]), 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64/int64(unit) {
		return 0
	}
	return time.Duration(n) * unit
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
	return stolenIn(b)
}

// stolenIn reads /proc/stat: cpu user nice system idle iowait irq softirq steal ...
func stolenIn(b []byte) time.Duration {
	line, _, _ := bytes.Cut(b, []byte("\n"))
	return timeIn(bytes.Fields(line), 8, userTick)
}

// A measurement is disturbed when a hypervisor took more than stealShare of the
// machine's CPU time away meanwhile, or when the thread of a worker that polls,
// and so has a CPU for itself, had to wait for it for more than waitShare of the
// time: the kernel's own work and the Go runtime's monitor take 1 to 4 %, another
// program that wants the CPU takes half. Less than two ticks of stolen time may be
// one that began long before.
const (
	stealShare = 0.01
	stealTicks = 2
	waitShare  = 0.1
	waitSlip   = 100 * time.Microsecond // that a short measurement may have waited all the same
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
		if w := side.span.Waited; w > waitSlip && float64(w) > waitShare*float64(side.span.Wall) {
			reasons = append(reasons, fmt.Sprintf("the %s waited for its CPU more than %.0f %% of the time", side.name, 100*waitShare))
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
