package mvich

import (
	"errors"
	"fmt"

	"viaxdp/vipl"
)

// vbuf is a buffer for one packet, with the descriptor that sends or receives
// it. For RDMA only the descriptor is used. It has one owner at any time: the
// pool, a work queue of a link, or the code that fills or reads it.
//
//	                 get                      post
//	pool (free) --------> filled or empty --------> a work queue of a VI
//	     ^                                               |
//	     +------------- put ---- handled <---------------+ Done
type vbuf struct {
	desc  *vipl.Descriptor
	home  vipl.MemHandle   // of the region that it lies in
	data  []byte           // the packet
	place vipl.DataSegment // of data
	op    operation        // RDMA: what it is a part of
}

// operation is one RDMA operation of a request.
type operation struct {
	request *Request // nil: none
	bytes   int
}

// segment describes the first n bytes of the packet.
func (v *vbuf) segment(n int) vipl.DataSegment {
	s := v.place
	s.Length = uint32(n)
	return s
}

// poolStep is how many vbufs a pool grows by.
const poolStep = 64

// pool is where the vbufs of a world come from. It grows by a region at a time,
// of the NIC's arena as long as that has room, then of the program's memory, and
// keeps what it has.
type pool struct {
	nic     *vipl.NIC
	tag     *vipl.Ptag
	size    int // bytes of a packet
	free    []*vbuf
	regions []*vipl.Region
	total   int
}

// slot is the size in bytes of a vbuf in memory, descriptor included.
func (p *pool) slot() int { return roundUp(vipl.DescriptorAlignment+p.size, vipl.DescriptorAlignment) }

func roundUp(n, to int) int { return (n + to - 1) / to * to }

// get takes a vbuf. An error means that the NIC takes no more memory.
func (p *pool) get() (*vbuf, error) {
	if len(p.free) == 0 {
		if err := p.grow(); err != nil {
			return nil, fmt.Errorf("mvich: no buffers for packets beyond %d: %w", p.total, err)
		}
	}
	last := len(p.free) - 1
	v := p.free[last]
	p.free = p.free[:last]
	return v, nil
}

// put gives a vbuf back.
func (p *pool) put(v *vbuf) {
	v.op = operation{}
	p.free = append(p.free, v)
}

func (p *pool) grow() error {
	region, err := p.allocate(poolStep * p.slot())
	if err != nil {
		return err
	}
	p.regions = append(p.regions, region)
	first := int(-region.Addr() & (vipl.DescriptorAlignment - 1))
	for i := range poolStep {
		at := first + i*p.slot()
		d, err := region.Descriptor(at, 2)
		if err != nil {
			return err
		}
		data := at + vipl.DescriptorAlignment
		p.free = append(p.free, &vbuf{
			desc: d, home: region.Handle(),
			data: region.Bytes()[data : data+p.size : data+p.size], place: region.Segment(data, p.size),
		})
	}
	p.total += poolStep
	return nil
}

func (p *pool) allocate(n int) (*vipl.Region, error) {
	region, err := p.nic.AllocMem(n, vipl.MemAttributes{Ptag: p.tag})
	if errors.Is(err, vipl.ErrResource) {
		region, err = p.nic.RegisterMem(make([]byte, n+vipl.DescriptorAlignment), vipl.MemAttributes{Ptag: p.tag})
	}
	return region, err
}

// close deregisters everything. Regions of which a VI still holds a descriptor
// stay until the NIC is closed, and are the error.
func (p *pool) close() error {
	var errs []error
	for _, r := range p.regions {
		errs = append(errs, r.Deregister())
	}
	p.free, p.regions = nil, nil
	return errors.Join(errs...)
}
