package nstest

import (
	"net/netip"
	"os"
	"strings"
	"testing"

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

// NICs are the interfaces that the environment names, for tests of real drivers. Without them
// the test is skipped; go run ./internal/lab/vm runs it in a VM. The interfaces' settings
// stay unchanged.
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
	ends := []*NS{{}, {}}
	for i, n := range ends {
		name, path, ok := strings.Cut(list[i], "@")
		if !ok {
			t.Fatalf("%s: %s: want INTERFACE@NAMESPACE", NICsEnv, list[i])
		}
		n.Name = name
		h, err := netns.GetFromPath(path)
		n.enter(t, h, err)
		if err := n.probe(); err != nil {
			t.Fatalf("%s: %s: %v", NICsEnv, list[i], err)
		}
	}
	return ends[0], ends[1], mode
}

// probe notes what an interface is that the test has not made.
func (n *NS) probe() error {
	l, err := n.netlink.LinkByName(n.Name)
	if err != nil {
		return err
	}
	n.Index, n.MAC, n.MTU = l.Attrs().Index, l.Attrs().HardwareAddr, l.Attrs().MTU
	addrs, err := n.netlink.AddrList(l, unix.AF_UNSPEC)
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
	return err
}
