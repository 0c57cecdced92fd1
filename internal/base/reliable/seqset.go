package reliable

import "math/bits"

// seqSet is a set of sequence numbers that lie in a window of at most its capacity: a bit for each number. A search
// examines 64 numbers at once. The zero value holds nothing and has no capacity.
type seqSet struct {
	words []uint64
	n     int // members
}

// leastPlaces is the least capacity: one word.
const leastPlaces = 64

// grow raises the capacity to size, a power of two of at least leastPlaces. All members lie in [base, base + the old
// capacity).
func (b *seqSet) grow(size int, base uint32) {
	old := *b
	b.words, b.n = make([]uint64, size/64), 0
	end := base + uint32(64*len(old.words))
	for seq := old.next(base, end); seq != end && b.n < old.n; seq = old.next(seq+1, end) {
		b.add(seq)
	}
}

// place returns the word of seq and its bit.
func (b *seqSet) place(seq uint32) (word *uint64, bit uint64) {
	return &b.words[seq/64&uint32(len(b.words)-1)], 1 << (seq % 64)
}

func (b *seqSet) has(seq uint32) bool {
	if b.n == 0 {
		return false
	}
	w, bit := b.place(seq)
	return *w&bit != 0
}

// add adds seq, which is not a member.
func (b *seqSet) add(seq uint32) {
	w, bit := b.place(seq)
	*w |= bit
	b.n++
}

// remove removes seq, which is a member.
func (b *seqSet) remove(seq uint32) {
	w, bit := b.place(seq)
	*w &^= bit
	b.n--
}

// next returns the first member in [from, end), or end.
func (b *seqSet) next(from, end uint32) uint32 { return b.forward(from, end, 0) }

// gap returns the first number in [from, end) that is not a member, or end.
func (b *seqSet) gap(from, end uint32) uint32 { return b.forward(from, end, ^uint64(0)) }

func (b *seqSet) forward(from, end uint32, flip uint64) uint32 {
	for seq := from; seq != end; {
		w, _ := b.place(seq)
		if found := (*w ^ flip) >> (seq % 64); found != 0 {
			seq += uint32(bits.TrailingZeros64(found))
			if seq-from > end-from {
				return end
			}
			return seq
		}
		step := 64 - seq%64
		if end-seq <= step {
			return end
		}
		seq += step
	}
	return end
}

// prev returns one past the last member in [base, end), or base.
func (b *seqSet) prev(base, end uint32) uint32 { return b.backward(base, end, 0) }

// prevGap returns one past the last number in [base, end) that is not a member, or base.
func (b *seqSet) prevGap(base, end uint32) uint32 { return b.backward(base, end, ^uint64(0)) }

func (b *seqSet) backward(base, end uint32, flip uint64) uint32 {
	for seq := end; seq != base; {
		last := seq - 1
		w, _ := b.place(last)
		if found := (*w ^ flip) << (63 - last%64); found != 0 {
			back := uint32(bits.LeadingZeros64(found))
			if back >= seq-base {
				return base
			}
			return seq - back
		}
		step := last%64 + 1
		if seq-base <= step {
			return base
		}
		seq -= step
	}
	return base
}
