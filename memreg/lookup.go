package memreg

// The data path: what happens to every segment of every descriptor. No lock,
// no allocation, the same few steps whatever the number of regions.

// Lookup returns the live region with this handle, or nil.
func (t *Table) Lookup(h Handle) *Region {
	slots := *t.slots.Load()
	r := slots[int(h)&(len(slots)-1)].Load()
	if r == nil || r.handle != h || !r.refs.alive() {
		return nil
	}
	return r
}

// Resolve returns the n bytes at addr, as a slice without capacity beyond them,
// and the region that they lie in. A tag other than nil must be the region's
// own, or the region's the common one; nil stands for any tag of this table.
//
// It does not hold the region: whoever keeps the bytes past the call must
// Acquire it first and treat false as ErrHandle, or [Region.Hold] it under the
// lock under which it is deregistered, too.
//
// Errors, the values themselves: ErrHandle, ErrPtag, ErrRange.
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

// ResolveRemote is Resolve for an access by a peer, which needs the rights in
// want as well. It returns the region already held: the caller uses the bytes
// and then calls [Region.Release], once. After an error nothing is held.
//
// Tag and rights are those of one setting, which is in force at a moment when
// the region is held already. That order makes sure that whoever deregisters
// the region, or changes its attributes and then sees no users, knows that no
// access goes on by the old ones. For the few nanoseconds of an access that is
// refused the region has a user, too, and Deregister may find it busy.
//
// Errors, the values themselves, the first that applies: ErrHandle, ErrPtag,
// ErrRights, ErrRange.
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
