package mvich

import "fmt"

// Gather gives root, in dst, what all ranks have in src, one behind the other in the
// order of ranks. All give a src of the same length; dst of the others is not used. src
// of root may be its part of dst; else they must not overlap.
func Gather[T Element](c *Comm, dst, src []T, root int) error {
	s, out, in := c.step(), bytesOf(src), bytesOf(dst)
	if err := c.checkRoot(root); err != nil {
		return err
	}
	if c.rank == root && len(dst) != len(src)*c.Size() {
		return fmt.Errorf("%w: %d elements of each of %d ranks into %d", ErrCount, len(src), c.Size(), len(dst))
	}
	if len(out) < longBlock {
		return s.gatherTree(in, out, root)
	}
	return s.linear(out, root, false, func(rank int) []byte { return in[rank*len(out) : (rank+1)*len(out)] })
}

// Gatherv is Gather of lengths that differ: counts tells root how many elements
// each rank gives, displs at which element of dst they go; displs nil: one behind the
// other. The others' dst, counts and displs are not used. src of root may be its part
// of dst; else they must not overlap, nor the parts each other.
func Gatherv[T Element](c *Comm, dst []T, counts, displs []int, src []T, root int) error {
	s := c.step()
	if err := c.checkRoot(root); err != nil {
		return err
	}
	if c.rank != root {
		return s.send(bytesOf(src), root)
	}
	parts, err := partsOf(dst, counts, displs, c.Size())
	if err != nil {
		return err
	}
	if len(parts[root]) != len(src) {
		return fmt.Errorf("%w: %d elements, not %d", ErrCount, len(src), len(parts[root]))
	}
	return s.linear(bytesOf(src), root, false, func(rank int) []byte { return bytesOf(parts[rank]) })
}

// Scatter gives rank i, in dst, the i-th part of what root has in src. All give a
// dst of the same length; src of the others is not used. dst of root may be its part of
// src; else they must not overlap.
func Scatter[T Element](c *Comm, dst, src []T, root int) error {
	s, out, in := c.step(), bytesOf(src), bytesOf(dst)
	if err := c.checkRoot(root); err != nil {
		return err
	}
	if c.rank == root && len(src) != len(dst)*c.Size() {
		return fmt.Errorf("%w: %d elements for each of %d ranks from %d", ErrCount, len(dst), c.Size(), len(src))
	}
	if len(in) < longBlock {
		return s.scatterTree(in, out, root)
	}
	return s.linear(in, root, true, func(rank int) []byte { return out[rank*len(in) : (rank+1)*len(in)] })
}

// Scatterv is Scatter of lengths that differ: counts and displs are as with Gatherv,
// and say which elements of src go to each rank, to some perhaps the same. dst of root
// may be its part of src; else they must not overlap.
func Scatterv[T Element](c *Comm, dst, src []T, counts, displs []int, root int) error {
	s := c.step()
	if err := c.checkRoot(root); err != nil {
		return err
	}
	if c.rank != root {
		return s.recv(bytesOf(dst), root)
	}
	parts, err := partsOf(src, counts, displs, c.Size())
	if err != nil {
		return err
	}
	if len(parts[root]) != len(dst) {
		return fmt.Errorf("%w: %d elements, not %d", ErrCount, len(dst), len(parts[root]))
	}
	return s.linear(bytesOf(dst), root, true, func(rank int) []byte { return bytesOf(parts[rank]) })
}

// partsOf cuts a slice as counts and displs say.
func partsOf[T Element](all []T, counts, displs []int, ranks int) ([][]T, error) {
	if len(counts) != ranks || displs != nil && len(displs) != ranks {
		return nil, fmt.Errorf("%w: %d counts and %d displacements for %d ranks", ErrCount, len(counts), len(displs), ranks)
	}
	parts := make([][]T, ranks)
	next := 0
	for i, n := range counts {
		at := next
		if displs != nil {
			at = displs[i]
		}
		if n < 0 || at < 0 || n > len(all) || at > len(all)-n {
			return nil, fmt.Errorf("%w: %d elements at %d of %d", ErrCount, n, at, len(all))
		}
		parts[i] = all[at : at+n]
		next = at + n
	}
	return parts, nil
}

// linear has root get a part of each other rank, or give it one, of all at once. own is this
// rank's, as it is or is to be.
func (s step) linear(own []byte, root int, gives bool, part func(rank int) []byte) error {
	if s.c.rank != root {
		return s.move(own, root, !gives)
	}
	var requests []*Request
	for rank := range s.c.Size() {
		if rank != root {
			requests = append(requests, s.start(part(rank), rank, gives))
		}
	}
	if gives {
		copy(own, part(root))
	} else {
		copy(part(root), own)
	}
	return s.finish(requests...)
}

// gatherTree goes up the tree that down goes down. Each rank sends what it
// has gathered of the ranks below it, which follow it.
func (s step) gatherTree(dst, src []byte, root int) (err error) {
	n, me, size := s.c.Size(), s.rank(s.c.rank-root), len(src)
	all, mem := borrow[byte](s.c.w, s.below(me)*size) // counted from me
	defer mem.end(&err)
	copy(all, src)
	for mask := 1; mask < n; mask *= 2 {
		if me&mask != 0 {
			return s.send(all, s.rank(root+me-mask))
		}
		if child := me + mask; child < n {
			if err := s.recv(all[mask*size:(mask+s.below(child))*size], s.rank(root+child)); err != nil {
				return err
			}
		}
	}
	for i := range n { // from the order of the tree to that of ranks
		copy(dst[s.rank(root+i)*size:], all[i*size:(i+1)*size])
	}
	return nil
}

// scatterTree goes down it.
func (s step) scatterTree(dst, src []byte, root int) (err error) {
	n, me, size := s.c.Size(), s.rank(s.c.rank-root), len(dst)
	all, mem := borrow[byte](s.c.w, s.below(me)*size)
	defer mem.end(&err)
	if me == 0 {
		for i := range n {
			copy(all[i*size:(i+1)*size], src[s.rank(root+i)*size:])
		}
	}
	if err := s.down(root, func(rank, count int) []byte { return all[(rank-me)*size : (min(rank+count, n)-me)*size] }); err != nil {
		return err
	}
	copy(dst, all)
	return nil
}

// below is the number of ranks in the part of the tree that begins at me, which
// counts from the root.
func (s step) below(me int) int {
	n := s.c.Size()
	if me == 0 {
		return n
	}
	return min(me&-me, n-me)
}
