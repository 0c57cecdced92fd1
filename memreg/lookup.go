package memreg

// The data path: the lookup for every segment of every descriptor. It takes no lock, allocates nothing, and costs
// the same for any number of regions.

// Lookup returns the live region with this handle, or nil.
func (t *Table) Lookup(h Handle) *Region {
	slots := *t.slots.Load()
	r := slots[int(h)&(len(slots)-1)].Load()
	if r == nil || r.handle != h || !r.refs.alive() {
		return nil
	}
	return r
}

// Resolve returns the n bytes at addr, as a slice without capacity beyond them, and the region that they lie in.
// ptag must be the region's tag, or the region must have the common tag; nil stands for any tag of this table.
//
// It does not acquire the region. A caller that keeps the bytes must Acquire it first and treat false as ErrHandle,
// or [Region.Pin] it under the lock that also guards Deregister.
//
// Errors, returned unwrapped: ErrHandle, ErrPtag, ErrRange.
func (t *Table) Resolve(h Handle, addr uint64, n uint32, ptag *Ptag) (seg []byte, r *Region, err error) {
	r = t.Lookup(h)
	if r == nil {
		return nil, nil, ErrHandle
	}
	if !r.Ptag().Matches(ptag) {
		return nil, nil, ErrPtag
	}
	seg, err = r.Slice(addr, n)
	if err != nil {
		return nil, nil, err
	}
	return seg, r, nil
}

// ResolvePart is Resolve for an access that stops at the end of the region. It returns those of the n bytes at addr
// that lie in the region, at least one. ErrRange: the first byte does not.
func (t *Table) ResolvePart(h Handle, addr uint64, n uint32, ptag *Ptag) (seg []byte, r *Region, err error) {
	r = t.Lookup(h)
	if r == nil {
		return nil, nil, ErrHandle
	}
	if !r.Ptag().Matches(ptag) {
		return nil, nil, ErrPtag
	}
	off, size := addr-r.addr, uint64(len(r.mem)) // below the start, off wraps and is too large
	if off >= size || n == 0 {
		return nil, nil, ErrRange
	}
	n = uint32(min(uint64(n), size-off))
	return r.mem[off : off+uint64(n) : off+uint64(n)], r, nil
}

// ResolveRemote is Resolve for an access by a peer, which also needs the rights in want. It acquires the region:
// the caller uses the bytes and then calls [Region.Release] once. After an error nothing is acquired.
//
// Tag and rights are those of one setting that is current while the region is acquired. So after Deregister, or
// after a change of attributes and a moment without users, no access by the old attributes is left. A refused
// access also acquires the region for some nanoseconds, and Deregister may find it busy then.
//
// Errors, returned unwrapped, the first that applies: ErrHandle, ErrPtag, ErrRights, ErrRange.
func (t *Table) ResolveRemote(h Handle, addr uint64, n uint32, ptag *Ptag, want Rights) (seg []byte, r *Region, err error) {
	r = t.Lookup(h)
	if r == nil || !r.Acquire() {
		return nil, nil, ErrHandle
	}
	switch now := r.now.Load(); {
	case !now.ptag.Matches(ptag):
		err = ErrPtag
	case want&^now.rights != 0:
		err = ErrRights
	default:
		seg, err = r.Slice(addr, n)
	}
	if err != nil {
		r.Release()
		return nil, nil, err
	}
	return seg, r, nil
}
