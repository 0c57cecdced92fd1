package bench

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
)

func hello(mac, addr string) Hello {
	m, err := net.ParseMAC(mac)
	if err != nil {
		panic(err)
	}
	return Hello{MAC: m, Addr: netip.MustParseAddr(addr)}
}

func TestHeadersRefuse(t *testing.T) {
	v4, v6 := hello("02:00:00:00:00:01", "10.0.0.1"), hello("02:00:00:00:00:02", "fd00::1")
	if _, err := newHeaders(v4, v6, 1); err == nil {
		t.Error("IPv4 to IPv6")
	}
	if _, err := newHeaders(v4, Hello{Addr: v4.Addr}, 1); err == nil {
		t.Error("no MAC address")
	}
}

// A frame with a false length yields no byte beyond its end.
func TestUDPContentOfBadFrames(t *testing.T) {
	frame := make([]byte, 60)
	for _, length := range []uint16{0, 7, 8, 26, 27, 65535} {
		binary.BigEndian.PutUint16(frame[42-4:], length)
		if got := len(udpContent(frame, 42)); got > 18 {
			t.Errorf("length %d: %d bytes", length, got)
		}
	}
	if got := udpContent(frame[:20], 42); len(got) != 0 {
		t.Errorf("a short frame has %d bytes", len(got))
	}
}
