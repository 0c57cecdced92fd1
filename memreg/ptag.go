package memreg

import "fmt"

// Ptag is a protection tag: a VI may access a region if both carry the same tag, or the region carries the common
// one. It belongs to the table that created it, and cannot be destroyed while a region or VI holds a reference. All
// methods are safe for concurrent use.
type Ptag struct {
	table *Table
	refs  refs // regions and VIs
}

// Acquire takes a reference for a VI. False: the tag was destroyed, or is nil. [Table.AcquirePtag] also checks the
// tag's table.
func (p *Ptag) Acquire() bool { return p != nil && p.refs.acquire() }

// Release ends one Acquire.
func (p *Ptag) Release() { p.refs.release() }

// Users returns the number of regions and VIs that hold a reference.
func (p *Ptag) Users() int { return p.refs.count() }

// CreatePtag creates a protection tag. Errors: ErrLimit, ErrClosed.
func (t *Table) CreatePtag() (*Ptag, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, ErrClosed
	}
	if t.ptags >= t.limits.MaxPtags {
		return nil, fmt.Errorf("%w: %d protection tags; destroy some", ErrLimit, t.ptags)
	}
	t.ptags++
	return &Ptag{table: t}, nil
}

// CommonPtag returns the tag of regions that any VI of the table's NIC may access. It always exists, does not count
// towards a limit, and cannot be destroyed.
func (t *Table) CommonPtag() *Ptag { return &t.common }

// Matches reports whether a VI with tag vi, nil for any, may access a region with this tag.
func (p *Ptag) Matches(vi *Ptag) bool { return vi == nil || vi == p || p == &p.table.common }

// DestroyPtag destroys a tag. ErrBusy: regions or VIs hold references. ErrPtag: the tag is nil, of another table,
// the common one, or already destroyed.
func (t *Table) DestroyPtag(p *Ptag) error {
	if p == nil || p.table != t || p == &t.common {
		return ErrPtag
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.refs.kill() {
		t.ptags--
		return nil
	}
	if !p.refs.alive() {
		return ErrPtag
	}
	return fmt.Errorf("%w: %d regions and VIs have this protection tag; deregister and destroy them first", ErrBusy, p.Users())
}

// AcquirePtag takes a reference to a tag for a VI, until [Ptag.Release]. ErrPtag: the tag is nil, of another table,
// or destroyed.
func (t *Table) AcquirePtag(p *Ptag) error {
	if p == nil || p.table != t || !p.refs.acquire() {
		return ErrPtag
	}
	return nil
}
