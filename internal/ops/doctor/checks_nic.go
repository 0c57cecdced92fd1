package doctor

import (
	"fmt"
	"slices"
	"strings"

	"viaxdp/bpf"
	"viaxdp/internal/agent/agentclient"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/wire"
	"viaxdp/internal/ops/undo"
	"viaxdp/xdpnic"
)

const (
	// chunkFrame is what a chunk holds of a frame, and frameHead what a frame
	// has in front of its IP packet: Ethernet header and a VLAN tag.
	chunkFrame = xdpnic.MaxChunk - xdpnic.PacketHeadroom
	frameHead  = 18

	port = wire.Port
)

func checkLink(_ *Host, n *NIC) []Finding {
	switch {
	case !n.Up:
		return one(Error, "it is down", "no frame goes in or out", "ip link set dev "+n.word()+" up",
			undo.Step{Setting: undo.Setting{Kind: undo.Link, Interface: n.Name, Name: "state"}, Value: "up"})
	case !n.Carrier && n.Kind == "veth":
		return one(Error, "no carrier", "no frame goes in or out", "set the other end up, too")
	case !n.Carrier:
		return one(Error, "no carrier", "no frame goes in or out", "look at cable and switch; ethtool "+n.word())
	}
	return ok("up")
}

func checkAddress(_ *Host, n *NIC) []Finding {
	for _, a := range n.Addrs {
		if !a.IsLinkLocalUnicast() {
			return ok(fmt.Sprint(n.Addrs))
		}
	}
	if len(n.Addrs) > 0 {
		return one(Info, "only link-local addresses", "peers must name the address with IPv6 link-local rules",
			"ip address add 10.77.0.1/24 dev "+n.word())
	}
	return one(Error, "it has no IP address", "connections go by UDP: none can be made",
		"ip address add 10.77.0.1/24 dev "+n.word())
}

func checkDriver(_ *Host, n *NIC) []Finding {
	switch {
	case !n.XDPKnown:
		return one(Unknown, n.Driver+"; the kernel does not tell its XDP features (Linux 6.3 does)",
			"which mode works shows when a NIC is opened", "via-xdp info --try "+n.word())
	case !n.native():
		return one(Warning, n.Driver+" runs no XDP programs that redirect",
			"VIs run in generic mode: each frame is copied to a socket buffer first", "use a NIC whose driver has native XDP")
	}
	return ok(n.Driver + ": " + strings.Join(n.XDP, ", "))
}

// native reports whether the driver runs the demux program, as far as the kernel tells.
func (n *NIC) native() bool { return n.Has("basic") && n.Has("redirect") }

// unnamed reports whether the attached program may be via-xdp's: the kernel tells names to privileged processes only.
func (n *NIC) unnamed(h *Host) bool {
	return n.Program != nil && !n.Program.Ours && n.Program.Name == "" && len(h.missing()) > 0
}

func checkProgram(h *Host, n *NIC) []Finding {
	p := n.Program
	switch {
	case p == nil:
		return ok("no XDP program is attached")
	case p.Ours:
		return ok(fmt.Sprintf("program %d, via-xdp's, %s mode", p.ID, p.Mode))
	case n.agents():
		return ok(fmt.Sprintf("program %d, the agent's, %s mode", p.ID, p.Mode))
	case n.unnamed(h):
		return one(Unknown, fmt.Sprintf("program %d is attached in %s mode; its name cannot be seen", p.ID, p.Mode),
			"unless it is via-xdp's, a NIC cannot be opened", "sudo via-xdp doctor "+n.word())
	}
	name := fmt.Sprintf("%q", p.Name)
	if p.Name == "" {
		name = "of unknown name"
	}
	off := "xdp off" // where the driver runs programs, it looks only there
	if p.Mode == bpf.Generic.String() {
		off = "xdpgeneric off"
	}
	return one(Error, fmt.Sprintf("program %d %s is attached in %s mode", p.ID, name, p.Mode),
		"an interface has one program: a NIC cannot be opened. It is not ours to remove",
		"stop its owner, or: ip link set dev "+n.word()+" "+off)
}

func checkZeroCopy(_ *Host, n *NIC) []Finding {
	switch {
	case !n.XDPKnown:
		return one(Unknown, "the kernel does not tell", "", "via-xdp info --try "+n.word())
	case n.Has("xsk-zerocopy"):
		return ok("the driver has it")
	}
	return one(Info, n.Driver+" has no zero-copy", "the kernel copies each frame once, in the driver or behind it", "")
}

func checkMultiBuffer(_ *Host, n *NIC) []Finding {
	switch {
	case !n.XDPKnown:
		return one(Unknown, "the kernel does not tell", "", "via-xdp info --try "+n.word())
	case !n.Has("rx-sg"):
		return one(Info, n.Driver+" has no multi-buffer XDP",
			"in native mode a frame is one chunk at most; generic mode takes frames of any length", "")
	case n.Has("xsk-zerocopy") && n.ZCSegments <= 1:
		return one(Info, "in zero-copy mode a frame is one chunk", "long frames need a copying mode", "")
	}
	return ok("frames of several chunks are possible")
}

func checkSegmentation(_ *Host, n *NIC) []Finding {
	const divide, checksum, checksum4 = "tx-udp-segmentation", "tx-checksum-ip-generic", "tx-checksum-ipv4"
	off := func(feature string) bool {
		on, there := n.Features[feature]
		return there && !on
	}
	switch {
	case n.Features == nil:
		return one(Unknown, "offloads cannot be read", "", "ethtool -k "+n.word())
	case off(checksum) && off(checksum4):
		command := "ethtool -K " + n.word() + " tx on"
		if n.Fixed[checksum] && n.Fixed[checksum4] {
			command = ""
		}
		return one(Info, "the interface computes no checksums", "in generic mode long messages leave frame by frame", command)
	case off(divide):
		cause, command := divide+" is off", "ethtool -K "+n.word()+" "+divide+" on"
		if n.Fixed[divide] {
			cause, command = "the driver has no "+divide, ""
		}
		return one(Info, cause, "in generic mode long messages leave as packets of several frames, and the kernel divides them before the driver", command)
	}
	return ok("packets of several frames leave undivided, or the NIC divides them")
}

func checkMTU(_ *Host, n *NIC) []Finding {
	frame := n.MTU + frameHead
	switch {
	case n.MTU < 576:
		return one(Error, fmt.Sprintf("MTU %d", n.MTU), "no room for data beside the headers",
			"ip link set dev "+n.word()+" mtu 1500")
	case n.native() && !n.Has("rx-sg") && n.MTU > bpf.PageMTU:
		return one(Warning, fmt.Sprintf("MTU %d is more than native mode takes without multi-buffer (%d)", n.MTU, bpf.PageMTU),
			"native mode is refused and generic mode taken", fmt.Sprintf("ip link set dev %s mtu %d", n.word(), bpf.PageMTU))
	case frame > chunkFrame:
		return ok(fmt.Sprintf("MTU %d: a frame takes up to %d chunks", n.MTU, (frame+chunkFrame-1)/chunkFrame))
	}
	return ok(fmt.Sprintf("MTU %d: a frame fits in a chunk of %d bytes", n.MTU, chunkFrame))
}

func checkQueues(_ *Host, n *NIC) []Finding {
	switch {
	case n.RxQueues <= 1:
		return ok("one queue: every frame comes in on it")
	case n.Kind == "veth":
		return one(Info, fmt.Sprintf("%d queues", n.RxQueues),
			"in generic mode all frames come in on queue 0: one NIC handle has it and others share it; native mode has them all",
			"via-xdp pingpong --mode native ...")
	case len(n.RSSQueues) == 1:
		return ok(fmt.Sprintf("%d queues, and frames go to queue %d", n.RxQueues, n.RSSQueues[0]))
	}
	on, there := n.Features[ntuple]
	takesFew := n.Features != nil && !on && (!there || n.Fixed[ntuple]) && !n.Has("xsk-zerocopy")
	if takesFew && n.RxQueues <= kagent.AutoQueues {
		return ok(fmt.Sprintf("%d queues, and no classifier: a NIC handle receives from all of them", n.RxQueues))
	}
	used := "any of them, so far as can be seen"
	if n.RSSQueues != nil {
		used = fmt.Sprintf("%d of them", len(n.RSSQueues))
	}
	command := "ethtool -X " + n.word() + " equal 1"
	switch {
	case n.RSSQueues != nil:
	case takesFew: // without a table, as virtio often is
		command = fmt.Sprintf("ethtool -L %s combined %d", n.word(), kagent.AutoQueues)
	default:
		command = "ethtool -L " + n.word() + " combined 1"
	}
	f := Finding{Level: Warning, Cause: fmt.Sprintf("%d queues, and frames are spread over %s", n.RxQueues, used),
		Consequence: "a frame that comes in on another queue than its VI's is dropped (counter queue of the demux program)", Command: command}
	switch {
	case on: // whether the driver takes a rule for UDP shows only when one is made
		f.Level = Info
		f.Cause += "; the classifier is on"
		f.Consequence = "opening a NIC adds a rule that puts its frames on its queue. If the driver refuses the rule, " +
			"a note of the NIC handle says so, and frames on other queues are dropped"
	case there && !n.Fixed[ntuple]:
		// This is the default of NICs. Turning it on may take the link down, so the user must
		// decide.
		f.Cause += ", and the classifier is off that could keep them together"
		f.Command = fmt.Sprintf("ethtool -K %s ntuple on; or: %s", n.word(), command)
	}
	return []Finding{f}
}

// ntuple is the flow classifier. Opening a NIC uses it to steer frames to the queue.
const ntuple = "rx-ntuple-filter"

// merging are the offloads that make one frame of several, or hold frames back
// for that, and what it does.
var merging = []struct{ feature, short, harm string }{
	{"rx-lro", "lro", "the driver refuses native mode, and merges UDP frames in some NICs"},
	{"rx-gro-hw", "rx-gro-hw", "the NIC merges frames of a flow before the program sees them: where it does so with UDP, ours are dropped"},
	{"rx-gro-list", "rx-gro-list", "UDP frames are chained before generic mode sees them: ours arrive as one and are dropped"},
	{"rx-udp-gro-forwarding", "rx-udp-gro-forwarding", "UDP frames are merged before generic mode sees them: ours are dropped"},
}

func checkOffloads(_ *Host, n *NIC) []Finding {
	if n.Features == nil {
		return one(Unknown, "offloads cannot be read", "", "ethtool -k "+n.word())
	}
	var found []Finding
	for _, m := range merging {
		if !n.Features[m.feature] {
			continue
		}
		f := Finding{Level: Warning, Cause: m.feature + " is on", Consequence: m.harm,
			Command: "ethtool -K " + n.word() + " " + m.short + " off"}
		if n.Fixed[m.feature] {
			f.Command = "the driver keeps it on: take another NIC, or native mode"
		} else {
			f.Steps = []undo.Step{feature(n, m.feature, "off")}
		}
		found = append(found, f)
	}
	if found == nil {
		return ok("none that merges UDP frames is on")
	}
	return found
}

func feature(n *NIC, name, value string) undo.Step {
	return undo.Step{Setting: undo.Setting{Kind: undo.Feature, Interface: n.Name, Name: name}, Value: value}
}

func checkVLAN(_ *Host, n *NIC) []Finding {
	const name = "rx-vlan-hw-parse"
	switch {
	case n.Features == nil:
		return one(Unknown, "offloads cannot be read", "", "ethtool -k "+n.word())
	case !n.Features[name]:
		return ok("tags stay in the frame")
	case n.VLANs == 0 || n.Fixed[name] || !n.Hardware():
		return ok("tags are taken off; no VLAN that matters is on this interface")
	}
	return one(Warning, fmt.Sprintf("the NIC takes VLAN tags off, and %d VLAN interfaces are on top", n.VLANs),
		"the demux program sees frames of all VLANs as untagged: those of a VI are told apart by key alone",
		"ethtool -K "+n.word()+" rxvlan off", feature(n, name, "off"))
}

func checkPeer(_ *Host, n *NIC) []Finding {
	switch p := n.Peer; {
	case n.Kind != "veth":
		return ok("it is no veth")
	case p == nil || !p.Seen:
		return one(Unknown, "the other end cannot be seen", "native mode needs an XDP program or GRO there",
			"via-xdp doctor in the other end's namespace")
	case p.Program:
		return ok("the other end has an XDP program, too")
	case p.GRO:
		return ok("the other end has GRO on")
	}
	return one(Info, "the other end has no XDP program now",
		"native mode receives only with a program, or GRO, at the other end; generic mode, the default on veth, needs nothing",
		"open a NIC at the other end, or there: ethtool -K PEER gro on")
}

func checkNUMA(h *Host, n *NIC) []Finding {
	if len(h.HugeNodes) <= 1 {
		return ok("one node")
	}
	if n.NUMANode < 0 {
		return one(Info, "the NIC's node is not known", "memory and CPUs may be far from it", "cat /sys/class/net/"+n.word()+"/device/numa_node")
	}
	for _, node := range h.HugeNodes {
		if node.Node == n.NUMANode && node.Free == 0 {
			return one(Warning, fmt.Sprintf("the NIC is at node %d, which has no free page of 2 MB", n.NUMANode),
				"registered memory lies at another node: each frame crosses between them",
				fmt.Sprintf("echo %d > %s", node.Total+arena>>21, node.pool()),
				undo.Step{Setting: undo.Setting{Kind: undo.File, Name: node.pool()}, Value: fmt.Sprint(node.Total + arena>>21)})
		}
	}
	return ok(fmt.Sprintf("node %d; run programs there: numactl -N %d -m %d", n.NUMANode, n.NUMANode, n.NUMANode))
}

func checkInterrupts(_ *Host, n *NIC) []Finding {
	if n.Sysfs == nil {
		return one(Unknown, "sysfs shows another network namespace", "", "ip netns exec NAME via-xdp doctor "+n.word())
	}
	set := func(name string) bool { return !slices.Contains([]string{"", "0"}, n.Sysfs[name]) }
	var found []Finding
	for _, s := range []struct{ name, harm string }{
		{"napi_defer_hard_irqs", "interrupts wait for the timer below: messages of programs that do not poll with SO_PREFER_BUSY_POLL come late; on veth a hundred times"},
		{"gro_flush_timeout", "frames may be held back for that many nanoseconds"},
		{"threaded", "a kernel thread takes frames in, and must be scheduled first"},
	} {
		if set(s.name) {
			found = append(found, Finding{Level: Warning, Cause: s.name + " is " + n.Sysfs[s.name], Consequence: s.harm,
				Command: "echo 0 > /sys/class/net/" + n.word() + "/" + s.name,
				Steps:   []undo.Step{{Setting: undo.Setting{Kind: undo.NetFile, Interface: n.Name, Name: s.name}, Value: "0"}}})
		}
	}
	if found == nil {
		return ok("frames are taken in at once, by interrupt")
	}
	return found
}

func checkCoalesce(_ *Host, n *NIC) []Finding {
	if n.Coalesce == nil {
		return ok("the driver has none")
	}
	if n.Coalesce["adaptive-rx"] == "on" || !slices.Contains([]string{"", "0"}, n.Coalesce["rx-usecs"]) {
		return one(Info, fmt.Sprintf("rx-usecs %s, adaptive-rx %s", n.Coalesce["rx-usecs"], n.Coalesce["adaptive-rx"]),
			"a frame waits that long for the interrupt", "via-xdp tune --profile latency "+n.word())
	}
	return ok("off")
}

// agents reports whether the daemon has its program on the interface.
func (n *NIC) agents() bool { return n.Agent != nil && n.Agent.Mode != "" }

func checkServed(h *Host, n *NIC) []Finding {
	a := &h.Agent
	settings := fmt.Sprintf("name it to the agent (via-xdp agent -i %s, or [interface.%[1]s] in its settings, with this user if it has users), and restart the agent", n.word())
	switch {
	case a.PID == 0:
		return ok("programs use no agent")
	case !a.Here:
		return ok("the agent's interfaces are those of another network namespace")
	case a.Served == nil || slices.Contains(a.Served, n.Name):
		return ok("the agent opens it for programs of this user")
	case a.Named:
		return one(Error, "the agent at "+a.Socket+" does not serve it to this user, and "+agentclient.Environment+" names the agent",
			"programs that are started with this environment cannot open it",
			settings+"; or do without, with privilege: unset "+agentclient.Environment)
	case len(h.missing()) > 0:
		return one(Error, "the agent at "+a.Socket+" does not serve it to this user",
			"programs of this user cannot open it, nor by themselves, for lack of "+strings.Join(h.missing(), ", "), settings)
	}
	return ok("the agent at " + a.Socket + " does not serve it to this user: programs open it by themselves, with privilege")
}

func checkHolders(h *Host, n *NIC) []Finding {
	var list []string
	known := map[int]bool{} // processes
	if n.Agent != nil {
		for _, l := range n.Agent.Leases {
			known[l.Holder.PID] = true
			list = append(list, fmt.Sprintf("queue %d: %s (%d) of user %d", l.Queue, l.Holder.Comm, l.Holder.PID, l.Holder.UID))
		}
	}
	var suspects []string
	for _, p := range n.Holders {
		switch s := fmt.Sprintf("%s (%d)", p.Name, p.PID); {
		case known[p.PID]:
		case n.HoldersBy == "queue" && p.Queue >= 0:
			list = append(list, fmt.Sprintf("queue %d: %s", p.Queue, s))
		case n.HoldersBy == "queue":
			list = append(list, s)
		default:
			suspects = append(suspects, s)
		}
	}
	if len(suspects) > 0 {
		list = append(list, "AF_XDP sockets, of this or other interfaces, are open in "+strings.Join(suspects, ", "))
	}
	const consequence = "a queue has one holder, or several processes of one user through an agent: another program takes another queue, or fails"
	switch {
	case len(list) > 0:
		return one(Info, strings.Join(list, ", "), consequence, "via-xdp res nic")
	case !h.SeesOthers:
		return one(Unknown, "other users' processes cannot be seen", "", "sudo via-xdp doctor "+n.word())
	}
	return ok("no queue is held")
}

func checkControlPort(h *Host, n *NIC) []Finding {
	if n.ControlPort == "" {
		return ok(fmt.Sprintf("UDP port %d is free", port))
	}
	if n.Program != nil && n.Program.Ours {
		return ok(fmt.Sprintf("UDP port %d is held, by the program that has the interface", port))
	}
	if n.Agent != nil && n.Agent.Port == port {
		return ok(fmt.Sprintf("UDP port %d is held, by the agent", port))
	}
	if n.unnamed(h) {
		return one(Unknown, fmt.Sprintf("UDP port %d: %s; which one cannot be seen", port, n.ControlPort),
			"unless it is the one that has the interface, a NIC cannot make connections", "sudo via-xdp doctor "+n.word())
	}
	command := fmt.Sprintf("ss -ulpn sport = :%d", port)
	if !h.SeesOthers { // it would not show whose the socket is
		command = "sudo " + command
	}
	return one(Warning, fmt.Sprintf("UDP port %d: %s", port, n.ControlPort), "a program that opens a NIC here cannot make connections", command)
}
