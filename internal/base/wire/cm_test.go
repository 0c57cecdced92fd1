package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"viaxdp/internal/lab/nstest"
)

// cmExamples has messages of each type.
func cmExamples() []CM {
	return []CM{
		{
			Type: CMRequest, ID: 0x0102030405060708, VI: 0x00a10001, Key: 0x1112131415161718, Seq: 0x21222324,
			Window: 0x3132, MaxPayload: 1472, Level: 4, Flags: CMRDMAWrite | CMRDMARead, MaxTransfer: 1 << 20,
			QoS: 0x41424344, From: []byte("client"), To: []byte("echo"),
		},
		{Type: CMPending, ID: 1},
		{Type: CMAccept, ID: 2, VI: 5, Key: 6, Level: 1, From: []byte("echo")},
		{Type: CMConfirm, ID: 3, Cookie: 1},
		{Type: CMReject, ID: 4, Reason: CMReasonProgram},
		{Type: CMNoMatch, ID: 5},
		{Type: CMCancel, ID: ^uint64(0), Reason: CMReasonTimeout},
		{
			Type: CMRequest, ID: 0x2122232425262728, VI: 0x00020003, Key: 7, Seq: 8, Window: 9, MaxPayload: 8972, Level: 2,
			Flags: CMPeer | CMRDMARead, MaxTransfer: 32768, From: []byte("left"), To: []byte("right"),
		},
		{Type: CMReject, ID: 6, Reason: CMReasonLevel},
		{Type: CMReject, ID: 7, Reason: CMReasonTransfer},
		{Type: CMReject, ID: 8, Reason: CMReasonQoS},
		{Type: CMHello, ID: 0x3132333435363738},
		{Type: CMHere, ID: 0x3132333435363738},
		{
			Type: CMRequest, ID: 9, VI: 1, Key: 2, Level: 2, From: []byte("a"), To: []byte("b"),
			Handshake: bytes.Repeat([]byte{0x5a}, CMShareLen),
		},
		{Type: CMAccept, ID: 10, VI: 3, Key: 4, Level: 2, Handshake: bytes.Repeat([]byte{0xa5}, CMShareLen)},
		{Type: CMConfirm, ID: 11, Handshake: bytes.Repeat([]byte{0x69}, CMProofLen)},
		{Type: CMReject, ID: 12, Reason: CMReasonKey},
		{Type: CMRetry, ID: 13, Cookie: 0x5152535455565758},
		{
			Type: CMRequest, ID: 13, VI: 1, Key: 2, Level: 1, From: []byte("a"), To: []byte("b"), Cookie: 0x5152535455565758,
		},
		{
			Type: CMRequest, ID: 14, VI: 1, Key: 2, Level: 1, Handshake: bytes.Repeat([]byte{0x5a}, CMShareLen), Cookie: 1,
		},
		{Type: CMConfirm, ID: 13, Cookie: 0x6162636465666768},
		{Type: CMConfirmed, ID: 13},
		{Type: CMRequest, ID: 15, VI: 1, Key: 2, Level: 2, PortOffset: Ports - 1, To: []byte("b")},
		{Type: CMAccept, ID: 15, VI: 3, Key: 4, Level: 2, PortOffset: 1},
	}
}

// The format does not change by accident: testdata/cm.hex has the bytes of each
// example, one a line.
func TestCMGolden(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("testdata", "cm.hex"))
	must(t, err)
	lines := strings.Fields(string(b))
	examples := cmExamples()
	nstest.FatalIf(t, len(lines) != len(examples), "%d lines for %d examples", len(lines), len(examples))
	for i, m := range examples {
		want, err := hex.DecodeString(lines[i])
		must(t, err)
		got, err := m.Append(nil)
		nstest.FatalIf(t, err != nil, "%v: %v", m.Type, err)
		nstest.ErrorIf(t, !bytes.Equal(got, want), "%v:\ngot  %x\nwant %x", m.Type, got, want)
		back, err := ParseCM(want)
		if err != nil {
			t.Errorf("%v: %v", m.Type, err)
		} else if d := cmp.Diff(m, back); d != "" {
			t.Errorf("%v: %s", m.Type, d)
		}
	}
}

func drawCM(t *rapid.T) CM {
	m := CM{
		Type: CMType(rapid.IntRange(int(CMRequest), int(cmLast)).Draw(t, "type")),
		ID:   rapid.Uint64Min(1).Draw(t, "id"),
	}
	if m.Type.reasons() {
		m.Reason = CMReason(rapid.IntRange(0, int(cmReasonEnd)-1).Draw(t, "reason"))
	}
	if m.Type.offers() {
		m.VI = rapid.Uint32Min(1).Draw(t, "vi")
		m.Key = rapid.Uint64().Draw(t, "key")
		m.Seq = rapid.Uint32().Draw(t, "seq")
		m.Window = rapid.Uint16().Draw(t, "window")
		m.MaxPayload = rapid.Uint16().Draw(t, "payload")
		m.Level = rapid.SampledFrom([]uint8{1, 2, 4}).Draw(t, "level")
		m.Flags = rapid.Uint16Max(3).Draw(t, "flags")
		if m.Type == CMRequest && rapid.Bool().Draw(t, "peer") {
			m.Flags |= CMPeer
		}
		m.MaxTransfer = rapid.Uint32().Draw(t, "transfer")
		m.QoS = rapid.Uint32().Draw(t, "qos")
		m.PortOffset = rapid.Uint8Max(Ports-1).Draw(t, "port offset")
		disc := rapid.SliceOfN(rapid.Byte(), 0, CMMaxDisc)
		if m.From = disc.Draw(t, "from"); len(m.From) == 0 {
			m.From = nil
		}
		if m.To = disc.Draw(t, "to"); len(m.To) == 0 {
			m.To = nil
		}
	}
	if n := m.Type.handshakeLen(); n > 0 && rapid.Bool().Draw(t, "handshake") {
		m.Handshake = rapid.SliceOfN(rapid.Byte(), n, n).Draw(t, "share")
	}
	if m.Type.cookieAsKey() && m.Handshake == nil || m.Type == CMRequest && rapid.Bool().Draw(t, "has a cookie") {
		m.Cookie = rapid.Uint64Min(1).Draw(t, "cookie")
	}
	return m
}

// Every message comes back as it was, and no other bytes are taken for it: not
// shorter, not longer, not with a bit turned.
func TestCMRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawCM(t)
		prefix := rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, "prefix")
		b, err := m.Append(bytes.Clone(prefix))
		must(t, err)
		if !bytes.HasPrefix(b, prefix) {
			t.Fatal("Append changed what was there")
		}
		b = b[len(prefix):]
		if len(b) > CMMaxLen {
			t.Fatalf("%d bytes", len(b))
		}
		back, err := ParseCM(b)
		must(t, err)
		if d := cmp.Diff(m, back); d != "" {
			t.Fatal(d)
		}
		version := byte(rapid.IntRange(0, 15).Draw(t, "version"))
		b[0] = Version&0xf0 | version
		seen, kind, id, ok := PeekCM(b[:rapid.IntRange(24, len(b)).Draw(t, "quote")])
		b[0] = Version
		if seen != version || kind != m.Type || id != m.ID || !ok {
			t.Fatalf("PeekCM: %d %v %#x %v", seen, kind, id, ok)
		}
		cut := rapid.IntRange(0, len(b)-1).Draw(t, "cut")
		if _, err := ParseCM(b[:cut]); err == nil {
			t.Fatalf("taken when cut to %d of %d bytes", cut, len(b))
		}
		if _, err := ParseCM(append(bytes.Clone(b), 0)); !errors.Is(err, ErrLength) {
			t.Fatalf("a trailing byte: %v", err)
		}
		bit := rapid.IntRange(0, 8*len(b)-1).Draw(t, "bit")
		b[bit/8] ^= 1 << (bit % 8)
		if _, err := ParseCM(b); err == nil {
			t.Fatalf("taken with bit %d turned", bit)
		}
	})
}

// Fields that contradict the format are refused on both ways.
func TestCMRefuses(t *testing.T) {
	request, pending, accept, reject := cmExamples()[0], cmExamples()[1], cmExamples()[2], cmExamples()[4]
	hello, here := CM{Type: CMHello, ID: 1}, CM{Type: CMHere, ID: 1}
	cases := []struct {
		name   string
		base   CM
		change func(*CM)
	}{
		{"type 0", request, func(m *CM) { m.Type = 0 }},
		{"type 12", request, func(m *CM) { m.Type = 12 }},
		{"id 0", pending, func(m *CM) { m.ID = 0 }},
		{"reserved flag", request, func(m *CM) { m.Flags |= 16 }},
		{"another reserved flag", request, func(m *CM) { m.Flags |= 32 }},
		{"retry without a cookie", CM{Type: CMRetry, ID: 1, Cookie: 1}, func(m *CM) { m.Cookie = 0 }},
		{"confirm that proves nothing", CM{Type: CMConfirm, ID: 1, Cookie: 1}, func(m *CM) { m.Cookie = 0 }},
		{"key in a retry", CM{Type: CMRetry, ID: 1, Cookie: 1}, func(m *CM) { m.Key = 1 }},
		{"cookie in a pending", pending, func(m *CM) { m.Cookie = 1 }},
		{"cookie in an accept", accept, func(m *CM) { m.Cookie = 1 }},
		{"cookie beside a proof", CM{Type: CMConfirm, ID: 1, Cookie: 1}, func(m *CM) { m.Handshake = make([]byte, CMProofLen) }},
		{"peer flag in an accept", accept, func(m *CM) { m.Flags |= CMPeer }},
		{"peer flag in a pending", pending, func(m *CM) { m.Flags |= CMPeer }},
		{"hello without an id", hello, func(m *CM) { m.ID = 0 }},
		{"numbers in a hello", hello, func(m *CM) { m.VI, m.Level = 1, 1 }},
		{"discriminator in a hello", hello, func(m *CM) { m.To = []byte{1} }},
		{"reason in a here", here, func(m *CM) { m.Reason = CMReasonLevel }},
		{"no VI", request, func(m *CM) { m.VI = 0 }},
		{"level 0", request, func(m *CM) { m.Level = 0 }},
		{"level 3", request, func(m *CM) { m.Level = 3 }},
		{"reason in a request", request, func(m *CM) { m.Reason = 1 }},
		{"port offset in a pending", pending, func(m *CM) { m.PortOffset = 1 }},
		{"port offset in a reject", reject, func(m *CM) { m.PortOffset = 1 }},
		{"port offset of no queue", accept, func(m *CM) { m.PortOffset = Ports }},
		{"unknown reason", reject, func(m *CM) { m.Reason = cmReasonEnd }},
		{"long discriminator", request, func(m *CM) { m.To = make([]byte, CMMaxDisc+1) }},
		{"VI in a pending", pending, func(m *CM) { m.VI = 1 }},
		{"key in a pending", pending, func(m *CM) { m.Key = 1 }},
		{"sequence in a pending", pending, func(m *CM) { m.Seq = 1 }},
		{"window in a pending", pending, func(m *CM) { m.Window = 1 }},
		{"payload in a pending", pending, func(m *CM) { m.MaxPayload = 1 }},
		{"level in a pending", pending, func(m *CM) { m.Level = 1 }},
		{"flags in a pending", pending, func(m *CM) { m.Flags = 1 }},
		{"transfer in a pending", pending, func(m *CM) { m.MaxTransfer = 1 }},
		{"QoS in a pending", pending, func(m *CM) { m.QoS = 1 }},
		{"short handshake", request, func(m *CM) { m.Handshake = make([]byte, CMProofLen) }},
		{"handshake in a pending", pending, func(m *CM) { m.Handshake = make([]byte, CMProofLen) }},
		{"handshake in a reject", reject, func(m *CM) { m.Handshake = make([]byte, CMShareLen) }},
		{"discriminator in a pending", pending, func(m *CM) { m.From = []byte{1} }},
	}
	for _, c := range cases {
		m := c.base
		c.change(&m)
		if b, err := m.Append(nil); !errors.Is(err, ErrCM) || len(b) != 0 {
			t.Errorf("%s: Append gave %d bytes, %v", c.name, len(b), err)
		}
	}

	good, err := request.Append(nil)
	must(t, err)
	raw := []struct {
		name string
		at   int
		to   byte
		want error
	}{
		{"version", 0, 0xA4, ErrVersion},
		{"data frame", 1, byte(KindData), ErrKind},
		{"type", 1, KindConnect | 0x20, ErrCM},
		{"flags", 2, 0x80, ErrCM},
		{"handshake that is missing", 3, 16, ErrLength},
		{"cookie that is missing", 3, 32, ErrLength},
		{"level", 40, 8, ErrCM},
		{"port offset", 41, Ports, ErrCM},
		{"From length", 42, 200, ErrLength},
		{"lengths", 43, 3, ErrLength},
	}
	for _, c := range raw {
		b := bytes.Clone(good)
		b[c.at] = c.to
		PutChecksum(b)
		if _, err := ParseCM(b); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	// A cookie that is 0, or in a message that has none.
	for _, kind := range []CMType{CMRequest, CMAccept} {
		b := append(bytes.Clone(good), make([]byte, cmCookieLen)...)
		b[1], b[3] = KindConnect|byte(kind), b[3]|byte(cmCookie)
		PutChecksum(b)
		if _, err := ParseCM(b); !errors.Is(err, ErrCM) {
			t.Errorf("%v with cookie 0: %v", kind, err)
		}
	}
	// Lengths that agree with the datagram, and are too long all the same.
	b := append(bytes.Clone(good[:CMHeaderLen]), make([]byte, 65)...)
	b[42], b[43] = 65, 0
	PutChecksum(b)
	if _, err := ParseCM(b); !errors.Is(err, ErrCM) {
		t.Errorf("65 bytes of discriminator: %v", err)
	}
	for _, b := range [][]byte{nil, good[:23], {Version, byte(KindData), 23: 0}, {0xB3, KindConnect | 1, 23: 0}, {Version, KindConnect | 0x11, 23: 0}} {
		_, _, _, ok := PeekCM(b)
		nstest.ErrorIf(t, ok, "PeekCM took %x", b)
	}
}

// Names are for people: each is there and none twice.
func TestCMNames(t *testing.T) {
	seen := map[string]bool{}
	for m := range cmLast {
		seen[(m + 1).String()] = true
	}
	for r := range cmReasonEnd {
		seen[r.String()] = true
	}
	want := int(cmLast) + int(cmReasonEnd)
	nstest.ErrorIf(t, len(seen) != want || seen[""], "%d different names, want %d: %v", len(seen), want, seen)
	nstest.ErrorIf(t, CMType(99).String() == "" || CMReason(99).String() == "", "no text for an unknown number")
}

// What ParseCM takes, Append makes again, byte for byte.
func FuzzParseCM(f *testing.F) {
	for _, m := range cmExamples() {
		b, err := m.Append(nil)
		must(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := ParseCM(b)
		if err != nil && len(b) >= CMHeaderLen {
			// Get past the checksum, which no fuzzer guesses.
			PutChecksum(b)
			m, err = ParseCM(b)
		}
		if err != nil {
			return
		}
		again, err := m.Append(nil)
		nstest.FatalIf(t, err != nil, "%+v: %v", m, err)
		nstest.FatalIf(t, !bytes.Equal(again, b), "got  %x\nmade %x", b, again)
	})
}
