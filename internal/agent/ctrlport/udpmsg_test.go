package ctrlport

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"viaxdp/internal/lab/nstest"

	"golang.org/x/sys/unix"
)

// The contents of a socket's control messages are found, and nothing that they do not have.
func FuzzControlMessages(f *testing.F) {
	for _, v6 := range []bool{false, true} {
		u := &UDP{v6: v6}
		f.Add(u.sourceMessage(netip.MustParseAddr("10.0.0.1")))
	}
	f.Add(controlMessage(unix.SOL_IP, unix.IP_RECVERR, []byte{111, 0, 0, 0, 2, 3}))
	f.Add(controlMessage(unix.SOL_IPV6, unix.IPV6_PKTINFO, make([]byte, 3)))
	f.Add(controlMessage(unix.SOL_SOCKET, unix.SO_RXQ_OVFL, []byte{1, 2, 3, 4}))
	f.Fuzz(func(t *testing.T, oob []byte) {
		r := new(udpReader)
		r.note(oob)
		nstest.ErrorIf(t, r.local.IsValid() && len(oob) < unix.CmsgLen(12) || r.missed > 0 && len(oob) < unix.CmsgLen(4),
			"%v, %d missed, out of %d bytes", r.local, r.missed, len(oob))
		if errno := errnoOf(oob); errno != unix.EIO && len(oob) < unix.CmsgLen(4) {
			t.Errorf("%v out of %d bytes", errno, len(oob))
		}
	})
}

// For any table of UDP sockets, a result is a socket's name, made of a number and a port in one of its lines. A
// line in the kernel's format is found by its port alone.
func FuzzUDPInodes(f *testing.F) {
	const head = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n"
	f.Add(head+"  413: 0100007F:12B9 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 23456 2 0000000000000000 0\n", uint16(4793), uint64(7))
	f.Add(head+"1: 00000000000000000000000001000000:12b9 0:0 07 0:0 00:0 0 0 0 ../../1] 2", uint16(4793), uint64(0))
	f.Add("0: :12B9 a b c d e f g 18446744073709551616\n1: 0:FFFFF a b c d e f g 1\n2: 12B9 a b c d e f g 5", uint16(4793), ^uint64(0))
	f.Add("", uint16(0), uint64(1))
	f.Fuzz(func(t *testing.T, table string, port uint16, inode uint64) {
		inodes := make(map[string]bool)
		udpInodes(strings.NewReader(table), port, inodes)
		for name := range inodes {
			number := strings.TrimSuffix(strings.TrimPrefix(name, "socket:["), "]")
			n, err := strconv.ParseUint(number, 10, 64)
			nstest.FatalIf(t, err != nil || name != fmt.Sprintf("socket:[%d]", n), "%q is no socket", name)
			nstest.FatalIf(t, !listed(table, port, n), "socket %d of port %d is not in %q", n, port, table)
		}
		for _, other := range []uint16{port, port + 1} {
			clear(inodes)
			udpInodes(strings.NewReader(fmt.Sprintf("%s%5d: %08X:%04X 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000  0 %d 2 0 0\n",
				head, 1, 0x100007f, other, inode)), port, inodes)
			if found := inodes[fmt.Sprintf("socket:[%d]", inode)]; found != (other == port) || len(inodes) > 1 {
				t.Fatalf("port %d looked for, %d there, inode %d: %v", port, other, inode, inodes)
			}
		}
	})
}

// listed reports whether a line has both numbers, wherever.
func listed(table string, port uint16, inode uint64) bool {
	for line := range strings.Lines(table) {
		var hasPort, hasInode bool
		for _, field := range strings.Fields(line) {
			n, err := strconv.ParseUint(field, 10, 64)
			hasInode = hasInode || err == nil && n == inode
			_, hex, _ := strings.Cut(field, ":")
			p, err := strconv.ParseUint(hex, 16, 64)
			hasPort = hasPort || err == nil && p == uint64(port)
		}
		if hasPort && hasInode {
			return true
		}
	}
	return false
}
