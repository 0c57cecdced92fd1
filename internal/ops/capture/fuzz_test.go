package capture_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"testing"

	"viaxdp/internal/base/wire"
	"viaxdp/internal/ops/capture"
)

// Whatever a program sends as records, reading ends, with frames that are no longer than they were said to be.
func FuzzReader(f *testing.F) {
	record := func(size, kept uint32, data []byte) []byte {
		b := make([]byte, 40)
		binary.LittleEndian.PutUint32(b[24:], size)
		binary.LittleEndian.PutUint32(b[28:], kept)
		return append(b, data...)
	}
	f.Add(append(record(100, 3, []byte("abc")), record(2, 2, []byte("de"))...))
	f.Add(record(3, 4, []byte("abcd")))
	f.Add(record(1<<17, 1<<17, nil))
	f.Add(record(1<<17+1, 1, []byte("a")))
	f.Fuzz(func(t *testing.T, b []byte) {
		in := bytes.NewReader(b)
		r := capture.NewReader(in)
		for {
			left := in.Len()
			frame, err := r.Read()
			if err != nil {
				if left == 0 && !errors.Is(err, io.EOF) {
					t.Fatalf("at the end: %v", err)
				}
				return
			}
			if len(frame.Data) > frame.Len || left-in.Len() != 40+len(frame.Data) {
				t.Fatalf("%d of %d bytes of a frame, and %d of the records", len(frame.Data), frame.Len, left-in.Len())
			}
		}
	})
}

// What is a frame of a VI for the engine is one for a filter, with the same number, also when it was cut behind
// its headers.
func FuzzDestinationVI(f *testing.F) {
	frame := func(link wire.Link) []byte {
		template, err := wire.NewTemplate(link)
		if err != nil {
			f.Fatal(err)
		}
		b := make([]byte, template.Len()+wire.HeaderLen+5)
		h := wire.Header{Kind: wire.KindData, VI: 0x10002, Key: 3, Length: 5}
		inner := template.Put(b, wire.HeaderLen+5)
		h.Put(inner)
		wire.PutChecksum(inner)
		return b
	}
	f.Add(frame(wire.Link{Src: netip.MustParseAddr("10.0.0.1"), Dst: netip.MustParseAddr("10.0.0.2")}), uint16(60))
	f.Add(frame(wire.Link{Src: netip.MustParseAddr("fd00::1"), Dst: netip.MustParseAddr("fd00::2")}), uint16(80))
	f.Add([]byte{12: 0x81, 0, 0, 0, 8, 0}, uint16(16))
	f.Fuzz(func(t *testing.T, b []byte, cut uint16) {
		vi, ok := capture.DestinationVI(b)
		var p wire.Packet
		if p.Decode(b) == nil && (!ok || vi != p.VI) {
			t.Fatalf("a frame of VI %#x is one of %#x, %v", p.VI, vi, ok)
		}
		if short, found := capture.DestinationVI(b[:min(int(cut), len(b))]); found && (!ok || short != vi) {
			t.Fatalf("cut off: VI %#x, whole: %#x, %v", short, vi, ok)
		}
	})
}
