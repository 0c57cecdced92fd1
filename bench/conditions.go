package bench

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Conditions under which the figures were measured.
type Conditions struct {
	Kernel     string   `json:"kernel"`
	CPUs       int      `json:"cpus"`
	CPUModel   string   `json:"cpu_model"`  // as /proc/cpuinfo has it; empty: it does not say
	Hypervisor bool     `json:"hypervisor"` // /proc/cpuinfo says that one is below
	Interface  string   `json:"interface"`
	Mode       string   `json:"mode"`         // XDP mode reached; empty without AF_XDP
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

// learn takes facts of an endpoint, unless a better one has told them.
func (c *Conditions) learn(f Facts) {
	if f.Mode == "" || c.Mode != "" {
		return
	}
	c.Interface, c.Mode, c.MTU, c.FrameBytes, c.Hugepages = f.Interface, f.Mode, f.MTU, f.FrameBytes, f.Memory
	if f.Features != nil {
		c.Features = f.Features
	}
}

// pinned notes the CPU of each side if both have a single one.
func (c *Conditions) pinned(client, server Facts) {
	if len(client.CPUs) == 1 && len(server.CPUs) == 1 {
		c.PinnedCPUs = []int{client.CPUs[0], server.CPUs[0]}
	}
}

// pollingOf tells how the rows of a run wait for messages.
func pollingOf(rows []Row) string {
	asleep := 0
	for _, r := range rows {
		if t, err := find(r.Name); err == nil && (t.sleeps || r.VI.Notify) {
			asleep++
		}
	}
	switch asleep {
	case 0:
		return "spin"
	case len(rows):
		return "wait"
	}
	return "spin; names with -wait, -block and -net sleep"
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
