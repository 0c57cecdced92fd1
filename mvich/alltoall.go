package mvich

import "fmt"

// AllGather gives all ranks, in dst, what all have in src, one behind the other in the
// order of ranks. All give a src of the same length, which may be this rank's part of dst;
// else they must not overlap.
func AllGather[T Element](c *Comm, dst, src []T) error {
	s, out, in := c.step(), bytesOf(src), bytesOf(dst)
	if len(dst) != len(src)*c.Size() {
		return fmt.Errorf("%w: %d elements of each of %d ranks into %d", ErrCount, len(src), c.Size(), len(dst))
	}
	size := len(out)
	if len(in) < longData {
		return s.allGatherBruck(in, out)
	}
	copy(in[c.rank*size:], out)
	return s.ring(c.rank, func(i int) []byte { return in[i*size : (i+1)*size] })
}

// allGatherBruck doubles what each rank has in each round: of k ranks from its
// own on, it gets the k that the rank k ahead has.
func (s step) allGatherBruck(dst, src []byte) (err error) {
	n, me, size := s.c.Size(), s.c.rank, len(src)
	all, mem := borrow[byte](s.c.w, n*size) // counted from me
	defer mem.end(&err)
	copy(all, src)
	for k := 1; k < n; k *= 2 {
		count := min(k, n-k)
		err := s.exchange(all[:count*size], s.rank(me-k), all[k*size:(k+count)*size], s.rank(me+k))
		if err != nil {
			return err
		}
	}
	for i := range n {
		copy(dst[s.rank(me+i)*size:], all[i*size:(i+1)*size])
	}
	return nil
}

// AllToAll gives rank i, in dst, the i-th part of the src of each rank, one behind the
// other in the order of ranks. dst may be src; else they must not overlap. All give the
// same lengths.
func AllToAll[T Element](c *Comm, dst, src []T) (err error) {
	s, out, in := c.step(), bytesOf(src), bytesOf(dst)
	if len(dst) != len(src) || len(src)%c.Size() != 0 {
		return fmt.Errorf("%w: %d elements into %d, of and for each of %d ranks", ErrCount, len(src), len(dst), c.Size())
	}
	if len(out) < longBlock*c.Size() && c.Size() > fewRanks {
		return s.allToAllBruck(in, out)
	}
	if len(out) > 0 && &in[0] == &out[0] { // parts come before those in their place have gone
		copied, mem := borrow[byte](c.w, len(out))
		defer mem.end(&err)
		copy(copied, out)
		out = copied
	}
	return s.allToAllPairs(in, out)
}

// allToAllPairs exchanges with each other rank in turn.
func (s step) allToAllPairs(dst, src []byte) error {
	n, me := s.c.Size(), s.c.rank
	size := len(src) / n
	part := func(b []byte, i int) []byte { return b[i*size : (i+1)*size] }
	copy(part(dst, me), part(src, me))
	for i := 1; i < n; i++ {
		to, from := s.rank(me+i), s.rank(me-i)
		if err := s.exchange(part(src, to), to, part(dst, from), from); err != nil {
			return err
		}
	}
	return nil
}

// allToAllBruck sends each block on its way of steps of 1, 2, 4 and so on ranks,
// by the bits of the distance that it has to go, all blocks of a step together.
func (s step) allToAllBruck(dst, src []byte) (err error) {
	n, me := s.c.Size(), s.c.rank
	size := len(src) / n
	mem, held := borrow[byte](s.c.w, 3*len(src))
	defer held.end(&err)
	cut := func(i int) []byte { return mem[i*len(src) : (i+1)*len(src)] }
	all, out, in := cut(0), cut(1), cut(2) // block i of all has i ranks to go
	part := func(b []byte, i int) []byte { return b[i*size : (i+1)*size] }
	for i := range n {
		copy(part(all, i), part(src, s.rank(me+i)))
	}
	for k := 1; k < n; k *= 2 {
		out = out[:0]
		for i := range n {
			if i&k != 0 {
				out = append(out, part(all, i)...)
			}
		}
		if err := s.exchange(out, s.rank(me+k), in[:len(out)], s.rank(me-k)); err != nil {
			return err
		}
		rest := in[:len(out)]
		for i := range n {
			if i&k != 0 {
				rest = rest[copy(part(all, i), rest):]
			}
		}
	}
	for i := range n {
		copy(part(dst, s.rank(me-i)), part(all, i))
	}
	return nil
}
