package bench

import (
	"encoding/binary"
	"time"
)

// loadHeader is how each message of a load begins, 16 bytes, little-endian:
//
//	0 kind   1 zero   2 round (16 bits)   4 number (32 bits)   8 when it was due (ns, 64 bits)
//
// The rest is of any content; a checked one has that of its number.
const loadHeader = 16

// Kinds of messages. All of them are echoed.
const (
	loadMessage = 1
	loadBegin   = 2 // is the peer there?
	loadEnd     = 3 // nothing follows
)

// put writes message number n into buf, and returns its length.
func (r *loadRound) put(buf []byte, kind byte, n uint32, due time.Duration) int {
	buf[0], buf[1] = kind, 0
	binary.LittleEndian.PutUint16(buf[2:], r.ID)
	binary.LittleEndian.PutUint32(buf[4:], n)
	binary.LittleEndian.PutUint64(buf[8:], uint64(due))
	if r.Check {
		copy(buf[loadHeader:r.Bytes], content(int(n), loadHeader, r.Bytes-loadHeader))
	}
	return r.Bytes
}

// is says whether a message is of this round; what an earlier one has left is
// passed over.
func (r *loadRound) is(p []byte) bool {
	return len(p) == r.Bytes && binary.LittleEndian.Uint16(p[2:]) == r.ID
}

func loadKind(p []byte) byte         { return p[0] }
func loadNumber(p []byte) uint32     { return binary.LittleEndian.Uint32(p[4:]) }
func loadDue(p []byte) time.Duration { return time.Duration(binary.LittleEndian.Uint64(p[8:])) }

// verify compares the content of a message with what was sent.
func (r *loadRound) verify(p []byte) error {
	return verify(int(loadNumber(p)), loadHeader, p[loadHeader:])
}
