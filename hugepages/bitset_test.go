package hugepages

import (
	"testing"

	"pgregory.net/rapid"
)

// A bitset agrees with a map under any additions and removals, whatever its
// number of levels.
func TestBitsetModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.SampledFrom([]int{1, 63, 64, 65, 4095, 4096, 4097, 300_000}).Draw(t, "n")
		s, model := newBitset(n), map[int]bool{}
		member := rapid.IntRange(0, n-1)
		for range rapid.IntRange(0, 40).Draw(t, "steps") {
			i := member.Draw(t, "i")
			if rapid.Bool().Draw(t, "add") {
				s.add(i)
				model[i] = true
			} else {
				s.remove(i)
				delete(model, i)
			}
			from := rapid.IntRange(0, n).Draw(t, "from")
			want := -1
			for m := range model {
				if m >= from && (want < 0 || m < want) {
					want = m
				}
			}
			if got := s.next(from); got != want {
				t.Fatalf("next(%d) = %d, want %d", from, got, want)
			}
			if s.has(i) != model[i] {
				t.Fatalf("has(%d) = %v", i, s.has(i))
			}
		}
	})
}

func TestBitsetOutside(t *testing.T) {
	s := newBitset(100)
	for i := range 100 {
		s.add(i)
	}
	if s.has(-1) || s.has(100) || s.has(1<<40) {
		t.Error("has a member outside of its range")
	}
	if got := s.next(100); got != -1 {
		t.Errorf("next behind the end = %d", got)
	}
}

// A set of few takes little memory, however many it has room for.
func TestBitsetIsSmall(t *testing.T) {
	const n = 1 << 20
	s := newBitset(n)
	for i := range 32 {
		s.add(i * (n / 32))
		s.remove(i * (n / 32))
		s.add(i)
	}
	bytes := 0
	for _, level := range s.levels {
		bytes += 8 * len(level.pages)
		for _, p := range level.pages {
			if p != nil {
				bytes += 8 * len(p)
			}
		}
	}
	if bytes > n/8/4 {
		t.Errorf("%d bytes for %d members of %d, as bits they would be %d", bytes, 32, n, n/8)
	}
}
