package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"viaxdp/internal/lab/vm/plan"
)

// Names of steps.
const (
	stepBoot        = "boot"
	stepInfo        = "info"
	stepNIC         = "xdpnic tests"
	stepConformance = "conformance suite, data part"
	stepQueues      = "several queues"
	stepCopied      = "several queues, native"
	stepAgent       = "agent, memory of zero-copy queues"
	stepShared      = "agent, programs that share queues"
)

// row is a ping-pong in the guest.
type row struct {
	name, transport, mode string
	bytes                 int
}

func (r row) step() string { return fmt.Sprintf("%s, %d bytes", r.name, r.bytes) }

// rounds is how many round trips a row has, each byte of them checked.
func (r row) rounds() int {
	if r.bytes > 4096 {
		return 10
	}
	return 200
}

// rows are the demo's ping-pongs that a run has. Their figures are printed
// side by side and never compared with a limit.
func rows(mode string, short bool) []row {
	const vi, raw = "vi-reliable-delivery", "raw-afxdp"
	list := []row{
		{"VI, " + mode, vi, mode, 64}, {"VI, " + mode, vi, mode, 65536},
		{"VI waiting, " + mode, vi + "-wait", mode, 64},
		{"raw AF_XDP, " + mode, raw, mode, 64},
	}
	if short {
		return list[:1]
	}
	if mode != native {
		list = append(list, row{"VI, " + native, vi, native, 64}, row{"VI, " + native, vi, native, 65536})
	}
	return append(list,
		row{"kernel TCP, spinning", "tcp-spin", mode, 64}, row{"kernel TCP, spinning", "tcp-spin", mode, 65536},
		row{"kernel TCP, blocking", "tcp-block", mode, 64})
}

// task is what a guest is to do.
type task struct {
	mode   string
	queues int
	// short leaves out the conformance suite, all ping-pongs but one, and programs beyond four that share a queue.
	short bool
	// slow multiplies the time that a step may take.
	slow int
}

// silence is after how long a VI takes its peer for dead: an emulated processor may be slow for long
// (TestNICs of vipltest has the same).
const silence = "20s"

// rows leaves out what needs one queue: the raw rings steer nothing.
func (o task) rows() []row {
	return slices.DeleteFunc(rows(o.mode, o.short), func(r row) bool { return o.queues > 1 && r.transport == "raw-afxdp" })
}

// Modes as the commands name them.
const (
	zeroCopy = "zero-copy"
	native   = "native"
)

// ports are the servers' TCP ports, one server for a mode.
var ports = map[string]string{zeroCopy: "18515", native: "18516"}

// suite is a step that runs tests.
type suite struct {
	step, program, run string
	limit              time.Duration
	wants              []string // tests that must have passed: a renamed one would be left out silently
}

// suites are those of a task. What runs with several queues is the same test each time.
func (o task) suites() []suite {
	shared := suite{stepShared, "/agentd.test", anyOf(sharedTests), 240 * time.Second, sharedTests}
	list := []suite{
		{stepNIC, "/xdpnic.test", "^TestNICs", 180 * time.Second, frameTests},
		{stepAgent, "/agentd.test", anyOf(agentTests), 120 * time.Second, agentTests},
	}
	if !o.short {
		list = slices.Insert(list, 1, suite{stepConformance, "/vipltest.test", dataRules, 240 * time.Second, within("TestNICs", dataGroups)})
		shared.wants = append(within("TestNICsAllToAll", sharedRules), sharedTests...)
	}
	list = append(list, shared)
	if o.queues > 1 {
		several := suite{stepQueues, "/vipltest.test", "^TestQueuesOfNICs$", 60 * time.Second, nil}
		list = append(list, several)
		if o.mode != native { // in which a handle may receive from all
			several.step = stepCopied
			list = append(list, several)
		}
	}
	return list
}

// within are the names of subtests.
func within(test string, names []string) (list []string) {
	for _, name := range names {
		list = append(list, test+"/"+name)
	}
	return list
}

// plan is what the guest does to show that the mode works. With several
// queues VIs are on the last one, where no frame comes unless it is steered.
func (o task) plan() plan.Plan {
	env := []string{
		"VIA_NICS=eth0@/proc/1/ns/net,eth1@" + plan.Peer,
		"VIA_NICS_MODE=" + o.mode,
	}
	several := append(env[:2:2], fmt.Sprint("VIA_NICS_QUEUES=", o.queues))
	var steer []string
	if o.queues > 1 {
		last := fmt.Sprint(o.queues - 1)
		env = append(env, "VIA_NICS_QUEUE="+last)
		steer = []string{"--queue", last, "--steer", "rss"}
	}
	p := plan.Plan{Queues: o.queues, Steps: []plan.Step{
		{Name: stepInfo, Argv: []string{"/via-xdp", "info", "--try", "--json", "eth0"}, Limit: 20 * time.Second},
	}}
	for _, s := range o.suites() {
		step := plan.Step{
			Name: s.step, Argv: []string{s.program, "-test.v", "-test.run", s.run, "-test.skip", silentRules}, Env: env, Limit: s.limit,
		}
		switch s.step {
		case stepShared:
			step.Argv = append(step.Argv, fmt.Sprint("-test.short=", o.short))
		case stepQueues:
			step.Env = several
		case stepCopied:
			step.Env = append(slices.Clone(several), "VIA_NICS_MODE="+native)
		}
		p.Steps = append(p.Steps, step)
	}
	serving := make(map[string]bool)
	for _, r := range o.rows() {
		place := append([]string{"--mode", r.mode, "-p", ports[r.mode], "--hugepages=false", "--silence", silence}, steer...)
		if !serving[r.mode] {
			serving[r.mode] = true
			p.Steps = append(p.Steps, plan.Step{
				Name: "server, " + r.mode, Peer: true, Serve: true, Limit: 10 * time.Minute,
				Argv: append([]string{"/via-xdp", "pingpong", "-i", "eth1", "--keep"}, place...),
			})
		}
		p.Steps = append(p.Steps, plan.Step{
			Name: r.step(), Limit: 60 * time.Second,
			Argv: append([]string{"/via-xdp", "pingpong", "-i", "eth0", "--name", r.transport, "--check",
				"-s", fmt.Sprint(r.bytes), "-n", fmt.Sprint(r.rounds()), "--json", "-", fmt.Sprintf(plan.IPv4, 2)}, place...),
		})
	}
	for i := range p.Steps {
		s := &p.Steps[i]
		s.Limit *= time.Duration(max(o.slow, 1))
		if strings.HasSuffix(s.Argv[0], ".test") {
			// Before it is killed, so that it says where it stands.
			s.Argv = append(s.Argv, "-test.timeout", (s.Limit * 9 / 10).String())
		}
	}
	return p
}

// silentRules take the link down, and with it the addresses.
const silentRules = "^TestNICs(AllToAll)?$/reliability/silent-peer"

// dataGroups are the groups of the conformance suite that move data.
var dataGroups = []string{"descriptors", "send-receive", "rdma-write", "rdma-read", "reliability", "cq"}

// dataRules are their rules, and a test that has none.
var dataRules = "^(TestNICs|TestLastFramesOfNICs)$/^(" + strings.Join(dataGroups, "|") + ")$"

// agentTests and sharedTests are tests of package agentd.
var (
	agentTests  = []string{"TestNICsZeroCopyReads"}
	sharedTests = []string{"TestNICsShared", "TestNICsAllToAll"}
)

// sharedRules are the groups of the conformance suite that the last of sharedTests runs beside other programs, unless it is short.
var sharedRules = dataGroups[1:] // no descriptors, which are each program's own

// anyOf is a pattern of these tests and no others.
func anyOf(names []string) string { return "^(" + strings.Join(names, "|") + ")$" }

// frameTests are tests of package xdpnic that fail on a lost frame or a bind in another mode: VIs would
// resend the frame.
var frameTests = []string{"TestNICsEcho", "TestNICsPingPong", "TestNICsStream", "TestNICsWait"}

// nicForm is a kind of NIC.
type nicForm struct {
	name      string
	device    string // QEMU's name
	options   string // of the device
	machine   string // QEMU's machine
	rootPort  bool   // each needs a PCI Express port of its own
	cloud     bool   // Debian's cloud kernel has the driver
	backports bool   // needs a newer QEMU than Debian 12 has
	modules   []string
	// queues are what a guest gets without --queues. igb has one for each
	// processor and hashes IP over them, where sockets hear one only.
	queues int
	// slow: opening takes seconds, as the link goes down for each.
	slow int
}

// forms are the NICs that QEMU emulates and whose drivers have zero-copy queues.
var forms = []nicForm{
	{
		name: "virtio", device: "virtio-net-pci", machine: "pc", cloud: true,
		// Without iommu_platform the driver says that it has zero-copy and then
		// refuses the bind (EINVAL, virtnet_xsk_pool_enable): its DMA addresses
		// would not be those of the DMA API.
		options: "iommu_platform=on,disable-legacy=on,romfile=",
		modules: []string{"virtio_pci", "virtio_net", "veth"},
	},
	{
		name: "igb", device: "igb", machine: "q35", rootPort: true, backports: true, queues: 1, slow: 3,
		modules: []string{"igb", "veth"},
	},
}

func findForm(name string) (nicForm, error) {
	var names []string
	for _, f := range forms {
		if f.name == name {
			return f, nil
		}
		names = append(names, f.name)
	}
	return nicForm{}, fmt.Errorf("no NIC %q: there are %q", name, names)
}

// zeroCopySince is the first kernel whose driver has zero-copy queues, as major
// and minor number.
func (f nicForm) zeroCopySince() [2]int {
	if f.name == "virtio" {
		return [2]int{6, 16} // with a DMA premapped receive queue
	}
	return [2]int{6, 14} // igb
}
