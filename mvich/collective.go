package mvich

import (
	"errors"
	"fmt"
)

// Collective operations are made of messages in a context of their own, whose tag is the number of the operation.
// Each has an algorithm for short data, of few messages in a row, and one for long data, which moves few bytes
// through each rank:
//
//	             short                    long
//	Barrier      dissemination
//	Bcast        binomial tree            scatter, then ring
//	Gather       binomial tree            each to the root
//	Scatter      binomial tree            the root to each
//	AllGather    Bruck                    ring
//	AllToAll     Bruck                    pairwise exchange
//	Reduce       binomial tree            ring of partial results, then gather
//	AllReduce    recursive doubling       ring of partial results, then ring
//	Scan         recursive doubling

// Data is long from longData bytes on, as each operation counts them; on few ranks the simple way is the short one.
const (
	longData  = 16 << 10 // bytes
	longBlock = 512      // bytes that one rank has for another, in AllToAll
	fewRanks  = 4
)

// step is one collective operation of this rank.
type step struct {
	c   *Comm
	tag int
}

func (c *Comm) step() step {
	c.turn++
	return step{c: c, tag: c.turn & (MaxTag - 1)}
}

// rank wraps a number around the communicator.
func (s step) rank(i int) int {
	n := s.c.Size()
	return ((i % n) + n) % n
}

// start begins a message of the operation.
func (s step) start(buf []byte, rank int, send bool) *Request {
	w := s.c.w
	w.mu.Lock()
	defer w.mu.Unlock()
	r := &Request{}
	s.begin(r, buf, rank, send)
	return r
}

func (s step) begin(r *Request, buf []byte, rank int, send bool) {
	s.c.begin(r, buf, s.c.context+1, rank, s.tag)
	r.send, r.awaited = send, true
	if err := checkLength(len(buf)); err != nil {
		s.c.w.complete(r, err)
		return
	}
	if send {
		s.c.w.startSend(r)
	} else {
		s.c.w.startRecv(r)
	}
}

// finish waits for what start began. Exactly as much as was asked for must come.
func (s step) finish(requests ...*Request) error {
	var errs []error
	for _, r := range requests {
		_, err := r.Wait()
		errs = append(errs, lengthError(err, r, r.room))
	}
	return errors.Join(errs...)
}

func lengthError(err error, r *Request, want int) error {
	if errors.Is(err, ErrTruncated) || err == nil && r.size != want {
		return fmt.Errorf("%w: %d bytes came, not %d", ErrCount, max(r.size, r.whole), want)
	}
	return err
}

// move does one message and waits for it, without a request of its own.
func (s step) move(buf []byte, rank int, send bool) error {
	w := s.c.w
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.fresh()
	defer w.recycle(r)
	s.begin(r, buf, rank, send)
	r.wait()
	return lengthError(r.err, r, len(buf))
}

func (s step) send(buf []byte, to int) error { return s.move(buf, to, true) }

func (s step) recv(buf []byte, from int) error { return s.move(buf, from, false) }

// exchange sends to one rank and receives from another at once.
func (s step) exchange(out []byte, to int, in []byte, from int) error {
	w := s.c.w
	w.mu.Lock()
	defer w.mu.Unlock()
	r, x := w.fresh(), w.fresh()
	defer w.recycle(r)
	defer w.recycle(x)
	s.begin(r, in, from, false)
	s.begin(x, out, to, true)
	x.wait()
	r.wait()
	return errors.Join(lengthError(x.err, x, len(out)), lengthError(r.err, r, len(in)))
}

// Barrier waits until all ranks have called it. In round i each rank sends to the rank 2^i ahead. After the last
// round, each has a message from all others, directly or through ranks between.
func (c *Comm) Barrier() error {
	s := c.step()
	for k := 1; k < c.Size(); k *= 2 {
		if err := s.exchange(nil, s.rank(c.rank+k), nil, s.rank(c.rank-k)); err != nil {
			return err
		}
	}
	return nil
}

func (c *Comm) checkRoot(root int) error {
	if root < 0 || root >= c.Size() {
		return fmt.Errorf("%w: root %d of %d", ErrRank, root, c.Size())
	}
	return nil
}

// blocks cuts n into as many parts as there are ranks, the first ones one longer where it does not come out even.
type blocks struct{ n, parts int }

func (b blocks) start(i int) int { return i*(b.n/b.parts) + min(i, b.n%b.parts) }

func (b blocks) of(buf []byte, size, i int) []byte {
	return buf[b.start(i)*size : b.start(i+1)*size]
}

// piece is the i-th of equal parts of b.
func piece(b []byte, size, i int) []byte { return b[i*size : (i+1)*size] }

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

// bcastRing scatters buf down the same tree, a block for each rank, and lets the blocks go round. The parts differ in
// length. If one is too long, all ranks refuse, or those with a shorter part would wait forever.
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

// ring lets every rank's block go round: afterwards all have all. first is the block that this rank has; the rank
// after it has the one after it.
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

// Gather gives root, in dst, what all ranks have in src, one behind the other in the order of ranks. All give a src
// of the same length; dst of the others is not used. src of root may be its part of dst; else they must not overlap.
func Gather[T Element](c *Comm, dst, src []T, root int) error {
	return rooted(c, dst, src, root, false)
}

// Scatter gives rank i, in dst, the i-th part of what root has in src. All give a dst of the same length; src of the
// others is not used. dst of root may be its part of src; else they must not overlap.
func Scatter[T Element](c *Comm, dst, src []T, root int) error {
	return rooted(c, src, dst, root, true)
}

// rooted moves the parts of all between root, which has all, and the ranks, which have their own part. It scatters if
// gives is set, else it gathers.
func rooted[T Element](c *Comm, all, own []T, root int, gives bool) error {
	s, whole, part := c.step(), bytesOf(all), bytesOf(own)
	if err := c.checkRoot(root); err != nil {
		return err
	}
	if c.rank == root && len(all) != len(own)*c.Size() {
		return fmt.Errorf("%w: %d elements of each of %d ranks, and %d of all", ErrCount, len(own), c.Size(), len(all))
	}
	switch {
	case len(part) >= longBlock:
		return s.linear(part, root, gives, func(rank int) []byte { return piece(whole, len(part), rank) })
	case gives:
		return s.scatterTree(part, whole, root)
	}
	return s.gatherTree(whole, part, root)
}

// Gatherv is Gather of lengths that differ: counts are how many elements each rank gives, displs at which element of
// dst they go, both used by root only; displs nil: one behind the other. The others' dst is not used. src of root may
// be its part of dst; else they must not overlap, nor the parts each other.
func Gatherv[T Element](c *Comm, dst []T, counts, displs []int, src []T, root int) error {
	return rootedParts(c, dst, counts, displs, src, root, false)
}

// Scatterv is Scatter of lengths that differ: counts and displs are as with Gatherv, and name the elements of src
// that go to each rank, to some perhaps the same. dst of root may be its part of src; else they must not overlap.
func Scatterv[T Element](c *Comm, dst, src []T, counts, displs []int, root int) error {
	return rootedParts(c, src, counts, displs, dst, root, true)
}

func rootedParts[T Element](c *Comm, all []T, counts, displs []int, own []T, root int, gives bool) error {
	s := c.step()
	if err := c.checkRoot(root); err != nil {
		return err
	}
	if c.rank != root {
		return s.move(bytesOf(own), root, !gives)
	}
	parts, err := partsOf(all, counts, displs, c.Size())
	if err != nil {
		return err
	}
	if len(parts[root]) != len(own) {
		return fmt.Errorf("%w: %d elements, not %d", ErrCount, len(own), len(parts[root]))
	}
	return s.linear(bytesOf(own), root, gives, func(rank int) []byte { return bytesOf(parts[rank]) })
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

// linear has root receive a part from each other rank, or send it one, all at once. own is this rank's part.
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

// gatherTree goes up the tree that down goes down. Each rank sends what it has gathered of the ranks below it, which
// follow it.
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
		copy(piece(dst, size, s.rank(root+i)), piece(all, size, i))
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
			copy(piece(all, size, i), piece(src, size, s.rank(root+i)))
		}
	}
	if err := s.down(root, func(rank, count int) []byte { return all[(rank-me)*size : (min(rank+count, n)-me)*size] }); err != nil {
		return err
	}
	copy(dst, all)
	return nil
}

// below is the number of ranks in the part of the tree that begins at me, which counts from the root.
func (s step) below(me int) int {
	n := s.c.Size()
	if me == 0 {
		return n
	}
	return min(me&-me, n-me)
}

// AllGather gives all ranks, in dst, what all have in src, one behind the other in the order of ranks. All give a src
// of the same length, which may be this rank's part of dst; else they must not overlap.
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
	return s.ring(c.rank, func(i int) []byte { return piece(in, size, i) })
}

// allGatherBruck doubles what each rank has in each round: of k ranks from its own on, it gets the k that the rank k
// ahead has.
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
		copy(piece(dst, size, s.rank(me+i)), piece(all, size, i))
	}
	return nil
}

// AllToAll gives rank i, in dst, the i-th part of the src of each rank, one behind the other in the order of ranks.
// dst may be src; else they must not overlap. All give the same lengths.
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
	copy(piece(dst, size, me), piece(src, size, me))
	for i := 1; i < n; i++ {
		to, from := s.rank(me+i), s.rank(me-i)
		if err := s.exchange(piece(src, size, to), to, piece(dst, size, from), from); err != nil {
			return err
		}
	}
	return nil
}

// allToAllBruck sends each block on its way of steps of 1, 2, 4 and so on ranks, by the bits of the distance that it
// has to go, all blocks of a step together.
func (s step) allToAllBruck(dst, src []byte) (err error) {
	n, me := s.c.Size(), s.c.rank
	size := len(src) / n
	mem, held := borrow[byte](s.c.w, 3*len(src))
	defer held.end(&err)
	all, out, in := piece(mem, len(src), 0), piece(mem, len(src), 1), piece(mem, len(src), 2)
	for i := range n { // block i of all has i ranks to go
		copy(piece(all, size, i), piece(src, size, s.rank(me+i)))
	}
	for k := 1; k < n; k *= 2 {
		out = out[:0]
		for i := range n {
			if i&k != 0 {
				out = append(out, piece(all, size, i)...)
			}
		}
		if err := s.exchange(out, s.rank(me+k), in[:len(out)], s.rank(me-k)); err != nil {
			return err
		}
		rest := in[:len(out)]
		for i := range n {
			if i&k != 0 {
				rest = rest[copy(piece(all, size, i), rest):]
			}
		}
	}
	for i := range n {
		copy(piece(dst, size, s.rank(me-i)), piece(all, size, i))
	}
	return nil
}
