package torture

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/unix"

	"viaxdp/internal/base/wire"
	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/testsize"
)

// Each attack keeps its promise: a NIC that reads memory late gives a hostile peer nothing that was written after a
// completion; a hostile user of an agent neither delays another user nor takes its requests; requests with forged
// sources keep no client from its server, and no host is sent more than came in its name.
func TestAttacks(t *testing.T) {
	for _, name := range Attacks {
		t.Run(name, func(t *testing.T) {
			// Only a soak checks the promise on time. Here, and even more with -short and the race detector, two
			// processors must have time for the server beside the flood.
			rate := testsize.Number(t, "VIA_REQUESTS", 500, 1_000)
			r := soaked(t, SoakConfig{Attack: name, For: 4 * share(t), Seed: 7, Rate: rate})
			nstest.FatalIf(t, r.Attack == nil, "no report")
			t.Logf("%s\n%v\n%v", r.Attack.Result, r.Attack.Counts, r.Attack.Worst)
		})
	}
}

// A forger that has not seen a plain frame has its VI, key, source, version or length wrong. Each is wrong now
// and then, and never more than one at once.
func TestForgePlain(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 0))
	for _, ip := range []struct {
		ether      uint16
		from, to   int // of the source
		udp, proto int
	}{{unix.ETH_P_IP, 26, 30, udpIPv4, 23}, {unix.ETH_P_IPV6, 22, 38, udpIPv6, 20}} {
		frame := make([]byte, udpIPv6+udpHead+wire.HeaderLen+100)
		for i := range frame {
			frame[i] = byte(i)
		}
		binary.BigEndian.PutUint16(frame[12:], ip.ether)
		frame[ip.proto] = unix.IPPROTO_UDP
		binary.BigEndian.PutUint16(frame[ip.udp+2:], wire.Port)
		via := ip.udp + udpHead
		frame[via], frame[via+1] = wire.Version, byte(wire.KindData)
		n := map[string]int{}
		for range 1000 {
			got := forgePlain(rng, bytes.Clone(frame))
			if len(got) < len(frame) {
				n["length"]++
				nstest.FatalIf(t, !bytes.HasPrefix(frame, got), "cut off and changed: %x", got)
				continue
			}
			what := ""
			for part, at := range map[string][2]int{
				"source": {ip.from, ip.to}, "version": {via, via + 1}, "VI": {via + 4, via + 8}, "key": {via + 8, via + 16},
			} {
				if !bytes.Equal(got[at[0]:at[1]], frame[at[0]:at[1]]) {
					what += part
					copy(got[at[0]:at[1]], frame[at[0]:at[1]])
				}
			}
			n[what]++
			nstest.FatalIf(t, !bytes.Equal(got, frame), "changed elsewhere: %x", got)
		}
		for _, what := range []string{"length", "source", "version", "VI", "key"} {
			nstest.ErrorIf(t, n[what] < 100, "%s is wrong in %d of 1000 frames: %v", what, n[what], n)
		}
		nstest.ErrorIf(t, len(n) != 5, "%v", n)
		frame[via+1] |= wire.KindConnect
		nstest.ErrorIf(t, forgePlain(rng, frame) != nil, "connection management is forged")
	}
}
