package wire

import (
	"bytes"
	"errors"
	"testing"
)

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
		if got := chain.DecodeChain(head, rest); !errors.Is(got, err) {
			t.Fatalf("%v in pieces, %v in one", got, err)
		}
		if err != nil {
			return
		}
		payload := append(bytes.Clone(chain.Payload), bytes.Join(chain.Rest, nil)...)
		if chain.Header != whole.Header || chain.Src != whole.Src || !bytes.Equal(payload, whole.Payload) {
			t.Fatalf("%+v and %d bytes in pieces, %+v and %d in one", chain.Header, len(payload), whole.Header, len(whole.Payload))
		}
		if one, many := whole.Verify(), chain.Verify(); one != many {
			t.Fatalf("checksum in one buffer: %v, in pieces: %v", one, many)
		}
		// Sealed in pieces it is as sealed in one.
		udp := bytes.Clone(whole.udp)
		PutChecksum(udp)
		again, parts := cut(bytes.Clone(whole.udp), HeaderLen+int(more), int(size)+1)
		PutChecksum(again, parts...)
		if !bytes.Equal(udp[:HeaderLen], again[:HeaderLen]) {
			t.Fatalf("sealed in one %x, in pieces %x", udp[:HeaderLen], again[:HeaderLen])
		}
	})
}

func TestUnits(t *testing.T) {
	for frame, want := range map[int]int{1: 1, 1514: 1, WindowUnit: 1, WindowUnit + 1: 2, 9014: 3, 65549: 18} {
		if got := Units(frame); got != want {
			t.Errorf("a frame of %d bytes takes %d units, want %d", frame, got, want)
		}
	}
}
