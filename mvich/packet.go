package mvich

import (
	"encoding/binary"
	"fmt"

	"viaxdp/vipl"
)

// kind is what a packet is.
type kind uint8

// The kinds of packets. Each takes one receive of the peer, and so one credit.
const (
	kindEager   kind = 1 + iota // a whole message
	kindRequest                 // rendezvous: the envelope of a message whose data follows
	kindReady                   // rendezvous: the receiver is ready, with the protocol and the length
	kindData                    // R3: a piece of the message
	kindFinish                  // RPUT: everything is written
	kindDone                    // RGET: everything is read; synchronous send: it was matched
	kindNoop                    // nothing but credits
	kindDead                    // a rank, named by the tag, has died
	kindBye                     // the sender leaves, and what follows is the end of the connection
)

// flags of a packet.
type flags uint8

const (
	flagSync flags = 1 << iota // the sender of an eager message waits for kindDone
	flagFull                   // messages without a receive fill the sender's memory: send no eager ones

	knownFlags = flagSync | flagFull
)

// Sizes in bytes.
const (
	headerSize = 32 // before everything
	offerSize  = 16 // behind the header of kindRequest and kindReady
)

// header is what every packet begins with.
type header struct {
	kind    kind
	flags   flags
	credits uint16 // receives that the sender has posted since it said so last
	length  uint32 // bytes of the message behind the header
	context uint32 // of the communicator
	tag     int32
	size    uint64 // bytes of the whole message; kindData: where the piece begins
	from    uint32 // number of the sender's request
	to      uint32 // number of the receiver's request
}

// put writes h to the first bytes of b.
func (h *header) put(b []byte) {
	_ = b[headerSize-1]
	b[0], b[1] = byte(h.kind), byte(h.flags)
	binary.LittleEndian.PutUint16(b[2:], h.credits)
	binary.LittleEndian.PutUint32(b[4:], h.length)
	binary.LittleEndian.PutUint32(b[8:], h.context)
	binary.LittleEndian.PutUint32(b[12:], uint32(h.tag))
	binary.LittleEndian.PutUint64(b[16:], h.size)
	binary.LittleEndian.PutUint32(b[24:], h.from)
	binary.LittleEndian.PutUint32(b[28:], h.to)
}

// offer says how the data of a rendezvous may go, or goes.
type offer struct {
	protocol Protocol
	remote   vipl.AddressSegment // memory of the side that offers
}

func (o *offer) put(b []byte) {
	_ = b[offerSize-1]
	binary.LittleEndian.PutUint64(b, o.remote.Data)
	binary.LittleEndian.PutUint32(b[8:], uint32(o.remote.Handle))
	binary.LittleEndian.PutUint32(b[12:], uint32(o.protocol))
}

// parse reads a packet. data is the part of b behind the headers.
func parse(b []byte) (h header, o offer, data []byte, err error) {
	if len(b) < headerSize {
		return h, o, nil, fmt.Errorf("%w: %d bytes", errShort, len(b))
	}
	h = header{
		kind: kind(b[0]), flags: flags(b[1]),
		credits: binary.LittleEndian.Uint16(b[2:]),
		length:  binary.LittleEndian.Uint32(b[4:]),
		context: binary.LittleEndian.Uint32(b[8:]),
		tag:     int32(binary.LittleEndian.Uint32(b[12:])),
		size:    binary.LittleEndian.Uint64(b[16:]),
		from:    binary.LittleEndian.Uint32(b[24:]),
		to:      binary.LittleEndian.Uint32(b[28:]),
	}
	data = b[headerSize:]
	if h.kind == kindRequest || h.kind == kindReady {
		if len(data) < offerSize {
			return h, o, nil, fmt.Errorf("%w: %d bytes", errShort, len(b))
		}
		o.remote.Data = binary.LittleEndian.Uint64(data)
		o.remote.Handle = vipl.MemHandle(binary.LittleEndian.Uint32(data[8:]))
		protocol := binary.LittleEndian.Uint32(data[12:])
		if protocol < uint32(R3) || protocol > uint32(RPUT) {
			return h, o, nil, fmt.Errorf("%w: protocol %d", errFields, protocol)
		}
		o.protocol = Protocol(protocol)
		data = data[offerSize:]
	}
	return h, o, data, h.check(len(data))
}

// check validates what needs no knowledge of earlier packets. behind is the number of bytes after the headers.
func (h *header) check(behind int) error {
	carries := h.kind == kindEager || h.kind == kindData
	begins := h.kind == kindEager || h.kind == kindRequest
	switch {
	case h.kind < kindEager || h.kind > kindBye, h.flags&^knownFlags != 0:
		return fmt.Errorf("%w: kind %d, flags %#x", errFields, h.kind, h.flags)
	case int64(h.length) != int64(behind), !carries && h.length != 0:
		return fmt.Errorf("%w: %d bytes, %d came", errShort, h.length, behind)
	case h.kind == kindEager && h.size != uint64(h.length), h.size > MaxMessage:
		return fmt.Errorf("%w: a message of %d bytes", errFields, h.size)
	case begins && (h.tag < 0 || h.tag > MaxTag):
		return fmt.Errorf("%w: tag %d", errFields, h.tag)
	}
	return nil
}
