package mvich

import (
	"math/bits"
	"slices"
)

// Memory beside the program's buffers: collective operations combine and sort in it, and
// elements that do not lie in one row are packed into it. The world lends it and keeps it
// for the next operation, registered as a whole where it was used for RDMA: memory that
// is new each time would fill the cache of registrations, and never be found there.

const (
	spareScratch  = 64       // pieces that are kept at most
	spareCapacity = 16 << 20 // and their bytes
	leastScratch  = 64       // bytes
)

// scratch is a piece of such memory.
type scratch struct {
	w   *World
	mem []byte
	reg *registration // while it is lent, if messages may go by RDMA
}

// scratches are those that are not lent, the one that was given back last at the end.
type scratches struct {
	spare []*scratch
	bytes int
}

// lend gives a piece of n bytes, or somewhat more. They hold what they held.
func (w *World) byReference(n int) *scratch {
	size := n
	if n <= spareCapacity {
		size = 1 << bits.Len(uint(max(n, leastScratch)-1))
	}
	s := w.scratches.take(size)
	if s == nil {
		s = &scratch{w: w, mem: aligned(size)}
	}
	if n > w.set.threshold && w.mayRegister() {
		// All of it once, in which messages find their parts. It may fail, as for any message.
		s.reg, _ = w.regs.acquire(s.mem, localOnly)
	}
	return s
}

func (c *scratches) take(size int) *scratch {
	for i := len(c.spare) - 1; i >= 0; i-- {
		if s := c.spare[i]; len(s.mem) == size {
			c.remove(i)
			return s
		}
	}
	return nil
}

func (c *scratches) remove(i int) {
	c.bytes -= len(c.spare[i].mem)
	c.spare = slices.Delete(c.spare, i, i+1)
}

// mayRegister says whether messages may go by RDMA.
func (w *World) mayRegister() bool {
	return !w.finalized && w.set.protocol != R3 && w.set.protocol != Eager && (w.set.read || w.set.write)
}

// takeBack ends a lend. Where the operation has failed somebody may still move the
// memory, which is not lent again.
func (w *World) takeBack(s *scratch, failed bool) {
	if s.reg != nil {
		w.regs.release(s.reg, localOnly)
		s.reg = nil
	}
	if failed {
		w.regs.forget(s.mem)
		return
	}
	c := &w.scratches
	c.spare = append(c.spare, s)
	c.bytes += len(s.mem)
	for len(c.spare) > spareScratch || c.bytes > spareCapacity {
		w.regs.forget(c.spare[0].mem)
		c.remove(0)
	}
}

// borrow is lend for n elements, for those who do not hold the mutex.
func borrow[T Element](w *World, n int) ([]T, *scratch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.byReference(n * sizeOf[T]())
	return elementsOf[T](s.mem, n), s
}

// end gives what was borrowed back at the end of an operation that has failed with *err,
// or has not.
func (s *scratch) end(err *error) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	s.w.takeBack(s, *err != nil)
}
