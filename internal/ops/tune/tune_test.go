package tune

import (
	"testing"
	"testing/fstest"

	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/ops/doctor"
	"viaxdp/internal/ops/undo"
)

func text(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s + "\n")} }

// machine has everything that a profile can change.
func machine() (*doctor.Facts, fstest.MapFS) {
	root := fstest.MapFS{
		"sys/devices/system/cpu/cpu0/cpufreq/scaling_governor":            text("powersave"),
		"sys/devices/system/cpu/cpu0/cpufreq/scaling_available_governors": text("performance powersave"),
		"sys/devices/system/cpu/cpu1/cpufreq/scaling_governor":            text("userspace"),
		"sys/devices/system/cpu/cpu1/cpufreq/scaling_available_governors": text("userspace"),
		"sys/devices/system/cpu/cpu0/cpuidle/state1/latency":              text("2"),
		"sys/devices/system/cpu/cpu0/cpuidle/state1/disable":              text("0"),
		"sys/devices/system/cpu/cpu0/cpuidle/state2/latency":              text("133"),
		"sys/devices/system/cpu/cpu0/cpuidle/state2/disable":              text("0"),
		"sys/kernel/mm/transparent_hugepage/enabled":                      text("always madvise [never]"),
		"sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages":           text("10"),
	}
	return &doctor.Facts{
		Host: doctor.Host{THP: "never", HugeNodes: []doctor.HugeNode{{Total: 10, Free: 4}}},
		NICs: []doctor.NIC{{
			Name: "eth0", Ring: [2]int{512, 1024}, RingMax: [2]int{4096, 1024},
			Coalesce: map[string]string{"rx-usecs": "30", "tx-usecs": "0", "adaptive-rx": "on", "adaptive-tx": "off"},
			Sysfs:    map[string]string{"threaded": "1", "gro_flush_timeout": "0", "napi_defer_hard_irqs": "2"},
		}},
	}, root
}

func TestProfiles(t *testing.T) {
	f, root := machine()
	file := func(name, value string) undo.Step {
		return undo.Step{Setting: undo.Setting{Kind: undo.File, Name: name}, Value: value}
	}
	nic := func(k undo.Kind, name, value string) undo.Step {
		return undo.Step{Setting: undo.Setting{Kind: k, Interface: "eth0", Name: name}, Value: value}
	}
	governor := file("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance")
	idle := file("/sys/devices/system/cpu/cpu0/cpuidle/state2/disable", "1")
	thp := file("/sys/kernel/mm/transparent_hugepage/enabled", "madvise")
	huge := file("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "70")
	defer0, threaded0 := nic(undo.NetFile, "napi_defer_hard_irqs", "0"), nic(undo.NetFile, "threaded", "0")
	for p, want := range map[Profile][]undo.Step{
		Latency: {governor, idle, thp, huge, nic(undo.Coalesce, "adaptive-rx", "off"), nic(undo.Coalesce, "rx-usecs", "0"),
			defer0, threaded0},
		Throughput: {governor, thp, huge, nic(undo.Coalesce, "adaptive-rx", "off"), nic(undo.Coalesce, "rx-usecs", "50"),
			nic(undo.Coalesce, "tx-usecs", "50"), nic(undo.Ring, "rx", "4096"), defer0, threaded0},
	} {
		nstest.Same(t, string(p), Steps(p, f, root), want)
	}
}

// A machine without any of it has nothing to tune.
func TestNothingToTune(t *testing.T) {
	for _, p := range Profiles() {
		if steps := Steps(p, &doctor.Facts{NICs: []doctor.NIC{{Name: "lo"}}}, fstest.MapFS{}); len(steps) > 0 {
			t.Errorf("%s: %v", p, steps)
		}
		if got, err := Parse(string(p)); got != p || err != nil {
			t.Errorf("%s: %s, %v", p, got, err)
		}
	}
	if _, err := Parse("speed"); err == nil {
		t.Error("a profile that is none")
	}
}
