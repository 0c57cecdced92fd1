package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"viaxdp/bpf"
	"viaxdp/internal/base/termsafe"
	"viaxdp/internal/ops/undo"
	"viaxdp/xdpnic"
)

// Interfaces lists those of the calling thread's network namespace that are up,
// without the loopback.
func Interfaces() ([]string, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, i := range all {
		if i.Flags&net.FlagLoopback == 0 && i.Flags&net.FlagUp != 0 {
			names = append(names, i.Name)
		}
	}
	return names, nil
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
