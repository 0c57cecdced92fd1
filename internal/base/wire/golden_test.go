package wire

import (
	"bytes"
	"encoding/hex"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"viaxdp/internal/lab/nstest"
)

type golden struct {
	name    string
	link    Link
	header  Header
	payload []byte
}

var (
	macs = Link{SrcMAC: [6]byte{2, 0, 0, 0, 0, 1}, DstMAC: [6]byte{2, 0, 0, 0, 0, 2}}

	oneToTwo = on(macs, "10.0.0.1", "10.0.0.2", 0, 0)
	twoToOne = on(macs, "10.0.0.2", "10.0.0.1", 0, 0)
)

func on(l Link, src, dst string, vlan, port uint16) Link {
	l.Src, l.Dst, l.VLAN, l.Port = netip.MustParseAddr(src), netip.MustParseAddr(dst), vlan, port
	return l
}

// goldens are the fields of testdata/frames.hex.
func goldens() []golden {
	ranges := make([]byte, 2*RangeLen)
	PutRange(ranges, AckRange{7, 9})
	PutRange(ranges[RangeLen:], AckRange{0xfffffff0, 4})
	counted := make([]byte, 33)
	for i := range counted {
		counted[i] = byte(i)
	}
	list := []golden{
		{"data-ipv4", oneToTwo, Header{Kind: KindData, Flags: FlagFirst | FlagLast, VI: 0x00010002,
			Key: 0x1122334455667788, Seq: 1, Window: 256}, []byte("hello, virtual interface")},
		{"data-ipv6", on(macs, "fd00::1", "fd00::2", 0, 0), Header{Kind: KindData, Flags: FlagFirst | FlagLast | FlagImmediate,
			VI: 0xbeef0003, Key: 0xffffffffffffffff, Seq: 0xffffffff, Ack: 0xfffffffe, Window: 0xffff,
			Immediate: 0xdeadbeef, RemoteAddr: 0x0102030405060708, RemoteHandle: 0x99aabbcc}, counted},
		{"data-vlan", on(macs, "192.168.7.9", "192.168.7.10", 100, 0), Header{Kind: KindData, Flags: FlagFirst | FlagAckNow,
			VI: 0x00050001, Key: 0x0123456789abcdef, Seq: 1000, Ack: 2000, Window: 64}, []byte("tagged")},
		{"data-vlan-ipv6", on(macs, "2001:db8::a", "2001:db8::b", 4094, 0), Header{Kind: KindData, Flags: FlagLast,
			VI: 0x00050001, Key: 7, Seq: 8, Ack: 9, Window: 10}, make([]byte, 5)},
		{"data-empty", oneToTwo, Header{Kind: KindData, Flags: FlagFirst | FlagLast | FlagImmediate,
			VI: 0x00010002, Key: 1, Seq: 2, Ack: 3, Window: 4, Immediate: 5}, nil},
		{"ack-ranges", twoToOne, Header{Kind: KindAck, VI: 0x00020001, Key: 0x8877665544332211, Ack: 5, Window: 200}, ranges},
		{"probe", twoToOne, Header{Kind: KindProbe, Flags: FlagAckNow, VI: 0x00020001, Key: 0x8877665544332211, Ack: 5}, nil},
		{"error", twoToOne, Header{Kind: KindError, VI: 0x00020001, Key: 0x8877665544332211, Ack: 5,
			Immediate: uint32(ReasonRecvQueueEmpty)}, nil},
		{"close-other-port", on(macs, "10.0.0.2", "10.0.0.1", 0, 14793), Header{Kind: KindClose, VI: 0x00020001,
			Key: 0x8877665544332211, Seq: 77, Ack: 5}, nil},
		{"write", oneToTwo, Header{Kind: KindWrite, Flags: FlagFirst | FlagLast | FlagImmediate, VI: 0x00010002,
			Key: 0x1122334455667788, Seq: 9, Ack: 3, Window: 256, Immediate: 0xcafe0001,
			RemoteAddr: 0x7f0011223344, RemoteHandle: 0x99aabbcc}, counted[:8]},
		{"read", oneToTwo, Header{Kind: KindRead, VI: 0x00010002, Key: 0x1122334455667788, Seq: 10, Ack: 3, Window: 256,
			Immediate: 1 << 20, RemoteAddr: 0x7f0011223300, RemoteHandle: 0x99aabbcd}, nil},
		{"read-data", twoToOne, Header{Kind: KindReadData, Flags: FlagLast, VI: 0x00020001, Key: 0x8877665544332211,
			Seq: 77, Ack: 11, Window: 256, Immediate: 10, RemoteAddr: 0xffffd}, []byte("end")},
	}
	for i := range list {
		list[i].header.Length = uint16(len(list[i].payload))
	}
	return list
}

// build makes a frame as the engine does.
func build(t testing.TB, g golden) []byte {
	t.Helper()
	template, err := NewTemplate(g.link)
	must(t, err)
	n := HeaderLen + len(g.payload)
	frame := make([]byte, template.Len()+n)
	via := template.Put(frame, n)
	nstest.FatalIf(t, len(via) != n || &via[0] != &frame[template.Len()],
		"Put gave %d bytes, want %d behind the headers", len(via), n)
	g.header.Put(via)
	copy(via[HeaderLen:], g.payload)
	PutChecksum(via)
	return frame
}

func TestGoldenFrames(t *testing.T) {
	text, err := os.ReadFile("testdata/frames.hex")
	must(t, err)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	list := goldens()
	nstest.FatalIf(t, len(lines) != len(list), "%d golden frames, %d in the table", len(lines), len(list))
	for i, g := range list {
		name, digits, _ := strings.Cut(lines[i], " ")
		want, err := hex.DecodeString(digits)
		nstest.FatalIf(t, err != nil || name != g.name, "line %d: %q instead of %q, %v", i+1, name, g.name, err)
		got := build(t, g)
		nstest.ErrorIf(t, !bytes.Equal(got, want), "%s:\n got %x\nwant %x", g.name, got, want)
		p, err := read(want)
		if err != nil {
			t.Errorf("%s: %v", g.name, err)
			continue
		}
		diff := cmp.Diff(g.header, p.Header)
		nstest.ErrorIf(t, diff != "", "%s: header (-want +got):\n%s", g.name, diff)
		nstest.ErrorIf(t, p.Src != HostOf(g.link.Src) || !bytes.Equal(p.Payload, g.payload),
			"%s: from %x, payload %x", g.name, p.Src, p.Payload)
	}
}

func TestRanges(t *testing.T) {
	want := []AckRange{{1, 2}, {0xffffffff, 0}, {0x01020304, 0x05060708}}
	b := make([]byte, len(want)*RangeLen)
	for i, r := range want {
		PutRange(b[i*RangeLen:], r)
	}
	for i, r := range want {
		if got := GetRange(b, i); got != r {
			t.Errorf("range %d: %v, want %v", i, got, r)
		}
	}
	if got := hex.EncodeToString(b[2*RangeLen:]); got != "0102030405060708" {
		t.Errorf("bytes %s", got)
	}
}

func TestHostOf(t *testing.T) {
	for text, want := range map[string]Host{
		"10.1.2.3":        {0, 0xffff0a010203},
		"::ffff:10.1.2.3": {0, 0xffff0a010203},
		"fd00::1":         {0xfd00 << 48, 1},
	} {
		got := HostOf(netip.MustParseAddr(text))
		nstest.ErrorIf(t, got != want, "%s: %x, want %x", text, got, want)
		a := got.Addr()
		nstest.ErrorIf(t, a != netip.MustParseAddr(text).Unmap(), "%s: back as %v", text, a)
	}
}

func TestPayloadRoom(t *testing.T) {
	for _, c := range []struct {
		mtu      int
		v6       bool
		datagram int
		want     int
	}{
		{1500, false, 0, 1424}, {1500, true, 0, 1404}, {1500, false, 1000, 952}, {1500, false, 9000, 1424},
		{65535, false, 0, 65439}, {65535, true, 0, 65439}, {1 << 20, true, 0, 65439},
		{76, false, 0, 0}, {77, false, 0, 1}, {20, true, 0, 0}, {0, false, 0, 0}, {1500, false, 10, 0},
	} {
		got := PayloadRoom(c.mtu, c.v6, c.datagram)
		nstest.ErrorIf(t, got != c.want, "%+v: %d", c, got)
	}
	// The largest frame that fits has the right lengths.
	for _, l := range []Link{oneToTwo, on(macs, "fd00::1", "fd00::2", 0, 0)} {
		n := PayloadRoom(65535, l.Src.Is6(), 0)
		frame := build(t, golden{link: l, header: Header{Kind: KindData, Length: uint16(n)}, payload: make([]byte, n)})
		var p Packet
		err := p.Decode(frame)
		nstest.ErrorIf(t, err != nil || len(p.Payload) != n, "largest frame from %v: %v", l.Src, err)
	}
}

// must takes a rapid.T, too.
var must = nstest.Must
