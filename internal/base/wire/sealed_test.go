package wire

import (
	"bytes"
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"viaxdp/internal/lab/nstest"
)

// sealed makes the sealed form of a golden frame, its inner part not encrypted and
// its tag of one byte again and again.
func sealed(t testing.TB, g golden, epoch uint16, number uint64) []byte {
	t.Helper()
	plain := make([]byte, HeaderLen+len(g.payload))
	g.header.Put(plain)
	copy(plain[HeaderLen:], g.payload)
	template, err := NewTemplate(g.link)
	must(t, err)
	n := len(plain) + SealOverhead
	frame := make([]byte, template.Len()+n)
	via := template.Put(frame, n)
	clear, inner := PutSealed(via, plain, epoch, number)
	nstest.FatalIf(t, len(clear)+len(inner)+TagLen != n, "%d bytes in clear, %d to encrypt, %d in all", len(clear), len(inner), n)
	copy(via[copy(via[len(clear):], inner)+len(clear):], bytes.Repeat([]byte{0x5a}, TagLen))
	return frame
}

// The sealed form of the first golden frames is that in testdata/sealed.hex, and
// what it holds is read back.
func TestGoldenSealed(t *testing.T) {
	text, err := os.ReadFile("testdata/sealed.hex")
	must(t, err)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	nstest.FatalIf(t, len(lines) != len(goldens()), "%d lines, %d golden frames", len(lines), len(goldens()))
	for i, g := range goldens() {
		name, digits, _ := strings.Cut(lines[i], " ")
		epoch, number := uint16(0xe0+i), 0x0102030405060700+uint64(i)
		got := sealed(t, g, epoch, number)
		nstest.ErrorIf(t, name != g.name || hex.EncodeToString(got) != digits,
			"%s:\n got %x\nwant %s of %s", g.name, got, digits, name)
		var p Packet
		if err := p.Decode(got); err != nil {
			t.Errorf("%s: %v", g.name, err)
			continue
		}
		nstest.ErrorIf(t, p.Kind != KindSealed || p.VI != g.header.VI || p.Key != g.header.Key || p.Epoch() != epoch || p.Number() != number,
			"%s: %+v, epoch %d, number %d", g.name, p.Header, p.Epoch(), p.Number())
		if err := p.Opened(); err != nil {
			t.Errorf("%s: %v", g.name, err)
		}
		if diff := cmp.Diff(g.header, p.Header); diff != "" || !bytes.Equal(p.Payload, g.payload) || len(p.Rest) != 0 {
			t.Errorf("%s: payload %x, header (-want +got):\n%s", g.name, p.Payload, diff)
		}
	}
}

// The sealed form may begin 8 bytes before the plain one, in the same room.
func TestSealInPlace(t *testing.T) {
	for i, g := range goldens() {
		want := sealed(t, g, 1, uint64(i))
		const ahead = SealOverhead - TagLen
		b := make([]byte, ahead+HeaderLen+len(g.payload)+TagLen)
		plain := b[ahead : len(b)-TagLen]
		g.header.Put(plain)
		copy(plain[HeaderLen:], g.payload)
		clear, inner := PutSealed(b, plain, 1, uint64(i))
		nstest.FatalIf(t, &inner[0] != &b[len(clear)], "what is encrypted does not lie where it goes")
		nstest.ErrorIf(t, !bytes.HasSuffix(want[:len(want)-TagLen], b[:len(b)-TagLen]), "%s: %x", g.name, b)
	}
}

// Spread writes nothing to the buffers of an earlier packet: the kernel may have them again.
func TestSpreadForgets(t *testing.T) {
	frame := sealed(t, goldens()[0], 0, 0)
	for name, decode := range map[string]func(*Packet, []byte) error{
		"one buffer": func(p *Packet, b []byte) error { return p.Decode(b) },
		"padding":    func(p *Packet, b []byte) error { return p.DecodeChain(b, [][]byte{make([]byte, 100)}) },
		"inner":      func(p *Packet, b []byte) error { return p.DecodeInner(b[ethLen+ip4Len+udpLen:], nil) },
	} {
		var p Packet
		head, rest := cut(bytes.Clone(frame), len(frame)-10, 20)
		must(t, p.DecodeChain(head, rest))
		p.Join(nil)
		clear(head)
		must(t, decode(&p, bytes.Clone(frame)))
		p.Spread()
		nstest.ErrorIf(t, !bytes.Equal(head, make([]byte, len(head))), "%s: the buffer of the packet before was written", name)
	}
}

// For any content of a sealed frame, in one buffer or several, Opened returns a frame or an error, and Spread
// reverses Join.
func FuzzSealed(f *testing.F) {
	for i, g := range goldens() {
		f.Add(sealed(f, g, 0, uint64(i)), uint16(i), uint8(7))
	}
	f.Add(sealed(f, goldens()[0], 0, 0)[:90], uint16(0), uint8(1))
	f.Fuzz(func(t *testing.T, frame []byte, more uint16, size uint8) {
		const headers = ethLen + vlanLen + ip6Len + udpLen + HeaderLen
		var whole, chain Packet
		if whole.Decode(frame) != nil || whole.Kind != KindSealed {
			return
		}
		before := bytes.Clone(frame)
		head, rest := cut(frame, headers+int(more), int(size)+1)
		must(t, chain.DecodeChain(head, rest))
		if len(chain.Rest) > 0 {
			joined := chain.Join(nil)
			clear, sealed := chain.Sealed()
			nstest.FatalIf(t, &clear[0] != &joined[0] || len(clear)+len(sealed) != len(joined),
				"%d bytes joined, %d in clear, %d sealed", len(joined), len(clear), len(sealed))
			chain.Spread()
			nstest.FatalIf(t, !bytes.Equal(frame, before), "Spread changed the frame")
			sealed[0] ^= 0xff
			chain.Spread()
			nstest.FatalIf(t, bytes.Equal(frame, before), "Spread wrote nothing back")
			sealed[0] ^= 0xff
			chain.Spread()
		}
		one, many := whole.Opened(), chain.Opened()
		nstest.FatalIf(t, one != many || one == nil && (whole.Header != chain.Header || !bytes.Equal(whole.Payload, chain.Payload)),
			"in one buffer %+v, %v; in several %+v, %v", whole.Header, one, chain.Header, many)
		nstest.FatalIf(t, one == nil && (whole.Kind == KindSealed || int(whole.Length) != len(whole.Payload)),
			"taken: %+v with %d bytes", whole.Header, len(whole.Payload))
	})
}
