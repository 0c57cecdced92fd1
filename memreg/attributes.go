package memreg

import "fmt"

// Attributes of a region. [Table.SetAttributes] changes them while it lives.
type Attributes struct {
	Ptag            *Ptag // needed
	EnableRdmaWrite bool  // peers may write
	EnableRdmaRead  bool  // peers may read
}

// Rights are what a region allows to peers, and what a remote access needs:
// RemoteWrite, RemoteRead, both, or 0 for none.
type Rights uint32

// The rights of [Attributes]: EnableRdmaWrite and EnableRdmaRead.
const (
	RemoteWrite Rights = 1 << iota
	RemoteRead
)

// A setting is Attributes in the form that the data path checks. A region
// points to the one in force, and no setting changes once a region points to
// it. So a reader that loads the pointer once has tag and rights of the same
// moment. Two words that change one after the other could not give that: who
// reads one, is overtaken by a change, and reads the other, has one tag with
// the rights of another, whatever the order of the stores.
type setting struct {
	ptag   *Ptag
	rights Rights
}

func newSetting(a Attributes) setting {
	s := setting{ptag: a.Ptag}
	if a.EnableRdmaWrite {
		s.rights |= RemoteWrite
	}
	if a.EnableRdmaRead {
		s.rights |= RemoteRead
	}
	return s
}

func (s *setting) attributes() Attributes {
	return Attributes{
		Ptag:            s.ptag,
		EnableRdmaWrite: s.rights&RemoteWrite != 0,
		EnableRdmaRead:  s.rights&RemoteRead != 0,
	}
}

// SetAttributes gives a region another tag and other RDMA rights, both in one
// step: nobody sees the new tag with the old rights, or the other way round.
//
// It may be called while descriptors use the region: they were checked when
// they were posted. What begins after it has returned is checked against the
// new attributes; once [Region.Users] has been 0 after that, nobody who called
// [Table.ResolveRemote] uses the region by the old ones. It takes the table's
// mutex, and works on a closed table, too.
//
// Errors: ErrHandle when the region is nil, deregistered or of another table;
// ErrPtag when the tag is nil, destroyed or of another table. The region is
// then as it was.
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
	next := newSetting(attr)
	r.now.Swap(&next).ptag.Release()
	return nil
}
