package vianet

import (
	"viaxdp/vipl"
)

// pool is the control-message buffers of a connection, each behind its descriptor:
//
//	| desc | header | payload | desc | header | payload | ...
//	|<-------- size --------->|
//
// The first half is for sending, the other for receiving. The lock of the connection guards it.
type pool struct {
	vi     *vipl.VI
	region *vipl.Region
	base   int // offset of the first buffer
	size   int
	half   int // buffers for sending, and as many for receiving
	desc   []*vipl.Descriptor
	free   []int     // buffers for sending
	uses   []sendUse // of those that are posted
}

// sendUse is what a posted descriptor of the sending half is for.
type sendUse struct {
	land  *landing // an RDMA read to there
	write bool     // an RDMA write of the outgoing transfer
	data  bool     // a message without which the peer misses bytes
}

func newPool(regs *registry, tag *vipl.Ptag, buffers, size int) (p *pool, err error) {
	p = &pool{size: size, half: buffers / 2}
	p.region, p.base, err = regs.pool(2*p.half*size, tag)
	if err != nil {
		return nil, err
	}
	p.desc, p.uses = make([]*vipl.Descriptor, 2*p.half), make([]sendUse, p.half)
	for i := range p.desc {
		if p.desc[i], err = p.region.Descriptor(p.base+i*size, 2); err != nil {
			p.region.Deregister()
			return nil, err
		}
	}
	for i := range p.half {
		p.free = append(p.free, p.half-1-i)
	}
	return p, nil
}

// room is the length of the longest message.
func (p *pool) room() int { return p.size - vipl.DescriptorAlignment }

// offset is where message i begins in the region.
func (p *pool) offset(i int) int { return p.base + i*p.size + vipl.DescriptorAlignment }

// message is the memory of message i.
func (p *pool) message(i int) []byte {
	off := p.offset(i)
	return p.region.Bytes()[off : off+p.room()]
}

// index tells a descriptor's buffer.
func (p *pool) index(d *vipl.Descriptor) int {
	return int(d.Addr()-p.region.Addr()-uint64(p.base)) / p.size
}

// take takes a buffer for sending.
func (p *pool) take() (i int, ok bool) {
	n := len(p.free)
	if n == 0 {
		return 0, false
	}
	i, p.free = p.free[n-1], p.free[:n-1]
	return i, true
}

// postReceive makes buffer i ready for a message of the peer.
func (p *pool) postReceive(i int) error {
	p.desc[i].SetSegments(p.region.Segment(p.offset(i), p.room()))
	return p.vi.PostRecv(p.desc[i], p.region.Handle())
}

// postSend sends the first n bytes of message i; data: the peer misses bytes without it.
func (p *pool) postSend(i, n int, data, later bool) error {
	p.desc[i].SetSegments(p.region.Segment(p.offset(i), n))
	p.uses[i] = sendUse{data: data}
	if later {
		return p.vi.PostSendLater(p.desc[i], p.region.Handle())
	}
	return p.vi.PostSend(p.desc[i], p.region.Handle())
}

// postRead reads the peer's memory into a lease.
func (p *pool) postRead(i int, from vipl.AddressSegment, l *landing) error {
	p.desc[i].SetRDMARead(from, l.lease.segment(0, l.n))
	p.uses[i] = sendUse{land: l}
	return p.vi.PostSend(p.desc[i], p.region.Handle())
}

// postWrite writes n bytes of a lease to the peer's memory.
func (p *pool) postWrite(i int, to vipl.AddressSegment, l *lease, off, n int) error {
	p.desc[i].SetRDMAWrite(to, l.segment(off, n))
	p.uses[i] = sendUse{write: true}
	return p.vi.PostSend(p.desc[i], p.region.Handle())
}
