package mvich

import (
	"fmt"

	"viaxdp/vipl"
)

// Alloc gives n bytes of the NIC's arena for messages, as MPI_Alloc_mem does.
// They are registered from the beginning, and where frames are long the NIC
// sends them without a copy. They count nothing for WithRegistered, and are
// freed by Free, or Finalize.
//
// vipl.ErrResource when the arena has no such piece left: open the NIC with a
// larger one.
func (w *World) Alloc(n int) ([]byte, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.finalized {
		return nil, ErrFinalized
	}
	if n == 0 {
		return nil, nil
	}
	return w.regs.alloc(n)
}

// Free gives memory of Alloc back, all of it as Alloc gave it. ErrBusy while a
// message uses it.
func (w *World) Free(buf []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(buf) == 0 || w.finalized {
		return nil
	}
	return w.regs.free(buf, w.inUse)
}

// inUse says whether a request that is not complete has its buffer between two addresses.
func (w *World) inUse(start, end uint64) (used bool) {
	look := func(r *Request) {
		at := addressOf(r.buf)
		used = used || len(r.buf) > 0 && !r.abandoned && at < end && at+uint64(len(r.buf)) > start
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

// alloc makes a registration that stays until it is freed.
func (c *registrations) alloc(n int) ([]byte, error) {
	region, err := c.nic.AllocMem(n, vipl.MemAttributes{Ptag: c.tag})
	if err != nil {
		return nil, err
	}
	buf := region.Bytes()
	start := addressOf(buf)
	c.insert(&registration{region: region, start: start, end: start + uint64(n), arena: true})
	return buf[:n:n], nil
}

// free ends what alloc has made, unless used says that it is.
func (c *registrations) free(buf []byte, used func(start, end uint64) bool) error {
	start := addressOf(buf)
	for i := c.after(start) - 1; i >= 0 && c.sorted[i].start == start; i-- {
		r := c.sorted[i]
		if !r.arena {
			continue
		}
		if r.users > 0 || used(r.start, r.end) {
			return ErrBusy
		}
		if err := r.region.Deregister(); err != nil {
			return err
		}
		c.remove(i)
		return nil
	}
	return fmt.Errorf("%w: it was not allocated by Alloc, or is freed", ErrMemory)
}
