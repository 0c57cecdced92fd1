package doctor

import (
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/ops/undo"
)

// healthy is a machine on which no check finds anything.
func healthy() *Facts {
	return &Facts{
		Host: Host{
			Release: "6.18.0", Major: 6, Minor: 18, Memlock: unix.RLIM_INFINITY, SeesOthers: true,
			Config: map[string]string{
				"CONFIG_BPF_SYSCALL": "y", "CONFIG_XDP_SOCKETS": "y", "CONFIG_BPF_JIT": "y", "CONFIG_HUGETLBFS": "y",
				"CONFIG_NET_CLS_ACT": "y", "CONFIG_XDP_SOCKETS_DIAG": "m",
			},
			Capabilities: 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_NET_RAW | 1<<unix.CAP_BPF,
			Trial:        Trial{Ran: true, Frames: 11},
			HugeNodes:    []HugeNode{{0, 64, 64}, {1, 64, 64}},
			Idle:         []IdleState{{0, "POLL", 0, false}, {1, "C1", 2, false}, {2, "C6", 133, true}},
			Governor:     "performance", BusyPoll: "0",
		},
		NICs: []NIC{{
			Name: "eth0", Index: 2, Kind: "device", Driver: "ice", MTU: 1500, Up: true, Carrier: true,
			Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, RxQueues: 8, RSSQueues: []int{3}, NUMANode: 1,
			XDPKnown: true, XDP: []string{"basic", "redirect", "xsk-zerocopy", "rx-sg"}, ZCSegments: 5,
			Features: map[string]bool{"rx-gro": true}, Fixed: map[string]bool{},
			Sysfs:     map[string]string{"threaded": "0", "gro_flush_timeout": "0", "napi_defer_hard_irqs": "0"},
			HoldersBy: "queue",
		}},
	}
}

func TestHealthy(t *testing.T) {
	r := Examine(healthy())
	for _, f := range r.Findings {
		nstest.ErrorIf(t, f.Level != OK, "%s %s: %s: %s", f.Interface, f.Check, f.Level, f.Cause)
	}
	if len(r.Findings) != len(Checks) || len(r.Steps()) > 0 || r.Impossible() != nil {
		t.Errorf("%d findings of %d checks, steps %v, impossible: %v", len(r.Findings), len(Checks), r.Steps(), r.Impossible())
	}
}

// For any name of an interface, a finding's command affects that interface only, and its text
// has no terminal control sequences.
func TestNameOfInterface(t *testing.T) {
	for name, want := range map[string]string{
		"eth0.5@x": "ip link set dev eth0.5@x up", "a;reboot": "ip link set dev 'a;reboot' up",
		"$(id)": "ip link set dev '$(id)' up", "it's": `ip link set dev 'it'\''s' up`, "\x1b[2J": "ip link set dev '?[2J' up",
		"-h": "ip link set dev '-h' up",
	} {
		f := healthy()
		f.NICs[0].Name, f.NICs[0].Up = name, false
		f.NICs[0].Holders = []Holder{{PID: 1, Name: "\x1b[31m", Queue: 1}}
		found := false
		for _, x := range Examine(f).Findings {
			nstest.ErrorIf(t, strings.ContainsRune(x.Cause+x.Consequence+x.Command+x.Where(), 0x1b), "%q: %+v", name, x)
			found = found || x.Command == want
			for _, s := range x.Steps {
				if s.Interface != name || strings.ContainsRune(s.Setting.String(), 0x1b) {
					t.Errorf("%q: step %+v: %q", name, s, s.Setting.String())
				}
			}
		}
		nstest.ErrorIf(t, !found, "%q: no %q", name, want)
	}
}

// ailment is a change to the healthy machine. The check finds it, and no other check finds
// anything except the named ones.
type ailment struct {
	check  string
	level  Level
	ail    func(h *Host, n *NIC)
	cause  string // part of it
	do     string // part of the command
	fix    string // setting=value; empty: a person decides; none: nothing helps, and there is no command
	others []string
}

// with gives the machine an agent.
func with(a Agent) func(*Host, *NIC) { return func(h *Host, _ *NIC) { h.Agent = a } }

var ailments = []ailment{
	{"kernel", Error, func(h *Host, _ *NIC) { h.Release, h.Major, h.Minor = "5.17.3", 5, 17 }, "5.17.3", "5.18", "", nil},
	{"kernel", Warning, func(h *Host, _ *NIC) { h.Minor = 5 }, "older than 6.6", "6.6", "", nil},
	{"options", Unknown, func(h *Host, _ *NIC) { h.Config = nil }, "config", "", "", nil},
	{"options", Error, func(h *Host, _ *NIC) { delete(h.Config, "CONFIG_XDP_SOCKETS") }, "CONFIG_XDP_SOCKETS", "=y", "", nil},
	{"options", Warning, func(h *Host, _ *NIC) { h.Config["CONFIG_BPF_JIT"] = "m" }, "CONFIG_BPF_JIT", "=y", "", nil},
	{"options", Info, func(h *Host, _ *NIC) { delete(h.Config, "CONFIG_NET_CLS_ACT") }, "NET_CLS_ACT", "=y", "", nil},
	{"options", Info, func(h *Host, _ *NIC) { delete(h.Config, "CONFIG_XDP_SOCKETS_DIAG") }, "DIAG", "", "", nil},
	{"capabilities", Error, func(h *Host, _ *NIC) { h.Capabilities &^= 1 << unix.CAP_NET_RAW }, "CAP_NET_RAW", "setcap cap_net_raw+ep", "", nil},
	{"capabilities", Error, func(h *Host, _ *NIC) { h.Capabilities = 0 }, "CAP_NET_ADMIN", "sudo via-xdp agent", "", nil},
	{"served", Error, with(Agent{Socket: "/x.sock", PID: 42, Here: true, Named: true, Served: []string{"eth9"}}),
		"/x.sock does not serve it to this user, and VIA_AGENT", "[interface.eth0]", "", nil},
	{"served", Error, func(h *Host, _ *NIC) {
		h.Capabilities, h.Agent = 0, Agent{Socket: "/x.sock", PID: 42, Here: true, Served: []string{}}
	}, "/x.sock does not serve it to this user", "via-xdp agent -i eth0, or [interface.eth0]", "", nil},
	// An agent that does not serve an interface does not hinder a user that may open it otherwise.
	{"served", OK, with(Agent{Socket: "/x.sock", Served: []string{}}), "use no agent", "", "", nil},
	{"served", OK, with(Agent{Socket: "/x.sock", PID: 42, Named: true, Served: []string{}}),
		"of another network namespace", "", "", nil},
	{"served", OK, with(Agent{Socket: "/x.sock", PID: 42, Here: true, Named: true, Served: []string{"eth0"}}),
		"opens it for programs", "", "", nil},
	{"served", OK, with(Agent{Socket: "/x.sock", PID: 42, Here: true}), "opens it for", "", "", nil},
	{"served", OK, with(Agent{Socket: "/x.sock", PID: 42, Here: true, Served: []string{"eth9"}}),
		"by themselves, with priv", "", "", nil},
	// The finding about an agent that is not used says why, or that it serves another network namespace.
	{"agent", OK, with(Agent{Socket: "/x.sock", Reason: "there is no agent"}), "none: programs", "", "", nil},
	{"agent", OK, with(Agent{Socket: "/x.sock", Reason: "forbidden", Unused: Denied}),
		"the one at /x.sock is not used: forbidden", "", "", nil},
	{"agent", OK, with(Agent{Socket: "/x.sock", Reason: "elsewhere", Unused: Elsewhere}),
		"the one at /x.sock is not used: elsewhere", "", "", nil},
	{"agent", OK, with(Agent{Socket: "/x.sock", PID: 42, Named: true}), "those of its network namespace", "", "", nil},
	{"agent", Error, with(Agent{Socket: "/x.sock", Named: true, Reason: "nobody listens"}),
		"nobody listens", "sudo via-xdp agent --socket /x.sock", "", nil},
	{"agent", Error, with(Agent{Socket: "/x.sock", Named: true, Reason: "not permitted", Unused: Denied}),
		"not permitted", "sudo usermod -aG via USER", "", nil},
	{"agent", Error, with(Agent{Socket: "/x.sock", Reason: "EOF", Unused: Broken}),
		"EOF", "restart it", "", nil},
	{"capabilities", Error, func(h *Host, _ *NIC) {
		h.Capabilities, h.Agent = 0, Agent{Socket: "/x.sock", Reason: "not permitted", Unused: Denied}
	}, "CAP_NET_ADMIN", "let this user use /x.sock", "", nil},
	{"capabilities", Error, func(h *Host, _ *NIC) {
		h.Capabilities, h.Agent = 0, Agent{Socket: "/x.sock", Reason: "not here", Unused: Elsewhere}
	}, "CAP_NET_ADMIN", "in this network namespace", "", nil},
	{"af-xdp", Error, func(h *Host, _ *NIC) { h.Socket = "not permitted" }, "not permitted", "seccomp", "", nil},
	{"demux", Unknown, func(h *Host, _ *NIC) { h.Trial = Trial{Reason: "why"} }, "why", "sudo", "", nil},
	{"demux", Error, func(h *Host, _ *NIC) { h.Trial.Wrong = []string{"ARP: drop instead of pass"} }, "ARP", "report", "", nil},
	{"memlock", Warning, func(h *Host, _ *NIC) { h.Memlock = 8 << 20 }, "8192 KB", "ulimit", "", nil},
	{"hugepages", Warning, func(h *Host, _ *NIC) { h.HugeNodes = nil }, "no pool", "HUGETLBFS", "", nil},
	{"hugepages", Warning, func(h *Host, _ *NIC) { h.HugeNodes = []HugeNode{{0, 10, 1}} }, "1 of 10",
		"echo 41", "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages=41", nil},
	{"hugepages", Warning, func(h *Host, _ *NIC) { h.HugeNodes, h.HugeReserved = []HugeNode{{0, 64, 60}}, 50 },
		"60 of 64 free, of which 50 are reserved", "echo 86", "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages=86", nil},
	{"hugepages", Info, func(h *Host, _ *NIC) { h.HugeNodes[0].Free = 0 }, "node 0: 0 of 64",
		"echo 96 > /sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages", "", nil},
	{"hugepages", Info, func(h *Host, _ *NIC) { h.HugeNodes, h.Overcommit = []HugeNode{{0, 0, 0}}, 100 }, "100 more", "", "", nil},
	{"hugepages", Info, func(h *Host, _ *NIC) { h.HugeNodes, h.Overcommit = []HugeNode{{0, 1, 1}}, math.MaxInt }, "more on demand", "", "", nil},
	{"hugepages", Warning, func(h *Host, _ *NIC) { h.HugeNodes, h.Overcommit = []HugeNode{{0, 0, 0}}, 1 }, "1 more on demand: a NIC takes",
		"echo 32", "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages=32", nil},
	{"hugepages", Warning, func(h *Host, _ *NIC) { // others have what there is on demand
		h.HugeNodes, h.Overcommit, h.HugeSurplus = []HugeNode{{0, 100, 0}}, 100, 100
	}, "0 of 100 free: a NIC takes", "echo 132", "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages=132", nil},
	{"c-states", Info, func(h *Host, _ *NIC) { h.Idle[2].Disabled = false }, "C6 (133 us)", "tune", "", nil},
	{"governor", Info, func(h *Host, _ *NIC) { h.Governor = "powersave" }, "powersave", "tune", "", nil},
	{"busy-poll", Info, func(h *Host, _ *NIC) { h.BusyPoll = "50" }, "50", "sysctl", "", nil},
	{"link", Error, func(_ *Host, n *NIC) { n.Up = false }, "down", "ip link set dev eth0 up", "eth0 link state=up", nil},
	{"link", Error, func(_ *Host, n *NIC) { n.Carrier = false }, "carrier", "cable", "", nil},
	{"link", Error, func(_ *Host, n *NIC) { n.Kind, n.Carrier = "veth", false }, "carrier", "other end", "",
		[]string{"veth-peer", "queues"}},
	{"address", Error, func(_ *Host, n *NIC) { n.Addrs = nil }, "no IP", "ip address add", "", nil},
	{"address", Info, func(_ *Host, n *NIC) { n.Addrs = []netip.Addr{netip.MustParseAddr("fe80::1")} }, "link-local", "", "", nil},
	{"driver", Warning, func(_ *Host, n *NIC) { n.XDP = []string{"basic"} }, "ice", "native", "", []string{"zero-copy", "multi-buffer"}},
	{"driver", Unknown, func(_ *Host, n *NIC) { n.XDPKnown, n.XDP = false, nil }, "does not tell", "--try", "",
		[]string{"zero-copy", "multi-buffer"}},
	{"program", Error, func(_ *Host, n *NIC) { n.Program = &Program{ID: 7, Name: "cil_xdp", Mode: "native"} }, "cil_xdp", "xdp off", "", nil},
	{"zero-copy", Info, func(_ *Host, n *NIC) { n.XDP = []string{"basic", "redirect", "rx-sg"} }, "no zero-copy", "", "", nil},
	{"multi-buffer", Info, func(_ *Host, n *NIC) { n.XDP = n.XDP[:3] }, "no multi-buffer", "", "", nil},
	{"multi-buffer", Info, func(_ *Host, n *NIC) { n.ZCSegments = 1 }, "one chunk", "", "", nil},
	{"mtu", Error, func(_ *Host, n *NIC) { n.MTU = 500 }, "500", "mtu 1500", "", nil},
	{"mtu", Warning, func(_ *Host, n *NIC) { n.MTU, n.XDP = 9000, n.XDP[:3] }, "9000", "mtu 3506", "", []string{"multi-buffer"}},
	{"queues", Warning, func(_ *Host, n *NIC) { n.RSSQueues = []int{0, 1, 2} }, "over 3 of them", "ethtool -X eth0 equal 1", "", nil},
	{"mtu", OK, func(_ *Host, n *NIC) { n.MTU, n.XDP = 9000, nil }, "up to 3 chunks", "", "", []string{"driver", "zero-copy", "multi-buffer"}},
	{"queues", Info, func(_ *Host, n *NIC) { n.RSSQueues, n.Features = nil, map[string]bool{"rx-ntuple-filter": true} },
		"any of them", "ethtool -L eth0 combined 1", "", nil},
	{"queues", Info, func(_ *Host, n *NIC) { n.RSSQueues, n.Features[ntuple], n.Fixed[ntuple] = []int{0, 1}, true, true },
		"classifier", "ethtool -X eth0 equal 1", "", nil},
	{"queues", Warning, func(_ *Host, n *NIC) { n.RSSQueues, n.Features[ntuple] = []int{0, 1}, false },
		"classifier is off", "ethtool -K eth0 ntuple on; or: ethtool -X eth0 equal 1", "", nil},
	{"queues", Warning, func(_ *Host, n *NIC) {
		n.RSSQueues, n.Features[ntuple], n.Fixed[ntuple] = []int{0, 1}, false, true
	}, "over 2 of them", "ethtool -X eth0 equal 1", "", nil},
	{"queues", Warning, func(_ *Host, n *NIC) { // which a zero-copy queue would not receive
		n.RxQueues, n.RSSQueues, n.Features[ntuple], n.Fixed[ntuple] = 2, []int{0, 1}, false, true
	}, "over 2 of them", "ethtool -X eth0 equal 1", "", nil},
	{"queues", Warning, func(_ *Host, n *NIC) { // as virtio without RSS
		n.RSSQueues, n.Features[ntuple], n.Fixed[ntuple], n.XDP = nil, false, true, []string{"basic", "redirect", "rx-sg"}
	}, "any of them", "ethtool -L eth0 combined 4", "", []string{"zero-copy"}},
	{"queues", Warning, func(_ *Host, n *NIC) { n.RSSQueues, n.Features[ntuple], n.Fixed[ntuple] = nil, false, true },
		"any of them", "ethtool -L eth0 combined 1", "", nil},
	{"queues", Warning, func(_ *Host, n *NIC) { n.RSSQueues, n.Features[ntuple] = nil, false },
		"classifier is off", "ethtool -K eth0 ntuple on; or: ethtool -L eth0 combined 1", "", nil},
	{"queues", OK, func(_ *Host, n *NIC) {
		n.RxQueues, n.RSSQueues, n.Features[ntuple], n.Fixed[ntuple], n.XDP = 2, []int{0, 1}, false, true, []string{"basic", "redirect", "rx-sg"}
	}, "receives from all of them", "", "", []string{"zero-copy"}},
	{"queues", Info, func(_ *Host, n *NIC) { n.Kind = "veth"; n.Peer = &Peer{Seen: true, Program: true} }, "8 queues", "native", "", nil},
	{"offloads", Warning, func(_ *Host, n *NIC) { n.Features["rx-lro"] = true }, "rx-lro", "ethtool -K eth0 lro off", "eth0 feature rx-lro=off", nil},
	{"offloads", Warning, func(_ *Host, n *NIC) { n.Features["rx-gro-list"] = true }, "rx-gro-list", "rx-gro-list off", "eth0 feature rx-gro-list=off", nil},
	{"offloads", Warning, func(_ *Host, n *NIC) { n.Features["rx-udp-gro-forwarding"] = true }, "forwarding", "off",
		"eth0 feature rx-udp-gro-forwarding=off", nil},
	{"offloads", Warning, func(_ *Host, n *NIC) { n.Features["rx-gro-hw"], n.Fixed["rx-gro-hw"] = true, true }, "rx-gro-hw", "keeps it", "", nil},
	{"offloads", Unknown, func(_ *Host, n *NIC) { n.Features = nil }, "cannot be read", "ethtool -k", "", []string{"vlan-offload", "segmentation"}},
	{"segmentation", Info, func(_ *Host, n *NIC) { n.Features["tx-udp-segmentation"] = false }, "tx-udp-segmentation", "ethtool -K eth0 tx-udp-segmentation on", "", nil},
	{"segmentation", Info, func(_ *Host, n *NIC) { n.Features["tx-udp-segmentation"], n.Fixed["tx-udp-segmentation"] = false, true },
		"the driver has no tx-udp-segmentation", "", "none", nil},
	{"segmentation", Info, func(_ *Host, n *NIC) {
		for _, f := range []string{"tx-checksum-ip-generic", "tx-checksum-ipv4"} {
			n.Features[f], n.Fixed[f] = false, true
		}
	},
		"no checksums", "", "none", nil},
	{"segmentation", Info, func(_ *Host, n *NIC) {
		n.Features["tx-checksum-ip-generic"], n.Features["tx-checksum-ipv4"] = false, false
	},
		"no checksums", "ethtool -K eth0 tx on", "", nil},
	{"vlan-offload", Warning, func(_ *Host, n *NIC) { n.Features["rx-vlan-hw-parse"], n.VLANs = true, 2 }, "2 VLAN", "rxvlan off",
		"eth0 feature rx-vlan-hw-parse=off", nil},
	{"veth-peer", Info, func(_ *Host, n *NIC) { n.Kind, n.RxQueues, n.Peer = "veth", 1, &Peer{Seen: true} }, "no XDP program", "gro on", "", nil},
	{"veth-peer", Unknown, func(_ *Host, n *NIC) { n.Kind, n.RxQueues, n.Peer = "veth", 1, &Peer{} }, "cannot be seen", "doctor", "", nil},
	{"numa", Warning, func(h *Host, _ *NIC) { h.HugeNodes[1].Free = 0 }, "node 1", "node1/hugepages",
		"/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages=96", []string{"hugepages"}},
	{"numa", Info, func(_ *Host, n *NIC) { n.NUMANode = -1 }, "not known", "numa_node", "", nil},
	{"interrupts", Warning, func(_ *Host, n *NIC) { n.Sysfs["napi_defer_hard_irqs"] = "2" }, "is 2", "echo 0",
		"/sys/class/net/eth0/napi_defer_hard_irqs=0", nil},
	{"interrupts", Warning, func(_ *Host, n *NIC) { n.Sysfs["threaded"] = "1" }, "threaded", "echo 0", "/sys/class/net/eth0/threaded=0", nil},
	{"interrupts", Unknown, func(_ *Host, n *NIC) { n.Sysfs = nil }, "another network namespace", "ip netns", "", nil},
	{"coalescing", Info, func(_ *Host, n *NIC) { n.Coalesce = map[string]string{"rx-usecs": "30", "adaptive-rx": "off"} }, "rx-usecs 30", "tune", "", nil},
	{"holders", Info, func(_ *Host, n *NIC) { n.Holders = []Holder{{7, "app", 2}} }, "queue 2: app (7)", "res", "", nil},
	{"holders", Info, func(_ *Host, n *NIC) { n.Holders, n.HoldersBy = []Holder{{7, "app", -1}}, "process" }, "or other interfaces", "res", "", nil},
	{"holders", Info, func(_ *Host, n *NIC) {
		n.Agent, n.Holders = agentsNIC(), []Holder{{4711, "trader", 2}, {9, "other", 3}}
	},
		"queue 2: trader (4711) of user 1001, queue 3: other (9)", "res", "", nil},
	{"holders", Unknown, func(h *Host, _ *NIC) { h.SeesOthers = false }, "cannot be seen", "sudo", "", nil},
	{"control-port", Warning, func(_ *Host, n *NIC) { n.ControlPort = "another program holds it" }, "another program", "ss -ulpn", "", nil},
	{"control-port", Warning, func(h *Host, n *NIC) { n.ControlPort, h.SeesOthers = "another program holds it", false }, "another program",
		"sudo ss -ulpn sport = :4793", "", []string{"holders"}},
}

func TestChecks(t *testing.T) {
	for _, a := range ailments {
		f := healthy()
		a.ail(&f.Host, &f.NICs[0])
		r := Examine(f)
		found := false
		for _, x := range r.Findings {
			if x.Check != a.check {
				nstest.ErrorIf(t, x.Level != OK && !slices.Contains(a.others, x.Check),
					"%s (%s): %s finds: %s", a.check, a.cause, x.Check, x.Cause)
				continue
			}
			found = true
			nstest.ErrorIf(t, x.Level != a.level || !strings.Contains(x.Cause, a.cause) || !strings.Contains(x.Command, a.do),
				"%s: want %s, %q, %q; got %+v", a.check, a.level, a.cause, a.do, x)
			var fix []string
			for _, s := range x.Steps {
				fix = append(fix, s.Setting.String()+"="+s.Value)
			}
			if a.fix == "none" {
				nstest.ErrorIf(t, x.Command != "", "%s (%s): %q cannot help", a.check, a.cause, x.Command)
				fix = append(fix, "none")
			}
			nstest.ErrorIf(t, strings.Join(fix, " ") != a.fix,
				"%s (%s): --fix does %q, want %q", a.check, a.cause, fix, a.fix)
			nstest.ErrorIf(t, a.level.Worse(Unknown) && (x.Consequence == "" || x.Command == ""),
				"%s (%s): no consequence, or no command", a.check, a.cause)
		}
		nstest.ErrorIf(t, !found, "%s finds nothing", a.check)
		if impossible := r.Impossible(); (impossible != nil) != (a.level == Error) {
			t.Errorf("%s (%s): impossible: %v", a.check, a.cause, impossible)
		}
	}
	for _, c := range Checks {
		nstest.ErrorIf(t, !slices.ContainsFunc(ailments, func(a ailment) bool { return a.check == c.ID }),
			"no ailment for check %s", c.ID)
		nstest.ErrorIf(t, c.About == "" || (c.Host == nil) == (c.NIC == nil), "row %s", c.ID)
	}
}

// A user without privilege sees neither the name of an XDP program nor which process holds a port. Both may belong to a program
// of root that has the NIC open.
func TestPortOfUnseenProgram(t *testing.T) {
	f := healthy()
	f.Host.Capabilities, f.Host.SeesOthers = 0, false
	f.NICs[0].Program, f.NICs[0].ControlPort = &Program{ID: 7, Mode: "generic"}, "another program holds it"
	for _, x := range Examine(f).Findings {
		nstest.ErrorIf(t, x.Check == "control-port" && (x.Level != Unknown || x.Command != "sudo via-xdp doctor eth0"),
			"%s: %s: %s; do: %s", x.Level, x.Cause, x.Consequence, x.Command)
	}
}

// agentsNIC is an interface with a queue that the daemon has leased to a program.
func agentsNIC() *kagent.NICStatus {
	return &kagent.NICStatus{Interface: "eth0", Index: 2, Mode: "generic", Queues: 8, Port: port, Leases: []kagent.LeaseStatus{
		{Queue: 2, Holder: kagent.Holder{PID: 4711, UID: 1001, Comm: "trader"}},
	}}
}

// With an agent, missing privileges of the user are no error, nor are the agent's program and
// port on the interface.
func TestAgentServes(t *testing.T) {
	f := healthy()
	h, n := &f.Host, &f.NICs[0]
	h.Capabilities, h.Socket, h.Memlock, h.SeesOthers = 0, "not permitted", 8<<20, false
	n.Program, n.ControlPort = &Program{ID: 7, Mode: "generic"}, "another program holds it"
	concerned := []string{"capabilities", "af-xdp", "memlock", "program", "control-port", "holders"}
	for _, x := range Examine(f).Findings {
		nstest.ErrorIf(t, slices.Contains(concerned, x.Check) && x.Level == OK,
			"without an agent: %s: %s", x.Check, x.Cause)
	}
	h.Agent = Agent{Socket: "/run/via-xdp/agent.sock", PID: 42, Here: true}
	n.Agent = agentsNIC()
	r := Examine(f)
	for _, x := range r.Findings {
		nstest.ErrorIf(t, slices.Contains(concerned, x.Check) && x.Level != OK && x.Check != "holders",
			"%s: %s: %s", x.Check, x.Level, x.Cause)
		// Its configuration, which does not show, may leave out this user or interface.
		nstest.ErrorIf(t, slices.Contains(concerned[:3], x.Check) && !strings.Contains(x.Cause, "if it serves"),
			"%s promises what only opening tells: %s", x.Check, x.Cause)
	}
	if x := r.Impossible(); x != nil {
		t.Errorf("impossible: %+v", x)
	}
}

// A program whose name a user may not see may be the demux program of an agent that does not serve this user. So it is no
// error, and doctor does not advise to remove it. A program without a name, which root sees, is another owner's.
func TestProgramOfUnknownName(t *testing.T) {
	f := healthy()
	f.NICs[0].Program = &Program{ID: 7, Mode: "generic"}
	for capabilities, want := range map[uint64]Level{f.Host.Capabilities: Error, 0: Unknown} {
		f.Host.Capabilities = capabilities
		found := checkProgram(&f.Host, &f.NICs[0])
		if len(found) != 1 || found[0].Level != want || strings.Contains(found[0].Command, "off") != (want == Error) {
			t.Errorf("capabilities %x: %+v, want %s", capabilities, found, want)
		}
	}
}

// One good interface is enough to run, unless the host is at fault.
func TestImpossible(t *testing.T) {
	f := healthy()
	bad := f.NICs[0]
	bad.Name, bad.Up = "eth1", false
	f.NICs = append(f.NICs, bad)
	if x := Examine(f).Impossible(); x != nil {
		t.Errorf("impossible: %+v", x)
	}
	f.NICs = f.NICs[1:]
	if x := Examine(f).Impossible(); x == nil || x.Interface != "eth1" {
		t.Errorf("impossible: %+v", x)
	}
	f = healthy()
	f.Host.Socket = "no"
	if x := Examine(f).Impossible(); x == nil || x.Interface != "" {
		t.Errorf("impossible: %+v", x)
	}
	want := []undo.Step{{Setting: undo.Setting{Kind: undo.Link, Interface: "eth1", Name: "state"}, Value: "up"}}
	f = healthy()
	f.NICs[0] = bad
	if got := Examine(f).Steps(); !slices.Equal(got, want) {
		t.Errorf("steps %v", got)
	}
}
