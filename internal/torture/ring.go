package torture

import "viaxdp/vipl"

// op is what a descriptor was posted for.
type op uint8

const (
	opReceive op = iota
	opSend
	opWrite
	opRead
)

// readNote says what an RDMA read fetches of the peer's source.
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

// ringBytes is the memory for count descriptors with buffers.
func ringBytes(count, bytes int) int {
	return count * (vipl.DescriptorAlignment + roundUp64(bytes))
}

func newRing(region *vipl.Region, count, bytes int) (*ring, error) {
	r := &ring{region: region, bytes: bytes, ops: make([]op, count), reads: make([]readNote, count)}
	for i := range count {
		d, err := region.Descriptor(i*vipl.DescriptorAlignment, 2)
		if err != nil {
			return nil, err
		}
		r.desc = append(r.desc, d)
	}
	return r, nil
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

// push says that what next gave is posted.
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
