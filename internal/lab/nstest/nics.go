package nstest

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// NICsEnv names two interfaces that are joined by a wire and that tests may
// use, each with the network namespace it is in, with an address of IPv4 and
// one of IPv6:
//
//	VIA_NICS=eth0@/proc/1/ns/net,eth1@/run/netns/peer
//
// ModeEnv is the mode that they must reach, zero-copy unless it says otherwise.
const (
	NICsEnv = "VIA_NICS"
	ModeEnv = "VIA_NICS_MODE"
)

// NICs are the interfaces that the environment names, for tests of real
// drivers. Where there are none the test is skipped: go run ./internal/lab/vm sees to it that
// it runs somewhere. The interfaces' settings stay what they are.
func NICs(t testing.TB) (a, b *NS, mode string) {
	t.Helper()
	names := os.Getenv(NICsEnv)
	if names == "" {
		t.Skipf("%s names no NICs; go run ./internal/lab/vm has some", NICsEnv)
	}
	if mode = os.Getenv(ModeEnv); mode == "" {
		mode = "zero-copy"
	}
	list := strings.Split(names, ",")
	if len(list) != 2 {
		t.Fatalf("%s=%q: want two interfaces", NICsEnv, names)
	}
	ends := make([]*NS, 2)
	for i, s := range list {
		n, err := existing(s)
		if err != nil {
			t.Fatalf("%s: %s: %v", NICsEnv, s, err)
		}
		t.Cleanup(func() {
			n.netlink.Close()
			n.handle.Close()
		})
		ends[i] = n
	}
	return ends[0], ends[1], mode
}

// existing looks at an interface that somebody else has made.
func existing(s string) (_ *NS, err error) {
	name, path, ok := strings.Cut(s, "@")
	if !ok {
		return nil, fmt.Errorf("want INTERFACE@NAMESPACE")
	}
	n := &NS{Name: name}
	if n.handle, err = netns.GetFromPath(path); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			n.handle.Close()
		}
	}()
	if n.netlink, err = netlink.NewHandleAt(n.handle, unix.NETLINK_ROUTE); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			n.netlink.Close()
		}
	}()
	l, err := n.netlink.LinkByName(name)
	if err != nil {
		return nil, err
	}
	n.Index, n.MAC, n.MTU = l.Attrs().Index, l.Attrs().HardwareAddr, l.Attrs().MTU
	addrs, err := n.netlink.AddrList(l, unix.AF_UNSPEC)
	if err != nil {
		return nil, err
	}
	for _, a := range addrs {
		ip, ok := netip.AddrFromSlice(a.IP)
		switch ip = ip.Unmap(); {
		case !ok || ip.IsLinkLocalUnicast():
		case ip.Is4():
			n.IPv4 = ip
		default:
			n.IPv6 = ip
		}
	}
	return n, nil
}
