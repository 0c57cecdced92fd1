package hugepages

import (
	"errors"
	"fmt"
	"math/bits"
	"sync"
)

// MinBlock is the smallest block and the smallest alignment, in bytes: the
// alignment of a VIA descriptor, and a cache line.
const MinBlock = 64

// Errors of the allocator; test for them with errors.Is.
var (
	ErrSize         = errors.New("hugepages: size is not positive")
	ErrAlign        = errors.New("hugepages: alignment is no power of two, or larger than the arena")
	ErrNoSpace      = errors.New("hugepages: no free block is large enough")
	ErrNotAllocated = errors.New("hugepages: not the start of an allocated block (freed already?)")
	ErrForeign      = errors.New("hugepages: address is not in the arena")
)

// Buddy allocates offsets in a range of bytes. A block has MinBlock<<order bytes and lies on a multiple of its
// size. A block that is too large is halved. Two free halves are merged at once, so every free range that can be
// one block is one block.
//
// It never touches the memory that it divides: its own records are bitmaps, 1/125 of the range. The range need not
// be a power of two.
//
// All methods are safe for concurrent use.
type Buddy struct {
	mu         sync.Mutex
	start, end int // the range that is allocated from, in units of MinBlock
	free       []bitset
	used       []bitset
	nfree      []int // members of free, by order
	nused      []int
	freeUnits  int
	allocs     uint64
	frees      uint64
	failed     uint64
}

// NewBuddy returns an allocator for the offsets [reserve, size). Both are in
// bytes; reserve is rounded up, and size down, to a multiple of MinBlock.
func NewBuddy(size, reserve int) (*Buddy, error) {
	if size <= 0 {
		return nil, ErrSize
	}
	if reserve < 0 || reserve > size {
		return nil, fmt.Errorf("hugepages: reserve of %d bytes in an arena of %d: it must lie between 0 and the size", reserve, size)
	}
	b := &Buddy{start: reserve / MinBlock, end: size / MinBlock}
	if reserve%MinBlock != 0 {
		b.start++
	}
	b.start = min(b.start, b.end)
	orders := bits.Len(uint(b.end))
	b.nfree, b.nused = make([]int, orders), make([]int, orders)
	for k := range orders {
		b.free = append(b.free, newBitset(b.end>>k))
		b.used = append(b.used, newBitset(b.end>>k))
	}
	for u := b.start; u < b.end; {
		k := bits.Len(uint(b.end-u)) - 1
		if u != 0 {
			k = min(k, bits.TrailingZeros(uint(u)))
		}
		b.addFree(k, u>>k)
		u += 1 << k
	}
	return b, nil
}

// Alloc returns the offset of a free block of at least size bytes on a multiple of align, which is a power of two
// up to the arena's size, or 0 for MinBlock. It takes the smallest block that fits, and of these the lowest, so the
// same calls always return the same offsets. The block has size bytes rounded up to MinBlock times a power of two.
//
// Errors: ErrSize, ErrAlign, ErrNoSpace.
func (b *Buddy) Alloc(size, align int) (off int, err error) {
	switch {
	case size <= 0:
		return 0, ErrSize
	case align < 0, align&(align-1) != 0, align > MinBlock && align > b.end*MinBlock:
		return 0, ErrAlign
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if size <= b.end*MinBlock {
		want := order(size)
		wantAlign := order(max(align, MinBlock))
		for k := want; k < len(b.free); k++ {
			if i := b.lowest(k, wantAlign); i >= 0 {
				return b.take(k, i, want), nil
			}
		}
	}
	b.failed++
	return 0, fmt.Errorf("%w: %d bytes (alignment %d) asked for, %d free, the largest block has %d; free blocks or open a larger arena",
		ErrNoSpace, size, max(align, MinBlock), b.freeUnits*MinBlock, b.largest())
}

// Free frees the block that begins at off. ErrForeign: off is outside of the range; ErrNotAllocated: no allocated
// block begins there. Nothing changes then.
func (b *Buddy) Free(off int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	unit := off / MinBlock
	if off < 0 || unit < b.start || unit >= b.end {
		return fmt.Errorf("%w: offset %d", ErrForeign, off)
	}
	k := -1
	if off%MinBlock == 0 {
		k = b.orderOf(unit)
	}
	if k < 0 {
		return fmt.Errorf("%w: offset %d", ErrNotAllocated, off)
	}
	i := unit >> k
	b.used[k].remove(i)
	b.nused[k]--
	b.frees++
	for k < len(b.free)-1 && b.free[k].has(i^1) {
		b.removeFree(k, i^1)
		i /= 2
		k++
	}
	b.addFree(k, i)
	return nil
}

// lowest returns the lowest free block of order k on a multiple of the alignment, which is also given as an order.
func (b *Buddy) lowest(k, align int) int {
	i := b.free[k].next(0)
	if align <= k {
		return i
	}
	for mask := 1<<(align-k) - 1; i >= 0 && i&mask != 0; {
		i = b.free[k].next((i | mask) + 1)
	}
	return i
}

// take makes the free block i of order k a used one of order want at the same offset, and frees the rest.
func (b *Buddy) take(k, i, want int) int {
	b.removeFree(k, i)
	for k > want {
		k--
		i *= 2
		b.addFree(k, i+1)
	}
	b.used[k].add(i)
	b.nused[k]++
	b.allocs++
	return (i << k) * MinBlock
}

// orderOf returns the order of the used block that begins at unit, or -1.
func (b *Buddy) orderOf(unit int) int {
	for k := range b.used {
		if unit&(1<<k-1) != 0 {
			break
		}
		if b.used[k].has(unit >> k) {
			return k
		}
	}
	return -1
}

func (b *Buddy) addFree(k, i int) {
	b.free[k].add(i)
	b.nfree[k]++
	b.freeUnits += 1 << k
}

func (b *Buddy) removeFree(k, i int) {
	b.free[k].remove(i)
	b.nfree[k]--
	b.freeUnits -= 1 << k
}

func (b *Buddy) largest() int {
	for k := len(b.nfree) - 1; k >= 0; k-- {
		if b.nfree[k] > 0 {
			return MinBlock << k
		}
	}
	return 0
}

// order returns the order of the smallest block that holds size bytes.
func order(size int) int { return bits.Len(uint(size-1) / MinBlock) }

// Stats describes an allocator at one moment. Sizes are bytes.
type Stats struct {
	Total       int // the range without the reserve
	Free        int // Total minus the allocated blocks, which are counted at their full size
	LargestFree int // the largest block that Alloc could return now
	Blocks      int // allocated blocks

	// Fragmentation is the share of the free bytes that lie outside of the
	// largest free block: 0 when all are in one block, or none are free.
	Fragmentation float64

	// FreeByOrder and UsedByOrder count blocks of MinBlock<<index bytes.
	FreeByOrder, UsedByOrder []int

	Allocs, Frees uint64 // successful calls so far
	Failed        uint64 // calls of Alloc that found no block
}

// Stats returns a snapshot.
func (b *Buddy) Stats() Stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := Stats{
		Total:       (b.end - b.start) * MinBlock,
		Free:        b.freeUnits * MinBlock,
		LargestFree: b.largest(),
		FreeByOrder: append([]int(nil), b.nfree...),
		UsedByOrder: append([]int(nil), b.nused...),
		Allocs:      b.allocs,
		Frees:       b.frees,
		Failed:      b.failed,
	}
	for _, n := range b.nused {
		s.Blocks += n
	}
	if s.Free > 0 {
		s.Fragmentation = 1 - float64(s.LargestFree)/float64(s.Free)
	}
	return s
}

// A bitset is a set of small integers that finds its lowest member from a
// given one upwards in O(log64 n): each level above the first has one bit for
// every word of the level below, set when that word is not zero.
//
//	level 1   ...0000 0001 0010          one word covers 4096 members
//	                     \     \
//	level 0        [0x8000] 0 0 [0x04] 0 one word covers 64 members
type bitset struct {
	n      int
	levels []words
}

func newBitset(n int) bitset {
	s := bitset{n: n}
	for {
		n = (n + 63) / 64
		s.levels = append(s.levels, words{n: n, pages: make([]*wordPage, (n+pageWords-1)/pageWords)})
		if n <= 1 {
			return s
		}
	}
}

// words is n words that are 0 at first. Their pages are allocated with the first bit that is set. An arena has one
// bit for each possible block but few blocks; allocated at once, the words would be most of the live heap that the
// garbage collector sees.
type words struct {
	n     int
	pages []*wordPage
}

const pageWords = 64

type wordPage [pageWords]uint64

func (w *words) get(i int) uint64 {
	if p := w.pages[i/pageWords]; p != nil {
		return p[i%pageWords]
	}
	return 0
}

func (w *words) set(i, bit int) {
	p := &w.pages[i/pageWords]
	if *p == nil {
		*p = new(wordPage)
	}
	(*p)[i%pageWords] |= 1 << bit
}

// clear clears a bit and returns the new value of the word.
func (w *words) clear(i, bit int) uint64 {
	p := w.pages[i/pageWords]
	if p == nil {
		return 0
	}
	p[i%pageWords] &^= 1 << bit
	return p[i%pageWords]
}

func (s *bitset) has(i int) bool {
	return i >= 0 && i < s.n && s.levels[0].get(i/64)&(1<<(i%64)) != 0
}

// add and remove accept only members below n.
func (s *bitset) add(i int) {
	for k := range s.levels {
		s.levels[k].set(i/64, i%64)
		i /= 64
	}
}

func (s *bitset) remove(i int) {
	for k := range s.levels {
		if s.levels[k].clear(i/64, i%64) != 0 {
			return
		}
		i /= 64
	}
}

// next returns the lowest member that is not below i, or -1.
func (s *bitset) next(i int) int {
	// Up, until a word has a member at i or after it.
	depth := 0
	for ; depth < len(s.levels); depth++ {
		level := &s.levels[depth]
		if i/64 >= level.n {
			return -1
		}
		if rest := level.get(i/64) >> (i % 64); rest != 0 {
			i += bits.TrailingZeros64(rest)
			break
		}
		i = i/64 + 1
	}
	if depth == len(s.levels) {
		return -1
	}
	// Down again, to the lowest member below that bit.
	for ; depth > 0; depth-- {
		i = i*64 + bits.TrailingZeros64(s.levels[depth-1].get(i))
	}
	return i
}
