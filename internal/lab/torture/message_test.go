package torture

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"viaxdp/internal/base/wire"
	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/testbed"
)

func drawHead(t *rapid.T) head {
	return head{
		kind: kind(rapid.IntRange(int(kindHello), int(kindBye)).Draw(t, "kind")), seq: rapid.Uint64().Draw(t, "seq"),
		taken: rapid.Uint64().Draw(t, "taken"), session: rapid.Uint64().Draw(t, "session"),
		handle: rapid.Uint32().Draw(t, "handle"), source: rapid.Uint32().Draw(t, "source"),
		slots: rapid.Uint64().Draw(t, "slots"), from: rapid.Uint64().Draw(t, "from"),
	}
}

// An unchanged message is read as it was written. A message with a changed byte of the pattern, or a changed
// length, is detected.
func TestMessages(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawHead(t)
		b := make([]byte, headLen+rapid.IntRange(0, 3000).Draw(t, "more"))
		want.fill(b)
		var got head
		if err := got.parse(b); err != nil || got != want {
			t.Fatalf("%+v became %+v, %v", want, got, err)
		}
		if messageLen(b) != len(b) {
			t.Fatalf("%d bytes are said to be %d", len(b), messageLen(b))
		}
		if got.parse(b[:len(b)-1]) == nil {
			t.Fatal("a message that was cut off is accepted")
		}
		if len(b) == headLen {
			return
		}
		at := rapid.IntRange(headLen, len(b)-1).Draw(t, "at")
		b[at] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		if got.parse(b) == nil {
			t.Fatalf("byte %d of %d is wrong and was not detected", at, len(b))
		}
	})
}

// Any part of a pattern that begins with a word is checked as the whole is.
func TestPatternParts(t *testing.T) {
	whole := make([]byte, 1000)
	fillPattern(whole, 99)
	for _, c := range []struct{ first, n int }{{0, 1000}, {0, 0}, {1, 1}, {3, 971}, {124, 8}, {125, 0}} {
		part := bytes.Clone(whole[8*c.first:][:c.n])
		if at, ok := checkPatternAt(part, 99, uint64(c.first)); !ok {
			t.Errorf("%+v: byte %d is said to be wrong", c, at)
		}
		if c.n == 0 {
			continue
		}
		part[c.n-1]++
		if at, ok := checkPatternAt(part, 99, uint64(c.first)); ok || at != c.n-1 {
			t.Errorf("%+v: byte %d is wrong, not %d", c, c.n-1, at)
		}
		part[c.n-1]--
		if _, ok := checkPatternAt(part, 99, uint64(c.first)+1); ok {
			t.Errorf("%+v: a part from another place is accepted", c)
		}
	}
}

// The judge of a flow finds messages that are doubled, left out, of another
// incarnation, or too late.
func TestJudge(t *testing.T) {
	reliable, unreliable := FlowConfig{Level: 2}, FlowConfig{Level: 1}
	for _, c := range []struct {
		name string
		cfg  FlowConfig
		do   func(f *flow)
		want string // "": all is well
	}{
		{"in order", reliable, func(f *flow) { f.numbered(0); f.numbered(1) }, ""},
		{"doubled", reliable, func(f *flow) { f.numbered(0); f.numbered(0) }, "message 0 came, 1 was due"},
		{"left out", reliable, func(f *flow) { f.numbered(1) }, "message 1 came, 0 was due"},
		{"left out, which may be", unreliable, func(f *flow) { f.numbered(5) }, ""},
		{"doubled, which may not be", unreliable, func(f *flow) { f.numbered(5); f.numbered(5) }, "message 5 came, 6 was due"},
		{"after the last", reliable, func(f *flow) { f.finalCame = true; f.numbered(0) }, "after the last"},
		{"another incarnation", reliable, func(f *flow) {
			f.known(&head{kind: kindHello, session: 7})
			f.known(&head{kind: kindData, session: 8})
		}, errSession.Error()},
		{"the former incarnation", reliable, func(f *flow) {
			f.last = 7
			f.known(&head{kind: kindHello, session: 7})
		}, errSession.Error()},
		{"no hello", reliable, func(f *flow) { f.known(&head{kind: kindData, session: 7}) }, "first message"},
		{"credit for nothing", reliable, func(f *flow) { f.known(&head{kind: kindHello, session: 7, taken: 1}) }, "taken 1 messages of 0"},
	} {
		f := &flow{cfg: c.cfg, disc: []byte("f")}
		c.do(f)
		got := strings.Join(f.n.Violations, "; ")
		nstest.ErrorIf(t, (c.want == "") != (got == "") || !strings.Contains(got, c.want), "%s: %q, want %q", c.name, got, c.want)
	}
}

// Immediate data has the low half of a number, also where that wraps.
func TestWholeNumbers(t *testing.T) {
	for _, n := range []uint64{0, 1, 1<<32 - 1, 1 << 32, 5<<32 + 3} {
		for d := -5; d <= 5; d++ {
			want := n + uint64(int64(d))
			f := &flow{incarnation: incarnation{expect: n}}
			if got := f.whole(uint32(want)); got != want {
				t.Errorf("due %d: %d is taken for %d", n, want, got)
			}
		}
	}
}

// Counts are balanced when each frame that was sent was received or has a name for its loss, and not otherwise.
func TestAccount(t *testing.T) {
	balanced := frameCounts{
		sent: 1000, cancelled: 1, seen: 985, redirected: 980, named: 980, received: 970, engine: 970,
		emulated: testbed.EmulatorCounters{Taken: 999, Duplicated: 10, Lost: 12, LostInBurst: 5, Limited: 4, Refused: 3, Passed: 985},
		all:      testbed.EmulatorCounters{Taken: 1500},
	}
	earlier := balanced
	earlier.out, earlier.in = 3, 4
	for _, c := range []struct {
		name               string
		change             func(a *frameCounts)
		underWay, receiver bool
	}{
		{"balanced", func(*frameCounts) {}, true, true},
		{"lost before the emulator", func(a *frameCounts) { a.sent++ }, false, true},
		{"no room before the emulator", func(a *frameCounts) { a.sent++; a.all.Overrun++ }, true, true},
		{"no room on the link to the emulator", func(a *frameCounts) { a.sent += 2; a.out += 2 }, true, true},
		{"more lost than had no room", func(a *frameCounts) { a.sent += 2; a.out++ }, false, true},
		{"no room on the link from the emulator", func(a *frameCounts) { a.seen--; a.in++ }, true, true},
		{"two lost, room for one", func(a *frameCounts) { a.seen -= 2; a.in++ }, false, true},
		{"from nowhere", func(a *frameCounts) { a.sent-- }, false, true},
		{"voided and not sent", func(a *frameCounts) { a.cancelled++ }, false, true},
		{"lost under way", func(a *frameCounts) { a.emulated.Lost-- }, false, true},
		{"doubled under way", func(a *frameCounts) { a.emulated.Passed++; a.seen++ }, false, true},
		{"lost before the program", func(a *frameCounts) { a.seen-- }, false, true},
		{"damaged, for the kernel now", func(a *frameCounts) { a.seen--; a.emulated.Corrupted++; a.all.Corrupted++ }, true, true},
		{"two lost, one damaged", func(a *frameCounts) { a.seen -= 2; a.emulated.Corrupted++; a.all.Corrupted++ }, false, true},
		{"another one damaged, a VI's now", func(a *frameCounts) { a.seen++; a.all.Corrupted++ }, true, true},
		{"doubled before the program", func(a *frameCounts) { a.seen++ }, false, true},
		{"one damaged, doubled before the program", func(a *frameCounts) { a.seen++; a.emulated.Corrupted++; a.all.Corrupted++ }, false, true},
		{"lost before the socket", func(a *frameCounts) { a.named-- }, true, false},
		{"lost before the engine", func(a *frameCounts) { a.engine-- }, true, false},
	} {
		a := balanced
		c.change(&a)
		if err := a.underWay(); (err == nil) != c.underWay {
			t.Errorf("%s: under way: %v", c.name, err)
		}
		if err := a.atReceiver(); (err == nil) != c.receiver {
			t.Errorf("%s: at the receiver: %v", c.name, err)
		}
		later := frameCounts{
			sent: a.sent + balanced.sent, cancelled: a.cancelled + 1, seen: a.seen + 985, redirected: a.redirected + 980, named: a.named + 980,
			out: a.out + earlier.out, in: a.in + earlier.in, received: a.received + 970, engine: a.engine + 970, emulated: a.emulated.Plus(balanced.emulated), all: a.all.Plus(balanced.all),
		}
		if got := later.since(earlier); got != a {
			t.Errorf("%s: since an earlier look: %+v, not %+v", c.name, got, a)
		}
	}
}

// On a direct bed each frame that was sent comes to the program, or there was no room for it.
func TestUnderWayDirect(t *testing.T) {
	for _, c := range []struct {
		name            string
		sent, out, seen uint64
		ok              bool
	}{
		{"all", 1000, 0, 1000, true}, {"no room", 1000, 2, 998, true}, {"no room for others", 1000, 3, 998, true},
		{"lost", 1000, 1, 998, false}, {"from nowhere", 1000, 0, 1001, false},
	} {
		if err := (frameCounts{sent: c.sent, out: c.out, seen: c.seen}).underWayDirect(); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// Frames of VIs are distinguished from connection management and from other frames, over IPv4 and IPv6.
func TestOfVI(t *testing.T) {
	frame := func(ether uint16, ip int, proto byte, port uint16, kind byte) []byte {
		f := make([]byte, 14+ip+udpHead+2)
		binary.BigEndian.PutUint16(f[12:], ether)
		f[14+map[int]int{20: 9, 40: 6}[ip]] = proto
		binary.BigEndian.PutUint16(f[14+ip+2:], port)
		f[14+ip+udpHead+1] = kind
		return f
	}
	v4 := frame(unix.ETH_P_IP, 20, unix.IPPROTO_UDP, wire.Port, byte(wire.KindData))
	v6 := frame(unix.ETH_P_IPV6, 40, unix.IPPROTO_UDP, wire.Port, byte(wire.KindData))
	for _, c := range []struct {
		name  string
		frame []byte
		want  bool
	}{
		{"IPv4", v4, true},
		{"IPv6", v6, true},
		{"too short", v4[:len(v4)-1], false},
		{"too short for IPv6", v6[:len(v6)-1], false},
		{"a byte", v4[:1], false},
		{"connection management", frame(unix.ETH_P_IP, 20, unix.IPPROTO_UDP, wire.Port, wire.KindConnect|1), false},
		{"another port", frame(unix.ETH_P_IP, 20, unix.IPPROTO_UDP, wire.Port+1, 1), false},
		{"TCP", frame(unix.ETH_P_IP, 20, unix.IPPROTO_TCP, wire.Port, 1), false},
		{"TCP over IPv6", frame(unix.ETH_P_IPV6, 40, unix.IPPROTO_TCP, wire.Port, 1), false},
		{"ARP", frame(unix.ETH_P_ARP, 20, unix.IPPROTO_UDP, wire.Port, 1), false},
	} {
		if got := ofVI(c.frame); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
