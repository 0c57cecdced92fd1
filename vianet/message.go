package vianet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"viaxdp/vipl"
)

// kind of a control message.
type kind uint8

const (
	kindHello    kind = 1 + iota // the first message of both sides
	kindData                     // bytes of the stream
	kindCredit                   // only gives buffers back
	kindAnnounce                 // sender: memory to read
	kindAsk                      // sender: memory to write is wanted
	kindWithdraw                 // sender: the transfer ends where it is
	kindRoom                     // receiver: memory to write
	kindTaken                    // receiver: bytes that came of a transfer that is over
	kindFin                      // no more data
	kindFinAck                   // the peer's fin has come
	kindStop                     // what the peer sends is not read
	kindEnd                      // not a kind

	kindFilled = kindEnd // no message: what the immediate data of an RDMA write says
)

const (
	headerLen  = 24
	minMessage = 256 // bytes that the longest message must have room for
	version    = 3
)

// header of a control message; the table in the package's comment gives its layout.
type header struct {
	kind    kind
	credits uint16
	id      uint32
	length  uint32
	handle  vipl.MemHandle
	addr    uint64
}

var (
	errShort   = errors.New("the message is too short")
	errKind    = errors.New("the message is of no known kind")
	errField   = errors.New("a field of the message is not as it must be")
	errLength  = errors.New("the message has another length than it says")
	errRange   = errors.New("the message names memory that cannot be")
	errHello   = errors.New("the greeting asks for the impossible")
	errVersion = errors.New("the peer speaks another version of the session protocol")
)

// put writes the header to the first headerLen bytes of b.
func (h *header) put(b []byte) {
	_ = b[headerLen-1]
	b[0], b[1] = byte(h.kind), 0
	binary.BigEndian.PutUint16(b[2:], h.credits)
	binary.BigEndian.PutUint32(b[4:], h.id)
	binary.BigEndian.PutUint32(b[8:], h.length)
	binary.BigEndian.PutUint32(b[12:], uint32(h.handle))
	binary.BigEndian.PutUint64(b[16:], h.addr)
}

// parse reads a message and checks what can be checked without knowing the connection. The payload is part of b.
func parse(b []byte) (h header, payload []byte, err error) {
	if len(b) < headerLen {
		return h, nil, errShort
	}
	h = header{
		kind:    kind(b[0]),
		credits: binary.BigEndian.Uint16(b[2:]),
		id:      binary.BigEndian.Uint32(b[4:]),
		length:  binary.BigEndian.Uint32(b[8:]),
		handle:  vipl.MemHandle(binary.BigEndian.Uint32(b[12:])),
		addr:    binary.BigEndian.Uint64(b[16:]),
	}
	if h.kind == 0 || h.kind >= kindEnd {
		return h, nil, errKind
	}
	if b[1] != 0 {
		return h, nil, errField
	}
	payload = b[headerLen:]
	return h, payload, h.check(len(payload))
}

// check validates the fields that the kind of message has.
func (h *header) check(payload int) error {
	want, bare := 0, header{kind: h.kind, credits: h.credits}
	switch h.kind {
	case kindHello:
		if h.id != version {
			return fmt.Errorf("%w: %d, this side %d", errVersion, h.id, version)
		}
		if h.credits == 0 || h.length < minMessage || h.length > vipl.MaxTransferSize {
			return errHello
		}
		bare.id, bare.length = h.id, h.length
	case kindData:
		if h.length == 0 {
			return errLength
		}
		if h.id > ringWish {
			return errField
		}
		want, bare.id, bare.length = int(h.length), h.id, h.length
	case kindAnnounce, kindRoom:
		if h.length == 0 || h.handle == 0 || h.addr > math.MaxUint64-uint64(h.length) ||
			h.kind == kindRoom && h.length > vipl.MaxTransferSize {
			return errRange
		}
		bare = *h
	case kindAsk:
		if h.length == 0 {
			return errLength
		}
		bare.id, bare.length = h.id, h.length
	case kindTaken:
		bare.id, bare.length = h.id, h.length
	case kindWithdraw:
		bare.id = h.id
	}
	switch {
	case payload != want:
		return errLength
	case *h != bare:
		return errField
	}
	return nil
}

// The immediate data of an RDMA write says that it is complete, which needs no message. Its bits:
//
//	0-15   data buffers that the writer gives back
//	16     0: in the ring, 1: in the room of the transfer
//	17-31  0
//
// The peer's NIC reports how many bytes it has placed, all of them before it completes the receive.
const (
	immediateRoom  = 1 << 16
	immediateKnown = immediateRoom | math.MaxUint16
)

// immediate is the immediate data of a write to the ring (id is ringID) or to a room (any other id).
func (h *header) immediate() uint32 {
	v := uint32(h.credits)
	if h.id != ringID {
		v |= immediateRoom
	}
	return v
}

// parseImmediate reads the immediate data of an RDMA write of n bytes, as parse reads a message. The id of a room is
// not known: it is 1.
func parseImmediate(v, n uint32) (h header, err error) {
	h = header{kind: kindFilled, credits: uint16(v), id: v >> 16, length: n}
	switch {
	case v&^uint32(immediateKnown) != 0:
		return h, errField
	case n == 0:
		return h, errLength
	}
	return h, nil
}

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
		segs := 2
		if i < p.half {
			segs = 3 // of a write; the last one lies where the message would be
		}
		if p.desc[i], err = p.region.Descriptor(p.base+i*size, segs); err != nil {
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

// index returns the buffer index of a descriptor.
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

// postSend sends the first n bytes of message i; data marks a message without which the peer would miss bytes.
func (p *pool) postSend(i, n int, data, later bool) error {
	p.desc[i].Control = 0 // it may have been a write with immediate data
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

// postWrite writes up to two segments to the peer's memory, and completes a receive there.
func (p *pool) postWrite(i int, to vipl.AddressSegment, segs []vipl.DataSegment, immediate uint32) error {
	p.desc[i].SetRDMAWrite(to, segs...)
	p.desc[i].SetImmediate(immediate)
	p.uses[i] = sendUse{write: true}
	return p.vi.PostSend(p.desc[i], p.region.Handle())
}
