package hugepages

import "math/bits"

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
