package doctor

import (
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"viaxdp/bpf"
	"viaxdp/internal/agent/agentclient"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/termsafe"
	"viaxdp/internal/ops/undo"
	"viaxdp/xdpnic"
)

// Gather reads the facts of the host and of interfaces of the calling thread's
// network namespace. It changes nothing. Only an interface that is not there is
// an error; what cannot be read is left out of the facts.
func Gather(nics ...string) (*Facts, error) {
	return gatherFacts(nics, func(error) bool { return false })
}

// GatherAll is Gather for a list of all interfaces. It leaves out those that have been removed since.
func GatherAll(nics ...string) (*Facts, error) {
	return gatherFacts(nics, func(err error) bool { return errors.As(err, new(netlink.LinkNotFoundError)) })
}

func gatherFacts(nics []string, pass func(error) bool) (*Facts, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var f Facts
	f.Host.read(os.DirFS("/"))
	f.Host.ask()
	nicsOfAgent := f.Host.askAgent()
	for _, name := range nics {
		n, err := gatherNIC(name)
		if err != nil && pass(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for i := range nicsOfAgent {
			if nicsOfAgent[i].Index == n.Index {
				n.Agent = &nicsOfAgent[i]
			}
		}
		f.NICs = append(f.NICs, n)
	}
	return &f, nil
}

// ask gathers the facts that need system calls.
func (h *Host) ask() {
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		h.setRelease(unix.ByteSliceToString(u.Release[:]))
	}
	var lim unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &lim) == nil {
		h.Memlock = lim.Cur
	}
	h.CPUs = runtime.NumCPU()
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		h.Socket = explainSocket(err)
	} else {
		unix.Close(fd)
	}
	h.Trial = tryDemux()
	h.SeesOthers = h.Capabilities&(1<<unix.CAP_SYS_PTRACE) != 0
}

// agentTime is how long the daemon may take to answer.
const agentTime = 2 * time.Second

// askAgent finds the daemon and asks for its status of the interfaces of the calling thread's
// network namespace.
func (h *Host) askAgent() []kagent.NICStatus {
	ctx, cancel := context.WithTimeout(context.Background(), agentTime)
	defer cancel()
	socket, here, st, err := agentclient.Find(ctx)
	_, named, _ := agentclient.Socket()
	h.Agent = Agent{Socket: socket, PID: st.PID, Here: here, Named: named, Served: st.Served, Starts: errors.Is(err, agentclient.ErrStarts)}
	if err != nil {
		h.Agent.PID, h.Agent.Reason, h.Agent.Unused = 0, err.Error(), unused(err)
	}
	if !here {
		return nil
	}
	return st.NICs
}

// unused says why [agentclient.Find] found an agent and does not use it; empty if it found none.
func unused(err error) Unused {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return Denied
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ECONNREFUSED), errors.Is(err, agentclient.ErrStarts):
		return ""
	case agentclient.Absent(err):
		return Elsewhere
	}
	return Broken
}

func explainSocket(err error) string {
	switch {
	case errors.Is(err, unix.EAFNOSUPPORT):
		return "the kernel lacks CONFIG_XDP_SOCKETS"
	case errors.Is(err, unix.EPERM):
		return "not permitted: CAP_NET_RAW is missing"
	}
	return err.Error()
}

func (h *Host) setRelease(release string) {
	h.Release = release
	fmt.Sscanf(release, "%d.%d", &h.Major, &h.Minor)
}

// read gathers the facts that files of the file system root have.
func (h *Host) read(root fs.FS) {
	if release := line(root, "proc/sys/kernel/osrelease"); release != "" {
		h.setRelease(release)
	}
	h.Config = readConfig(root, h.Release)
	h.Capabilities, _ = EffectiveCapabilities(line(root, "proc/self/status"))
	h.Virtual = virtual(root)
	h.HugeNodes = hugeNodes(root)
	h.HugeReserved = number(root, "sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages")
	h.HugeSurplus = number(root, "sys/kernel/mm/hugepages/hugepages-2048kB/surplus_hugepages")
	h.Overcommit = number(root, "sys/kernel/mm/hugepages/hugepages-2048kB/nr_overcommit_hugepages")
	h.THP = chosen(line(root, "sys/kernel/mm/transparent_hugepage/enabled"))
	h.Idle = idleStates(root)
	h.Governor = line(root, "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
	h.BusyPoll = line(root, "proc/sys/net/core/busy_poll")
}

// line is the content of a short file, or nothing.
func line(root fs.FS, name string) string {
	b, err := fs.ReadFile(root, name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func number(root fs.FS, name string) int {
	n, _ := strconv.Atoi(line(root, name))
	return n
}

// chosen is the word in brackets of "always [madvise] never".
func chosen(s string) string {
	_, s, _ = strings.Cut(s, "[")
	s, _, _ = strings.Cut(s, "]")
	return s
}

func readConfig(root fs.FS, release string) map[string]string {
	if f, err := root.Open("proc/config.gz"); err == nil {
		defer f.Close()
		if z, err := gzip.NewReader(f); err == nil {
			return parseConfig(z)
		}
	}
	f, err := root.Open("boot/config-" + release)
	if err != nil {
		return nil
	}
	defer f.Close()
	return parseConfig(f)
}

func parseConfig(r io.Reader) map[string]string {
	options := map[string]string{}
	for s := bufio.NewScanner(r); s.Scan(); {
		if name, value, ok := strings.Cut(s.Text(), "="); ok && (value == "y" || value == "m") {
			options[name] = value
		}
	}
	return options
}

// EffectiveCapabilities reads them in the text of /proc/PID/status.
func EffectiveCapabilities(status string) (have uint64, ok bool) {
	for l := range strings.Lines(status) {
		if v, found := strings.CutPrefix(l, "CapEff:"); found {
			have, err := strconv.ParseUint(strings.TrimSpace(v), 16, 64)
			return have, err == nil
		}
	}
	return 0, false
}

func virtual(root fs.FS) bool {
	for l := range strings.Lines(line(root, "proc/cpuinfo")) {
		if name, flags, ok := strings.Cut(l, ":"); ok && strings.TrimSpace(name) == "flags" {
			return slices.Contains(strings.Fields(flags), "hypervisor")
		}
	}
	return false
}

func hugeNodes(root fs.FS) (nodes []HugeNode) {
	dirs, _ := fs.Glob(root, "sys/devices/system/node/node[0-9]*/hugepages/hugepages-2048kB")
	for _, d := range dirs {
		n, err := strconv.Atoi(strings.TrimPrefix(path.Base(path.Dir(path.Dir(d))), "node"))
		if err == nil {
			nodes = append(nodes, HugeNode{n, number(root, d+"/nr_hugepages"), number(root, d+"/free_hugepages")})
		}
	}
	const all = "sys/kernel/mm/hugepages/hugepages-2048kB"
	if _, err := fs.Stat(root, all); nodes == nil && err == nil { // a kernel without NUMA
		nodes = []HugeNode{{0, number(root, all+"/nr_hugepages"), number(root, all+"/free_hugepages")}}
	}
	slices.SortFunc(nodes, func(a, b HugeNode) int { return a.Node - b.Node })
	return nodes
}

func idleStates(root fs.FS) (states []IdleState) {
	dirs, _ := fs.Glob(root, "sys/devices/system/cpu/cpu0/cpuidle/state[0-9]*")
	for _, d := range dirs {
		n, err := strconv.Atoi(strings.TrimPrefix(path.Base(d), "state"))
		if err != nil {
			continue
		}
		states = append(states, IdleState{
			Index: n, Name: line(root, d+"/name"), Latency: number(root, d+"/latency"),
			Disabled: line(root, d+"/disable") == "1",
		})
	}
	slices.SortFunc(states, func(a, b IdleState) int { return a.Index - b.Index })
	return states
}

func gatherNIC(name string) (NIC, error) {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return NIC{}, fmt.Errorf("interface %s: %w: ip link shows those of this network namespace", name, err)
	}
	a := l.Attrs()
	n := NIC{
		Name: a.Name, Index: a.Index, Kind: l.Type(), Driver: l.Type(), MTU: a.MTU,
		Up: a.RawFlags&unix.IFF_UP != 0, Carrier: a.RawFlags&unix.IFF_LOWER_UP != 0,
		RxQueues: a.NumRxQueues, TxQueues: a.NumTxQueues, NUMANode: -1,
	}
	if addrs, err := netlink.AddrList(l, netlink.FAMILY_ALL); err == nil {
		for _, x := range addrs {
			if ip, ok := netip.AddrFromSlice(x.IP); ok {
				n.Addrs = append(n.Addrs, ip.Unmap())
			}
		}
	}
	if all, err := netlink.LinkList(); err == nil {
		for _, x := range all {
			if x.Type() == "vlan" && x.Attrs().ParentIndex == a.Index {
				n.VLANs++
			}
		}
	}
	n.askDriver()
	n.readSysfs()
	if f, err := xdpnic.QueryFeatures(a.Index); err == nil {
		n.XDPKnown, n.ZCSegments = true, int(f.ZCMaxSegs)
		if f.XDP != 0 {
			n.XDP = strings.Split(f.XDP.String(), ",")
		}
	}
	if p, ok, err := bpf.AttachedTo(a.Index); err == nil && ok {
		n.Program = &Program{ID: p.ID, Name: p.Name, Mode: p.Mode.String(), Ours: bpf.IsDemux(p)}
	}
	if n.Kind == "veth" {
		n.Peer = findPeer(a)
	}
	n.findHolders()
	n.ControlPort = tryPort(n.Name)
	return n, nil
}

// askDriver reads what ethtool reports.
func (n *NIC) askDriver() {
	e, err := ethtool.NewEthtool()
	if err != nil {
		return
	}
	defer e.Close()
	if d, err := e.DriverName(n.Name); err == nil && d != "" {
		n.Driver = d
	}
	if c, err := e.GetChannels(n.Name); err == nil {
		if q := int(c.RxCount + c.CombinedCount); q > 0 {
			n.RxQueues = q
		}
		if q := int(c.TxCount + c.CombinedCount); q > 0 {
			n.TxQueues = q
		}
		n.MaxQueues = int(max(c.MaxCombined, c.MaxRx))
	}
	if r, err := e.GetRing(n.Name); err == nil {
		n.Ring = [2]int{int(r.RxPending), int(r.TxPending)}
		n.RingMax = [2]int{int(r.RxMaxPending), int(r.TxMaxPending)}
	}
	if t, err := e.GetIndir(n.Name); err == nil && t.Size > 0 {
		for _, q := range t.RingIndex[:min(int(t.Size), len(t.RingIndex))] {
			if !slices.Contains(n.RSSQueues, int(q)) {
				n.RSSQueues = append(n.RSSQueues, int(q))
			}
		}
		slices.Sort(n.RSSQueues)
	}
	if all, err := e.FeaturesWithState(n.Name); err == nil {
		n.Features, n.Fixed = map[string]bool{}, map[string]bool{}
		for name, s := range all {
			n.Features[name] = s.Active
			if s.NeverChanged || !s.Available {
				n.Fixed[name] = true
			}
		}
	}
	if c, err := e.GetCoalesce(n.Name); err == nil {
		onOff := map[bool]string{true: "on", false: "off"}
		n.Coalesce = map[string]string{
			"rx-usecs": strconv.Itoa(int(c.RxCoalesceUsecs)), "tx-usecs": strconv.Itoa(int(c.TxCoalesceUsecs)),
			"adaptive-rx": onOff[c.UseAdaptiveRxCoalesce != 0], "adaptive-tx": onOff[c.UseAdaptiveTxCoalesce != 0],
		}
	}
}

func (n *NIC) readSysfs() {
	dir, err := undo.NetPath(n.Name, ".")
	if err != nil {
		return
	}
	root := os.DirFS(dir)
	n.Sysfs = map[string]string{}
	for _, name := range undo.NetFiles {
		if v := line(root, name); v != "" {
			n.Sysfs[name] = v
		}
	}
	if _, err := fs.Stat(root, "device"); err == nil {
		n.Kind = "device"
		if node, err := strconv.Atoi(line(root, "device/numa_node")); err == nil {
			n.NUMANode = node
		}
	}
}

// findPeer looks at the other end of a veth pair, in its namespace.
func findPeer(a *netlink.LinkAttrs) *Peer {
	p := &Peer{Index: a.ParentIndex}
	l, err := linkIn(a.NetNsID, a.ParentIndex)
	if err != nil {
		return p
	}
	p.Seen = true
	p.Program = l.Attrs().Xdp != nil && l.Attrs().Xdp.Attached
	if a.NetNsID < 0 {
		if e, err := ethtool.NewEthtool(); err == nil {
			defer e.Close()
			if f, err := e.Features(l.Attrs().Name); err == nil {
				p.GRO = f["rx-gro"]
			}
		}
	}
	return p
}

// linkIn is an interface of another network namespace, by the number that ours
// has for that; below 0 it is ours. It takes CAP_NET_ADMIN there.
func linkIn(nsid, index int) (netlink.Link, error) {
	if nsid < 0 {
		return netlink.LinkByIndex(index)
	}
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.IFLA_TARGET_NETNSID, nl.Uint32Attr(uint32(nsid))))
	answer, err := req.Execute(unix.NETLINK_ROUTE, 0)
	if err != nil {
		return nil, err
	}
	if len(answer) == 0 {
		return nil, unix.ENODEV
	}
	return netlink.LinkDeserialize(nil, answer[0])
}

func (n *NIC) findHolders() {
	list, exact := xdpnic.Holders(n.Index)
	n.HoldersBy = "process"
	if exact {
		n.HoldersBy = "queue"
	}
	for _, h := range list {
		n.Holders = append(n.Holders, Holder{PID: h.PID, Name: termsafe.Name(h.PID), Queue: h.Queue})
	}
}

// tryPort takes the port of connection management for a moment, and says why it
// cannot be had.
func tryPort(name string) string {
	var bind error
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { bind = unix.BindToDevice(int(fd), name) })
	}}
	c, err := lc.ListenPacket(context.Background(), "udp", fmt.Sprintf(":%d", port))
	if err != nil {
		if errors.Is(err, unix.EADDRINUSE) {
			return "another program holds it"
		}
		return err.Error()
	}
	c.Close()
	if bind != nil {
		return bind.Error()
	}
	return ""
}
