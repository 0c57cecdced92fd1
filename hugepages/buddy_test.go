package hugepages

import (
	"errors"
	"math"
	"math/bits"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"viaxdp/internal/lab/nstest"
)

// buddyModel is the allocator in its plainest form: one mark for each unit.
type buddyModel struct {
	b      *Buddy
	fresh  Stats
	start  int
	taken  []bool      // by unit
	blocks map[int]int // offset -> units
}

// expect returns where a block must be allocated: the free ranges are divided into the largest naturally
// aligned blocks; the smallest that fits wins, then the lowest. -1: there is none.
func (m *buddyModel) expect(units, align int) int {
	best, bestLen := -1, 0
	for u := m.start; u < len(m.taken); {
		if m.taken[u] {
			u++
			continue
		}
		n := 1
		for u%(2*n) == 0 && u+2*n <= len(m.taken) && !slices.Contains(m.taken[u:u+2*n], true) {
			n *= 2
		}
		if n >= units && u%align == 0 && (best < 0 || n < bestLen) {
			best, bestLen = u, n
		}
		u += n
	}
	return best
}

func (m *buddyModel) alloc(t *rapid.T) {
	size := rapid.OneOf(rapid.IntRange(1, 300), rapid.IntRange(1, len(m.taken)*MinBlock+200)).Draw(t, "size")
	align := 1 << rapid.IntRange(0, bits.Len(uint(len(m.taken)*MinBlock))-1).Draw(t, "align")
	units := 1
	for units*MinBlock < size {
		units *= 2
	}
	want := m.expect(units, max(1, align/MinBlock))
	off, err := m.b.Alloc(size, align)
	if want < 0 {
		if !errors.Is(err, ErrNoSpace) {
			t.Fatalf("Alloc(%d, %d) = %d, %v with no room for it", size, align, off, err)
		}
		return
	}
	if err != nil || off != want*MinBlock {
		t.Fatalf("Alloc(%d, %d) = %d, %v, want offset %d", size, align, off, err, want*MinBlock)
	}
	if off%align != 0 {
		t.Fatalf("offset %d is not aligned to %d", off, align)
	}
	for u := off / MinBlock; u < off/MinBlock+units; u++ {
		if u < m.start || m.taken[u] {
			t.Fatalf("unit %d handed out twice, or reserved", u)
		}
		m.taken[u] = true
	}
	m.blocks[off] = units
}

func (m *buddyModel) free(t *rapid.T) {
	if len(m.blocks) == 0 {
		return
	}
	var offs []int
	for off := range m.blocks {
		offs = append(offs, off)
	}
	slices.Sort(offs)
	m.freeAt(t, rapid.SampledFrom(offs).Draw(t, "off"))
}

func (m *buddyModel) freeAt(t *rapid.T, off int) {
	if err := m.b.Free(off); err != nil {
		t.Fatalf("Free(%d): %v", off, err)
	}
	for u := range m.blocks[off] {
		m.taken[off/MinBlock+u] = false
	}
	delete(m.blocks, off)
	if err := m.b.Free(off); !errors.Is(err, ErrNotAllocated) {
		t.Fatalf("second Free(%d): %v", off, err)
	}
}

// freeWrong gives back what is not a block; nothing may change.
func (m *buddyModel) freeWrong(t *rapid.T) {
	off := rapid.IntRange(-100, len(m.taken)*MinBlock+100).Draw(t, "off")
	if _, ok := m.blocks[off]; ok {
		return
	}
	want := ErrNotAllocated
	if off < m.start*MinBlock || off >= len(m.taken)*MinBlock {
		want = ErrForeign
	}
	before := m.b.Stats()
	if err := m.b.Free(off); !errors.Is(err, want) {
		t.Fatalf("Free(%d) = %v, want %v", off, err, want)
	}
	if d := cmp.Diff(before, m.b.Stats()); d != "" {
		t.Fatalf("a refused Free changed the allocator:\n%s", d)
	}
}

func (m *buddyModel) check(t *rapid.T) {
	s := m.b.Stats()
	used := 0
	for _, n := range m.blocks {
		used += n * MinBlock
	}
	if s.Free+used != s.Total || s.Blocks != len(m.blocks) {
		t.Fatalf("%d free + %d used of %d; %d blocks, want %d", s.Free, used, s.Total, s.Blocks, len(m.blocks))
	}
	if got := sumBytes(s.FreeByOrder); got != s.Free {
		t.Fatalf("free blocks by order have %d bytes, want %d", got, s.Free)
	}
	if got := sumBytes(s.UsedByOrder); got != used {
		t.Fatalf("used blocks by order have %d bytes, want %d", got, used)
	}
}

func sumBytes(byOrder []int) (sum int) {
	for k, n := range byOrder {
		sum += n * MinBlock << k
	}
	return sum
}

// Whatever is asked of it, the allocator agrees with the model: no overlap,
// alignment, place, conservation, exact refusal; and when all blocks are back
// it is as new.
func TestBuddyModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1, 200*MinBlock).Draw(t, "size")
		reserve := rapid.OneOf(rapid.Just(0), rapid.IntRange(0, size)).Draw(t, "reserve")
		b, err := NewBuddy(size, reserve)
		nstest.Must(t, err)
		m := &buddyModel{b: b, fresh: b.Stats(), taken: make([]bool, size/MinBlock), blocks: map[int]int{}}
		m.start = min((reserve+MinBlock-1)/MinBlock, len(m.taken))
		if m.fresh.Total != (len(m.taken)-m.start)*MinBlock {
			t.Fatalf("Total %d of %d units from %d", m.fresh.Total, len(m.taken), m.start)
		}
		if len(m.taken) > 0 {
			t.Repeat(map[string]func(*rapid.T){
				"": m.check, "alloc": m.alloc, "free": m.free, "freeWrong": m.freeWrong,
			})
		}
		for off := range m.blocks {
			m.freeAt(t, off)
		}
		got := b.Stats()
		got.Allocs, got.Frees, got.Failed = 0, 0, 0
		if d := cmp.Diff(m.fresh, got); d != "" {
			t.Fatalf("not coalesced to the first state:\n%s", d)
		}
	})
}

func TestBuddyArguments(t *testing.T) {
	b, err := NewBuddy(4096+32, 0) // the last 32 bytes are no unit
	nstest.Must(t, err)
	for _, c := range []struct {
		size, align int
		want        error
	}{
		{0, 0, ErrSize}, {-1, 0, ErrSize}, {math.MinInt, 64, ErrSize},
		{64, 3, ErrAlign}, {64, -64, ErrAlign}, {64, math.MinInt, ErrAlign}, {64, 8192, ErrAlign}, {64, 1 << 62, ErrAlign},
		{4097, 0, ErrNoSpace}, {math.MaxInt, 0, ErrNoSpace},
		{4096, 4096, nil}, {1, 1, ErrNoSpace},
	} {
		if _, err := b.Alloc(c.size, c.align); !errors.Is(err, c.want) {
			t.Errorf("Alloc(%d, %d): %v, want %v", c.size, c.align, err, c.want)
		}
	}
	for _, c := range [][2]int{{0, 0}, {-64, 0}, {64, 65}, {64, -1}} {
		if _, err := NewBuddy(c[0], c[1]); err == nil {
			t.Errorf("NewBuddy(%d, %d): no error", c[0], c[1])
		}
	}
}

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
	nstest.ErrorIf(t, s.has(-1) || s.has(100) || s.has(1<<40), "has a member outside of its range")
	nstest.Equal(t, "next behind the end", s.next(100), -1)
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
	nstest.ErrorIf(t, bytes > n/8/4, "%d bytes for %d members of %d, as bits they would be %d", bytes, 32, n, n/8)
}
