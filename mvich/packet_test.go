package mvich

import (
	"bytes"
	"testing"

	"viaxdp/vipl"
)

// What is written is what is read.
func TestPacketRoundTrip(t *testing.T) {
	for _, want := range []struct {
		header header
		offer  offer
		data   []byte
	}{
		{header{kind: kindEager, flags: flagSync, credits: 7, length: 3, context: 4, tag: 5, size: 3, from: 6}, offer{}, []byte("abc")},
		{header{kind: kindRequest, tag: MaxTag, size: MaxMessage, from: 1}, offer{RGET, vipl.AddressSegment{Data: 1 << 40, Handle: 9}}, nil},
		{header{kind: kindReady, from: 1, to: 2, size: 77}, offer{RPUT, vipl.AddressSegment{Data: 8, Handle: 1}}, nil},
		{header{kind: kindData, length: 2, size: 1000, to: 3}, offer{}, []byte("xy")},
		{header{kind: kindNoop, flags: flagFull, credits: 65535}, offer{}, nil},
	} {
		b := make([]byte, headerSize)
		want.header.put(b)
		if want.offer.protocol != Auto {
			o := make([]byte, offerSize)
			want.offer.put(o)
			b = append(b, o...)
		}
		b = append(b, want.data...)
		h, o, data, err := parse(b)
		if err != nil || h != want.header || o != want.offer || !bytes.Equal(data, want.data) {
			t.Errorf("%+v, %+v, %q, %v; want %+v", h, o, data, err, want)
		}
		for n := range b {
			if _, _, _, err := parse(b[:n]); err == nil {
				t.Errorf("%+v: %d of %d bytes are a packet, too", want.header, n, len(b))
			}
		}
	}
}

// Whatever comes is a packet that keeps what the code relies on, or an error.
func FuzzParse(f *testing.F) {
	for k := kindEager; k <= kindBye; k++ {
		b := make([]byte, headerSize+offerSize)
		h := header{kind: k, tag: 1}
		h.put(b)
		(&offer{protocol: R3}).put(b[headerSize:])
		f.Add(b)
		f.Add(b[:headerSize])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, o, data, err := parse(b)
		if err != nil {
			return
		}
		carries := h.kind == kindEager || h.kind == kindData
		offers := h.kind == kindRequest || h.kind == kindReady
		switch {
		case h.kind < kindEager || h.kind > kindBye,
			int(h.length) != len(data), !carries && len(data) > 0, h.size > MaxMessage,
			(h.kind == kindEager || h.kind == kindRequest) && (h.tag < 0 || h.tag > MaxTag),
			offers != (o.protocol != Auto), h.kind == kindEager && int(h.size) != len(data):
			t.Errorf("%+v, %+v with %d bytes", h, o, len(data))
		}
	})
}

// A queue gives what it got, in order, whatever the mixture.
func TestFifo(t *testing.T) {
	var q fifo[int]
	in, out := 0, 0
	for turn := range 100 {
		for range turn % 7 * 3 {
			q.push(in)
			in++
		}
		for range min(turn%5*4, q.len()) {
			if q.peek() != out || q.pop() != out {
				t.Fatalf("turn %d: not %d", turn, out)
			}
			out++
		}
		if q.len() != in-out {
			t.Fatalf("turn %d: %d in it, want %d", turn, q.len(), in-out)
		}
		next := out
		q.each(func(v int) {
			if v != next {
				t.Fatalf("turn %d: each gives %d, want %d", turn, v, next)
			}
			next++
		})
		if next != in {
			t.Fatalf("turn %d: each stops at %d of %d", turn, next, in)
		}
	}
	q.drain(func(v int) {
		if v != out {
			t.Fatalf("drain gives %d, want %d", v, out)
		}
		out++
	})
	if out != in || q.len() != 0 {
		t.Errorf("%d of %d drained", out, in)
	}
}
