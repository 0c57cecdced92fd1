package mvich

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sort"

	"viaxdp/vipl"
)

// Memory that messages lie in: that of Alloc, in the arena of the NIC; the program's, in a cache of registrations;
// and scratch, which collective operations and types need besides.

// Alloc returns n bytes of the NIC's arena for messages, as MPI_Alloc_mem does. They are registered from the start,
// and if frames are long the NIC sends them without a copy. They do not count toward WithRegistered. Free, or
// Finalize, frees them.
//
// vipl.ErrResource when the arena has no such piece left: open the NIC with a larger one.
func (w *World) Alloc(n int) ([]byte, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.finalized {
		return nil, ErrFinalized
	}
	if n == 0 {
		return nil, nil
	}
	region, err := w.nic.AllocMem(n, vipl.MemAttributes{Ptag: w.tag})
	if err != nil {
		return nil, err
	}
	buf := region.Bytes()
	start := addressOf(buf)
	w.regs.insert(&registration{region: region, start: start, end: start + uint64(n), arena: true})
	return buf[:n:n], nil
}

// Free gives memory of Alloc back, all of it as Alloc returned it. ErrBusy while a message uses it.
func (w *World) Free(buf []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(buf) == 0 || w.finalized {
		return nil
	}
	c, start := &w.regs, addressOf(buf)
	for i := c.after(start) - 1; i >= 0 && c.sorted[i].start == start; i-- {
		r := c.sorted[i]
		if !r.arena {
			continue
		}
		if r.pinned() || w.inUse(r) {
			return ErrBusy
		}
		if err := r.region.Deregister(); err != nil {
			return err
		}
		c.sorted = slices.Delete(c.sorted, i, i+1)
		return nil
	}
	return fmt.Errorf("%w: it was not allocated by Alloc, or is freed", ErrMemory)
}

// inUse reports whether a request that is not complete has its buffer in registered memory.
func (w *World) inUse(in *registration) (used bool) {
	look := func(r *Request) {
		at := addressOf(r.buf)
		used = used || len(r.buf) > 0 && !r.abandoned && at < in.end && at+uint64(len(r.buf)) > in.start
	}
	for _, r := range w.posted {
		look(r)
	}
	for _, r := range w.numbered { // among them those whose data moves
		look(r)
	}
	for _, m := range w.unexpected {
		if m.local != nil {
			look(m.local)
		}
	}
	for _, p := range w.peers {
		p.sends.each(look)
	}
	return used
}

// registration is memory of the program that the NIC knows.
type registration struct {
	region     *vipl.Region
	start, end uint64         // addresses
	arena      bool           // of Alloc: it stays until it is freed, and frames are sent from it
	pins       [numRights]int // requests that pin it, by the right that each needs
	lastUsed   uint64         // on the clock of registrations
}

// right is what peers may do with registered memory, as long as a request that needs it pins the memory.
type right uint8

const (
	localOnly right = iota // nothing
	remoteRead
	remoteWrite
	numRights
)

// pinned reports whether a request uses the memory.
func (r *registration) pinned() bool { return r.pins != [numRights]int{} }

// at is the offset in the region of the first byte of b.
func (r *registration) at(b []byte) int { return int(addressOf(b) - r.start) }

// remote names the first byte of b to a peer.
func (r *registration) remote(b []byte) vipl.AddressSegment { return r.region.Remote(r.at(b)) }

// errUnregistered: memory is not to be registered. The message then goes through vbufs.
var errUnregistered = errors.New("mvich: more memory than may be registered")

// registrations is the cache of registered memory: buffers are registered when they are first used for RDMA. When
// the limit is reached, the least recently used is deregistered. What is registered stays reachable, so that an
// address never comes to mean other memory. Peers may read or write it only while a request needs that.
type registrations struct {
	nic    *vipl.NIC
	tag    *vipl.Ptag
	limit  int             // bytes
	sorted []*registration // by start
	bytes  int
	clock  uint64

	hits, misses uint64
}

// acquire finds or makes a registration of buf, pins it, and gives peers that right until release. A failure is
// not fatal: the message can use another protocol.
func (c *registrations) acquire(buf []byte, need right) (*registration, error) {
	c.clock++
	start := addressOf(buf)
	end := start + uint64(len(buf))
	if r := c.find(start, end); r != nil {
		if err := c.pin(r, need, 1); err != nil {
			return nil, err
		}
		c.hits++
		r.lastUsed = c.clock
		return r, nil
	}
	if !c.makeRoom(len(buf)) {
		return nil, errUnregistered
	}
	c.misses++
	r := &registration{start: start, end: end, lastUsed: c.clock}
	r.pins[need] = 1
	var err error
	if r.region, err = c.nic.RegisterMem(buf, c.attributes(r)); err != nil {
		return nil, err
	}
	c.insert(r)
	c.bytes += len(buf)
	return r, nil
}

// release ends one acquire with that right, which peers lose if no other request needs it. The memory stays
// registered.
func (c *registrations) release(r *registration, need right) {
	_ = c.pin(r, need, -1) // it fails where the NIC is closed: then no peer reads or writes anything
}

// pin adds n requests that need r with that right, and gives the peers what the requests need together.
func (c *registrations) pin(r *registration, need right, n int) error {
	before := c.attributes(r)
	r.pins[need] += n
	after := c.attributes(r)
	if after == before {
		return nil
	}
	err := r.region.SetAttributes(after)
	if err != nil && n > 0 {
		r.pins[need] -= n
	}
	return err
}

// attributes are those of r with the rights that its requests need.
func (c *registrations) attributes(r *registration) vipl.MemAttributes {
	return vipl.MemAttributes{Ptag: c.tag, EnableRDMARead: r.pins[remoteRead] > 0, EnableRDMAWrite: r.pins[remoteWrite] > 0}
}

func (c *registrations) insert(r *registration) {
	c.sorted = slices.Insert(c.sorted, c.after(r.start), r)
}

// after is the place of the first registration that begins behind start.
func (c *registrations) after(start uint64) int {
	return sort.Search(len(c.sorted), func(i int) bool { return c.sorted[i].start > start })
}

// find looks for a registration of all of start to end. It checks those that begin at start or closest before it. It
// misses a larger one that begins further away, which only costs another registration.
func (c *registrations) find(start, end uint64) *registration {
	const nearest = 4
	last := c.after(start) - 1
	for i := last; i >= 0 && i > last-nearest; i-- {
		if c.sorted[i].end >= end {
			return c.sorted[i]
		}
	}
	return nil
}

// inArena reports whether buf is memory of Alloc.
func (c *registrations) inArena(buf []byte) bool {
	start := addressOf(buf)
	r := c.find(start, start+uint64(len(buf)))
	return r != nil && r.arena
}

// makeRoom deregisters what is not in use until n more bytes are within the limit. False: that cannot be.
func (c *registrations) makeRoom(n int) bool {
	for c.bytes+n > c.limit {
		var oldest *registration
		for _, r := range c.sorted {
			if !r.pinned() && !r.arena && (oldest == nil || r.lastUsed < oldest.lastUsed) {
				oldest = r
			}
		}
		if oldest == nil || n > c.limit || !c.drop(func(r *registration) bool { return r == oldest }) {
			return false // descriptors of a connection that has just broken may hold it
		}
	}
	return true
}

// forget deregisters what is not in use of buf, which will not be used again.
func (c *registrations) forget(buf []byte) {
	start := addressOf(buf)
	end := start + uint64(len(buf))
	c.drop(func(r *registration) bool { return r.start >= start && r.end <= end && !r.pinned() })
}

// drop deregisters what f says, and reports whether there was any.
func (c *registrations) drop(f func(*registration) bool) bool {
	before := len(c.sorted)
	c.sorted = slices.DeleteFunc(c.sorted, func(r *registration) bool {
		if !f(r) || r.region.Deregister() != nil {
			return false
		}
		c.bytes -= int(r.end - r.start)
		return true
	})
	return len(c.sorted) < before
}

// close deregisters everything.
func (c *registrations) close() error {
	var errs []error
	for _, r := range c.sorted {
		errs = append(errs, r.region.Deregister())
	}
	c.sorted, c.bytes = nil, 0
	return errors.Join(errs...)
}

// The world keeps scratch for the next operation, registered as a whole where it was used for RDMA: memory that is
// new each time would fill the cache of registrations, and never be found there.
const (
	spareScratch  = 64       // pieces that are kept at most
	spareCapacity = 16 << 20 // and their bytes
	leastScratch  = 64       // bytes
)

// scratch is a piece of such memory.
type scratch struct {
	w   *World
	mem []byte
	reg *registration // while it is in use, if messages may go by RDMA
}

// scratches are those that are not in use, the one that was given back last at the end.
type scratches struct {
	spare []*scratch
	bytes int
}

// getScratch returns a piece of n bytes, or somewhat more. They hold what they held.
func (w *World) getScratch(n int) *scratch {
	size := n
	if n <= spareCapacity {
		size = 1 << bits.Len(uint(max(n, leastScratch)-1))
	}
	s := w.scratches.take(size)
	if s == nil {
		s = &scratch{w: w, mem: aligned(size)}
	}
	rdma := !w.finalized && w.set.protocol != R3 && w.set.protocol != Eager && (w.set.read || w.set.write)
	if n > w.set.threshold && rdma {
		// All of it once, in which messages find their parts. It may fail, as for any message.
		s.reg, _ = w.regs.acquire(s.mem, localOnly)
	}
	return s
}

func (c *scratches) take(size int) *scratch {
	for i, s := range slices.Backward(c.spare) {
		if len(s.mem) == size {
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

// putScratch takes a piece back. Where the operation has failed a peer may still move the memory, which is not used
// again.
func (w *World) putScratch(s *scratch, failed bool) {
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

// borrow is getScratch of n elements, without the mutex.
func borrow[T Element](w *World, n int) ([]T, *scratch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.getScratch(n * sizeOf[T]())
	return elementsOf[T](s.mem, n), s
}

// end gives what was borrowed back at the end of an operation that has failed with *err, or has not.
func (s *scratch) end(err *error) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	s.w.putScratch(s, *err != nil)
}
