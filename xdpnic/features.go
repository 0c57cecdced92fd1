package xdpnic

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// XDPFeatures is what a driver announces (enum netdev_xdp_act of
// <linux/netdev.h>). Only bind(2) decides for certain.
type XDPFeatures uint64

// The bits of XDPFeatures.
const (
	FeatureBasic     XDPFeatures = 1 << iota // XDP_ABORTED, DROP, PASS, TX
	FeatureRedirect                          // XDP_REDIRECT
	FeatureNdoXmit                           // takes redirected frames
	FeatureZeroCopy                          // AF_XDP zero-copy
	FeatureHWOffload                         // programs in hardware
	FeatureRxSG                              // multi-buffer programs, and multi-buffer AF_XDP in the copying modes
	FeatureNdoXmitSG                         // takes redirected multi-buffer frames
)

var featureNames = []string{
	"basic", "redirect", "ndo-xmit", "xsk-zerocopy", "hw-offload", "rx-sg", "ndo-xmit-sg",
}

// XSKFeatures are the offloads that AF_XDP transmissions may ask for (enum
// netdev_xsk_flags).
type XSKFeatures uint64

// The bits of XSKFeatures.
const (
	XSKTxTimestamp  XSKFeatures = 1 << iota // a timestamp on completion
	XSKTxChecksum                           // checksum in hardware
	XSKTxLaunchTime                         // sending at a given time
)

var xskNames = []string{"tx-timestamp", "tx-checksum", "tx-launch-time-fifo"}

func bitNames(v uint64, names []string) string {
	var s []string
	for i, name := range names {
		if v&(1<<i) != 0 {
			s = append(s, name)
		}
	}
	if rest := v >> len(names) << len(names); rest != 0 {
		s = append(s, fmt.Sprintf("%#x", rest))
	}
	if len(s) == 0 {
		return "none"
	}
	return strings.Join(s, ",")
}

// Has reports whether all bits of f are set.
func (x XDPFeatures) Has(f XDPFeatures) bool { return x&f == f }

// String returns the names of the bits with commas; "none" without any.
func (x XDPFeatures) String() string { return bitNames(uint64(x), featureNames) }

// String returns the names of the bits with commas; "none" without any.
func (x XSKFeatures) String() string { return bitNames(uint64(x), xskNames) }

// Features is the answer of the netdev family for one interface.
type Features struct {
	XDP XDPFeatures
	XSK XSKFeatures
	// ZCMaxSegs is the largest number of segments of a frame in zero-copy mode;
	// 0 without zero-copy, 1 if zero-copy has no multi-buffer.
	ZCMaxSegs uint32
}

// Numbers of <linux/netdev.h>.
const (
	netdevFamily       = "netdev"
	netdevVersion      = 1
	netdevCmdDevGet    = 1
	netdevAttrIfindex  = 1
	netdevAttrXDP      = 3
	netdevAttrZCMaxSeg = 4
	netdevAttrXSK      = 6
)

// QueryFeatures asks the kernel by generic netlink, family "netdev" (Linux 6.3
// and later), about an interface of the calling thread's network namespace. No
// privilege is needed.
func QueryFeatures(ifindex int) (Features, error) {
	f, err := queryFeatures(ifindex)
	if err != nil {
		return f, &OpError{Op: "xdp features", Ifindex: ifindex, Err: err}
	}
	return f, nil
}

func queryFeatures(ifindex int) (f Features, err error) {
	family, err := genlFamily(netdevFamily)
	if err != nil {
		return f, fmt.Errorf("generic netlink family %q (Linux 6.3 or later): %w", netdevFamily, err)
	}
	answers, err := askGenl(family, genlHeader{netdevCmdDevGet, netdevVersion}, nl.NewRtAttr(netdevAttrIfindex, nl.Uint32Attr(uint32(ifindex))))
	if err != nil {
		return f, err
	}
	for _, attrs := range answers {
		seen := false
		for _, a := range attrs {
			switch a.Attr.Type &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER) {
			case netdevAttrIfindex:
				seen = attrUint(a.Value) == uint64(ifindex)
			case netdevAttrXDP:
				f.XDP = XDPFeatures(attrUint(a.Value))
			case netdevAttrZCMaxSeg:
				f.ZCMaxSegs = uint32(attrUint(a.Value))
			case netdevAttrXSK:
				f.XSK = XSKFeatures(attrUint(a.Value))
			}
		}
		if seen {
			return f, nil
		}
	}
	return Features{}, errors.New("the kernel's answer names no such interface")
}

// genlFamily is the number of a family of generic netlink.
func genlFamily(name string) (id int, err error) {
	answers, err := askGenl(nl.GENL_ID_CTRL, genlHeader{nl.GENL_CTRL_CMD_GETFAMILY, nl.GENL_CTRL_VERSION},
		nl.NewRtAttr(nl.GENL_CTRL_ATTR_FAMILY_NAME, nl.ZeroTerminated(name)))
	if err != nil {
		return 0, err
	}
	for _, attrs := range answers {
		for _, a := range attrs {
			if a.Attr.Type == nl.GENL_CTRL_ATTR_FAMILY_ID && len(a.Value) == 2 {
				return int(binary.NativeEndian.Uint16(a.Value)), nil
			}
		}
	}
	return 0, errors.New("the kernel's answer has no family number")
}

// askGenl sends a request with one attribute and returns the attributes of each
// answer.
func askGenl(family int, h genlHeader, about *nl.RtAttr) (answers [][]syscall.NetlinkRouteAttr, err error) {
	req := nl.NewNetlinkRequest(family, unix.NLM_F_ACK)
	req.AddData(h)
	req.AddData(about)
	msgs, err := req.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil {
		return nil, err
	}
	for _, m := range msgs {
		if len(m) < nl.SizeofGenlmsg {
			continue
		}
		attrs, err := nl.ParseRouteAttr(m[nl.SizeofGenlmsg:])
		if err != nil {
			return nil, err
		}
		answers = append(answers, attrs)
	}
	return answers, nil
}

// genlHeader is struct genlmsghdr. The type of package nl is only half of it, and
// sends the memory after it as the rest. The netdev family answers that with
// EINVAL, and the race detector reports the read.
type genlHeader struct{ command, version byte }

func (h genlHeader) Len() int          { return nl.SizeofGenlmsg }
func (h genlHeader) Serialize() []byte { return []byte{h.command, h.version, 0, 0} }

// attrUint reads a u32 or u64 attribute.
func attrUint(b []byte) uint64 {
	switch len(b) {
	case 4:
		return uint64(binary.NativeEndian.Uint32(b))
	case 8:
		return binary.NativeEndian.Uint64(b)
	}
	return 0
}

// linkOf returns an interface of the calling thread's network namespace. Its error is ENODEV if there is none.
func linkOf(ifindex int) (netlink.Link, error) {
	l, err := netlink.LinkByIndex(ifindex)
	if ifindex < 1 || errors.As(err, new(netlink.LinkNotFoundError)) { // EINVAL is the kernel's answer about index 0
		return nil, unix.ENODEV
	}
	return l, err
}

// Running reports whether an interface of the calling thread's network namespace
// is up and has its carrier. It checks three flags, because they change one after
// the other: the carrier at once, the others a moment later.
func Running(ifindex int) (bool, error) {
	l, err := linkOf(ifindex)
	if err != nil {
		return false, &OpError{Op: "link", Ifindex: ifindex, Err: err}
	}
	a := l.Attrs()
	return a.Flags&net.FlagUp != 0 && a.Flags&net.FlagRunning != 0 && a.RawFlags&unix.IFF_LOWER_UP != 0, nil
}

// AwaitRunning waits until the interface is running. Some drivers take up to two
// seconds after a program was attached or a socket was bound; frames sent before
// are lost. It gives up after timeout, and reports whether the interface is
// running.
func AwaitRunning(ifindex int, timeout time.Duration) bool {
	for end := time.Now().Add(timeout); ; time.Sleep(2 * time.Millisecond) {
		if ok, err := Running(ifindex); ok || err != nil {
			return ok
		}
		if !time.Now().Before(end) {
			return false
		}
	}
}
