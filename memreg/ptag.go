package memreg

import "fmt"

// A Ptag is a protection tag: a VI may touch a region when both carry the same
// one, or the region carries the common one. It belongs to the table that created
// it, and lives at least as long as a region or VI holds it. All methods are safe for
// concurrent use.
type Ptag struct {
	table *Table
	refs  refs // regions and VIs
}

// Acquire holds the tag for a VI. False: the tag was destroyed, or is nil.
// [Table.AcquirePtag] also checks whose tag it is.
func (p *Ptag) Acquire() bool { return p != nil && p.refs.acquire() }

// Release ends one Acquire.
func (p *Ptag) Release() { p.refs.release() }

// Users is the number of regions and VIs that hold the tag now.
func (p *Ptag) Users() int { return p.refs.count() }

// CreatePtag makes a protection tag. Errors: ErrLimit, ErrClosed.
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

// CommonPtag is the tag of regions that any VI of the table's NIC may touch. It
// is always there, counts for no limit, and cannot be destroyed.
func (t *Table) CommonPtag() *Ptag { return &t.common }

// Matches says whether a VI with that tag, nil for any, may touch a region with
// this one.
func (p *Ptag) Matches(vi *Ptag) bool { return vi == nil || vi == p || p == &p.table.common }

// DestroyPtag ends a tag. ErrBusy: regions or VIs hold it. ErrPtag: it is nil,
// of another table, the common one, or destroyed already.
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

// AcquirePtag holds a tag for a VI, until [Ptag.Release]. ErrPtag: it is nil,
// of another table, or destroyed.
func (t *Table) AcquirePtag(p *Ptag) error {
	if p == nil || p.table != t || !p.refs.acquire() {
		return ErrPtag
	}
	return nil
}
