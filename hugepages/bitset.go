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
	levels [][]uint64
}

func newBitset(n int) bitset {
	s := bitset{n: n}
	for {
		n = (n + 63) / 64
		s.levels = append(s.levels, make([]uint64, n))
		if n <= 1 {
			return s
		}
	}
}

func (s *bitset) has(i int) bool {
	return i >= 0 && i < s.n && s.levels[0][i/64]&(1<<(i%64)) != 0
}

// add and remove take members below n only.
func (s *bitset) add(i int) {
	for _, level := range s.levels {
		level[i/64] |= 1 << (i % 64)
		i /= 64
	}
}

func (s *bitset) remove(i int) {
	for _, level := range s.levels {
		level[i/64] &^= 1 << (i % 64)
		if level[i/64] != 0 {
			return
		}
		i /= 64
	}
}

// next returns the lowest member that is not below i, or -1.
func (s *bitset) next(i int) int {
	// Up, until a word has a member at i or behind it.
	depth := 0
	for ; depth < len(s.levels); depth++ {
		level := s.levels[depth]
		if i/64 >= len(level) {
			return -1
		}
		if rest := level[i/64] >> (i % 64); rest != 0 {
			i += bits.TrailingZeros64(rest)
			break
		}
		i = i/64 + 1
	}
	if depth == len(s.levels) {
		return -1
	}
	// Down again, to the lowest member under it.
	for ; depth > 0; depth-- {
		i = i*64 + bits.TrailingZeros64(s.levels[depth-1][i])
	}
	return i
}
