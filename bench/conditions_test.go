package bench

import (
	"os"
	"strings"
	"testing"
)

func TestCPUModel(t *testing.T) {
	for _, c := range []struct {
		title, info string
		model       string
		hypervisor  bool
		text        string
	}{
		{"x86 below a hypervisor", "processor\t: 0\nmodel\t\t: 17\nmodel name\t: AMD EPYC  9R14\nflags\t\t: fpu hypervisor vme\n\nprocessor\t: 1\nmodel name\t: other\n",
			"AMD EPYC 9R14", true, "2 CPUs AMD EPYC 9R14 below a hypervisor"},
		{"x86", "model name\t: Intel(R) Xeon(R) Gold 6130 CPU @ 2.10GHz\nflags\t\t: fpu nohypervisor\n",
			"Intel(R) Xeon(R) Gold 6130 CPU @ 2.10GHz", false, "2 CPUs Intel(R) Xeon(R) Gold 6130 CPU @ 2.10GHz"},
		{"arm64", "processor\t: 0\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd0c\n",
			"implementer 0x41 part 0xd0c", false, "2 CPUs implementer 0x41 part 0xd0c"},
		{"POWER", "processor\t: 0\ncpu\t\t: POWER9, altivec supported\n", "POWER9, altivec supported", false, "2 CPUs POWER9, altivec supported"},
		{"nothing", "", "", false, "2 CPUs"},
	} {
		model, hypervisor := cpuModel(c.info)
		if model != c.model || hypervisor != c.hypervisor {
			t.Errorf("%s: %q, %v", c.title, model, hypervisor)
		}
		if got := (Conditions{CPUs: 2, CPUModel: model, Hypervisor: hypervisor}).CPU(); got != c.text {
			t.Errorf("%s: %q, want %q", c.title, got, c.text)
		}
	}
	// This machine's are among the conditions.
	info, err := os.ReadFile("/proc/cpuinfo")
	if c := HostConditions(); err != nil || c.CPUs < 1 || c.CPUModel == "" || c.Hypervisor != strings.Contains(string(info), " hypervisor") {
		t.Errorf("%+v, %v", c, err)
	}
}
