package bench

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"net"
	"net/netip"
	"strings"
	"testing"
)

func hello(mac, addr string) Hello {
	m, err := net.ParseMAC(mac)
	if err != nil {
		panic(err)
	}
	return Hello{MAC: m, Addr: netip.MustParseAddr(addr)}
}

// Headers byte for byte; the IPv4 checksum was computed by hand.
func TestHeaders(t *testing.T) {
	for _, c := range []struct {
		from, to Hello
		n        int
		want     string
	}{
		{
			hello("02:00:00:00:00:01", "10.77.0.1"), hello("02:00:00:00:00:02", "10.77.0.2"), 100,
			"020000000002020000000001 0800" +
				"45 00 0080 0000 4000 40 11 25d1 0a4d0001 0a4d0002" +
				"12ba 12ba 006c 0000",
		},
		{
			hello("02:00:00:00:00:01", "fd77::1"), hello("02:00:00:00:00:02", "fd77::2"), 100,
			"020000000002020000000001 86dd" +
				"60000000 006c 11 40" +
				"fd770000000000000000000000000001 fd770000000000000000000000000002" +
				"12ba 12ba 006c 0000",
		},
	} {
		h, err := newHeaders(c.from, c.to, rawPort)
		if err != nil {
			t.Fatal(err)
		}
		want, err := hex.DecodeString(strings.ReplaceAll(c.want, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		frame := make([]byte, 2000)
		h.put(frame, 7)
		h.put(frame, c.n) // lengths are changed
		n := headersLen(c.from.Addr)
		if n != len(want) {
			t.Fatalf("headers of %d bytes, want %d", n, len(want))
		}
		if c.from.Addr.Is4() {
			// The sum over a header with its checksum is 0, RFC 1071.
			if got := checksum(frame[ethernetHeader : ethernetHeader+ipv4Header]); got != 0 {
				t.Errorf("checksum leaves %#x", got)
			}
		}
		if !bytes.Equal(frame[:n], want) {
			t.Errorf("got  %x\nwant %x", frame[:n], want)
		}
		if got := udpContent(frame[:n+200], n); len(got) != c.n {
			t.Errorf("content of %d bytes, want %d", len(got), c.n)
		}
	}
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

// A frame that lies about its length yields no byte that it does not have.
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
