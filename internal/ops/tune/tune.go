// Package tune has the settings of a machine for low latency or for throughput,
// as steps that package undo takes and takes back.
//
//	setting                        latency            throughput
//	CPU clock (cpufreq)            performance        performance
//	idle states, exit over 10 us   off                as they are
//	transparent hugepages          madvise            madvise
//	2 MB pages of the pool         two NICs' worth    two NICs' worth
//	rx-usecs, tx-usecs             0                  50
//	adaptive-rx, adaptive-tx       off                off
//	rings                          as they are        the largest
//	napi_defer_hard_irqs,
//	gro_flush_timeout, threaded    0                  0
//
// What the machine does not have is left out.
package tune

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/ops/doctor"
	"viaxdp/internal/ops/undo"
)

// Profile is what a machine is tuned for.
type Profile string

// The profiles.
const (
	Latency    Profile = "latency"
	Throughput Profile = "throughput"
)

// Profiles lists them.
func Profiles() []Profile { return []Profile{Latency, Throughput} }

// Parse reads a profile's name.
func Parse(s string) (Profile, error) {
	if p := Profile(s); slices.Contains(Profiles(), p) {
		return p, nil
	}
	return "", fmt.Errorf("--profile %q: want latency or throughput", s)
}

// Steps are the settings of a profile for the host and the interfaces of f.
// root is the file system, for what is there for each CPU.
func Steps(p Profile, f *doctor.Facts, root fs.FS) []undo.Step {
	steps := hostSteps(p, &f.Host, root)
	for i := range f.NICs {
		steps = append(steps, nicSteps(p, &f.NICs[i])...)
	}
	return steps
}

func hostSteps(p Profile, h *doctor.Host, root fs.FS) (steps []undo.Step) {
	file := func(name, value string) {
		if _, err := fs.Stat(root, name); err == nil {
			steps = append(steps, undo.Step{Setting: undo.Setting{Kind: undo.File, Name: "/" + name}, Value: value})
		}
	}
	governors, _ := fs.Glob(root, "sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor")
	for _, g := range governors {
		available, _ := fs.ReadFile(root, path.Dir(g)+"/scaling_available_governors")
		if slices.Contains(strings.Fields(string(available)), "performance") {
			file(g, "performance")
		}
	}
	if p == Latency {
		states, _ := fs.Glob(root, "sys/devices/system/cpu/cpu[0-9]*/cpuidle/state[0-9]*")
		for _, s := range states {
			b, _ := fs.ReadFile(root, s+"/latency")
			if us, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil && us > doctor.SlowIdle {
				file(s+"/disable", "1")
			}
		}
	}
	if h.THP == "never" {
		file("sys/kernel/mm/transparent_hugepage/enabled", "madvise")
	}
	total, free := h.HugePages()
	if want := 2 * kagent.DefaultArena >> 21; free < want && len(h.HugeNodes) > 0 {
		file("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", strconv.Itoa(total+want-free))
	}
	return steps
}

func nicSteps(p Profile, n *doctor.NIC) (steps []undo.Step) {
	add := func(k undo.Kind, name, value string) {
		steps = append(steps, undo.Step{Setting: undo.Setting{Kind: k, Interface: n.Name, Name: name}, Value: value})
	}
	if n.Coalesce != nil {
		usecs := map[Profile]string{Latency: "0", Throughput: "50"}[p]
		for _, c := range [][2]string{{"adaptive-rx", "off"}, {"adaptive-tx", "off"}, {"rx-usecs", usecs}, {"tx-usecs", usecs}} {
			if n.Coalesce[c[0]] != c[1] {
				add(undo.Coalesce, c[0], c[1])
			}
		}
	}
	if p == Throughput {
		for i, name := range []string{"rx", "tx"} {
			if n.Ring[i] < n.RingMax[i] {
				add(undo.Ring, name, strconv.Itoa(n.RingMax[i]))
			}
		}
	}
	for _, name := range undo.NetFiles {
		if v, ok := n.Sysfs[name]; ok && v != "0" {
			add(undo.NetFile, name, "0")
		}
	}
	return steps
}
