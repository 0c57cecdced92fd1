package wire

import (
	"fmt"
	"testing"
)

func sized(t testing.TB, n int) (frame []byte, template Template, h Header) {
	h = Header{Kind: KindData, Flags: FlagFirst | FlagLast, VI: 1, Key: 2, Length: uint16(n)}
	template, err := NewTemplate(oneToTwo)
	must(t, err)
	return build(t, golden{link: oneToTwo, header: h, payload: make([]byte, n)}), template, h
}

func TestNothingAllocates(t *testing.T) {
	frame, template, h := sized(t, 64)
	n := testing.AllocsPerRun(100, func() {
		via := template.Put(frame, HeaderLen+64)
		h.Put(via)
		PutChecksum(via)
		Restamp(via, 1, 2, FlagAckNow)
		PutChecksum(via)
		var p Packet
		if p.Decode(frame) != nil || p.Verify() != nil {
			t.Error("not read")
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkRead(b *testing.B) {
	for _, n := range []int{64, 1400} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			frame, _, _ := sized(b, n)
			b.SetBytes(int64(n))
			b.ReportAllocs()
			var p Packet
			for b.Loop() {
				if p.Decode(frame) != nil || p.Verify() != nil {
					b.Fatal("not read")
				}
			}
		})
	}
}

func BenchmarkWrite(b *testing.B) {
	for _, n := range []int{64, 1400} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			frame, template, h := sized(b, n)
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				via := template.Put(frame, HeaderLen+n)
				h.Put(via)
				PutChecksum(via)
			}
		})
	}
}
