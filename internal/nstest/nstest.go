// Package nstest gives a test its own network: two unnamed namespaces joined
// by a veth pair, gone with the test.
//
//	 namespace A                    namespace B
//	+--------------+   veth pair   +--------------+
//	| via0 .1 ::1  |===============| via0 .2 ::2  |
//	+--------------+               +--------------+
//
// The namespaces have no name and belong to file descriptors of the test
// process only, so that nothing stays behind even after a kill.
package nstest

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"viaxdp/internal/thread"
)

// Require ends a test that needs root: with a failure when CI=true, so that a
// green run there means that the test ran, and with a skip elsewhere.
func Require(t testing.TB) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	Lacks(t, "needs root (CAP_NET_ADMIN, CAP_BPF, CAP_SYS_ADMIN)")
}

// Lacks ends a test that needs something that the machine does not have, such
// as a kernel feature: with a failure when CI=true, and with a skip elsewhere.
func Lacks(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// NS is one end: a namespace and the veth interface in it.
type NS struct {
	Name    string           // interface name, "via0" in both namespaces of a Pair
	Index   int              // interface index inside the namespace
	MAC     net.HardwareAddr // hardware address of the interface
	IPv4    netip.Addr       // address in 10.99.0.0/24
	IPv6    netip.Addr       // address in fd99::/64
	MTU     int
	handle  netns.NsHandle
	netlink *netlink.Handle
}

// Options of a pair.
type Options struct {
	MTU    int // 0: 1500
	Queues int // RX and TX queues of each end; 0: 1
}

// Do runs f on a thread of its own that lives in the namespace; sockets and
// files that f opens stay usable everywhere. Goroutines that f starts run
// outside of the namespace. The thread ends with f.
func (n *NS) Do(f func() error) error {
	return thread.In(int(n.handle), f)
}

// Inside is a command that runs another one in the namespace, which it has as its last
// arguments, for programs that start the one of a test; while the test runs.
func (n *NS) Inside(t testing.TB) []string {
	t.Helper()
	path, err := exec.LookPath("nsenter")
	if err != nil {
		Lacks(t, "nsenter is not installed (Debian: util-linux)")
	}
	return []string{path, fmt.Sprintf("--net=/proc/%d/fd/%d", os.Getpid(), n.handle)}
}

// Netlink is a netlink handle bound to the namespace.
func (n *NS) Netlink() *netlink.Handle { return n.netlink }

func newNamespace() (h netns.NsHandle, err error) {
	thread.Run(func() { h, err = netns.New() })
	return h, err
}

// Pair makes two namespaces joined by a veth pair that is up, addressed and
// free of duplicate address detection. It calls Require first.
func Pair(t testing.TB, o Options) (a, b *NS) {
	t.Helper()
	Require(t)
	a, b = &NS{}, &NS{}
	for _, n := range []*NS{a, b} {
		h, err := newNamespace()
		if err != nil {
			t.Fatalf("namespace: %v", err)
		}
		n.handle = h
		t.Cleanup(func() { n.handle.Close() })
		if n.netlink, err = netlink.NewHandleAt(h, unix.NETLINK_ROUTE); err != nil {
			t.Fatalf("netlink: %v", err)
		}
		t.Cleanup(n.netlink.Close)
	}
	join(t, a, b, 0, o)
	return a, b
}

// Another joins the namespaces of a pair once more, by interfaces "viaN" with addresses in
// 10.99.N.0/24 and fd99:N::/64, which are gone with t. N is from 1 to 255.
func Another(t testing.TB, a, b *NS, n int, o Options) (x, y *NS) {
	t.Helper()
	x, y = &NS{handle: a.handle, netlink: a.netlink}, &NS{handle: b.handle, netlink: b.netlink}
	join(t, x, y, n, o)
	t.Cleanup(func() {
		l, err := x.netlink.LinkByIndex(x.Index)
		if err == nil {
			err = x.netlink.LinkDel(l)
		}
		if err != nil {
			t.Errorf("remove %s: %v", x.Name, err)
		}
	})
	return x, y
}

// join makes the nth veth pair of two namespaces.
func join(t testing.TB, a, b *NS, n int, o Options) {
	t.Helper()
	if o.MTU == 0 {
		o.MTU = 1500
	}
	if o.Queues == 0 {
		o.Queues = 1
	}
	for i, x := range []*NS{a, b} {
		x.Name, x.MTU = fmt.Sprintf("via%d", n), o.MTU
		x.IPv4 = netip.AddrFrom4([4]byte{10, 99, byte(n), byte(i + 1)})
		x.IPv6 = netip.MustParseAddr(fmt.Sprintf("fd99:%x::%d", n, i+1))
	}
	veth := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{
			Name: a.Name, MTU: o.MTU, NumTxQueues: o.Queues, NumRxQueues: o.Queues,
		},
		PeerName: b.Name, PeerNamespace: netlink.NsFd(b.handle),
		PeerNumTxQueues: uint32(o.Queues), PeerNumRxQueues: uint32(o.Queues), PeerMTU: uint32(o.MTU),
	}
	if err := a.netlink.LinkAdd(veth); err != nil {
		t.Fatalf("veth pair: %v", err)
	}
	for _, n := range []*NS{a, b} {
		if err := n.setUp(); err != nil {
			t.Fatalf("interface %s: %v", n.Name, err)
		}
	}
}

func (n *NS) setUp() error {
	if lo, err := n.netlink.LinkByName("lo"); err == nil {
		if err := n.netlink.LinkSetUp(lo); err != nil {
			return err
		}
	}
	l, err := n.netlink.LinkByName(n.Name)
	if err != nil {
		return err
	}
	n.Index, n.MAC = l.Attrs().Index, l.Attrs().HardwareAddr
	if l.Attrs().MTU != n.MTU {
		if err := n.netlink.LinkSetMTU(l, n.MTU); err != nil {
			return err
		}
	}
	v4 := &netlink.Addr{IPNet: &net.IPNet{IP: n.IPv4.AsSlice(), Mask: net.CIDRMask(24, 32)}}
	v6 := &netlink.Addr{
		IPNet: &net.IPNet{IP: n.IPv6.AsSlice(), Mask: net.CIDRMask(64, 128)},
		Flags: unix.IFA_F_NODAD,
	}
	for _, addr := range []*netlink.Addr{v4, v6} {
		if err := n.netlink.AddrAdd(l, addr); err != nil {
			return err
		}
	}
	return n.netlink.LinkSetUp(l)
}
