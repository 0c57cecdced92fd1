package reliable

import (
	"testing"

	"pgregory.net/rapid"
)

// A seqSet agrees with a map, wherever its window lies, also after it has grown.
func TestSeqSet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b seqSet
		size := uint32(leastPlaces) << rapid.IntRange(0, 2).Draw(t, "size")
		base := rapid.OneOf(rapid.Uint32(), rapid.Uint32Range(1<<32-200, 1<<32-1)).Draw(t, "base")
		b.grow(int(size), base)
		model := map[uint32]bool{}
		place := func(name string, most uint32) uint32 { return base + rapid.Uint32Range(0, most).Draw(t, name) }
		t.Repeat(map[string]func(*rapid.T){
			"toggle a run": func(t *rapid.T) {
				from := place("from", size-1)
				for seq := from; seq != from+rapid.Uint32Range(1, 100).Draw(t, "numbers") && seq-base < size; seq++ {
					if model[seq] {
						b.remove(seq)
						delete(model, seq)
					} else {
						b.add(seq)
						model[seq] = true
					}
				}
			},
			"grow": func(t *rapid.T) {
				if size < 1024 {
					size *= 2
					b.grow(int(size), base)
				}
			},
			"move": func(t *rapid.T) {
				for ahead := rapid.Uint32Range(1, 100).Draw(t, "ahead"); ahead > 0; ahead-- {
					if model[base] {
						b.remove(base)
						delete(model, base)
					}
					base++
				}
			},
			"": func(t *rapid.T) {
				from := place("start of the search", size-1)
				end := from + rapid.Uint32Range(0, size-(from-base)).Draw(t, "length of the search")
				search := func(member, back bool) uint32 {
					for k := range end - from {
						if back && model[end-1-k] == member {
							return end - k
						} else if !back && model[from+k] == member {
							return from + k
						}
					}
					if back {
						return from
					}
					return end
				}
				got := [...]uint32{b.next(from, end), b.gap(from, end), b.prev(from, end), b.prevGap(from, end)}
				want := [...]uint32{search(true, false), search(false, false), search(true, true), search(false, true)}
				if got != want || b.n != len(model) || b.has(from) != model[from] {
					t.Fatalf("[%d, %d): %v, want %v; %d members, want %d", from-base, end-base, got, want, b.n, len(model))
				}
			},
		})
	})
}
