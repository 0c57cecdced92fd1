package vipl

import (
	"errors"
	"fmt"
	"sync"

	"viaxdp/hugepages"
	"viaxdp/memreg"
)

// Ptag is a protection tag: a VI may use memory that carries the VI's tag. All methods may be called concurrently.
type Ptag struct {
	nic *NIC
	tag *memreg.Ptag
}

// MemAttributes are the attributes of registered memory.
type MemAttributes struct {
	Ptag            *Ptag // must be one of this NIC handle
	EnableRDMAWrite bool  // remote programs may write to it
	EnableRDMARead  bool  // remote programs may read from it
	// CopySends: long sends and RDMA writes from memory of [NIC.AllocMem] are copied, too, instead of sent by reference.
	// At ReliableDelivery they are then done when the NIC has them, and not only when the peer has acknowledged them. It
	// pays for a program that waits for each of them.
	CopySends bool
}

var errDeregistered = errors.New("the region is deregistered")

// Region is registered memory. All methods may be called concurrently.
type Region struct {
	nic   *NIC
	reg   *memreg.Region
	buf   []byte
	arena bool // allocated from the arena

	mu    sync.Mutex // serialises SetAttributes and Query
	attrs MemAttributes
}

// CreatePtag is VipCreatePtag: it creates a protection tag. ErrResource if the NIC's MaxPtags are in use.
func (n *NIC) CreatePtag() (*Ptag, error) {
	tag, err := n.mem.CreatePtag()
	if err != nil {
		return nil, memoryError("CreatePtag", err)
	}
	return &Ptag{n, tag}, nil
}

// CommonPtag returns the tag of memory that every VI of this handle may use, whatever its own tag. VIPL programs
// that register memory without a tag get it. It is always the same one and cannot be destroyed.
func (n *NIC) CommonPtag() *Ptag { return &n.common }

// Destroy is VipDestroyPtag: it destroys the tag. ErrResource while memory or a VI carries it, ErrInvalidParameter
// the second time and if the NIC is closed.
func (p *Ptag) Destroy() error {
	if p.nic.closing() {
		return closedError("DestroyPtag")
	}
	err := p.nic.mem.DestroyPtag(p.tag)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, memreg.ErrPtag):
		return opError("DestroyPtag", nil, ErrInvalidParameter, err)
	}
	return memoryError("DestroyPtag", err)
}

// RegisterMem is VipRegisterMem: it registers buf with the NIC. The bytes may be any memory of the program, and may
// be registered several times. Data is copied once between this memory and the NIC's frames. Peers cannot write to memory that
// the program itself cannot write, even with EnableRDMAWrite, which Query then returns as false.
//
// Errors: ErrInvalidParameter for no bytes, ErrInvalidPtag, ErrResource past the NIC's limits.
func (n *NIC) RegisterMem(buf []byte, a MemAttributes) (*Region, error) {
	attr, err := n.memAttributes("RegisterMem", a)
	if err != nil {
		return nil, err
	}
	reg, err := n.mem.Register(buf, attr)
	if err != nil {
		return nil, memoryError("RegisterMem", err)
	}
	return &Region{nic: n, reg: reg, buf: buf, attrs: a}, nil
}

// RegisterAddress is RegisterMem for memory that is not a Go slice, such as that of a program in C: size bytes at
// addr. They must stay mapped until the region is deregistered.
//
// Errors: as RegisterMem, and ErrInvalidParameter for bytes that are not mapped or not readable.
func (n *NIC) RegisterAddress(addr, size uint64, a MemAttributes) (*Region, error) {
	attr, err := n.memAttributes("RegisterMem", a)
	if err != nil {
		return nil, err
	}
	reg, err := n.mem.RegisterForeign(addr, size, attr)
	if err != nil {
		return nil, memoryError("RegisterMem", err)
	}
	return &Region{nic: n, reg: reg, buf: reg.Bytes(), attrs: a}, nil
}

// AllocMem allocates size bytes from the NIC's arena, aligned to 64 bytes, and registers them. The NIC can send
// such memory by reference (see CopySends). Deregister frees it. ErrResource if the arena has no such block left, else
// the errors of RegisterMem.
func (n *NIC) AllocMem(size int, a MemAttributes) (*Region, error) {
	attr, err := n.memAttributes("AllocMem", a)
	if err != nil {
		return nil, err
	}
	buf, err := n.arena.Alloc(size, DescriptorAlignment)
	switch {
	case err == nil:
	case n.closing():
		return nil, closedError("AllocMem")
	case errors.Is(err, hugepages.ErrSize):
		return nil, opError("AllocMem", nil, ErrInvalidParameter, err)
	default:
		return nil, opError("AllocMem", nil, ErrResource, fmt.Errorf("%w; open the NIC with a larger arena", err))
	}
	reg, err := n.mem.Register(buf, attr)
	if err != nil {
		n.arena.Free(buf)
		return nil, memoryError("AllocMem", err)
	}
	r := &Region{nic: n, reg: reg, buf: buf, arena: true, attrs: a}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.isClosed {
		n.mem.Deregister(reg.Handle(), reg.Addr())
		n.arena.Free(buf)
		return nil, closedError("AllocMem")
	}
	n.blocks[r] = struct{}{}
	return r, nil
}

func (n *NIC) memAttributes(op string, a MemAttributes) (memreg.Attributes, error) {
	if a.Ptag == nil || a.Ptag.nic != n {
		return memreg.Attributes{}, opError(op, nil, ErrInvalidPtag, nil)
	}
	return memreg.Attributes{
		Ptag: a.Ptag.tag, EnableRDMAWrite: a.EnableRDMAWrite, EnableRDMARead: a.EnableRDMARead, CopySends: a.CopySends,
	}, nil
}

// Query is VipQueryMem: it returns the region's attributes. ErrInvalidParameter if the region is deregistered.
func (r *Region) Query() (MemAttributes, error) {
	if !r.reg.Alive() {
		return MemAttributes{}, opError("QueryMem", nil, ErrInvalidParameter, errDeregistered)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.attrs
	a.EnableRDMAWrite = r.reg.Attributes().EnableRDMAWrite
	return a, nil
}

// SetAttributes is VipSetMemAttributes: it changes the protection tag and the rights of peers. It is allowed while
// posted descriptors use the region, since data is checked when it is posted. If a descriptor lies in the region
// and the tag is no longer its VI's when it completes, it completes with StatusProtectionError, and
// ErrorCompletionProtection is reported. RDMA of peers is checked frame by frame.
//
// Errors: ErrInvalidPtag, and ErrInvalidParameter if the region is deregistered.
func (r *Region) SetAttributes(a MemAttributes) error {
	const op = "SetMemAttributes"
	attr, err := r.nic.memAttributes(op, a)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	// No frame is being placed under the port's lock. So revoked rights have no effect after this call returns.
	r.nic.port.mu.Lock()
	defer r.nic.port.mu.Unlock()
	if err := r.nic.mem.SetAttributes(r.reg, attr); err != nil {
		return memoryError(op, err)
	}
	r.attrs = a
	return nil
}

// Handle returns the memory handle, which names the region in descriptors.
func (r *Region) Handle() MemHandle { return r.reg.Handle() }

// Bytes returns the memory itself.
func (r *Region) Bytes() []byte { return r.buf }

// Addr returns the virtual address of the first byte.
func (r *Region) Addr() uint64 { return addressOf(r.buf) }

// Segment returns a data segment of n bytes from offset off of the region. It does not check bounds; posting does.
func (r *Region) Segment(off, n int) DataSegment {
	return DataSegment{r.Addr() + uint64(off), r.Handle(), uint32(n)}
}

// Remote returns an address segment that names the region from offset off on, for RDMA by the peer. The program
// sends it to the peer in a message.
func (r *Region) Remote(off int) AddressSegment {
	return AddressSegment{Data: r.Addr() + uint64(off), Handle: r.Handle()}
}

// Descriptor lays a descriptor with room for segs segments over the region at offset off and clears it. It takes
// 32+16*segs bytes, at least 64. The address must be a multiple of 64, which in memory of AllocMem means the offset
// must. ErrInvalidParameter if it is not or if the descriptor does not lie in the region, and for more than
// MaxSegments+1 segments, one of them an address segment.
func (r *Region) Descriptor(off, segs int) (*Descriptor, error) {
	n := max(ControlSegmentSize+segs*DataSegmentSize, 64)
	if off < 0 || segs < 0 || segs > MaxSegments+1 || off > len(r.buf)-n {
		return nil, opError("Descriptor", nil, ErrInvalidParameter,
			fmt.Errorf("%d segments at offset %d of %d bytes", segs, off, len(r.buf)))
	}
	b := r.buf[off : off+n]
	if addressOf(b)%DescriptorAlignment != 0 {
		return nil, opError("Descriptor", nil, ErrInvalidParameter,
			fmt.Errorf("address %#x is not a multiple of %d", addressOf(b), DescriptorAlignment))
	}
	clear(b)
	return descriptorAt(b), nil
}

// deregister deregisters the region under the port's lock, under which no frame of a peer uses the region.
func (r *Region) deregister() error {
	r.nic.port.mu.Lock()
	defer r.nic.port.mu.Unlock()
	return r.nic.mem.Deregister(r.reg.Handle(), r.Addr())
}

// Deregister is VipDeregisterMem. It frees memory of AllocMem. ErrResource while a posted descriptor uses the
// region, ErrInvalidParameter the second time.
func (r *Region) Deregister() error {
	if err := r.deregister(); err != nil {
		return memoryError("DeregisterMem", err)
	}
	return r.free()
}

// free returns memory of a deregistered region to the arena.
func (r *Region) free() error {
	if !r.arena {
		return nil
	}
	r.nic.mu.Lock()
	defer r.nic.mu.Unlock()
	if _, ok := r.nic.blocks[r]; !ok {
		return nil // the NIC was closed meanwhile and has freed it
	}
	delete(r.nic.blocks, r)
	return r.nic.arena.Free(r.buf)
}
