package doctor

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/agentclient"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/ops/undo"
)

// Checks is the table of checks, in the order of the report.
var Checks = []Check{
	{ID: "kernel", About: "is the kernel new enough", Host: checkKernel},
	{ID: "options", About: "does the kernel have the options that VIs use", Host: checkOptions},
	{ID: "agent", About: "is there an agent that opens NICs for programs without privilege", Host: checkAgent},
	{ID: "capabilities", About: "has this process the capabilities to open a NIC", Host: checkCapabilities},
	{ID: "af-xdp", About: "can an AF_XDP socket be made", Host: checkSocket},
	{ID: "demux", About: "does the demux program handle sample frames correctly", Host: checkTrial},
	{ID: "memlock", About: "how much memory may be registered", Host: checkMemlock},
	{ID: "hugepages", About: "pages of 2 MB for registered memory, by node", Host: checkHugepages},
	{ID: "c-states", About: "sleep states that are slow to leave", Host: checkIdle},
	{ID: "governor", About: "does the CPUs' frequency change", Host: checkGovernor},
	{ID: "busy-poll", About: "does the kernel poll for sockets that block", Host: checkBusyPoll},

	{ID: "link", About: "is the interface up, with carrier", NIC: checkLink},
	{ID: "address", About: "has it an IP address, which connections need", NIC: checkAddress},
	{ID: "served", About: "does the agent open it for programs of this user", NIC: checkServed},
	{ID: "driver", About: "its driver and the driver's XDP features", NIC: checkDriver},
	{ID: "program", About: "is another owner's XDP program attached", NIC: checkProgram},
	{ID: "zero-copy", About: "does the NIC read and write registered memory itself", NIC: checkZeroCopy},
	{ID: "multi-buffer", About: "can frames be longer than a chunk", NIC: checkMultiBuffer},
	{ID: "segmentation", About: "can long messages leave as packets of several frames", NIC: checkSegmentation},
	{ID: "mtu", About: "does the MTU fit chunks and modes", NIC: checkMTU},
	{ID: "queues", About: "do frames arrive on the queue of their VI", NIC: checkQueues},
	{ID: "offloads", About: "offloads that merge or change frames", NIC: checkOffloads},
	{ID: "vlan-offload", About: "VLAN tags stripped by the NIC", NIC: checkVLAN},
	{ID: "veth-peer", About: "can a veth receive in native mode", NIC: checkPeer},
	{ID: "numa", About: "is there memory on the NIC's node", NIC: checkNUMA},
	{ID: "interrupts", About: "deferred interrupts and threaded NAPI", NIC: checkInterrupts},
	{ID: "coalescing", About: "interrupt moderation that delays frames", NIC: checkCoalesce},
	{ID: "holders", About: "which processes hold queues", NIC: checkHolders},
	{ID: "control-port", About: "is the port of connection management free", NIC: checkControlPort},
}

func checkKernel(h *Host) []Finding {
	at := func(major, minor int) bool { return h.Major > major || h.Major == major && h.Minor >= minor }
	switch {
	case !at(5, 18):
		return one(Error, "Linux "+h.Release+" is older than 5.18",
			"it has no XDP programs for frames of several buffers, which the demux program is: no NIC can be opened",
			"boot a kernel of 5.18 or newer")
	case !at(6, 6):
		return one(Warning, "Linux "+h.Release+" is older than 6.6",
			"frames are no longer than a chunk: long messages are cut at MTU 3800 or so, whatever the link can do",
			"boot a kernel of 6.6 or newer")
	}
	return ok("Linux " + h.Release)
}

// kernelOptions are what is used, and what is lost without.
var kernelOptions = []struct {
	name  string
	level Level // without it
	lost  string
	built bool // a module is not enough
}{
	{"CONFIG_BPF_SYSCALL", Error, "no program can be loaded", true},
	{"CONFIG_XDP_SOCKETS", Error, "there are no AF_XDP sockets", true},
	{"CONFIG_BPF_JIT", Warning, "programs are interpreted: each frame costs several times as much in the kernel", true},
	{"CONFIG_HUGETLBFS", Warning, "there is no pool of 2 MB pages: registered memory misses the TLB more often", true},
	{"CONFIG_NET_CLS_ACT", Info, "packets of several frames from a veth have no headroom: the receiver's kernel copies each once more", true},
	{"CONFIG_XDP_SOCKETS_DIAG", Info, "the kernel does not name the holder of a queue: doctor can only list suspects", false},
}

func checkOptions(h *Host) []Finding {
	if h.Config == nil {
		return one(Unknown, "neither /proc/config.gz nor /boot/config-"+h.Release+" can be read",
			"kernel options cannot be checked; the checks below tell the same by trying", "")
	}
	var found []Finding
	for _, o := range kernelOptions {
		switch v := h.Config[o.name]; {
		case v == "y", v == "m" && !o.built:
		default:
			found = append(found, Finding{Level: o.level, Cause: o.name + " is not set", Consequence: o.lost,
				Command: "use a kernel that is built with " + o.name + "=y"})
		}
	}
	if found == nil {
		return ok("all options that are used are set")
	}
	return found
}

func checkAgent(h *Host) []Finding {
	a := &h.Agent
	switch {
	case a.PID != 0 && !a.Here:
		return ok(fmt.Sprintf("process %d at %s opens NICs for programs: those of its network namespace, which is another one",
			a.PID, a.Socket))
	case a.PID != 0:
		return ok(fmt.Sprintf("process %d at %s opens NICs for programs", a.PID, a.Socket))
	case a.Starts:
		return ok("none: the first program starts one, at " + a.Socket)
	case a.Named && a.Socket != "":
		return one(Error, "none that can be used, and "+agentclient.Environment+" names it: "+a.Reason,
			"programs that are started with this environment open no NIC",
			a.remedy()+"; or do without: unset "+agentclient.Environment)
	case a.Unused == Broken:
		return one(Error, "the one at "+a.Socket+" does not answer as it should: "+a.Reason,
			"programs open no NIC", a.remedy()+"; or do without: export "+agentclient.Environment+"=none")
	case a.Unused != "":
		return ok("the one at " + a.Socket + " is not used: " + a.Reason + "; programs open NICs by themselves, with privilege")
	}
	return ok("none: programs open NICs by themselves, with privilege")
}

// remedy is how this user's programs get an agent.
func (a *Agent) remedy() string {
	switch {
	case a.Unused == Denied:
		return "let this user use " + a.Socket + ", as a member of its group (ls -l shows it; sudo usermod -aG via USER, and log in again), " +
			"or by the agent's settings (group, mode)"
	case a.Unused == Elsewhere:
		return "sudo via-xdp agent --socket PATH in this network namespace, and " + agentclient.Environment + "=PATH"
	case a.Unused == Broken:
		return "look at the log of what listens at " + a.Socket + " (sudo ss -xlp shows it), and restart it"
	case a.Named && a.Socket != "":
		return "sudo via-xdp agent --socket " + a.Socket
	}
	return "sudo via-xdp agent"
}

// ifServed limits a statement to interfaces and users that the agent serves; the check "served" shows which.
// Programs of other users do without the agent unless the environment names it.
const ifServed = ", if it serves this interface to this user"

// needed are the capabilities to open a NIC in the program's own process.
var needed = []struct {
	bit  int
	name string
}{{unix.CAP_NET_ADMIN, "CAP_NET_ADMIN"}, {unix.CAP_NET_RAW, "CAP_NET_RAW"}, {unix.CAP_BPF, "CAP_BPF"}}

// missing lists the needed capabilities that this process lacks.
func (h *Host) missing() []string { return MissingCapabilities(h.Capabilities) }

// MissingCapabilities names those that opening a NIC needs and that are not among the ones given, bit by number.
func MissingCapabilities(have uint64) (names []string) {
	has := func(bit int) bool { return have&(1<<bit) != 0 }
	for _, c := range needed {
		if !has(c.bit) && !(c.bit == unix.CAP_BPF && has(unix.CAP_SYS_ADMIN)) { // which includes it
			names = append(names, c.name)
		}
	}
	return names
}

func checkCapabilities(h *Host) []Finding {
	missing := h.missing()
	if len(missing) == 0 {
		return ok("CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF are there")
	}
	if h.Agent.PID != 0 {
		return ok("missing: " + strings.Join(missing, ", ") + "; the agent has what it takes" + ifServed)
	}
	grant := strings.ToLower(strings.Join(missing, ","))
	return one(Error, "missing: "+strings.Join(missing, ", "), "a NIC cannot be opened in this process",
		h.Agent.remedy()+", for programs without privilege; for one program: setcap "+grant+"+ep PROGRAM")
}

func checkSocket(h *Host) []Finding {
	switch {
	case h.Socket == "":
		return ok("an AF_XDP socket can be made")
	case h.Agent.PID != 0 && h.Capabilities&(1<<unix.CAP_NET_RAW) == 0:
		return ok("not tried: the agent makes them" + ifServed)
	}
	return one(Error, "no AF_XDP socket: "+h.Socket, "no NIC can be opened",
		"run as root; in a container, allow socket(AF_XDP) and bpf(2) in its seccomp profile")
}

func checkTrial(h *Host) []Finding {
	switch {
	case !h.Trial.Ran:
		return one(Unknown, "the demux program was not tried: "+h.Trial.Reason,
			"whether it works on this kernel is unknown", "sudo via-xdp doctor")
	case len(h.Trial.Wrong) > 0:
		return one(Error, "the demux program handles frames wrongly: "+strings.Join(h.Trial.Wrong, "; "),
			"frames get lost or go where they should not", "report it with the output of via-xdp doctor --json")
	}
	return ok(fmt.Sprintf("the demux program handled %d sample frames correctly", h.Trial.Frames))
}

// arena is what a NIC registers by default, in bytes.
const arena = kagent.DefaultArena

func checkMemlock(h *Host) []Finding {
	switch {
	case h.Agent.PID != 0:
		return ok("the agent registers memory, whatever a program's limit" + ifServed)
	case h.Capabilities&(1<<unix.CAP_IPC_LOCK) != 0:
		return ok("no limit: CAP_IPC_LOCK")
	case h.Memlock == unix.RLIM_INFINITY:
		return ok("no limit")
	case h.Memlock < arena:
		return one(Warning, fmt.Sprintf("RLIMIT_MEMLOCK is %d KB, and a NIC registers %d KB", h.Memlock>>10, arena>>10),
			"opening a NIC fails with ENOBUFS", "ulimit -l unlimited; for a service: LimitMEMLOCK=infinity")
	}
	return ok(fmt.Sprintf("%d KB", h.Memlock>>10))
}

// pool is the file that sets the size of the node's part.
func (n *HugeNode) pool() string {
	return fmt.Sprintf("/sys/devices/system/node/node%d/hugepages/hugepages-2048kB/nr_hugepages", n.Node)
}

const hugePool = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"

func checkHugepages(h *Host) []Finding {
	if len(h.HugeNodes) == 0 {
		return one(Warning, "the kernel has no pool of 2 MB pages",
			"registered memory lies on transparent hugepages ("+h.THP+") or 4 KB pages", "use a kernel with CONFIG_HUGETLBFS=y")
	}
	var nodes []string
	var empty *HugeNode // the first that has none
	total, free := h.HugePages()
	for i, n := range h.HugeNodes {
		if n.Free == 0 && empty == nil {
			empty = &h.HugeNodes[i]
		}
		nodes = append(nodes, fmt.Sprintf("node %d: %d of %d free", n.Node, n.Free, n.Total))
	}
	list := strings.Join(nodes, ", ")
	if h.HugeReserved > 0 {
		list += fmt.Sprintf(", of which %d are reserved", h.HugeReserved)
	}
	more := h.onDemand()
	if more > 0 {
		list += fmt.Sprintf("; up to %d more on demand", more)
	}
	const want = arena >> 21
	switch {
	case free+more < want:
		return one(Warning, list+": a NIC takes "+fmt.Sprint(want),
			"registered memory lies on smaller pages: large transfers miss the TLB",
			fmt.Sprintf("echo %d > %s", total+want-free, hugePool),
			undo.Step{Setting: undo.Setting{Kind: undo.File, Name: hugePool}, Value: fmt.Sprint(total + want - free)})
	case empty != nil && len(h.HugeNodes) > 1:
		return one(Info, list, "a program on the node that has none gets memory of another: each access is slower",
			fmt.Sprintf("echo %d > %s", empty.Total+want, empty.pool()))
	case free < want:
		return one(Info, list,
			"pages are allocated when a NIC is opened, unless memory is too fragmented by then", "")
	}
	return ok(list)
}

// SlowIdle is the exit latency in microseconds above which an idle state shows in the
// latency of a program that sleeps while it waits for messages.
const SlowIdle = 10

func checkIdle(h *Host) []Finding {
	if len(h.Idle) == 0 {
		return ok("the kernel uses no idle states (no cpuidle)")
	}
	var slow []string
	for _, s := range h.Idle {
		if s.Latency > SlowIdle && !s.Disabled {
			slow = append(slow, fmt.Sprintf("%s (%d us)", s.Name, s.Latency))
		}
	}
	if slow == nil {
		return ok("no enabled state takes longer than 10 us to leave")
	}
	return one(Info, "CPUs may use the idle states "+strings.Join(slow, ", "),
		"a program that waits instead of polling wakes that much later", "via-xdp tune --profile latency")
}

func checkGovernor(h *Host) []Finding {
	switch h.Governor {
	case "":
		return ok("the kernel does not change the frequency (no cpufreq)")
	case "performance":
		return ok("performance")
	}
	return one(Info, "the frequency follows the load ("+h.Governor+")",
		"the first messages after a pause are slower", "via-xdp tune --profile latency")
}

func checkBusyPoll(h *Host) []Finding {
	if slices.Contains([]string{"", "0"}, h.BusyPoll) {
		return ok("off")
	}
	return one(Info, "net.core.busy_poll is "+h.BusyPoll+" us",
		"every poll(2) of a socket with a NAPI queue spins first, also that of AF_XDP sockets", "sysctl -w net.core.busy_poll=0")
}
