package wire

import "encoding/binary"

// A KindPack frame carries whole messages, each as a record:
//
//	0 length (16 bits)   2 flags (16 bits)   4 immediate data, if the flag says so
//	behind it the message's bytes, and the next record right behind them
const (
	recordLen       = 4
	recordImmediate = 4
	recordFlag      = uint16(FlagImmediate) // the only one
)

// Record is a message of a KindPack frame.
type Record struct {
	Data         []byte
	Immediate    uint32
	HasImmediate bool
}

// RecordLen is the room that a message of n bytes takes in a KindPack frame.
func RecordLen(n int, immediate bool) int {
	if immediate {
		n += recordImmediate
	}
	return recordLen + n
}

// PutRecord writes the head of a record for a message of n bytes at b, and
// returns the n bytes behind it, where the message goes.
func PutRecord(b []byte, n int, immediate bool, value uint32) []byte {
	binary.BigEndian.PutUint16(b, uint16(n))
	head := recordLen
	if immediate {
		binary.BigEndian.PutUint16(b[2:], recordFlag)
		binary.BigEndian.PutUint32(b[recordLen:], value)
		head += recordImmediate
	} else {
		binary.BigEndian.PutUint16(b[2:], 0)
	}
	return b[head : head+n]
}

// Next takes the next record off b, the payload of a KindPack frame, and returns
// the rest. ok is false when b does not begin with a record.
func (r *Record) Next(b []byte) (rest []byte, ok bool) {
	if len(b) < recordLen {
		return nil, false
	}
	n, flags := int(binary.BigEndian.Uint16(b)), binary.BigEndian.Uint16(b[2:])
	b = b[recordLen:]
	r.Immediate, r.HasImmediate = 0, flags == recordFlag
	switch {
	case flags != 0 && flags != recordFlag:
		return nil, false
	case r.HasImmediate:
		if len(b) < recordImmediate {
			return nil, false
		}
		r.Immediate = binary.BigEndian.Uint32(b)
		b = b[recordImmediate:]
	}
	if len(b) < n {
		return nil, false
	}
	r.Data = b[:n:n]
	return b[n:], true
}
