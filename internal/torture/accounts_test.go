package torture

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"

	"viaxdp/internal/testbed"
	"viaxdp/wire"
)

// An account is balanced when each frame that was sent was received or has a name for its loss, and not otherwise.
func TestAccount(t *testing.T) {
	balanced := account{
		sent: 1000, voided: 1, seen: 985, redirected: 980, named: 980, received: 970, engine: 970,
		way: testbed.WayCounters{Taken: 999, Duplicated: 10, Lost: 12, LostInBurst: 5, Limited: 4, Refused: 3, Passed: 985},
		all: testbed.WayCounters{Taken: 1500},
	}
	earlier := balanced
	earlier.out, earlier.in = 3, 4
	for _, c := range []struct {
		name          string
		change        func(a *account)
		way, receiver bool
	}{
		{"balanced", func(*account) {}, true, true},
		{"lost before the way", func(a *account) { a.sent++ }, false, true},
		{"no room before the way", func(a *account) { a.sent++; a.all.Overrun++ }, true, true},
		{"no room on the link to the way", func(a *account) { a.sent += 2; a.out += 2 }, true, true},
		{"more lost than had no room", func(a *account) { a.sent += 2; a.out++ }, false, true},
		{"no room on the link from the way", func(a *account) { a.seen--; a.in++ }, true, true},
		{"two lost, room for one", func(a *account) { a.seen -= 2; a.in++ }, false, true},
		{"from nowhere", func(a *account) { a.sent-- }, false, true},
		{"voided and not sent", func(a *account) { a.voided++ }, false, true},
		{"lost on the way", func(a *account) { a.way.Lost-- }, false, true},
		{"doubled on the way", func(a *account) { a.way.Passed++; a.seen++ }, false, true},
		{"lost before the program", func(a *account) { a.seen-- }, false, true},
		{"damaged, for the kernel now", func(a *account) { a.seen--; a.way.Corrupted++; a.all.Corrupted++ }, true, true},
		{"two lost, one damaged", func(a *account) { a.seen -= 2; a.way.Corrupted++; a.all.Corrupted++ }, false, true},
		{"another one damaged, a VI's now", func(a *account) { a.seen++; a.all.Corrupted++ }, true, true},
		{"doubled before the program", func(a *account) { a.seen++ }, false, true},
		{"one damaged, doubled before the program", func(a *account) { a.seen++; a.way.Corrupted++; a.all.Corrupted++ }, false, true},
		{"lost before the socket", func(a *account) { a.named-- }, true, false},
		{"lost before the engine", func(a *account) { a.engine-- }, true, false},
	} {
		a := balanced
		c.change(&a)
		if err := a.onTheWay(); (err == nil) != c.way {
			t.Errorf("%s: on the way: %v", c.name, err)
		}
		if err := a.atReceiver(); (err == nil) != c.receiver {
			t.Errorf("%s: at the receiver: %v", c.name, err)
		}
		later := account{
			sent: a.sent + balanced.sent, voided: a.voided + 1, seen: a.seen + 985, redirected: a.redirected + 980, named: a.named + 980,
			out: a.out + earlier.out, in: a.in + earlier.in, received: a.received + 970, engine: a.engine + 970, way: a.way.Plus(balanced.way), all: a.all.Plus(balanced.all),
		}
		if got := later.since(earlier); got != a {
			t.Errorf("%s: since an earlier look: %+v, not %+v", c.name, got, a)
		}
	}
}

// Frames of VIs are told from connection management and from others' frames, over IPv4 and IPv6.
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
