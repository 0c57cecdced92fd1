package torture

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/unix"

	"viaxdp/wire"
)

// Who has not seen a plain frame has its VI, key, source, version or length wrong, each of them now and then, and
// never more than one.
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
				if !bytes.HasPrefix(frame, got) {
					t.Fatalf("cut off and changed: %x", got)
				}
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
			if !bytes.Equal(got, frame) {
				t.Fatalf("changed elsewhere: %x", got)
			}
		}
		for _, what := range []string{"length", "source", "version", "VI", "key"} {
			if n[what] < 100 {
				t.Errorf("%s is wrong in %d of 1000 frames: %v", what, n[what], n)
			}
		}
		if len(n) != 5 {
			t.Errorf("%v", n)
		}
		frame[via+1] |= wire.KindConnect
		if forgePlain(rng, frame) != nil {
			t.Error("connection management is forged")
		}
	}
}
