package torture

import (
	"encoding/binary"
	"errors"
	"fmt"

	"viaxdp/internal/lab/fail"
	"viaxdp/vipl"
)

// kind of a message.
type kind uint8

const (
	kindHello   kind = 1 + iota // the first one: where the peer may write and read
	kindData                    // carries a number
	kindWritten                 // carries a number; its bytes are in the slot that was written before
	kindCredit                  // reports what was taken, when nothing else goes that way
	kindFinal                   // no data follows; its number is how many there were
	kindBye                     // the peer's final message has come
)

// headLen is the length of a message's head in bytes: the least message.
const headLen = 56

// head is the beginning of each message that is not empty.
type head struct {
	kind    kind
	handle  uint32 // hello: of the memory that the peer may write
	source  uint32 // hello: of the memory that the peer may read
	seq     uint64
	taken   uint64 // numbered messages that the sender has taken
	session uint64 // incarnation of the connection, the sender's choice
	slots   uint64 // hello: address of the memory that the peer may write
	from    uint64 // hello: address of the memory that the peer may read
}

// fill writes a message as long as b.
func (h *head) fill(b []byte) {
	le := binary.LittleEndian
	le.PutUint32(b, uint32(h.kind))
	le.PutUint32(b[4:], uint32(len(b)))
	le.PutUint32(b[8:], h.handle)
	le.PutUint32(b[12:], h.source)
	le.PutUint64(b[16:], h.seq)
	le.PutUint64(b[24:], h.taken)
	le.PutUint64(b[32:], h.session)
	le.PutUint64(b[40:], h.slots)
	le.PutUint64(b[48:], h.from)
	fillPattern(b[headLen:], h.session^h.seq)
}

// parse reads a message and checks every byte of it.
func (h *head) parse(b []byte) error {
	if len(b) < headLen {
		return fmt.Errorf("a message of %d bytes is no message", len(b))
	}
	le := binary.LittleEndian
	*h = head{
		kind: kind(le.Uint32(b)), handle: le.Uint32(b[8:]), source: le.Uint32(b[12:]),
		seq: le.Uint64(b[16:]), taken: le.Uint64(b[24:]), session: le.Uint64(b[32:]),
		slots: le.Uint64(b[40:]), from: le.Uint64(b[48:]),
	}
	if n := le.Uint32(b[4:]); int(n) != len(b) || h.kind < kindHello || h.kind > kindBye {
		return fmt.Errorf("a message of %d bytes says that it has %d, and is of kind %d", len(b), n, h.kind)
	}
	if i, ok := checkPattern(b[headLen:], h.session^h.seq); !ok {
		return fmt.Errorf("message %d, kind %d: byte %d of %d is wrong", h.seq, h.kind, headLen+i, len(b))
	}
	return nil
}

// messageLen is the length that a message at the start of b says it has.
func messageLen(b []byte) int { return min(int(binary.LittleEndian.Uint32(b[4:])), len(b)) }

// The pattern is a sequence of words. Each word depends only on the seed and its place,
// so any part can be checked alone.

func word(seed, i uint64) uint64 {
	x := seed ^ i*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	return x ^ x>>27
}

func fillPattern(b []byte, seed uint64) {
	i := uint64(0)
	for ; len(b) >= 8; b = b[8:] {
		binary.LittleEndian.PutUint64(b, word(seed, i))
		i++
	}
	var last [8]byte
	binary.LittleEndian.PutUint64(last[:], word(seed, i))
	copy(b, last[:])
}

// checkPattern returns the first byte that is wrong.
func checkPattern(b []byte, seed uint64) (at int, ok bool) { return checkPatternAt(b, seed, 0) }

// checkPatternAt is checkPattern for a part that begins with word number first.
func checkPatternAt(b []byte, seed, first uint64) (at int, ok bool) {
	for ; len(b)-at >= 8; at += 8 {
		if binary.LittleEndian.Uint64(b[at:]) != word(seed, first) {
			break
		}
		first++
	}
	var want [8]byte
	binary.LittleEndian.PutUint64(want[:], word(seed, first))
	for _, w := range want[:min(8, len(b)-at)] {
		if b[at] != w {
			return at, false
		}
		at++
	}
	return at, true
}

var errSession = errors.New("a message of another incarnation of the connection")

// op is what a descriptor was posted for.
type op uint8

const (
	opReceive op = iota
	opSend
	opWrite
	opRead
)

// readNote is what an RDMA read fetches of the peer's source.
type readNote struct{ first, bytes int }

// ring is descriptors with a buffer each, posted in turn on one work queue and
// completed in the same order.
//
//	head (oldest posted) ... tail (next to post)
type ring struct {
	region     *vipl.Region
	bytes      int // of each buffer
	desc       []*vipl.Descriptor
	ops        []op
	reads      []readNote
	head, tail int
}

func roundUp64(n int) int { return (n + 63) &^ 63 }

// newRing makes one of count descriptors, in memory of its own.
func newRing(nic *vipl.NIC, tag *vipl.Ptag, count, bytes int) *ring {
	region := fail.Must(nic.AllocMem(count*(vipl.DescriptorAlignment+roundUp64(bytes)), vipl.MemAttributes{Ptag: tag}))
	r := &ring{region: region, bytes: bytes, ops: make([]op, count), reads: make([]readNote, count)}
	for i := range count {
		r.desc = append(r.desc, fail.Must(region.Descriptor(i*vipl.DescriptorAlignment, 2)))
	}
	return r
}

func (r *ring) outstanding() int { return r.tail - r.head }

func (r *ring) room() int { return len(r.desc) - r.outstanding() }

func (r *ring) at(i int) int { return i % len(r.desc) }

func (r *ring) offset(i int) int {
	return len(r.desc)*vipl.DescriptorAlignment + r.at(i)*roundUp64(r.bytes)
}

// next is the descriptor to be posted next and its buffer. There is room.
func (r *ring) next() (*vipl.Descriptor, []byte) {
	return r.desc[r.at(r.tail)], r.region.Bytes()[r.offset(r.tail):][:r.bytes]
}

// segment names the first n bytes of the buffer that next gives.
func (r *ring) segment(n int) vipl.DataSegment { return r.region.Segment(r.offset(r.tail), n) }

// note keeps what the descriptor that next gives will read.
func (r *ring) note(n readNote) { r.reads[r.at(r.tail)] = n }

// push notes that what next gave is posted.
func (r *ring) push(o op) {
	r.ops[r.at(r.tail)] = o
	r.tail++
}

// pop takes back a completed descriptor, which should be the oldest.
func (r *ring) pop(d *vipl.Descriptor) (o op, read readNote, buf []byte, inOrder bool) {
	i := r.at(r.head)
	buf = r.region.Bytes()[r.offset(r.head):][:r.bytes]
	r.head++
	return r.ops[i], r.reads[i], buf, r.desc[i] == d
}
