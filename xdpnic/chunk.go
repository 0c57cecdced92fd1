package xdpnic

import (
	"errors"
	"fmt"
	"math/bits"
)

// owner names the party that may touch a chunk. Each chunk always has exactly one.
type owner uint8

const (
	// TX chunks.
	ownFree owner = iota // on the free stack
	ownHeld              // the caller's: allocated, or retained and completed
	ownTX                // the kernel's or about to be (TX ring .. completion ring); free on completion
	ownKept              // the kernel's as ownTX, but the caller's again on completion
	// RX chunks.
	ownFill   // the kernel's or about to be (recycled .. fill ring .. RX ring)
	ownLeased // the caller's: received, not recycled
	numOwners
)

var ownerNames = [numOwners]string{
	ownFree: "free", ownHeld: "held", ownTX: "tx", ownKept: "tx-retained",
	ownFill: "fill", ownLeased: "rx",
}

func (o owner) String() string {
	if o < numOwners {
		return ownerNames[o]
	}
	return fmt.Sprintf("owner(%d)", uint8(o))
}

// geometry describes where the chunks lie in the UMEM.
//
//	0        base                                              len(mem)
//	|........|rx 0|rx 1| ... |rx n-1|tx 0|tx 1| ... |tx m-1|......|
//	          <------------- chunks of size bytes --------->
type geometry struct {
	mem   []byte // the whole UMEM
	base  uint64 // address of chunk 0
	size  uint64 // bytes of a chunk
	shift uint8  // log2(size), or 0 when size is not a power of two
	rx    uint64 // number of RX chunks, numbers 0 .. rx-1
	txAt  uint64 // number of the first TX chunk of this process: rx, unless processes share the queue
	tx    uint64 // number of TX chunks, numbers txAt .. txAt+tx-1
	total uint64 // number of chunks, those of other processes included
}

func newGeometry(mem []byte, base, size, rx, tx int) geometry {
	g := geometry{
		mem: mem, base: uint64(base), size: uint64(size),
		rx: uint64(rx), txAt: uint64(rx), tx: uint64(tx), total: uint64(rx + tx),
	}
	if size&(size-1) == 0 {
		g.shift = uint8(bits.TrailingZeros(uint(size)))
	}
	return g
}

// geometry is where the chunks of a queue with this configuration lie.
func (c *Config) geometry() geometry {
	l := c.layout()
	g := newGeometry(c.Memory, c.PoolOffset, c.ChunkSize, l.rx, l.tx())
	g.txAt, g.tx = l.partition(c.Sharing.Partition)
	return g
}

// chunk is the number of the chunk that holds addr. An address outside of the
// pool gives a number of rx+tx or more.
func (g *geometry) chunk(addr uint64) uint64 {
	if g.shift != 0 {
		return (addr - g.base) >> g.shift
	}
	return (addr - g.base) / g.size
}

// addr is the address of the first byte of chunk i.
func (g *geometry) addr(i uint64) uint64 { return g.base + i*g.size }

// limit is the address behind the last chunk.
func (g *geometry) limit() uint64 { return g.addr(g.total) }

// The address of an RX entry of an unaligned UMEM is the chunk's address with
// the offset of the frame in the upper 16 bits (<linux/if_xdp.h>); in an
// aligned one the upper bits are 0, so that one expression serves both.
const (
	offsetShift = 48 // XSK_UNALIGNED_BUF_OFFSET_SHIFT
	addrMask    = 1<<offsetShift - 1
)

func plainAddr(addr uint64) uint64 { return addr&addrMask + addr>>offsetShift }

// A pool is all the chunks of one fill and completion ring pair, and those two
// rings. The sockets that share a queue share its pool.
type pool struct {
	geometry
	shared *sharedPool // what this process shares with others; nil: nothing
	own    []owner     // by chunk number
	end    []uint32    // by chunk number: TX ring index after the last frame that began in the chunk
	free   []uint64    // addresses of free TX chunks; the last of the first nfree is taken first
	// The stack is last in, first out: a chunk that was just sent is still in
	// the cache.
	nfree    int
	comp     completionRing
	fill     fillRing
	recycled uint32   // entries written at fill.head, not published
	back     []uint64 // if processes share the queue: chunks to be given back by the next refill

	filled    uint64 // entries ever published on the fill ring
	returned  uint64 // RX chunks that came back through an RX ring
	txOut     uint64 // TX chunks in flight: owner tx or tx-retained
	completed uint64 // entries ever taken off the completion ring

	wrong   violation // the first misuse or foreign entry
	wrongs  uint64    // number of violations
	users   int       // sockets that use the pool
	umem    *umem
	limits  [2]uint64 // where it is in umem: the chunks, and the table of processes that share them
	fillMem ringMem
	compMem ringMem
}

// newPool makes a pool whose TX chunks are free and whose RX chunks will be given
// to the kernel. Its rings are empty.
func newPool(g geometry) *pool {
	p := &pool{
		geometry: g, own: make([]owner, g.total), end: make([]uint32, g.total), free: make([]uint64, g.tx), users: 1,
		fill: fillRing{producer: shutProducer()}, comp: completionRing{consumer: shutConsumer()},
	}
	for i := range g.tx {
		// The lowest address is on top.
		p.free[i] = g.addr(g.txAt + g.tx - 1 - i)
	}
	p.nfree = int(g.tx)
	for i := range g.rx {
		p.own[i] = ownFill
	}
	return p
}

// giveAll hands every RX chunk to the kernel.
func (p *pool) giveAll() {
	if p.shared != nil {
		steps := p.shared.fillSteps()
		for i := range p.rx {
			p.pushFill(i, &steps) // at once: no other process has the ring yet
		}
		p.filled = p.rx
		return
	}
	for i := range p.rx {
		p.fill.addr[(p.fill.head+p.recycled)&p.fill.mask] = p.addr(i)
		p.recycled++
	}
	p.refill()
}

// refill publishes the recycled chunks. If processes share the queue and fillSteps are used up, the other chunks are left
// for the next refill.
func (p *pool) refill() {
	if p.shared != nil {
		steps, n := p.shared.fillSteps(), 0
		for n < len(p.back) && p.pushFill(p.back[n], &steps) {
			n++
		}
		p.filled += uint64(n)
		p.back = p.back[:copy(p.back, p.back[n:])]
		p.recycled = uint32(len(p.back))
		return
	}
	k := p.recycled
	p.recycled = 0
	p.filled += uint64(k)
	p.fill.submit(k)
}

// push puts TX chunk i on the free stack.
func (p *pool) push(i uint64) {
	p.own[i] = ownFree
	p.free[p.nfree] = p.addr(i)
	p.nfree++
}

// reap takes all entries off the completion ring.
func (p *pool) reap() int {
	if p.shared != nil {
		return p.reapShared()
	}
	n := p.comp.peek(^uint32(0))
	if n == 0 {
		return 0
	}
	for k := range n {
		p.complete(p.comp.addr[(p.comp.tail+k)&p.comp.mask])
	}
	p.comp.release(n)
	p.completed += uint64(n)
	return int(n)
}

// complete notes that the kernel has finished with the TX entry at addr. Entries
// outside the TX chunks are in the caller's registered memory.
func (p *pool) complete(addr uint64) {
	i := p.chunk(addr)
	if i-p.txAt >= p.tx {
		return
	}
	switch p.own[i] {
	case ownTX:
		p.setFree(i)
		p.push(i)
		p.txOut--
	case ownKept:
		p.setFree(i)
		p.own[i] = ownHeld
		p.txOut--
	default:
		p.violated("completion", addr)
	}
}

// violation is one wrong use of a chunk, kept for Audit.
type violation struct {
	op   string
	addr uint64
	own  owner
	out  bool // not a chunk at all
}

func (v violation) String() string {
	if v.out {
		return fmt.Sprintf("%s of address %#x, which is no chunk of this kind", v.op, v.addr)
	}
	return fmt.Sprintf("%s of chunk at %#x, whose owner was %q", v.op, v.addr, v.own)
}

// violated notes a wrong use: the first in full, the others only as a count.
func (p *pool) violated(op string, addr uint64) {
	p.wrongs++
	if p.wrongs > 1 {
		return
	}
	p.wrong = violation{op: op, addr: addr, out: true}
	if i := p.chunk(addr); i < uint64(len(p.own)) {
		p.wrong.own, p.wrong.out = p.own[i], false
	}
}

// Audit checks that every chunk has exactly one owner and that the sum is
// right: free stack, held, TX, fill, RX lease, recycled. Its error names the
// first wrong use (a chunk released twice, recycled without a lease, completed
// without being sent) and each table that disagrees with the chunks. Its cost is
// proportional to the number of chunks; it is meant for tests and for the end of
// a run.
//
// Owner only.
func (q *Queue) Audit() error {
	p := q.pool
	var errs []error
	if p.wrongs != 0 {
		errs = append(errs, fmt.Errorf("xdpnic: audit: %d wrong uses, the first: %s", p.wrongs, p.wrong))
	}
	var n [numOwners]uint64
	for i, o := range p.own {
		if o >= numOwners || (uint64(i) < p.rx) != (o >= ownFill) && !p.foreign(uint64(i)) {
			errs = append(errs, fmt.Errorf("xdpnic: audit: chunk %d (%d RX, %d TX chunks) has owner %s", i, p.rx, p.tx, o))
			continue
		}
		if !p.foreign(uint64(i)) {
			n[o]++
		}
	}
	check := func(what string, has, want uint64) {
		if has != want {
			errs = append(errs, fmt.Errorf("xdpnic: audit: %s: %d, but %d chunks have that owner", what, has, want))
		}
	}
	check("free stack", uint64(p.nfree), n[ownFree])
	check("on the way through TX", p.txOut, n[ownTX]+n[ownKept])
	if p.shared == nil { // else other processes have chunks, see auditShared
		check("recycled or with the kernel for receiving", uint64(p.recycled)+p.filled-p.returned, n[ownFill])
	}
	errs = append(errs, p.auditList("free stack", ownFree, p.free[:p.nfree])...)
	var recycled []uint64
	for _, i := range p.back {
		recycled = append(recycled, p.addr(i))
	}
	for k := range p.recycled - uint32(len(p.back)) {
		recycled = append(recycled, p.fill.addr[(p.fill.head+k)&p.fill.mask])
	}
	errs = append(errs, p.auditList("recycled", ownFill, recycled)...)
	for _, a := range q.extra {
		if err := a.Audit(); err != nil {
			errs = append(errs, fmt.Errorf("queue %d: %w", a.cfg.QueueID, err))
		}
	}
	return errors.Join(errs...)
}

// auditList checks that all chunks of a list have the owner o and that none is
// in it twice.
func (p *pool) auditList(what string, o owner, list []uint64) (errs []error) {
	seen := make(map[uint64]bool, len(list))
	for _, addr := range list {
		i := p.chunk(addr)
		switch {
		case i >= uint64(len(p.own)):
			errs = append(errs, fmt.Errorf("xdpnic: audit: %s: %#x is no chunk", what, addr))
		case seen[i]:
			errs = append(errs, fmt.Errorf("xdpnic: audit: %s: chunk %d twice", what, i))
		case p.own[i] != o:
			errs = append(errs, fmt.Errorf("xdpnic: audit: %s: chunk %d has owner %s", what, i, p.own[i]))
		}
		seen[i] = true
	}
	return errs
}

// foreign reports whether chunk i is a TX chunk of another process.
func (p *pool) foreign(i uint64) bool { return i >= p.rx && i-p.txAt >= p.tx }
