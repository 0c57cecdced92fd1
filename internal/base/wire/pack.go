package wire

import "encoding/binary"

// A KindPack frame carries whole messages, each as a record:
//
//	0 length (16 bits)   2 flags (16 bits)
//	4 immediate data (32 bits), if flagged
//	then, for an RDMA write, address (64 bits) and handle (32 bits)
//	then the message's bytes, and directly behind them the next record
const (
	recordLen       = 4
	recordImmediate = 4
	recordRemote    = 12

	recordHasImmediate = uint16(FlagImmediate)
	recordIsWrite      = uint16(1 << 8)
)

// Record is a message of a KindPack frame.
type Record struct {
	Data         []byte
	Immediate    uint32
	HasImmediate bool
	// Write marks an RDMA write, to RemoteAddr in the region RemoteHandle.
	Write        bool
	RemoteAddr   uint64
	RemoteHandle uint32
}

// Len returns the bytes that the record takes in a frame with n bytes of data.
func (r *Record) Len(n int) int { return RecordLen(n, r.HasImmediate, r.Write) }

// RecordLen returns the bytes that a record with n bytes of data takes in a frame, with or without immediate data,
// for an RDMA write or not.
func RecordLen(n int, immediate, write bool) int {
	n += recordLen
	if immediate {
		n += recordImmediate
	}
	if write {
		n += recordRemote
	}
	return n
}

// Put writes the record at b, except for its data, and returns the n bytes where the data goes.
func (r *Record) Put(b []byte, n int) []byte {
	flags := uint16(0)
	at := recordLen
	if r.HasImmediate {
		flags = recordHasImmediate
		binary.BigEndian.PutUint32(b[at:], r.Immediate)
		at += recordImmediate
	}
	if r.Write {
		flags |= recordIsWrite
		binary.BigEndian.PutUint64(b[at:], r.RemoteAddr)
		binary.BigEndian.PutUint32(b[at+8:], r.RemoteHandle)
		at += recordRemote
	}
	binary.BigEndian.PutUint16(b, uint16(n))
	binary.BigEndian.PutUint16(b[2:], flags)
	return b[at : at+n]
}

// Next parses the next record of b, the payload of a KindPack frame, and returns the rest. ok is false if b does
// not begin with a record.
func (r *Record) Next(b []byte) (rest []byte, ok bool) {
	if len(b) < recordLen {
		return nil, false
	}
	n, flags := int(binary.BigEndian.Uint16(b)), binary.BigEndian.Uint16(b[2:])
	r.HasImmediate, r.Write = flags&recordHasImmediate != 0, flags&recordIsWrite != 0
	r.Immediate, r.RemoteAddr, r.RemoteHandle = 0, 0, 0
	if flags&^(recordHasImmediate|recordIsWrite) != 0 || len(b) < RecordLen(n, r.HasImmediate, r.Write) {
		return nil, false
	}
	b = b[recordLen:]
	if r.HasImmediate {
		r.Immediate = binary.BigEndian.Uint32(b)
		b = b[recordImmediate:]
	}
	if r.Write {
		r.RemoteAddr, r.RemoteHandle = binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:])
		b = b[recordRemote:]
	}
	r.Data = b[:n:n]
	return b[n:], true
}
