package memreg

import "fmt"

// Attributes are the attributes of a region. [Table.SetAttributes] changes them while it lives.
type Attributes struct {
	Ptag            *Ptag // required
	EnableRDMAWrite bool  // peers may write to it
	EnableRDMARead  bool  // peers may read from it
}

// Rights are what a region allows to peers, or what a remote access needs: RemoteWrite, RemoteRead, both, or 0 for
// none.
type Rights uint32

// The rights of [Attributes]: EnableRDMAWrite and EnableRDMARead.
const (
	RemoteWrite Rights = 1 << iota
	RemoteRead

	rightsCount = 1 << iota
)

// setting is Attributes in the form that the data path checks. A region points to the current setting, and a
// setting does not change once a region points to it. So a reader that loads the pointer once has the tag and the
// rights of the same moment. Two separate words could not ensure that: a reader could load one, be overtaken by a
// change, and load the other, whatever the order of the stores.
type setting struct {
	ptag   *Ptag
	rights Rights
}

func newSetting(a Attributes) setting {
	s := setting{ptag: a.Ptag}
	if a.EnableRDMAWrite {
		s.rights |= RemoteWrite
	}
	if a.EnableRDMARead {
		s.rights |= RemoteRead
	}
	return s
}

func (s *setting) attributes() Attributes {
	return Attributes{
		Ptag:            s.ptag,
		EnableRDMAWrite: s.rights&RemoteWrite != 0,
		EnableRDMARead:  s.rights&RemoteRead != 0,
	}
}

// SetAttributes changes a region's tag and RDMA rights in one step: no access sees the new tag with the old rights,
// or the reverse.
//
// It may be called while descriptors use the region: they were checked when they were posted. Accesses that begin
// after it has returned are checked against the new attributes. Once [Region.Users] has been 0 after that, no
// caller of [Table.ResolveRemote] uses the region by the old ones. It takes the table's mutex, and also works on a
// closed table.
//
// Errors: ErrHandle if the region is nil, deregistered or of another table; ErrPtag if the tag is nil, destroyed or
// of another table. The region is then unchanged.
func (t *Table) SetAttributes(r *Region, attr Attributes) error {
	if r == nil {
		return fmt.Errorf("%w: nil region", ErrHandle)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.Lookup(r.handle) != r {
		return fmt.Errorf("%w: handle %#x", ErrHandle, uint32(r.handle))
	}
	if err := t.AcquirePtag(attr.Ptag); err != nil {
		return err
	}
	r.now.Swap(r.setting(attr)).ptag.Release()
	return nil
}

// setting returns the setting for attr. A setting never changes, so one that the region has had is reused: rights
// that change with each transfer then allocate nothing. The caller holds the table's mutex.
func (r *Region) setting(attr Attributes) *setting {
	next := newSetting(attr)
	if old := r.had[next.rights]; old != nil && old.ptag == next.ptag {
		return old
	}
	fresh := next
	r.had[next.rights] = &fresh
	return &fresh
}
