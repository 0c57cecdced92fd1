package memreg

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
)

// The most regions and tags that a table can hold, which are also the defaults of [Limits].
const (
	MaxRegions = 1 << 16
	MaxPtags   = 1 << 16

	firstSlots = 64
)

// Limits are the limits of a table. Zero means the largest possible value.
type Limits struct {
	MaxRegions    int    // at most the constant MaxRegions
	MaxBlockBytes uint64 // bytes of one region
	MaxBytes      uint64 // bytes of all regions; memory registered twice counts twice
	MaxPtags      int    // at most the constant MaxPtags
}

// Table holds the regions and tags of one open NIC. All methods are safe for
// concurrent use.
type Table struct {
	// slots is the direct-mapped array that lookups read: a region is in the
	// slot that the low bits of its handle name. Its length is a power of two
	// and at least twice the number of regions.
	slots atomic.Pointer[[]atomic.Pointer[Region]]

	limits Limits
	random func() Handle
	common Ptag

	populated recent

	mu      sync.Mutex // all below, and all writes to slots
	closed  bool
	regions int
	bytes   uint64
	ptags   int
	total   uint64
}

// NewTable returns an empty table.
func NewTable(limits Limits) (*Table, error) {
	if limits.MaxRegions < 0 || limits.MaxRegions > MaxRegions || limits.MaxPtags < 0 || limits.MaxPtags > MaxPtags {
		return nil, fmt.Errorf("memreg: limits of %d regions and %d tags: a table holds at most %d and %d",
			limits.MaxRegions, limits.MaxPtags, MaxRegions, MaxPtags)
	}
	limits = Limits{
		MaxRegions: cmp.Or(limits.MaxRegions, MaxRegions), MaxPtags: cmp.Or(limits.MaxPtags, MaxPtags),
		MaxBlockBytes: cmp.Or(limits.MaxBlockBytes, math.MaxInt64), MaxBytes: cmp.Or(limits.MaxBytes, math.MaxInt64),
	}
	t := &Table{limits: limits, random: randomHandle}
	t.common.table = t
	slots := make([]atomic.Pointer[Region], firstSlots)
	t.slots.Store(&slots)
	return t, nil
}

// Limits returns the limits in force, with the defaults filled in.
func (t *Table) Limits() Limits { return t.limits }

func randomHandle() Handle {
	var b [4]byte
	rand.Read(b[:]) // never fails
	return Handle(binary.NativeEndian.Uint32(b[:]))
}

// add assigns a handle and a slot to a region, and acquires its tag.
func (t *Table) add(r *Region) error {
	size := uint64(len(r.mem))
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed:
		return ErrClosed
	case size > t.limits.MaxBlockBytes:
		return fmt.Errorf("%w: a region of %d bytes, at most %d are allowed; register it in pieces", ErrLimit, size, t.limits.MaxBlockBytes)
	case t.regions >= t.limits.MaxRegions:
		return fmt.Errorf("%w: %d regions; deregister some, or register larger ones", ErrLimit, t.regions)
	case size > t.limits.MaxBytes-t.bytes:
		return fmt.Errorf("%w: %d bytes are registered, %d more would be above %d; deregister some", ErrLimit, t.bytes, size, t.limits.MaxBytes)
	}
	if err := t.AcquirePtag(r.first.ptag); err != nil {
		return err
	}
	slots := *t.slots.Load()
	if 2*(t.regions+1) > len(slots) {
		slots = t.grow(slots)
	}
	// At most every other slot is in use: two attempts on average.
	for {
		r.handle = t.random()
		if slot := &slots[int(r.handle)&(len(slots)-1)]; r.handle != 0 && slot.Load() == nil {
			slot.Store(r)
			break
		}
	}
	t.regions++
	t.bytes += size
	t.total++
	return nil
}

// grow doubles the array. Handles that differ in their low bits also differ in one more of them, so every region
// keeps its handle and finds a slot of its own. Lookups that still read the old array find the regions that were
// registered when it was replaced; the state of a region shows whether it has died since.
func (t *Table) grow(old []atomic.Pointer[Region]) []atomic.Pointer[Region] {
	slots := make([]atomic.Pointer[Region], 2*len(old))
	for i := range old {
		if r := old[i].Load(); r != nil {
			slots[int(r.handle)&(len(slots)-1)].Store(r)
		}
	}
	t.slots.Store(&slots)
	return slots
}

// Deregister removes the region with this handle, which must begin at addr.
//
// Errors: ErrHandle; ErrStart; ErrBusy while posted descriptors or, for a moment, remote accesses use it. The
// region is then unchanged.
func (t *Table) Deregister(h Handle, addr uint64) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.Lookup(h)
	switch {
	case r == nil:
		return fmt.Errorf("%w: handle %#x", ErrHandle, uint32(h))
	case r.addr != addr:
		return fmt.Errorf("%w: handle %#x, address %#x", ErrStart, uint32(h), addr)
	case !t.remove(r):
		return fmt.Errorf("%w: posted descriptors or remote accesses use the region with handle %#x; complete or flush them first", ErrBusy, uint32(h))
	}
	return nil
}

// remove deregisters a region without references and pins.
func (t *Table) remove(r *Region) bool {
	if r.held != 0 || !r.refs.kill() {
		return false
	}
	slots := *t.slots.Load()
	slots[int(r.handle)&(len(slots)-1)].Store(nil)
	t.regions--
	t.bytes -= uint64(len(r.mem))
	r.Ptag().Release()
	return true
}

// Close deregisters every region that is not in use. The table accepts no new regions and tags from then on.
// ErrBusy: posted descriptors use some regions, which stay registered; Close may be called again.
func (t *Table) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	slots := *t.slots.Load()
	for i := range slots {
		if r := slots[i].Load(); r != nil {
			t.remove(r)
		}
	}
	if t.regions > 0 {
		return fmt.Errorf("%w: posted descriptors use %d regions; complete or flush them, then close again", ErrBusy, t.regions)
	}
	return nil
}

// Stats describes a table at one moment.
type Stats struct {
	Regions    int    // registered now
	Bytes      uint64 // of all of them together
	Ptags      int    // tags that exist
	Registered uint64 // regions registered so far
}

// Stats returns a snapshot.
func (t *Table) Stats() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	return Stats{Regions: t.regions, Bytes: t.bytes, Ptags: t.ptags, Registered: t.total}
}

// Errors of the data path. Resolve, ResolveRemote and Slice return these values directly, so that a wrong
// descriptor causes no allocation. The control path wraps them with details. Test for all of them with errors.Is.
var (
	ErrHandle = errors.New("memreg: no region has this memory handle (wrong, or deregistered)")
	ErrPtag   = errors.New("memreg: protection tag does not match, belongs to another NIC, or was destroyed")
	ErrRights = errors.New("memreg: the region's attributes do not allow peers this access (EnableRDMAWrite, EnableRDMARead), or the memory is read-only")
	ErrRange  = errors.New("memreg: bytes lie outside of the registered region")
)

// Errors of the control path.
var (
	ErrLength  = errors.New("memreg: a region must have at least one byte")
	ErrAddress = errors.New("memreg: address is not valid memory of the program")
	ErrStart   = errors.New("memreg: address is not the start of the region with this handle")
	ErrBusy    = errors.New("memreg: still in use")
	ErrLimit   = errors.New("memreg: limit reached")
	ErrClosed  = errors.New("memreg: table is closed")
)

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
