package doctor

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"viaxdp/bpf"
	"viaxdp/internal/agent/agentclient"
	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/ops/undo"
	"viaxdp/xdpnic"
)

func text(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }

// The host's facts from files as kernels write them.
func TestRead(t *testing.T) {
	const node = "sys/devices/system/node/node"
	const pages = "/hugepages/hugepages-2048kB/"
	const idle = "sys/devices/system/cpu/cpu0/cpuidle/state"
	root := fstest.MapFS{
		"proc/sys/kernel/osrelease":                                        text("6.1.0-18-amd64\n"),
		"boot/config-6.1.0-18-amd64":                                       text("# CONFIG_X is not set\nCONFIG_BPF_JIT=y\nCONFIG_Y=m\nCONFIG_HZ=250\n"),
		"proc/self/status":                                                 text("Name:\tx\nCapInh:\t0000000000000000\nCapEff:\t000001ffffffffff\n"),
		"proc/cpuinfo":                                                     text("processor\t: 0\nflags\t\t: fpu hypervisor sse\n"),
		node + "1" + pages + "nr_hugepages":                                text("8\n"),
		node + "1" + pages + "free_hugepages":                              text("3\n"),
		node + "0" + pages + "nr_hugepages":                                text("4\n"),
		node + "0" + pages + "free_hugepages":                              text("4\n"),
		"sys/kernel/mm/hugepages/hugepages-2048kB/nr_overcommit_hugepages": text("5\n"),
		"sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages":          text("6\n"),
		"sys/kernel/mm/hugepages/hugepages-2048kB/surplus_hugepages":       text("2\n"),
		"sys/kernel/mm/transparent_hugepage/enabled":                       text("always [madvise] never\n"),
		idle + "0/name":                                                    text("POLL\n"),
		idle + "0/latency":                                                 text("0\n"),
		idle + "10/name":                                                   text("C10\n"), idle + "10/latency": text("890\n"), idle + "10/disable": text("1\n"),
		idle + "2/name": text("C6\n"), idle + "2/latency": text("85\n"), idle + "2/disable": text("0\n"),
		"sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": text("schedutil\n"),
		"proc/sys/net/core/busy_poll":                          text("50\n"),
	}
	want := Host{
		Release: "6.1.0-18-amd64", Major: 6, Minor: 1, Config: map[string]string{"CONFIG_BPF_JIT": "y", "CONFIG_Y": "m"},
		Capabilities: 0x1ffffffffff, Virtual: true, HugeNodes: []HugeNode{{0, 4, 4}, {1, 8, 3}}, HugeReserved: 6, HugeSurplus: 2, Overcommit: 5, THP: "madvise",
		Idle:     []IdleState{{0, "POLL", 0, false}, {2, "C6", 85, false}, {10, "C10", 890, true}},
		Governor: "schedutil", BusyPoll: "50",
	}
	var h Host
	h.read(root)
	nstest.Same(t, "host", h, want)

	// A kernel that has its configuration inside, and no NUMA.
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	w.Write([]byte("CONFIG_XDP_SOCKETS=y\n"))
	w.Close()
	h = Host{}
	h.read(fstest.MapFS{
		"proc/config.gz": &fstest.MapFile{Data: z.Bytes()},
		"sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages":   text("2"),
		"sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages": text("1"),
	})
	nstest.ErrorIf(t, h.Config["CONFIG_XDP_SOCKETS"] != "y" || !cmp.Equal(h.HugeNodes, []HugeNode{{0, 2, 1}}), "%+v", h)
	h = Host{}
	h.read(fstest.MapFS{})
	nstest.Same(t, "of nothing", h, Host{})
}

// gather reads the facts of a's interface in its namespace.
func gather(t *testing.T, a *nstest.NS) *Facts {
	t.Helper()
	return nstest.In(t, a, func() (*Facts, error) { return Gather(a.Name) })
}

func TestGatherVeth(t *testing.T) {
	a, b := nstest.Pair(t, nstest.Options{Queues: 2})
	f := gather(t, a)
	n := f.NICs[0]
	if n.Kind != "veth" || n.Driver != "veth" || n.MTU != 1500 || n.RxQueues != 2 || !n.Up || !n.Carrier ||
		!slices.Contains(n.Addrs, a.IPv4) || !slices.Contains(n.Addrs, a.IPv6) {
		t.Errorf("%+v", n)
	}
	nstest.ErrorIf(t, !n.XDPKnown || !n.Has("rx-sg") || n.Has("xsk-zerocopy") || n.Program != nil || len(n.Features) == 0,
		"%+v", n)
	nstest.ErrorIf(t, n.Peer == nil || !n.Peer.Seen || n.Peer.Program || n.Peer.Index != b.Index,
		"peer %+v, which is %d", n.Peer, b.Index)
	nstest.ErrorIf(t, n.ControlPort != "" || n.Sysfs != nil, "control port %q, sysfs %v", n.ControlPort, n.Sysfs)
	if tr := f.Host.Trial; !tr.Ran || len(tr.Wrong) > 0 || tr.Frames < 10 {
		t.Errorf("trial %+v", tr)
	}
	nstest.ErrorIf(t, f.Host.Socket != "" || f.Host.Major < 5, "host %+v", f.Host)

	// Changes by other programs are visible.
	d, err := bpf.LoadDemux(bpf.Config{})
	nstest.Must(t, err)
	defer d.Close()
	r, err := bpf.NewRedirect(bpf.RedirectConfig{})
	nstest.Must(t, err)
	defer r.Close()
	nstest.Must(t, b.Do(func() error { return d.Attach(b.Index, bpf.Generic) }))
	var held net.PacketConn
	var q *xdpnic.Queue
	nstest.Must(t, a.Do(func() (err error) {
		if err = r.Attach(a.Index, bpf.Native); err != nil {
			return err
		}
		if held, err = net.ListenPacket("udp", ":4793"); err != nil {
			return err
		}
		q, err = xdpnic.Open(xdpnic.Config{Ifindex: a.Index, RxChunks: 64, TxChunks: 64})
		return err
	}))
	defer held.Close()
	defer q.Close()
	n = gather(t, a).NICs[0]
	if p := n.Program; p == nil || p.Name != "via_redirect" || p.Ours || p.Mode != "native" {
		t.Errorf("program %+v", p)
	}
	nstest.ErrorIf(t, !n.Peer.Program || n.ControlPort == "", "peer %+v, control port %q", n.Peer, n.ControlPort)
	nstest.ErrorIf(t, !slices.ContainsFunc(n.Holders, func(h Holder) bool { return h.PID == os.Getpid() }),
		"holders %+v", n.Holders)
	n = gather(t, b).NICs[0]
	if p := n.Program; p == nil || !p.Ours || p.Mode != "generic" {
		t.Errorf("program %+v", p)
	}
}

// What --fix does to an interface is gone from the findings, and comes back
// with --undo.
func TestTreatment(t *testing.T) {
	a, _ := nstest.Pair(t, nstest.Options{})
	dir := t.TempDir()
	nstest.Must(t, a.Do(func() error {
		var m undo.Machine
		down := undo.Setting{Kind: undo.Link, Interface: a.Name, Name: "state"}
		forwarding := undo.Setting{Kind: undo.Feature, Interface: a.Name, Name: "rx-udp-gro-forwarding"}
		nstest.Must(t, errors.Join(m.Set(down, "down"), m.Set(forwarding, "on")))
		ill := func() (r *Report, ids []string) {
			f, err := Gather(a.Name)
			nstest.Must(t, err)
			f.Host.HugeNodes = nil // the machine's own settings are not this test's
			r = Examine(f)
			for _, x := range r.Findings {
				if x.Interface != "" && x.Level.Worse(Unknown) {
					ids = append(ids, x.Check)
				}
			}
			return r, ids
		}
		before, got := ill()
		nstest.ErrorIf(t, !slices.Contains(got, "link") || !slices.Contains(got, "offloads"), "before: %v", got)
		j, err := undo.Open(dir, "doctor", m)
		nstest.Must(t, err)
		defer j.Close()
		nstest.Must(t, nstest.Err(j.Apply(before.Steps())))
		_, got = ill()
		nstest.ErrorIf(t, len(got) > 0, "after: %v", got)
		nstest.Must(t, nstest.Err(j.Undo()))
		if v, err := m.Get(forwarding); v != "on" || err != nil {
			t.Errorf("undone: %s, %v", v, err)
		}
		return nil
	}))
}

func TestNoSuchInterface(t *testing.T) {
	if _, err := Gather("no-such-nic"); err == nil {
		t.Error("no error")
	}
}

// Why an agent is not used: there is none, this user may not, or it is no agent.
func TestUnusedAgent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.sock")
	t.Setenv(agentclient.Environment, path)
	var h Host
	h.askAgent()
	if a := h.Agent; a.PID != 0 || a.Unused != "" || a.Reason == "" {
		t.Errorf("none: %+v", a)
	}
	l, err := net.Listen("unix", path)
	nstest.Must(t, err)
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	h.askAgent()
	if a := h.Agent; a.PID != 0 || a.Unused != Broken || a.Reason == "" {
		t.Errorf("one that hangs up: %+v", a)
	}
	denied := &net.OpError{Op: "dial", Net: "unix", Err: os.NewSyscallError("connect", unix.EACCES)}
	nstest.Equal(t, "denied", unused(denied), Denied)
}

// FuzzFacts: reading any content of the kernel's files ends with facts, and the checks with
// findings that can be encoded.
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
			nstest.ErrorIf(t, !slices.Contains(levels, x.Level) || x.Cause == "", "%+v", x)
		}
	})
}

// The command that doctor prints against a program of another owner removes it, in either mode.
func TestProgramOff(t *testing.T) {
	if _, err := exec.LookPath("ip"); err != nil {
		nstest.Lacks(t, "ip is not installed (Debian: iproute2)")
	}
	a, _ := nstest.Pair(t, nstest.Options{})
	r, err := bpf.NewRedirect(bpf.RedirectConfig{})
	nstest.Must(t, err)
	defer r.Close()
	for mode, flags := range map[string]int{"generic": nl.XDP_FLAGS_SKB_MODE, "native": nl.XDP_FLAGS_DRV_MODE} {
		nstest.Must(t, a.Do(func() error {
			l, err := netlink.LinkByName(a.Name)
			return errors.Join(err, netlink.LinkSetXdpFdWithFlags(l, r.Program.FD(), flags))
		}))
		f := gather(t, a)
		p := f.NICs[0].Program
		nstest.FatalIf(t, p == nil || p.Mode != mode, "program %+v, want it in %s mode", p, mode)
		_, command, _ := strings.Cut(checkProgram(&f.Host, &f.NICs[0])[0].Command, "or: ")
		nstest.Check(t, a.Do(func() error { return exec.Command("sh", "-c", command).Run() }))
		if p := gather(t, a).NICs[0].Program; p != nil {
			t.Errorf("after %s: program %+v", command, p)
		}
	}
}
