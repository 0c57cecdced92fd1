package vipl_test

import (
	"slices"

	"viaxdp/vipl"
)

// The things of the reference model. Fields called real are what the test knows
// a thing by in the library.

// refNIC is a NIC handle.
type refNIC struct {
	model  *model
	name   string
	host   *memoryHost
	tags   []*refTag
	homes  []*refRegion // where descriptors lie
	data   []*refRegion
	gone   []vipl.MemHandle // of regions that are deregistered
	vis    []*refVI
	cqs    []*refCQ
	errors []refError // asynchronous errors that are to come
	writes uint64     // RDMA writes of peers, placed
}

type refTag struct{ real *vipl.Ptag }

type refError struct {
	vi   *vipl.VI
	code vipl.ErrorCode
	desc *vipl.Descriptor
}

// refAttributes are a VI's.
type refAttributes struct {
	level vipl.ReliabilityLevel
	most  int     // MaxTransferSize
	write bool    // EnableRDMAWrite
	read  bool    // EnableRDMARead
	tag   *refTag // nil: any
}

func (a *refAttributes) reliable() bool { return a.level != vipl.UnreliableDelivery }

// refVI is a VI.
type refVI struct {
	refAttributes
	nic   *refNIC
	real  *vipl.VI
	state vipl.State
	peer  *refVI // while Connected
	send  refQueue
	recv  refQueue
	lives int // counts connections

	// Since the last settling: what was sent, and how the connection broke.
	flight []*refDesc
	ending ending
}

// ending is the part of a connection's end that may still be under way.
type ending int

const (
	none   ending = iota
	local         // a wrong descriptor of this side ended it
	remote        // the other side did: what was posted later may have been handed to the network
)

// refQueue is a work queue.
type refQueue struct {
	vi      *refVI
	isRecv  bool
	cq      *refCQ
	items   []*refDesc // oldest first
	done    int        // of them are complete
	handed  []*refDesc // what handlers got
	flushed int        // the connection with a flushed send: no later send of it is done
	handlers
}

// handlers are those of a work queue or CQ.
type handlers struct {
	armed       int // that wait
	set, called int // counts
	calls       callLog
}

// head is the oldest descriptor that is not complete, or nil.
func (q *refQueue) head() *refDesc {
	if q.done == len(q.items) {
		return nil
	}
	return q.items[q.done]
}

// pop takes the oldest descriptor off the queue.
func (q *refQueue) pop() *refDesc {
	d := q.items[0]
	q.items = q.items[1:]
	q.done--
	return d
}

// refCQ is a completion queue.
type refCQ struct {
	nic     *refNIC
	real    *vipl.CQ
	entries []refEntry
	handlers
}

// refEntry is an entry. Those of one flight, between two settlings, come in any
// order.
type refEntry struct {
	vi     *vipl.VI
	isRecv bool
	flight int
}

// remove removes an entry that may be the next, and reports whether there was one.
func (c *refCQ) remove(v *vipl.VI, recv bool) bool {
	for i, x := range c.entries {
		if x.flight != c.entries[0].flight {
			return false
		}
		if x.vi == v && x.isRecv == recv {
			c.entries = slices.Delete(c.entries, i, i+1)
			return true
		}
	}
	return false
}

// refRegion is registered memory.
type refRegion struct {
	nic    *refNIC
	real   *vipl.Region
	bytes  []byte
	unsure []alternative
	tag    *refTag
	write  bool
	read   bool
	slots  []*vipl.Descriptor // of a home: not in use
}

// alternative is what bytes from off on may also hold.
type alternative struct {
	off   int
	bytes []byte
}

// refSegment is a piece of a region; without a region it names nothing.
type refSegment struct {
	region *refRegion
	off, n int
}

// usable reports whether a VI with that tag may use the memory.
func (s refSegment) usable(tag *refTag) bool {
	r := s.region
	return r != nil && (tag == nil || tag == r.tag) && s.off >= 0 && s.off+s.n <= len(r.bytes)
}

// begins reports whether such a VI may use its first byte.
func (s refSegment) begins(tag *refTag) bool {
	s.n = min(s.n, 1)
	return s.usable(tag)
}

func (s refSegment) bytes() []byte { return s.region.bytes[s.off : s.off+s.n] }

// refDesc is a descriptor.
type refDesc struct {
	real   *vipl.Descriptor
	home   *refRegion
	op     vipl.Status  // of the completion, a StatusOp value
	segs   []refSegment // data
	remote refSegment   // RDMA; n is not used
	imm    uint32
	hasImm bool
	fence  bool
	wild   bool // may be wrong
	life   int  // connection in which it was posted
	format int  // what is wrong with its format, 0: nothing
	sum    bool // Length is not the sum of the segments

	flaws   []vipl.Status // what is wrong with it, found when it was posted
	altered bool          // by the program, while it was posted
	before  []byte        // read: what its segments held

	// The completion: one of these statuses, without DONE and operation, and for receives Length and
	// ImmediateData.
	status  []vipl.Status
	length  int  // or less, if partly
	partly  bool // the message did not fit
	arrived uint32
}

func (d *refDesc) size() (n int) {
	for _, s := range d.segs {
		n += s.n
	}
	return n
}

func (d *refDesc) gather() (b []byte) {
	for _, s := range d.segs {
		if s.n > 0 {
			b = append(b, s.bytes()...)
		}
	}
	return b
}

// there is what a message may fill of a receive's segments: they end where one of them reaches past
// the end of its region.
func (d *refDesc) there() (segs []refSegment) {
	if len(d.flaws) > 0 {
		return d.segs // which no message reaches
	}
	for _, s := range d.segs {
		most := s.n
		if s.n > 0 {
			s.n = min(s.n, len(s.region.bytes)-s.off)
		}
		if segs = append(segs, s); s.n < most {
			break
		}
	}
	return segs
}

// room is how many bytes that is.
func (d *refDesc) room() (n int) {
	for _, s := range d.there() {
		n += s.n
	}
	return n
}

// each calls f with the pieces of b and where they go, in ascending order.
func (d *refDesc) each(b []byte, f func(r *refRegion, off int, b []byte)) {
	for _, s := range d.there() {
		n := min(s.n, len(b))
		if n > 0 {
			f(s.region, s.off, b[:n])
		}
		b = b[n:]
	}
}

func (r *refRegion) place(off int, b []byte) { copy(r.bytes[off:], b) }

// unknownOutcome records that b may or may not be in the region.
func (r *refRegion) unknownOutcome(off int, b []byte) {
	r.unsure = append(r.unsure, alternative{off, slices.Clone(b)})
}
