package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"viaxdp/internal/lab/nstest"
)

func drawGolden(t *rapid.T) golden {
	var src, dst [16]byte
	copy(src[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "source"))
	copy(dst[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "destination"))
	g := golden{link: macs, payload: rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "payload")}
	if rapid.Bool().Draw(t, "IPv4") {
		g.link.Src, g.link.Dst = netip.AddrFrom4([4]byte(src[:4])), netip.AddrFrom4([4]byte(dst[:4]))
	} else {
		src[0], dst[0] = 0xfd, 0xfd // no mapped address
		g.link.Src, g.link.Dst = netip.AddrFrom16(src), netip.AddrFrom16(dst)
	}
	g.link.VLAN = rapid.Uint16Range(0, 4094).Draw(t, "VLAN")
	g.link.Port = rapid.Uint16().Draw(t, "port")
	g.link.PortOffset = rapid.Uint8Max(Ports-1).Draw(t, "port offset")
	g.header = Header{
		Kind:  Kind(rapid.IntRange(int(KindData), int(KindPack)).Draw(t, "kind")),
		Flags: Flags(rapid.Uint16().Draw(t, "flags")) & flagsKnown,
		VI:    rapid.Uint32().Draw(t, "VI"), Key: rapid.Uint64().Draw(t, "key"),
		Seq: rapid.Uint32().Draw(t, "seq"), Ack: rapid.Uint32().Draw(t, "ack"),
		Window: rapid.Uint16().Draw(t, "window"), Length: uint16(len(g.payload)),
		Immediate: rapid.Uint32().Draw(t, "immediate"), RemoteAddr: rapid.Uint64().Draw(t, "address"),
		RemoteHandle: rapid.Uint32().Draw(t, "handle"),
	}
	return g
}

// ones is the Internet checksum of b (RFC 1071), byte by byte; 0 when b holds
// its own checksum.
func ones(b []byte) uint16 {
	sum := 0
	for i, c := range b {
		sum += int(c) << (8 * (1 - i%2))
		if sum > 0xffff {
			sum -= 0xffff
		}
	}
	return ^uint16(sum)
}

// What is written is read, and the lower headers are those that a kernel or a
// router takes.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		g := drawGolden(rt)
		frame := build(t, g)
		saved := bytes.Clone(frame)
		padding := rapid.IntRange(0, 20).Draw(rt, "padding")
		var p Packet
		must(rt, p.Decode(append(frame, make([]byte, padding)...)))
		must(rt, p.Verify())
		if diff := cmp.Diff(g.header, p.Header); diff != "" {
			rt.Fatalf("header (-want +got):\n%s", diff)
		}
		if !bytes.Equal(p.Payload, g.payload) || p.Src != HostOf(g.link.Src) {
			rt.Fatalf("payload %x from %x", p.Payload, p.Src)
		}
		if !bytes.Equal(frame, saved) {
			rt.Fatal("reading changed the frame")
		}
		checkLowerHeaders(rt, g, frame)
	})
}

func checkLowerHeaders(t *rapid.T, g golden, frame []byte) {
	at := 12
	if g.link.VLAN != 0 {
		if tag := binary.BigEndian.Uint32(frame[12:]); tag != 0x8100<<16|uint32(g.link.VLAN) {
			t.Fatalf("VLAN tag %x", tag)
		}
		at += 4
	}
	ip := frame[at+2:]
	udp := ip[40:]
	if g.link.Src.Is4() {
		udp = ip[20:]
		if n := int(binary.BigEndian.Uint16(ip[2:])); n != len(ip) || ones(ip[:20]) != 0 {
			t.Fatalf("IPv4: length %d of %d, checksum over the header %x", n, len(ip), ones(ip[:20]))
		}
	} else if n := int(binary.BigEndian.Uint16(ip[4:])); n != len(udp) {
		t.Fatalf("IPv6: length %d of %d", n, len(udp))
	}
	port := g.link.Port
	if port == 0 {
		port = Port
	}
	for i, want := range []uint16{port, port + uint16(g.link.PortOffset), uint16(len(udp)), 0} {
		if got := binary.BigEndian.Uint16(udp[2*i:]); got != want {
			t.Fatalf("UDP word %d: %d, want %d", i, got, want)
		}
	}
}

// A template serves frames of any length one after the other.
func TestTemplateIsReused(t *testing.T) {
	for _, l := range []Link{oneToTwo, on(macs, "fd00::1", "fd00::2", 5, 0)} {
		template, err := NewTemplate(l)
		must(t, err)
		chunk := bytes.Repeat([]byte{0xee}, 2048)
		for _, n := range []int{1448, 48, 49, 1000} {
			g := golden{link: l, header: Header{Kind: KindData, Length: uint16(n - HeaderLen)}, payload: make([]byte, n-HeaderLen)}
			via := template.Put(chunk, n)
			clear(via)
			g.header.Put(via)
			PutChecksum(via)
			got := chunk[:template.Len()+n]
			nstest.ErrorIf(t, !bytes.Equal(got, build(t, g)), "%v, %d bytes: differs from a frame of a fresh template", l.Src, n)
		}
	}
}

// A retransmission differs from the first transmission in what is the state of
// now, and in nothing else.
func TestRestamp(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		g := drawGolden(rt)
		frame := build(t, g)
		want := g
		want.header.Ack, want.header.Window = rapid.Uint32().Draw(rt, "new ack"), rapid.Uint16().Draw(rt, "new window")
		want.header.Flags |= FlagAckNow
		template, _ := NewTemplate(g.link)
		via := frame[template.Len():]
		Restamp(via, want.header.Ack, want.header.Window, FlagAckNow)
		PutChecksum(via[:HeaderLen+len(g.payload)])
		if !bytes.Equal(frame, build(t, want)) {
			rt.Fatal("differs from a frame that was built so")
		}
	})
}

func TestTemplateRefuses(t *testing.T) {
	for _, l := range []Link{
		macs,
		{Src: netip.MustParseAddr("10.0.0.1")},
		{Dst: netip.MustParseAddr("10.0.0.1")},
		on(macs, "10.0.0.1", "fd00::1", 0, 0),
	} {
		if _, err := NewTemplate(l); err != ErrProtocol {
			t.Errorf("from %v to %v: %v", l.Src, l.Dst, err)
		}
	}
	mapped, err := NewTemplate(on(macs, "::ffff:10.0.0.1", "10.0.0.2", 0, 0))
	plain, _ := NewTemplate(oneToTwo)
	nstest.ErrorIf(t, err != nil || mapped != plain, "mapped address: %v", err)
}

// A router may mark a frame once the template allows it, and the receiver sees the mark and nothing else.
func TestMarks(t *testing.T) {
	for _, l := range []Link{oneToTwo, on(macs, "10.0.0.1", "10.0.0.2", 5, 0), on(macs, "fd00::1", "fd00::2", 0, 0), on(macs, "fd00::1", "fd00::2", 5, 0)} {
		template, err := NewTemplate(l)
		must(t, err)
		for _, allowed := range []bool{false, true, true} {
			if allowed {
				template.AllowMarks()
			}
			frame := make([]byte, template.Len()+HeaderLen)
			h := Header{Kind: KindData, VI: 7}
			via := template.Put(frame, HeaderLen)
			h.Put(via)
			PutChecksum(via)
			ip := frame[template.ip:]
			field := func() byte {
				if ip[0]>>4 == 4 {
					return ip[1] & 3
				}
				return ip[1] >> 4 & 3
			}
			want := byte(0)
			if allowed {
				want = 2
			}
			var p Packet
			if err := p.Decode(frame); err != nil || p.Marked || field() != want {
				t.Fatalf("%v, allowed %v: ECN field %d, marked %v, %v", l.Src, allowed, field(), p.Marked, err)
			}
			if ip[0]>>4 == 4 {
				sum := ones(ip[:20])
				nstest.FatalIf(t, sum != 0, "IPv4 checksum is off by %#x", sum)
				ip[1] |= 3
			} else {
				ip[1] |= 3 << 4
			}
			if err := p.Decode(frame); err != nil || !p.Marked || p.Verify() != nil || p.VI != 7 {
				t.Fatalf("%v: marked %v, %v", l.Src, p.Marked, err)
			}
		}
	}
}

// cut splits b at multiples of size.
func cut(b []byte, first, size int) (head []byte, rest [][]byte) {
	first = min(first, len(b))
	head, b = b[:first:first], b[first:]
	for len(b) > 0 {
		n := min(size, len(b))
		rest = append(rest, b[:n:n])
		b = b[n:]
	}
	return head, rest
}

// A frame decodes to the same result in one buffer and in several. The first buffer has the headers.
func FuzzDecodeChain(f *testing.F) {
	for _, g := range goldens() {
		frame := build(f, g)
		f.Add(frame, uint16(0), uint8(3))
		f.Add(append(frame, make([]byte, 9)...), uint16(5), uint8(4))
		f.Add(frame[:len(frame)-1], uint16(1), uint8(0))
	}
	f.Fuzz(func(t *testing.T, frame []byte, more uint16, size uint8) {
		const headers = ethLen + vlanLen + ip6Len + udpLen + HeaderLen
		head, rest := cut(frame, headers+int(more), int(size)+1)
		var whole, chain Packet
		err := whole.Decode(frame)
		got := chain.DecodeChain(head, rest)
		nstest.FatalIf(t, !errors.Is(got, err), "%v in pieces, %v in one", got, err)
		if err != nil {
			return
		}
		payload := append(bytes.Clone(chain.Payload), bytes.Join(chain.Rest, nil)...)
		nstest.FatalIf(t, chain.Header != whole.Header || chain.Src != whole.Src || !bytes.Equal(payload, whole.Payload),
			"%+v and %d bytes in pieces, %+v and %d in one", chain.Header, len(payload), whole.Header, len(whole.Payload))
		one, many := whole.Verify(), chain.Verify()
		nstest.FatalIf(t, one != many, "checksum in one buffer: %v, in pieces: %v", one, many)
		// Sealed in pieces it is as sealed in one.
		udp := bytes.Clone(whole.udp)
		PutChecksum(udp)
		again, parts := cut(bytes.Clone(whole.udp), HeaderLen+int(more), int(size)+1)
		PutChecksum(again, parts...)
		nstest.FatalIf(t, !bytes.Equal(udp[:HeaderLen], again[:HeaderLen]),
			"sealed in one %x, in pieces %x", udp[:HeaderLen], again[:HeaderLen])
	})
}

func TestUnits(t *testing.T) {
	for frame, want := range map[int]int{1: 1, 1514: 1, WindowUnit: 1, WindowUnit + 1: 2, 9014: 3, 65549: 18} {
		got := Units(frame)
		nstest.ErrorIf(t, got != want, "a frame of %d bytes takes %d units, want %d", frame, got, want)
	}
}

func sized(t testing.TB, n int) (frame []byte, template Template, h Header) {
	h = Header{Kind: KindData, Flags: FlagFirst | FlagLast, VI: 1, Key: 2, Length: uint16(n)}
	template, err := NewTemplate(oneToTwo)
	must(t, err)
	return build(t, golden{link: oneToTwo, header: h, payload: make([]byte, n)}), template, h
}

func TestNothingAllocates(t *testing.T) {
	frame, template, h := sized(t, 64)
	n := testing.AllocsPerRun(100, func() {
		via := template.Put(frame, HeaderLen+64)
		h.Put(via)
		PutChecksum(via)
		Restamp(via, 1, 2, FlagAckNow)
		PutChecksum(via)
		var p Packet
		nstest.ErrorIf(t, p.Decode(frame) != nil || p.Verify() != nil, "not read")
	})
	nstest.ErrorIf(t, n != 0, "%v allocations", n)
}

func BenchmarkRead(b *testing.B) {
	for _, n := range []int{64, 1400} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			frame, _, _ := sized(b, n)
			b.SetBytes(int64(n))
			b.ReportAllocs()
			var p Packet
			for b.Loop() {
				if p.Decode(frame) != nil || p.Verify() != nil {
					b.Fatal("not read")
				}
			}
		})
	}
}

func BenchmarkWrite(b *testing.B) {
	for _, n := range []int{64, 1400} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			frame, template, h := sized(b, n)
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				via := template.Put(frame, HeaderLen+n)
				h.Put(via)
				PutChecksum(via)
			}
		})
	}
}
