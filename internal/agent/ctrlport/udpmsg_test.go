package ctrlport

import (
	"net/netip"
	"testing"

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
		r := newUDPReader()
		r.note(oob)
		if r.local.IsValid() && len(oob) < unix.CmsgLen(12) || r.missed > 0 && len(oob) < unix.CmsgLen(4) {
			t.Errorf("%v, %d missed, out of %d bytes", r.local, r.missed, len(oob))
		}
		if errno := errnoOf(oob); errno != unix.EIO && len(oob) < unix.CmsgLen(4) {
			t.Errorf("%v out of %d bytes", errno, len(oob))
		}
	})
}
