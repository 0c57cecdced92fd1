package support

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/safchain/ethtool"

	"viaxdp/internal/base/steer"
)

// hostFiles are read from the root of the file system. They identify the machine only by what
// the mask replaces.
var hostFiles = []string{
	"proc/version", "proc/cmdline", "proc/cpuinfo", "proc/meminfo", "proc/interrupts", "proc/softirqs",
	"proc/net/softnet_stat", "proc/net/snmp", "etc/os-release",
	"proc/sys/net/core/busy_poll", "proc/sys/net/core/busy_read", "proc/sys/net/core/netdev_budget",
	"proc/sys/net/core/netdev_budget_usecs", "proc/sys/kernel/unprivileged_bpf_disabled", "proc/sys/kernel/numa_balancing",
	"proc/sys/kernel/sched_rt_runtime_us", "proc/sys/vm/nr_hugepages", "proc/sys/vm/nr_overcommit_hugepages",
	"sys/kernel/mm/transparent_hugepage/enabled", "sys/devices/system/cpu/isolated", "sys/devices/system/cpu/nohz_full",
	"sys/devices/system/cpu/smt/active", "sys/devices/system/cpu/cpuidle/current_driver",
	"sys/devices/system/cpu/cpuidle/current_governor", "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
	"sys/devices/system/cpu/intel_pstate/no_turbo", "sys/devices/system/clocksource/clocksource0/current_clocksource",
	"sys/class/dmi/id/sys_vendor", "sys/class/dmi/id/product_name",
}

// nicFiles are read from an interface's directory in sysfs.
var nicFiles = []string{
	"mtu", "operstate", "speed", "napi_defer_hard_irqs", "gro_flush_timeout", "threaded", "tx_queue_len",
	"device/numa_node", "device/vendor", "device/device", "device/current_link_speed", "device/current_link_width",
}

// Host adds what is known of the machine.
func (a *Archive) Host(root fs.FS) {
	for _, name := range hostFiles {
		text := readText(root, name)
		switch name {
		case "proc/cmdline":
			text = commandLine(text)
		case "proc/cpuinfo":
			text = serial.ReplaceAllString(text, "${1}(left out)")
		}
		a.Add("host/"+name, text)
	}
	states, _ := fs.Glob(root, "sys/devices/system/cpu/cpu0/cpuidle/state*")
	var b strings.Builder
	for _, s := range states {
		fmt.Fprintf(&b, "%s: latency %s us, disabled %s\n", strings.TrimSpace(readText(root, s+"/name")),
			strings.TrimSpace(readText(root, s+"/latency")), strings.TrimSpace(readText(root, s+"/disable")))
	}
	a.Add("host/c-states", b.String())
}

// serial is the board's number in /proc/cpuinfo, on ARM. On a Raspberry Pi the MAC address is made of it.
var serial = regexp.MustCompile(`(?mi)^(serial[^:\n]*:[ \t]*)\S.*$`)

// harmless are the parameters of the kernel's command line whose values a report contains:
// those that affect the machine's speed. A name that ends in a dot is a prefix.
var harmless = strings.Fields(`BOOT_IMAGE ro rw quiet splash debug console ip net.ifnames biosdevname
	isolcpus nohz nohz_full rcu_nocbs rcu_nocb_poll rcutree. rcupdate. irqaffinity threadirqs preempt skew_tick
	idle intel_idle. processor. cpuidle. intel_pstate amd_pstate cpufreq. workqueue. maxcpus nr_cpus possible_cpus
	nosmt mitigations pti nopti nospectre_v1 nospectre_v2 spectre_v2 spec_store_bypass_disable l1tf mds
	tsx tsx_async_abort retbleed srbds mmio_stale_data gather_data_sampling
	hugepages hugepagesz default_hugepagesz hugetlb_cma transparent_hugepage numa numa_balancing mem memmap
	iommu iommu. intel_iommu amd_iommu swiotlb pci pcie_aspm pcie_port_pm apic noapic nolapic x2apic nox2apic
	tsc clocksource hpet nmi_watchdog nowatchdog nosoftlockup mce init_on_alloc init_on_free slub_debug
	lockdown lsm selinux apparmor audit`)

// commandLine is the kernel's command line without the values that may be secret: boot
// software also gets passwords, keys and addresses there.
func commandLine(text string) string {
	var words []string
	quoted := false
	for _, word := range strings.FieldsFunc(text, func(r rune) bool {
		if r == '"' {
			quoted = !quoted
		}
		return !quoted && unicode.IsSpace(r)
	}) {
		name, _, valued := strings.Cut(word, "=")
		switch {
		case slices.ContainsFunc(harmless, func(h string) bool {
			return name == h || strings.HasSuffix(h, ".") && strings.HasPrefix(name, h)
		}):
			words = append(words, word)
		case valued && !strings.Contains(name, `"`):
			words = append(words, name+"=(left out)")
		default:
			words = append(words, "(left out)")
		}
	}
	return strings.Join(words, " ") + "\n"
}

// NIC adds what is known of an interface: files of sysfs, and what its driver says, by the name of the file. unseen, if not
// nil, is why sysfs does not show the interface: it may show another one of that name.
func (a *Archive) NIC(root fs.FS, name string, unseen error, driver map[string]string) {
	dir := "nic/" + name + "/"
	if unseen != nil {
		a.Add(dir+"sysfs", fmt.Sprintf("(%v)\n", unseen))
	} else {
		a.sysfs(root, name, dir)
	}
	for _, file := range slices.Sorted(maps.Keys(driver)) {
		a.Add(dir+file, driver[file])
	}
}

// sysfs adds what sysfs says of an interface, and where its interrupts go.
func (a *Archive) sysfs(root fs.FS, name, dir string) {
	var b strings.Builder
	for _, f := range nicFiles {
		fmt.Fprintf(&b, "%s: %s\n", f, strings.TrimSpace(readText(root, "sys/class/net/"+name+"/"+f)))
	}
	queues, _ := fs.Glob(root, "sys/class/net/"+name+"/queues/*")
	for _, q := range queues {
		file := "xps_cpus"
		if strings.Contains(q, "/rx-") {
			file = "rps_cpus"
		}
		fmt.Fprintf(&b, "%s/%s: %s\n", q[strings.LastIndex(q, "/")+1:], file, strings.TrimSpace(readText(root, q+"/"+file)))
	}
	a.Add(dir+"sysfs", b.String())
	irqs, _ := fs.Glob(root, "sys/class/net/"+name+"/device/msi_irqs/*")
	b.Reset()
	for _, irq := range irqs {
		n := irq[strings.LastIndex(irq, "/")+1:]
		fmt.Fprintf(&b, "%s: CPUs %s\n", n, strings.TrimSpace(readText(root, "proc/irq/"+n+"/effective_affinity_list")))
	}
	a.Add(dir+"interrupts", b.String())
}

// readText is a file's content, or why there is none.
func readText(root fs.FS, name string) string {
	b, err := fs.ReadFile(root, name)
	if err == nil {
		return string(b)
	}
	var p *fs.PathError
	if errors.As(err, &p) {
		err = p.Err
	}
	return fmt.Sprintf("(%v)", err)
}

// table is a map, sorted by its keys, after the error that came with it.
func table[V any](m map[string]V, err error) string {
	var b strings.Builder
	if err != nil {
		fmt.Fprintf(&b, "(%v)\n", err)
	}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		fmt.Fprintf(&b, "%s: %v\n", k, m[k])
	}
	return b.String()
}

// Ethtool is what the driver of an interface of the calling thread's network namespace says: counters, offloads,
// and other settings.
func Ethtool(name string) map[string]string {
	h, err := ethtool.NewEthtool()
	if err != nil {
		return map[string]string{"settings": table[string](nil, err)}
	}
	defer h.Close()
	return map[string]string{
		"statistics": table(h.Stats(name)), "offloads": table(h.Features(name)), "settings": table(settings(h, name)),
	}
}

// settings are what driver, channels, rings, coalescing and steering are set to. What the driver does not know is left
// out and named in the error.
func settings(h *ethtool.Ethtool, name string) (map[string]string, error) {
	m := make(map[string]string)
	var errs []error
	set := func(what string, v any, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", what, err))
			return
		}
		m[what] = fmt.Sprintf("%+v", v)
	}
	if i, err := h.DriverInfo(name); err != nil {
		set("driver", nil, err)
	} else {
		m["driver"], m["driver version"], m["firmware"] = i.Driver, i.Version, i.FwVersion
	}
	channels, err := h.GetChannels(name)
	set("channels", channels, err)
	ring, err := h.GetRing(name)
	set("rings", ring, err)
	coalesce, err := h.GetCoalesce(name)
	set("coalescing", coalesce, err)
	pause, err := h.GetPause(name)
	set("pause", pause, err)
	// Which queue frames come in on.
	nic, err := steer.Open(name)
	if err != nil {
		return m, errors.Join(append(errs, err)...)
	}
	defer nic.Close()
	table, err := nic.Table()
	set("indirection table", table, err)
	rules, err := nic.Rules()
	set("rules for UDP ports", rules, err)
	return m, errors.Join(errs...)
}

// MaxFile is the most of one file, in bytes; the rest is cut off and said so.
const MaxFile = 4 << 20

// Archive writes a report. It has one owner.
type Archive struct {
	zip  *gzip.Writer
	tar  *tar.Writer
	mask *Mask
	at   time.Time
	used map[string]bool // names
	err  error           // the first one: nothing is written behind it
}

// New begins a report, which is complete after Close. Everything in it goes
// through mask.
func New(w io.Writer, mask *Mask, at time.Time) *Archive {
	zip := gzip.NewWriter(w)
	return &Archive{zip: zip, tar: tar.NewWriter(zip), mask: mask, at: at, used: make(map[string]bool)}
}

// Add writes a file. One whose name is there already gets a number before it. Errors come
// with Close.
func (a *Archive) Add(name, text string) {
	if a.err != nil {
		return
	}
	text = a.mask.Apply(cut(text))
	a.err = a.tar.WriteHeader(&tar.Header{
		Name: path.Join("via-xdp-report", a.unused(a.mask.Apply(name))), Mode: 0o644, Size: int64(len(text)), ModTime: a.at, Format: tar.FormatPAX,
	})
	if a.err == nil {
		_, a.err = io.WriteString(a.tar, text)
	}
}

// unused is a name that no other file has.
func (a *Archive) unused(name string) string {
	dir, base := path.Split(name)
	for i := 2; a.used[name]; i++ {
		name = fmt.Sprintf("%s%d-%s", dir, i, base)
	}
	a.used[name] = true
	return name
}

// longestWord is longer than any address or host's name.
const longestWord = 256

// cut ends a text that is too long between two words: a mask does not know half an address.
func cut(text string) string {
	if len(text) <= MaxFile {
		return text
	}
	end := MaxFile
	if i := strings.LastIndexFunc(text[end-longestWord:end], func(r rune) bool {
		return unicode.IsSpace(r) || strings.ContainsRune(`"',;=()[]{}<>/`, r)
	}); i >= 0 {
		end += i + 1 - longestWord
	}
	return text[:end] + "\n(cut off here)\n"
}

// Close ends the report.
func (a *Archive) Close() error {
	for _, end := range []func() error{a.tar.Close, a.zip.Close} {
		if err := end(); a.err == nil {
			a.err = err
		}
	}
	return a.err
}
