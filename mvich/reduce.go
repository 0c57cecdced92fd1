package mvich

import (
	"fmt"
)

// Op combines two slices of the same length element by element: into gets the result. It must be associative and
// commutative; results on floating-point numbers depend on the number of ranks as any sum in another order does.
type Op[T Element] func(into, with []T)

// Sum adds.
func Sum[T Element](into, with []T) {
	for i := range into {
		into[i] += with[i]
	}
}

// Prod multiplies.
func Prod[T Element](into, with []T) {
	for i := range into {
		into[i] *= with[i]
	}
}

// Min takes the smaller.
func Min[T Real](into, with []T) {
	for i := range into {
		into[i] = min(into[i], with[i])
	}
}

// Max takes the larger.
func Max[T Real](into, with []T) {
	for i := range into {
		into[i] = max(into[i], with[i])
	}
}

// And takes the bits that both have.
func And[T Integer](into, with []T) {
	for i := range into {
		into[i] &= with[i]
	}
}

// Or takes the bits that either has.
func Or[T Integer](into, with []T) {
	for i := range into {
		into[i] |= with[i]
	}
}

// Xor takes the bits that one of them has.
func Xor[T Integer](into, with []T) {
	for i := range into {
		into[i] ^= with[i]
	}
}

// Reduce combines src of all ranks by op; dst of root gets the result. All give a src of the same length, and root a
// dst of that length, which may be src, or else must not overlap it; the others' dst is not used.
func Reduce[T Element](c *Comm, dst, src []T, op Op[T], root int) (err error) {
	s := c.step()
	if err := c.checkRoot(root); err != nil {
		return err
	}
	if c.rank == root && len(dst) != len(src) {
		return fmt.Errorf("%w: %d elements into %d", ErrCount, len(src), len(dst))
	}
	if err := checkBlocks(s, src); err != nil {
		return err
	}
	acc := dst
	if c.rank != root {
		var mem *scratch
		acc, mem = borrow[T](c.w, len(src))
		defer mem.end(&err)
	}
	copy(acc, src)
	r := reduction[T]{s: s, acc: acc, op: op}
	var mem *scratch
	r.in, mem = borrow[T](c.w, r.comes())
	defer mem.end(&err)
	if r.short() {
		return r.tree(root)
	}
	if err := r.partial(); err != nil {
		return err
	}
	// partial leaves block i+1 at rank i.
	return s.linear(r.block(s.rank(c.rank+1)), root, false, func(rank int) []byte { return r.block(s.rank(rank + 1)) })
}

// AllReduce combines src of all ranks by op and gives all the result in dst, which may be src, or else must not
// overlap it. All give the same lengths.
func AllReduce[T Element](c *Comm, dst, src []T, op Op[T]) (err error) {
	s := c.step()
	if len(dst) != len(src) {
		return fmt.Errorf("%w: %d elements into %d", ErrCount, len(src), len(dst))
	}
	if err := checkBlocks(s, src); err != nil {
		return err
	}
	copy(dst, src)
	r := reduction[T]{s: s, acc: dst, op: op}
	var mem *scratch
	r.in, mem = borrow[T](c.w, r.comes())
	defer mem.end(&err)
	if r.short() {
		return r.doubling()
	}
	if err := r.partial(); err != nil {
		return err
	}
	return r.s.ring(r.s.rank(c.rank+1), r.block)
}

// Scan gives rank i, in dst, the src of ranks 0 to i combined by op. dst may be src, or else must not overlap it.
func Scan[T Element](c *Comm, dst, src []T, op Op[T]) (err error) {
	s := c.step()
	if len(dst) != len(src) {
		return fmt.Errorf("%w: %d elements into %d", ErrCount, len(src), len(dst))
	}
	copy(dst, src)
	in, mem := borrow[T](c.w, len(src))
	defer mem.end(&err)
	// Before round k dst is that of the last k ranks, after it that of 2k.
	for k := 1; k < c.Size(); k *= 2 {
		to, from, below := ProcNull, ProcNull, in[:0]
		if c.rank >= k {
			from, below = c.rank-k, in
		}
		if c.rank+k < c.Size() {
			to = c.rank + k
		}
		if err := s.exchange(bytesOf(dst), to, bytesOf(below), from); err != nil {
			return err
		}
		if from != ProcNull {
			op(dst, in)
		}
	}
	return nil
}

// reduction is the state of one rank in a Reduce or AllReduce.
type reduction[T Element] struct {
	s   step
	acc []T // partial result of this rank
	in  []T // what comes
	op  Op[T]
}

func (r *reduction[T]) short() bool {
	n := r.s.c.Size()
	return len(r.acc)*sizeOf[T]() < longData || len(r.acc) < n || n == 1
}

// comes is how many elements come at once, at most.
func (r *reduction[T]) comes() int {
	if r.short() {
		return len(r.acc)
	}
	return blocks{len(r.acc), r.s.c.Size()}.start(1)
}

// checkBlocks checks the first block, which is the longest, on all ranks: the others may be one element shorter, and
// so just short enough.
func checkBlocks[T Element](s step, src []T) error {
	if n := s.c.Size(); n > 1 {
		return checkLength(blocks{len(src), n}.start(1) * sizeOf[T]())
	}
	return nil
}

// take receives another rank's partial result, and combines it with this one's.
func (r *reduction[T]) take(from int) error {
	if err := r.s.recv(bytesOf(r.in), from); err != nil {
		return err
	}
	r.op(r.acc, r.in)
	return nil
}

// tree goes up a binomial tree to root.
func (r *reduction[T]) tree(root int) error {
	s := r.s
	n, me := s.c.Size(), s.rank(s.c.rank-root)
	for mask := 1; mask < n; mask *= 2 {
		if me&mask != 0 {
			return s.send(bytesOf(r.acc), s.rank(root+me-mask))
		}
		if me+mask < n {
			if err := r.take(s.rank(root + me + mask)); err != nil {
				return err
			}
		}
	}
	return nil
}

// doubling exchanges with the rank at distance 1, 2, 4 and so on, among the largest power of two of the ranks. Each
// remaining rank first gives its data to a neighbour, and gets the result from it at the end.
func (r *reduction[T]) doubling() error {
	s := r.s
	n, me := s.c.Size(), s.c.rank
	most := 1
	for 2*most <= n {
		most *= 2
	}
	rest := n - most
	id := me - rest // among those that take part
	if me < 2*rest {
		if me%2 == 0 {
			if err := s.send(bytesOf(r.acc), me+1); err != nil {
				return err
			}
			return s.recv(bytesOf(r.acc), me+1)
		}
		if err := r.take(me - 1); err != nil {
			return err
		}
		id = me / 2
	}
	for mask := 1; mask < most; mask *= 2 {
		other := id ^ mask
		if other < rest {
			other = 2*other + 1
		} else {
			other += rest
		}
		if err := s.exchange(bytesOf(r.acc), other, bytesOf(r.in), other); err != nil {
			return err
		}
		r.op(r.acc, r.in)
	}
	if me < 2*rest {
		return s.send(bytesOf(r.acc), me-1)
	}
	return nil
}

func (r *reduction[T]) block(i int) []byte {
	return blocks{len(r.acc), r.s.c.Size()}.of(bytesOf(r.acc), sizeOf[T](), i)
}

// partial lets partial results of each block go round: afterwards rank i has the whole result of block i+1.
func (r *reduction[T]) partial() error {
	s := r.s
	n, me := s.c.Size(), s.c.rank
	b := blocks{len(r.acc), n}
	for i := range n - 1 {
		out, in := s.rank(me-i), s.rank(me-i-1)
		got := r.in[:b.start(in+1)-b.start(in)]
		if err := s.exchange(r.block(out), s.rank(me+1), bytesOf(got), s.rank(me-1)); err != nil {
			return err
		}
		r.op(r.acc[b.start(in):b.start(in+1)], got)
	}
	return nil
}
