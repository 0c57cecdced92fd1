package bench

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Conditions under which the figures were measured.
type Conditions struct {
	Kernel     string   `json:"kernel"`
	CPUs       int      `json:"cpus"`
	CPUModel   string   `json:"cpu_model"`  // as /proc/cpuinfo has it; empty: it does not say
	Hypervisor bool     `json:"hypervisor"` // /proc/cpuinfo says that one is below
	Interface  string   `json:"interface"`
	Mode       string   `json:"mode"`         // XDP mode reached; empty without AF_XDP, and where programs open their NICs themselves
	Features   []string `json:"xdp_features"` // of the interface's driver
	MTU        int      `json:"mtu"`
	FrameBytes int      `json:"frame_bytes"` // longest AF_XDP frame, headers included
	Hugepages  string   `json:"hugepages"`   // pages under the UMEM: hugetlb, thp, 4k
	Polling    string   `json:"polling"`
	PinnedCPUs []int    `json:"pinned_cpus"` // client's, server's; empty: not pinned
	Version    string   `json:"version"`
}

// HostConditions are those that do not depend on a transport.
func HostConditions() Conditions {
	c := Conditions{
		CPUs: runtime.NumCPU(), Features: []string{}, PinnedCPUs: []int{}, Version: Version(),
	}
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		c.CPUModel, c.Hypervisor = cpuModel(string(info))
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		c.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	return c
}

// cpuModel reads proc_cpuinfo(5): what the first CPU is called, and whether it says
// that a hypervisor is below it. Where it has no name (arm64) its numbers stand for it.
func cpuModel(info string) (model string, hypervisor bool) {
	fields := map[string]string{}
	for line := range strings.Lines(info) {
		name, value, ok := strings.Cut(line, ":")
		name = strings.TrimSpace(name)
		if _, known := fields[name]; ok && !known {
			fields[name] = strings.Join(strings.Fields(value), " ")
		}
	}
	hypervisor = slices.Contains(strings.Fields(fields["flags"]), "hypervisor")
	for _, name := range []string{"model name", "cpu model", "cpu", "uarch"} { // x86, MIPS, POWER, RISC-V
		if fields[name] != "" {
			return fields[name], hypervisor
		}
	}
	if fields["CPU implementer"] != "" {
		return strings.TrimSpace("implementer " + fields["CPU implementer"] + " part " + fields["CPU part"]), hypervisor
	}
	return "", hypervisor
}

// CPU is the processor in a few words: how many CPUs, and of what.
func (c Conditions) CPU() string {
	s := fmt.Sprintf("%d CPUs", c.CPUs)
	if c.CPUModel != "" {
		s += " " + c.CPUModel
	}
	if c.Hypervisor {
		s += " below a hypervisor"
	}
	return s
}

// learn records the facts of an endpoint, unless an earlier endpoint with an XDP mode
// has set them.
func (c *Conditions) learn(f Facts) {
	if f.Mode == "" || c.Mode != "" {
		return
	}
	c.Interface, c.Mode, c.MTU, c.FrameBytes, c.Hugepages = f.Interface, f.Mode, f.MTU, f.FrameBytes, f.Memory
	if f.Features != nil {
		c.Features = f.Features
	}
}

// pinned notes the CPU of each side if all have a single one.
func (c *Conditions) pinned(sides ...Facts) {
	if slices.ContainsFunc(sides, func(f Facts) bool { return len(f.CPUs) != 1 }) {
		return
	}
	c.PinnedCPUs = nil
	for _, f := range sides {
		c.PinnedCPUs = append(c.PinnedCPUs, f.CPUs[0])
	}
}

// conditionsOf are those of the host and of the sides of a measurement.
func conditionsOf(polling string, sides ...Facts) Conditions {
	c := HostConditions()
	c.learn(sides[0])
	c.pinned(sides...)
	c.Polling = polling
	return c
}

// PollingOf describes how the rows of a run wait for messages.
func PollingOf(rows []Row) string {
	asleep := 0
	for _, r := range rows {
		if known(r.Name).sleeps || r.VI.Notify {
			asleep++
		}
	}
	switch asleep {
	case 0:
		return "spin"
	case len(rows):
		return "wait"
	}
	return "spin; vianet and names with -wait, -block and -net sleep"
}

// Version of this program as the Go build knows it: the module's version, or
// the revision it was built from.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	version, modified := "(devel)", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			version = s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = "+dirty"
		}
	}
	return version + modified
}

// Span is how long a round took and what it cost this process.
type Span struct {
	Wall time.Duration `json:"wall"`
	CPU  time.Duration `json:"cpu"` // user and system time of all threads, getrusage(2)

	Waited time.Duration `json:"waited"` // that the measuring thread was ready to run and had no CPU
	Stolen time.Duration `json:"stolen"` // that all CPUs waited for a hypervisor that ran others, proc_stat(5)
	CPUs   int           `json:"cpus"`   // of the machine: this process may have fewer
}

func (s *Span) add(o Span) {
	s.Wall, s.CPU = s.Wall+o.Wall, s.CPU+o.CPU
	s.Waited, s.Stolen = s.Waited+o.Waited, s.Stolen+o.Stolen
	s.CPUs = max(s.CPUs, o.CPUs)
}

// cpuEach is the CPU time in microseconds of each message.
func (s Span) cpuEach(messages int64) float64 {
	return round3(float64(s.CPU) / 1e3 / float64(max(messages, 1)))
}

// Where the kernel reports the time that this thread was ready to run and had no CPU (Documentation/scheduler/sched-stats.rst),
// and the steal time of all CPUs since the machine started.
const (
	schedstat = "/proc/thread-self/schedstat"
	procStat  = "/proc/stat"
)

// timeAt is what a file of the kernel reports; 0 if there is none.
func timeAt(path string, in func([]byte) time.Duration) time.Duration {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	return in(b)
}

// stopwatch measures a Span.
type stopwatch struct {
	wall   time.Time
	cpu    time.Duration
	waited time.Duration
	stolen time.Duration
}

// startStopwatch reads the clock last, and span reads it first, so the span excludes
// the cost of the other readings.
func startStopwatch() stopwatch {
	s := stopwatch{stolen: timeAt(procStat, stolenIn), waited: timeAt(schedstat, waitIn), cpu: usage()}
	s.wall = time.Now()
	return s
}

func (s stopwatch) span() Span {
	wall := time.Since(s.wall)
	return Span{
		Wall: wall, CPU: usage() - s.cpu,
		Waited: max(0, timeAt(schedstat, waitIn)-s.waited), Stolen: max(0, timeAt(procStat, stolenIn)-s.stolen),
		CPUs: machineCPUs(),
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

// stolenIn reads /proc/stat: cpu user nice system idle iowait irq softirq steal ...
func stolenIn(b []byte) time.Duration {
	line, _, _ := bytes.Cut(b, []byte("\n"))
	return timeIn(bytes.Fields(line), 8, userTick)
}

// machineCPUs counts the CPUs whose times are summed in /proc/stat: a line each follows the sum.
var machineCPUs = sync.OnceValue(func() int {
	b, err := os.ReadFile(procStat)
	if err != nil {
		return 0
	}
	return bytes.Count(b, []byte("\ncpu"))
})

// A measurement is disturbed when a hypervisor took more than stealShare of the
// machine's CPU time away meanwhile, or when the thread of a worker that polls, and so
// has a CPU for itself, waited for it for more than waitShare of the time. The kernel's
// own work and the Go runtime's monitor take 1 to 4 %; another program that wants the
// CPU takes half. A stolen time below two ticks may be one tick that began long before.
const (
	stealShare = 0.01
	stealTicks = 2
	waitShare  = 0.1
	waitSlip   = 100 * time.Microsecond // allowance for a short measurement
)

// disturbances says why a measurement is doubtful; nil: it is not.
func disturbances(client, server Span, polls bool) []string {
	var reasons []string
	// Steal is that of the machine: both sides of a bed see the same, and two hosts each its own.
	stolen := func(s Span) bool {
		return s.Stolen >= stealTicks*userTick && float64(s.Stolen) > stealShare*float64(s.Wall)*float64(s.CPUs)
	}
	if stolen(client) || stolen(server) {
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

// joinReasons adds those that are not there yet.
func joinReasons(to, more []string) []string {
	for _, m := range more {
		if !slices.Contains(to, m) {
			to = append(to, m)
		}
	}
	return to
}
