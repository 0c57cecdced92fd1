package memreg

import (
	"fmt"
	"math"
	"sync/atomic"
)

// Handle is a memory handle. It is random, so that a peer cannot guess it, and never 0.
type Handle uint32

// Region is registered memory. Everything in it except the reference counts and the attributes is fixed when it is
// registered. Any goroutine may read it without a lock, also after it was deregistered.
type Region struct {
	refs   refs                    // posted descriptors and remote accesses; dead: deregistered
	now    atomic.Pointer[setting] // the current attributes; written under the table's mutex
	first  setting                 // the attributes at registration, stored here so that now points next to itself
	had    [rightsCount]*setting   // settings of SetAttributes by rights, for reuse; guarded by the table's mutex
	handle Handle
	addr   uint64
	mem    []byte // the bytes; keeps Go memory alive
	held   int    // pins, which are not counted in refs
	// writable is true once peers' writes are known to be possible; guarded by the table's mutex.
	writable bool
}

// Handle returns the handle, which names the region together with its address.
func (r *Region) Handle() Handle { return r.handle }

// Addr returns the address of the first byte.
func (r *Region) Addr() uint64 { return r.addr }

// Len returns the number of bytes.
func (r *Region) Len() int { return len(r.mem) }

// Bytes returns the memory.
func (r *Region) Bytes() []byte { return r.mem }

// Attributes returns tag, RDMA rights and CopySends, as they were set together. After Deregister it returns the last ones.
func (r *Region) Attributes() Attributes { return r.now.Load().attributes() }

// Ptag returns the tag.
func (r *Region) Ptag() *Ptag { return r.now.Load().ptag }

// CopySends reports whether data that is sent from the region is to be copied, even if the NIC can read it in place.
func (r *Region) CopySends() bool { return r.now.Load().rights&copySends != 0 }

// Alive reports whether the region is registered. It may be deregistered at any time after that; only Acquire
// prevents it.
func (r *Region) Alive() bool { return r.refs.alive() }

// Acquire takes a reference to the region. False: it was deregistered.
func (r *Region) Acquire() bool { return r.refs.acquire() }

// Release ends one Acquire, or one [Table.ResolveRemote].
func (r *Region) Release() { r.refs.release() }

// Pin is a cheaper Acquire: a plain addition instead of an atomic one. The caller must use one lock for all calls
// of Pin and Unpin for the region, for the [Table.Resolve] that has just found the region alive, and for
// Deregister.
func (r *Region) Pin() { r.held++ }

// Unpin ends one Pin.
func (r *Region) Unpin() { r.held-- }

// Users returns the number of references; pins are not counted.
func (r *Region) Users() int { return r.refs.count() }

// Slice returns the n bytes at addr, with no capacity beyond them, or ErrRange. Zero bytes are in range from the
// first byte to directly behind the last. It does not check whether the region is alive, nor its attributes.
func (r *Region) Slice(addr uint64, n uint32) ([]byte, error) {
	off, size := addr-r.addr, uint64(len(r.mem)) // below the start, off wraps and is too large
	if off > size || uint64(n) > size-off {
		return nil, ErrRange
	}
	return r.mem[off : off+uint64(n) : off+uint64(n)], nil
}

// refs counts the users of an object that may end only when it has none. A negative count means that the object is
// dead. The zero value is alive and unused.
type refs struct{ n atomic.Int64 }

// dead is far enough below zero that failing calls of acquire, which change the count for a moment, cannot make it
// positive.
const dead = math.MinInt64 / 2

// acquire adds a user; false: dead.
func (r *refs) acquire() bool {
	if r.n.Add(1) > 0 {
		return true
	}
	r.n.Add(-1)
	return false
}

// release removes a user. A release without a user is undone, so that the object can still end.
func (r *refs) release() {
	if r.n.Add(-1) == -1 {
		r.n.Add(1)
	}
}

// kill marks the object as dead if it is alive and unused.
func (r *refs) kill() bool { return r.n.CompareAndSwap(0, dead) }

func (r *refs) alive() bool { return r.n.Load() >= 0 }

func (r *refs) count() int { return int(max(0, r.n.Load())) }

// Attributes are the attributes of a region. [Table.SetAttributes] changes them while it lives.
type Attributes struct {
	Ptag            *Ptag // required
	EnableRDMAWrite bool  // peers may write to it; stays false if the program cannot write to it
	EnableRDMARead  bool  // peers may read from it
	CopySends       bool  // what is sent from it is copied, see [Region.CopySends]
}

// Rights are what a region allows to peers, or what a remote access needs: RemoteWrite, RemoteRead, both, or 0 for
// none.
type Rights uint32

// The rights of [Attributes]: EnableRDMAWrite and EnableRDMARead. copySends is no right, but changes with them.
const (
	RemoteWrite Rights = 1 << iota
	RemoteRead
	copySends

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

func (r *Region) newSetting(a Attributes) setting {
	s := setting{ptag: a.Ptag}
	if a.EnableRDMAWrite && r.canWrite() {
		s.rights |= RemoteWrite
	}
	if a.EnableRDMARead {
		s.rights |= RemoteRead
	}
	if a.CopySends {
		s.rights |= copySends
	}
	return s
}

func (s *setting) attributes() Attributes {
	return Attributes{
		Ptag:            s.ptag,
		EnableRDMAWrite: s.rights&RemoteWrite != 0,
		EnableRDMARead:  s.rights&RemoteRead != 0,
		CopySends:       s.rights&copySends != 0,
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
	next := r.newSetting(attr)
	if old := r.had[next.rights]; old != nil && old.ptag == next.ptag {
		return old
	}
	fresh := next
	r.had[next.rights] = &fresh
	return &fresh
}
