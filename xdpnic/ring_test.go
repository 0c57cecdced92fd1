package xdpnic

import (
	"encoding/binary"
	"testing"

	"pgregory.net/rapid"
)

// Both halves of a ring, joined, against a plain queue: what is submitted and
// only that arrives, in order, across the wrap of the 32-bit indices.
func TestRingAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := uint32(1) << rapid.IntRange(0, 6).Draw(t, "log2 size")
		start := rapid.SampledFrom([]uint32{0, 1, ^uint32(0) - 70, ^uint32(0), 1<<31 - 3}).Draw(t, "start")
		mem := fakeRing(int(size), addrSize, start)
		w, r := mem.fill(), mem.completion()
		var published []uint64      // submitted, not released
		var written, taken int      // entries ever submitted, ever released
		next := uint64(start) << 32 // the value of the next entry
		t.Repeat(map[string]func(*rapid.T){
			"write and submit": func(t *rapid.T) {
				n := rapid.Uint32Range(0, size+2).Draw(t, "n")
				free := size - uint32(len(published))
				if got := w.reserve(n); got != (n <= free) {
					t.Fatalf("reserve(%d) = %v with %d free", n, got, free)
				}
				n = min(n, free)
				for i := range n {
					w.addr[(w.head+i)&w.mask] = next + uint64(i)
				}
				if r.peek(size) != uint32(len(published)) {
					t.Fatal("entries are visible before submit")
				}
				k := rapid.Uint32Range(0, n).Draw(t, "k")
				w.submit(k)
				for i := range k {
					published = append(published, next+uint64(i))
				}
				next += uint64(k)
				written += int(k)
			},
			"peek and release": func(t *rapid.T) {
				most := rapid.Uint32Range(0, size+2).Draw(t, "max")
				n := r.peek(most)
				if n != min(most, uint32(len(published))) {
					t.Fatalf("peek(%d) = %d with %d published", most, n, len(published))
				}
				for i := range n {
					if got := r.addr[(r.tail+i)&r.mask]; got != published[i] {
						t.Fatalf("entry %d is %#x, want %#x", i, got, published[i])
					}
				}
				if r.ready() != (len(published) > 0) {
					t.Fatal("ready is wrong")
				}
				k := rapid.Uint32Range(0, n).Draw(t, "k")
				r.release(k)
				published = published[k:]
				taken += int(k)
			},
			"": func(t *rapid.T) {
				if w.left() != uint32(len(published)) {
					t.Fatalf("left() = %d, want %d", w.left(), len(published))
				}
				if w.prod.Load() != start+uint32(written) || w.cons.Load() != start+uint32(taken) {
					t.Fatal("shared indices are not what was submitted and released")
				}
			},
		})
	})
}

// A closed ring has nothing to read and no room.
func TestShutRings(t *testing.T) {
	p, c := shutProducer(), shutConsumer()
	if p.reserve(1) || p.left() != 0 || p.needWakeup() || c.peek(^uint32(0)) != 0 || c.ready() {
		t.Fatal("a closed ring does something")
	}
}

// An entry of the RX and TX rings lies in memory as struct xdp_desc does.
func TestDescLayout(t *testing.T) {
	m := fakeRing(2, descSize, 0)
	m.descs()[1] = Desc{Addr: 0x1122334455667788, Len: 0x99aabbcc, Options: pktContd}
	b := m.mem[m.off.Desc+16:]
	addr, n, options := binary.NativeEndian.Uint64(b), binary.NativeEndian.Uint32(b[8:]), binary.NativeEndian.Uint32(b[12:])
	if len(b) != 16 || addr != 0x1122334455667788 || n != 0x99aabbcc || options != pktContd {
		t.Errorf("% x", b)
	}
}
