package mvich

// Bcast gives all ranks what root has in buf. All give a buf of the same length.
func Bcast[T Element](c *Comm, buf []T, root int) error { return c.Bcast(bytesOf(buf), root) }

// Bcast is the function Bcast for bytes.
func (c *Comm) Bcast(buf []byte, root int) error {
	s := c.step()
	if err := c.checkRoot(root); err != nil {
		return err
	}
	if len(buf) < longData || c.Size() <= fewRanks {
		return s.down(root, func(int, int) []byte { return buf })
	}
	return s.bcastRing(buf, root)
}

// down goes down a binomial tree. Ranks count from the root:
//
//	0 -> 4, 2, 1;  4 -> 6, 5;  2 -> 3;  6 -> 7
//
// part is what a rank gets for itself and those behind it, as many as count, if there are.
func (s step) down(root int, part func(rank, count int) []byte) error {
	n, me := s.c.Size(), s.rank(s.c.rank-root)
	mask := 1
	for ; mask < n; mask *= 2 {
		if me&mask != 0 {
			if err := s.recv(part(me, mask), s.rank(root+me-mask)); err != nil {
				return err
			}
			break
		}
	}
	for mask /= 2; mask > 0; mask /= 2 {
		if me+mask < n {
			if err := s.send(part(me+mask, mask), s.rank(root+me+mask)); err != nil {
				return err
			}
		}
	}
	return nil
}

// bcastRing scatters buf down the same tree, a block for each rank, and lets the
// blocks go round. The parts differ in length, and where one is too long all refuse:
// the ranks that have a shorter one would wait.
func (s step) bcastRing(buf []byte, root int) error {
	n, me := s.c.Size(), s.rank(s.c.rank-root)
	b := blocks{len(buf), n}
	part := func(from, count int) []byte { return buf[b.start(from):b.start(min(from+count, n))] }
	longest := len(part(0, 1))
	for mask := 1; mask < n; mask *= 2 {
		longest = max(longest, len(part(mask, mask)))
	}
	if err := checkLength(longest); err != nil {
		return err
	}
	if err := s.down(root, part); err != nil {
		return err
	}
	return s.ring(me, func(i int) []byte { return part(i, 1) })
}

// ring lets every rank's block go round: afterwards all have all. first is the
// block that this rank has; the rank after it has the one after it.
func (s step) ring(first int, block func(i int) []byte) error {
	n := s.c.Size()
	for i := range n - 1 {
		out, in := s.rank(first-i), s.rank(first-i-1)
		if err := s.exchange(block(out), s.rank(s.c.rank+1), block(in), s.rank(s.c.rank-1)); err != nil {
			return err
		}
	}
	return nil
}
