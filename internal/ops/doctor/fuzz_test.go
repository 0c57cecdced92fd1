package doctor

import (
	"encoding/json"
	"slices"
	"testing"
	"testing/fstest"
)

// Whatever the kernel's files hold, reading them ends with facts, and the checks with findings that
// can be written down.
func FuzzFacts(f *testing.F) {
	f.Add("6.18.15\n", "CapEff:\t000001ffffffffff\n", "flags\t\t: fpu hypervisor\n", "8\n", "always [madvise] never\n", "CONFIG_BPF_JIT=y\n")
	f.Add("6", "CapEff:", "flags:", "-1", "[", "=y")
	f.Add("99999999999999999999.1", "CapEff: 1ffffffffffffffff", ":", "1e3", "[]", "CONFIG_X=y\x00")
	f.Fuzz(func(t *testing.T, release, status, cpuinfo, number, chosen, config string) {
		root := fstest.MapFS{
			"proc/sys/kernel/osrelease": text(release), "proc/self/status": text(status), "proc/cpuinfo": text(cpuinfo),
			"boot/config-6": text(config), "proc/config.gz": text(config), "proc/sys/net/core/busy_poll": text(number),
			"sys/kernel/mm/transparent_hugepage/enabled":           text(chosen),
			"sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": text(chosen),
		}
		for _, dir := range []string{"sys/kernel/mm/hugepages/hugepages-2048kB/", "sys/devices/system/node/node0/hugepages/hugepages-2048kB/"} {
			for _, name := range []string{"nr_overcommit_hugepages", "nr_hugepages", "free_hugepages"} {
				root[dir+name] = text(number)
			}
		}
		for name, content := range map[string]string{"name": chosen, "latency": number, "disable": number} {
			root["sys/devices/system/cpu/cpu0/cpuidle/state0/"+name] = text(content)
		}
		var facts Facts
		facts.Host.read(root)
		report := Examine(&facts)
		if _, err := json.Marshal(report); err != nil {
			t.Fatal(err)
		}
		for _, x := range report.Findings {
			if !slices.Contains(levels, x.Level) || x.Cause == "" {
				t.Errorf("%+v", x)
			}
		}
	})
}
