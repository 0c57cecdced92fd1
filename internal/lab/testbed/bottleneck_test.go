package testbed

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
)

// ipv4 is a frame of a flow, which its source port tells, with a valid header checksum.
func ipv4(port, size int, tos byte) []byte {
	b := make([]byte, size)
	copy(b[etherTypeAt:], []byte{8, 0, 0x45, tos})
	b[protocolAt] = 17
	binary.BigEndian.PutUint16(b[addressAt+8:], uint16(port))
	binary.BigEndian.PutUint16(b[checksumAt:], ^headerSum(b))
	return b
}

func headerSum(frame []byte) uint16 {
	sum := uint32(0)
	for i := etherLen; i < etherLen+20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(frame[i:]))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}

// Frames leave at the rate of the link in the order of their arrival, or with a queue for each flow, in turn with as
// many bytes of each.
func TestBottleneck(t *testing.T) {
	const each = 60_000
	sizes := map[int]int{1: 1000, 2: 500}
	for _, perFlow := range []bool{false, true} {
		var b bottleneck
		f := Faults{PerFlow: perFlow, QueueBytes: each}
		for port := 1; port <= 2; port++ {
			for i := range each / sizes[port] {
				frame := ipv4(port, sizes[port], 0)
				q := b.queueOf(frame, perFlow)
				if full := port == 2 && !perFlow; q.full(&f, len(frame)) != full {
					t.Fatalf("per flow %v: frame %d of flow %d finds the queue full: %v", perFlow, i, port, !full)
				}
				b.push(q, waiting{frame: frame})
			}
		}
		sent, at, total := [3]int{}, time.Duration(0), 0
		for total < each {
			x, ok := b.pop(at, 8_000_000) // a byte takes 1 us
			if !ok {
				at += time.Microsecond
				continue
			}
			total += len(x.frame)
			sent[binary.BigEndian.Uint16(x.frame[addressAt+8:])] += len(x.frame)
			nstest.FatalIf(t, x.due != time.Duration(total)*time.Microsecond, "per flow %v: %d bytes are sent by %v", perFlow, total, x.due)
		}
		if want := each; !perFlow && sent[1] != want || perFlow && (sent[1] < want/2-2*quantum || sent[2] < want/2-2*quantum) {
			t.Errorf("per flow %v: flows have sent %d of %d bytes", perFlow, sent[1:], total)
		}
	}
}

// Marks leave the header valid, and spare frames that may not be marked.
func TestMarkCE(t *testing.T) {
	for tos, want := range map[byte]bool{0: false, 1: true, 2: true, 3: false, 0xb8: false, 0xba: true} {
		b := ipv4(1, 100, tos)
		if got := markCE(b); got != want || headerSum(b) != 0xffff || want && b[tosAt] != tos|3 || !want && b[tosAt] != tos {
			t.Errorf("TOS %#x: %v, TOS %#x, checksum sum %#x", tos, got, b[tosAt], headerSum(b))
		}
	}
	if arp := bytes.Repeat([]byte{2}, 60); markCE(arp) {
		t.Error("marked a frame that is not IPv4")
	}
}

// A token bucket filter lets its rate pass, drops what finds its queue full, and goes away.
func TestTBF(t *testing.T) {
	s := testSite(t)
	from, to := sockets(t, s)
	nstest.Must(t, s.Middle.SetTBF(0, 1_000_000, 20_000))
	const count = 300 // half a second of frames, for a queue of 0.16 s
	before := s.Middle.Counters(0)
	for range count {
		must(t, nstest.Err(from.Write(make([]byte, datagram))))
	}
	var n EmulatorCounters
	await.Until(t, "all frames are passed or refused", func() bool {
		n = s.Middle.Counters(0).Since(before)
		return n.Passed+n.Refused == count
	})
	nstest.ErrorIf(t, n.Refused == 0 || n.Passed < 20_000/(datagram+42), "%+v", n)
	to.SetReadDeadline(time.Now().Add(time.Minute))
	for range n.Passed {
		must(t, nstest.Err(to.Read(make([]byte, datagram))))
	}
	nstest.Must(t, s.Middle.SetTBF(0, 0, 0))
	if _, n := flood(t, s, from, to, count, Faults{}); n.Refused != 0 || n.Passed != count {
		t.Errorf("without the filter: %+v", n)
	}
}
