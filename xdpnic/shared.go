package xdpnic

import (
	"cmp"
	"errors"
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"viaxdp/internal/base/ordered"
)

// Several processes may use one queue (Config.Sharing). The kernel lets their sockets share the
// UMEM (XDP_SHARED_UMEM), and gives a queue one fill and one completion ring. So each process
// has RX and TX rings and TX chunks of its own, while the two rings and the RX chunks are common:
//
//	            fill ring <------- RX chunks of all -------.
//	                |                                      |
//	         kernel's receive path                         |
//	           |          |                                |
//	       RX ring A   RX ring B  -- process reads frames --'
//
//	       TX ring A   TX ring B
//	           |          |
//	         kernel's send path --> completion ring --> the owner of the chunk, by any process
//
// No lock protects the common rings: a process may be stopped or killed at any instruction, and the
// others must go on. Each step is one compare-and-swap that any process can complete for another:
//
//   - Fill ring. The entry at the producer index is written first, then the index is advanced. A
//     process that finds the entry written advances the index itself. To tell a written entry from
//     one of the ring's last round, the entry has the number of the round in the bits below the
//     chunk size. The kernel ignores them (xp_check_aligned, net/xdp/xsk_buff_pool.c).
//   - Completion ring. A process first changes the words of the entries' chunks from "in flight" to
//     "completed", and then advances the consumer index. It takes as many of its own entries at once as
//     there are, and one of another process, whose owner finds the word.
//
// A table behind the chunks has a word for each chunk, which says what must come back if a process
// dies. Reclaim reads it.
//
//	RX word: with the kernel, or leased by a process, or being returned at a fill ring index
//	TX word: free, or in flight from a TX ring index, or completed at a completion ring index

// Sharing describes how processes share a queue. The zero value: one process has it.
type Sharing struct {
	Guests   int // processes that may join the first one, at most MaxGuests
	RxChunks int // what each may have leased
	RxRing   int // entries of the RX ring of each; 0: as many as RxChunks, rounded up
	TxChunks int // of each
	// Partition is the process's number: 0 is the first one, which has Config's chunks and the rest of
	// the UMEM as registered memory.
	Partition int
}

// MaxGuests bounds Sharing.Guests. With the first process and the agent that reclaims, their numbers fit in a byte.
const MaxGuests = 127

// reclaimer stands for the agent in RX words: it has taken the chunk from a dead process.
const reclaimer = 255

// A word's kind is in its lowest byte. Above it, an RX word has the process (8 bits) and the fill ring
// index (32 bits). A TX word in flight has the TX ring index (32 bits) and the process's term (24 bits), which counts the
// processes that have had the partition, so that no two flights of a chunk have the same word. A completed one has
// the completion ring index.
const (
	rxKernel    = 0 // with the kernel, or on the way to it
	rxLeased    = 1
	rxReturning = 2 // succeeded if the fill ring's entry at that index has the chunk

	txFree      = 0
	txFlight    = 1
	txCompleted = 2

	kindMask = 0xff
	termMask = 1<<24 - 1
)

func rxWord(kind, process uint64, index uint32) uint64 {
	return kind | process<<8 | uint64(index)<<16
}

// layout describes the pool of a queue that processes share. From Config.PoolOffset:
//
//	| RX chunks of all | TX chunks of process 0 | of 1 | ... | partition words | RX words | TX words |
type layout struct {
	rx     int // RX chunks of all
	first  int // TX chunks of process 0
	guests int
	guest  int // TX chunks of each guest
}

func (c *Config) shared() bool { return c.Sharing.Guests > 0 }

// rxChunks and txChunks are what this process may have.
func (c *Config) rxChunks() int {
	if c.Sharing.Partition > 0 {
		return c.Sharing.RxChunks
	}
	return c.RxChunks
}

func (c *Config) txChunks() int {
	if c.Sharing.Partition > 0 {
		return c.Sharing.TxChunks
	}
	return c.TxChunks
}

// rxRing is the size of this process's RX ring.
func (c *Config) rxRing() int {
	n := powerOfTwo(c.rxChunks())
	if c.Sharing.Partition > 0 {
		n = max(n, c.Sharing.RxRing)
	}
	return n
}

// layout returns where the chunks are. There are enough RX chunks for what all processes may have leased, and as much
// again on their RX rings. So a stopped process leaves the others their part, unless its RX ring is longer and more
// than flow control lets peers send fills it up.
func (c *Config) layout() layout {
	if !c.shared() {
		return layout{rx: c.RxChunks, first: c.TxChunks}
	}
	s := &c.Sharing
	return layout{
		rx:     c.RxChunks + powerOfTwo(c.RxChunks) + s.Guests*(s.RxChunks+powerOfTwo(s.RxChunks)),
		first:  c.TxChunks,
		guests: s.Guests, guest: s.TxChunks,
	}
}

func (l *layout) tx() int     { return l.first + l.guests*l.guest }
func (l *layout) chunks() int { return l.rx + l.tx() }

// partition returns the number of a process's first TX chunk, and how many it has.
func (l *layout) partition(i int) (at, n uint64) {
	if i == 0 {
		return uint64(l.rx), uint64(l.first)
	}
	return uint64(l.rx + l.first + (i-1)*l.guest), uint64(l.guest)
}

// partitionOf returns the process of a TX chunk.
func (l *layout) partitionOf(chunk uint64) int {
	i := int(chunk) - l.rx - l.first
	if i < 0 {
		return 0
	}
	return 1 + i/l.guest
}

// tableBytes is the size of the table behind the chunks; 0: there is none.
func (l *layout) tableBytes() int {
	if l.guests == 0 {
		return 0
	}
	return (1+l.guests)*partitionBytes + 8*l.chunks()
}

func (c *Config) checkSharing() error {
	s := &c.Sharing
	switch {
	case s.Guests == 0 && *s == Sharing{}:
		return nil
	case s.Guests < 1 || s.Guests > MaxGuests:
		return c.bad("sharing by %d guests: must be 1 to %d", s.Guests, MaxGuests)
	case s.RxChunks < 1 || s.TxChunks < 1 || s.RxChunks > 1<<16 || s.TxChunks > 1<<16:
		return c.bad("sharing with %d RX and %d TX chunks a guest: each must be 1 to 65536", s.RxChunks, s.TxChunks)
	case s.RxRing < 0 || s.RxRing > 1<<16 || s.RxRing > 0 && s.RxRing != powerOfTwo(s.RxRing):
		return c.bad("sharing with RX rings of %d entries: must be a power of two up to 65536, or 0", s.RxRing)
	case s.Partition < 0 || s.Partition > s.Guests:
		return c.bad("process %d of a queue for %d: must be 0 to %d", s.Partition, 1+s.Guests, s.Guests)
	case c.Unaligned:
		return c.bad("sharing needs aligned chunks: the fill ring's round is in the bits below the chunk size")
	case c.Share != nil:
		return c.bad("a queue with another's memory cannot be shared by processes")
	}
	return nil
}

// sharedPool is what the processes of a queue share.
type sharedPool struct {
	layout layout
	me     uint64
	term   uint64 // see the TX words

	parts []partitionWords
	rx    []uint64 // words, by chunk
	tx    []uint64 // words, by chunk less layout.rx

	fill     []uint64 // entries
	fillMask uint32
	fillProd *uint32
	lap      uint // log2 of the fill ring's size
	comp     []uint64
	compMask uint32
	compProd *uint32
	compCons *uint32

	seen  uint64 // of parts[me].foreign
	reaps uint   // since the last search
}

// partitionWords are the common words of one process, a cache line.
type partitionWords struct {
	term    uint64 // number of processes that have joined as this partition
	foreign uint64 // completions that other processes have taken off the ring
	_       [6]uint64
}

const partitionBytes = 64

// entry is the fill ring's entry for a chunk at a ring index.
func (p *pool) entry(i uint64, index uint32) uint64 {
	return p.addr(i) | p.round(index)
}

// round is the number of a fill ring's round, in the bits below the chunk size; never that of a zero entry in
// the first round.
func (p *pool) round(index uint32) uint64 {
	return uint64(index>>p.shared.lap+1) & (p.size - 1)
}

// fillSteps bounds the failed steps of one refill or Reclaim. A step fails only if another process has changed the ring or
// a chunk's word meanwhile. Processes that return chunks do not cause that many failures. A process that overwrites the
// shared memory could, and would block the others and the agent without this bound.
func (c *sharedPool) fillSteps() int { return 16 * len(c.fill) }

// errOverwritten: fillSteps steps have failed.
var errOverwritten = errors.New("a process that shares the queue overwrites the fill ring, or the table of chunks")

// pushFill puts chunk i on the fill ring. There is room, since the ring can hold all chunks and this one is not in it. It
// subtracts failed steps from steps. If none are left it returns false, and the chunk is still this process's.
func (p *pool) pushFill(i uint64, steps *int) bool {
	c := p.shared
	for ; *steps > 0; *steps-- {
		h := atomic.LoadUint32(c.fillProd)
		slot := &c.fill[h&c.fillMask]
		old := atomic.LoadUint64(slot)
		if atomic.LoadUint32(c.fillProd) != h {
			continue // old may be of a later round
		}
		if old&(p.size-1) == p.round(h) {
			// Another process has written it and not yet advanced the index.
			atomic.CompareAndSwapUint32(c.fillProd, h, h+1)
			continue
		}
		p.setReturned(old, h-uint32(len(c.fill)))
		atomic.StoreUint64(&c.rx[i], rxWord(rxReturning, c.me, h))
		if atomic.CompareAndSwapUint64(slot, old, p.entry(i, h)) {
			atomic.CompareAndSwapUint32(c.fillProd, h, h+1)
			return true
		}
	}
	return false
}

// setReturned notes that the chunk of a fill ring entry was returned at that index, before the entry is overwritten.
// Afterwards a word that still says "being returned" at that index means that it was not.
func (p *pool) setReturned(entry uint64, index uint32) {
	c := p.shared
	i := p.chunk(entry &^ (p.size - 1))
	if i >= p.rx {
		return
	}
	if w := atomic.LoadUint64(&c.rx[i]); w&kindMask == rxReturning && uint32(w>>16) == index {
		atomic.CompareAndSwapUint64(&c.rx[i], w, rxKernel)
	}
}

// lease records that this process has RX chunk i. It precedes the release of the RX ring's entry.
func (p *pool) lease(i uint64) {
	p.own[i] = ownLeased
	if c := p.shared; c != nil {
		ordered.StoreUint64(&c.rx[i], rxWord(rxLeased, c.me, 0))
	}
}

// setInFlight records that TX chunk i is in flight from TX ring index at. It precedes the publication of the TX ring's entry.
func (p *pool) setInFlight(i uint64, at uint32) {
	if c := p.shared; c != nil {
		ordered.StoreUint64(&c.tx[i-p.rx], txFlight|uint64(at)<<8|c.term<<40)
	}
}

// setCompleted records that this process's TX chunk at addr has completed, with the entry at an index of the completion ring. It
// precedes the release of that entry.
func (p *pool) setCompleted(addr uint64, index uint32) {
	if i := p.chunk(addr); i-p.txAt < p.tx {
		ordered.StoreUint64(&p.shared.tx[i-p.rx], uint64(index)<<8|txCompleted)
	}
}

// setFree records that TX chunk i is no longer in flight.
func (p *pool) setFree(i uint64) {
	if c := p.shared; c != nil {
		ordered.StoreUint64(&c.tx[i-p.rx], txFree)
	}
}

// reapBatch is the number of own entries taken off the completion ring at once.
const reapBatch = 64

// reapShared takes all entries off the completion ring, and finds the completions that other processes have taken.
func (p *pool) reapShared() (n int) {
	c := p.shared
	var mine [reapBatch]uint64
	for {
		at := atomic.LoadUint32(c.compCons)
		avail := atomic.LoadUint32(c.compProd) - at
		if avail == 0 || avail > c.compMask+1 {
			break
		}
		k := uint32(0)
		for ; k < min(avail, reapBatch); k++ {
			addr := atomic.LoadUint64(&c.comp[(at+k)&c.compMask])
			if i := p.chunk(addr); i-p.rx < uint64(len(c.tx)) && i-p.txAt >= p.tx {
				break // another process's
			}
			mine[k] = addr
		}
		if k == 0 {
			p.passCompletion(at)
			continue
		}
		if atomic.LoadUint32(c.compCons) != at {
			continue // the entries may be of a later round
		}
		// If this process dies after it has taken the entries, only the words say that the chunks have completed.
		for j, addr := range mine[:k] {
			p.setCompleted(addr, at+uint32(j))
		}
		if !atomic.CompareAndSwapUint32(c.compCons, at, at+k) {
			continue
		}
		for _, addr := range mine[:k] {
			p.complete(addr)
		}
		n += int(k)
	}
	p.completed += uint64(n)
	c.reaps++
	if f := atomic.LoadUint64(&c.parts[c.me].foreign); f != c.seen || p.txOut > 0 && (p.nfree == 0 || c.reaps >= 256) {
		c.seen, c.reaps = f, 0
		n += p.search()
	}
	return n
}

// passCompletion hands the completion ring's entry at index at to another process.
func (p *pool) passCompletion(at uint32) {
	c := p.shared
	i := p.chunk(atomic.LoadUint64(&c.comp[at&c.compMask]))
	if i-p.rx >= uint64(len(c.tx)) {
		return // the ring has moved on, and the entry is a new one
	}
	word := &c.tx[i-p.rx]
	w := atomic.LoadUint64(word)
	if atomic.LoadUint32(c.compCons) != at {
		return // the word may be of a later flight
	}
	if w&kindMask == txFlight {
		atomic.CompareAndSwapUint64(word, w, uint64(at)<<8|txCompleted)
	}
	if atomic.CompareAndSwapUint32(c.compCons, at, at+1) {
		atomic.AddUint64(&c.parts[c.layout.partitionOf(i)].foreign, 1)
	}
}

// search finds completions of this process's chunks that others have taken off the ring.
func (p *pool) search() (n int) {
	c := p.shared
	for i := p.txAt; i < p.txAt+p.tx; i++ {
		if p.own[i] != ownTX && p.own[i] != ownKept {
			continue
		}
		w := atomic.LoadUint64(&c.tx[i-p.rx])
		if w&kindMask != txCompleted {
			continue
		}
		// The chunk must not be sent again while a third process may still take its entry for a later one's.
		at := uint32(w >> 8)
		atomic.CompareAndSwapUint32(c.compCons, at, at+1)
		if at-atomic.LoadUint32(c.compCons) <= c.compMask {
			continue // marked by the last process of the partition, and still on the ring behind other entries
		}
		p.complete(p.addr(i))
		p.completed++
		n++
	}
	return n
}

// takePartition makes the partition this process's. Chunks of its last process may still be in flight.
func (p *pool) takePartition() {
	c := p.shared
	c.term = atomic.AddUint64(&c.parts[c.me].term, 1) & termMask
	p.nfree = 0
	for k := p.tx; k > 0; k-- {
		i := p.txAt + k - 1
		if atomic.LoadUint64(&c.tx[i-p.rx])&kindMask == txFree {
			p.push(i)
		} else {
			p.own[i] = ownTX
			p.txOut++
		}
	}
	c.seen = atomic.LoadUint64(&c.parts[c.me].foreign) - 1 // search at the first reap
}

// initShared makes pool p one of a queue that processes share, whose rings are mapped.
func (p *pool) initShared(cfg *Config) error {
	l := cfg.layout()
	table := p.mem[p.limit():]
	if len(table) < l.tableBytes() {
		return fmt.Errorf("no room for the table of shared chunks: %w", errConfig)
	}
	c := &sharedPool{layout: l, me: uint64(cfg.Sharing.Partition)}
	c.parts, c.rx, c.tx = tableWords(table, &l)
	c.fill, c.fillMask, c.fillProd = p.fill.addr, p.fill.mask, word(p.fill.prod)
	for c.lap = 0; 1<<c.lap < len(c.fill); c.lap++ {
	}
	c.comp, c.compMask, c.compProd, c.compCons = p.comp.addr, p.comp.mask, word(p.comp.prod), word(p.comp.cons)
	p.shared = c
	p.back = make([]uint64, 0, l.rx)
	return nil
}

// Join opens a socket for one more process on a queue whose Config has Sharing. fd is the socket of any process that has
// the queue, extra are those of its ExtraQueues, h describes that process, and mem is the UMEM. The new process gets the
// number partition. The last process that had the number, if there was one, must have been reclaimed. The caller hands the
// queue on (Handout), or uses it. fd and extra stay the caller's. Join needs CAP_NET_RAW. Errors are *OpError.
func Join(fd int, h Handout, mem []byte, partition int, extra ...int) (*Queue, error) {
	cfg := h.Config
	cfg.Memory, cfg.Share, cfg.Sharing.Partition = mem, nil, partition
	cfg.Rings.RX, cfg.Rings.TX = cfg.rxRing(), powerOfTwo(cfg.txChunks())
	cfg.TxBudget = min(cfg.TxBudget, cfg.Rings.TX)
	if err := cmp.Or(cfg.check(), cfg.checkSockets(extra)); err != nil {
		return nil, err
	}
	u, err := newUMEM(cfg.Memory, 0)
	if err != nil {
		return nil, cfg.bad("memory: %w", err)
	}
	q := newQueue(cfg)
	err = q.join(fd, h.Info, u)
	for i := 0; i < len(extra) && err == nil; i++ {
		err = q.addExtra(cfg.extra(i)).join(extra[i], h.Info, u)
	}
	if err != nil {
		q.Close()
		return nil, err
	}
	return q, nil
}

// join opens the socket on the queue of socket fd. Its pool lies in u.
func (q *Queue) join(fd int, of Info, u *umem) error {
	if err := q.socket(); err != nil {
		return err
	}
	if err := q.socketRings(); err != nil {
		return err
	}
	addr := &unix.SockaddrXDP{
		Flags: unix.XDP_SHARED_UMEM, Ifindex: uint32(q.cfg.Ifindex), QueueID: uint32(q.cfg.QueueID), SharedUmemFD: uint32(fd),
	}
	if err := unix.Bind(q.fd, addr); err != nil {
		return q.fail("join", err)
	}
	q.info.Mode, q.info.Attempts = of.Mode, of.Attempts
	if err := q.describe(); err != nil {
		return err
	}
	q.pool = newPool(q.cfg.geometry())
	if err := u.get(q.pool, &q.cfg); err != nil {
		return q.fail("memory", err)
	}
	if err := q.mapPoolRings(); err != nil {
		return err
	}
	if err := access(func() error { q.pool.takePartition(); return nil }); err != nil {
		return q.fail("join", err)
	}
	return nil
}

// Reclaim takes the chunks of a process that has ended, or has closed its sockets, and gives those for receiving to the
// kernel. fd and extra are duplicates of its sockets, which no XDP program reaches any more, h describes it, and mem is the
// UMEM; the chunks themselves are not touched. The caller closes fd afterwards, and only then lets another process join as
// that partition. One process at a time may call Reclaim for a queue. If it dies in it, the next Reclaim of any process
// of the queue takes what it has left.
//
// It returns how many chunks it has taken. If another process keeps it from giving back chunks for receiving, by overwriting
// what they share, Reclaim ends with an error after a limited time. The next Reclaim takes these chunks.
func Reclaim(fd int, h Handout, mem []byte, extra ...int) (chunks int, err error) {
	// Frames that were under way to the socket when the map's entry was deleted have arrived after this (synchronize_rcu).
	// A kernel without membarrier(2) gets some time.
	awaitGracePeriod()
	cfg := h.Config
	cfg.Memory, cfg.Share = mem, nil
	if err := cmp.Or(cfg.check(), cfg.checkSockets(extra)); err != nil {
		return 0, err
	}
	chunks, err = reclaim(fd, cfg)
	for i := range extra {
		n, e := reclaim(extra[i], cfg.extra(i))
		chunks, err = chunks+n, errors.Join(err, e)
	}
	return chunks, err
}

// reclaim is Reclaim for one socket.
func reclaim(fd int, cfg Config) (chunks int, err error) {
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	q := newQueue(cfg)
	if err != nil {
		return 0, q.fail("reclaim", err)
	}
	q.fd = dup
	defer q.Close()
	q.pool = newPool(cfg.geometry())
	if err := q.mapPoolRings(); err != nil {
		return 0, err
	}
	if err := q.mapSocketRings(); err != nil {
		return 0, err
	}
	if err = access(func() error { chunks, err = q.reclaimShared(); return err }); err != nil {
		err = q.fail("reclaim", err)
	}
	return chunks, err
}

// reclaimShared is Reclaim with everything mapped.
func (q *Queue) reclaimShared() (chunks int, err error) {
	p, c := q.pool, q.pool.shared
	dead := c.me
	c.me = reclaimer
	// Frames that it has not received. Each is marked before its entry is released, so that it is in one of the two places.
	for n := q.rx.peek(^uint32(0)); n > 0; n-- {
		if i := p.chunk(plainAddr(q.rx.desc[q.rx.tail&q.rx.mask].Addr)); i < p.rx {
			atomic.StoreUint64(&c.rx[i], rxWord(rxLeased, reclaimer, 0))
		}
		q.rx.release(1)
	}
	steps := c.fillSteps()
	for i := uint64(0); i < p.rx && steps > 0; i++ {
		if (p.reclaimRX(i, dead, &steps) || p.reclaimRX(i, reclaimer, &steps)) && p.pushFill(i, &steps) {
			chunks++
		}
	}
	if steps == 0 {
		err = errOverwritten
	}
	// Frames that the kernel has not taken, published or not, will not leave. Those that it has taken complete by themselves.
	// Frames of an earlier term were taken from another ring.
	taken, term := q.tx.cons.Load(), atomic.LoadUint64(&c.parts[dead].term)&termMask
	for i := p.txAt; i < p.txAt+p.tx; i++ {
		if w := atomic.LoadUint64(&c.tx[i-p.rx]); w&kindMask == txFlight && w>>40 == term && int32(uint32(w>>8)-taken) >= 0 {
			atomic.CompareAndSwapUint64(&c.tx[i-p.rx], w, txFree)
			chunks++
		}
	}
	return chunks, err
}

// reclaimRX takes RX chunk i from a dead process, if that process had it. The chunk is the reclaimer's then. steps
// bounds failed steps as in pushFill; if none are left, reclaimRX returns false.
func (p *pool) reclaimRX(i, dead uint64, steps *int) bool {
	c := p.shared
	for ; *steps > 0; *steps-- {
		w := atomic.LoadUint64(&c.rx[i])
		if w>>8&0xff != dead {
			return false
		}
		index := uint32(w >> 16)
		switch w & kindMask {
		case rxLeased:
		case rxReturning:
			slot := atomic.LoadUint64(&c.fill[index&c.fillMask])
			if slot == p.entry(i, index) {
				// It is on the ring. The process may have died before it advanced the index.
				atomic.CompareAndSwapUint32(c.fillProd, index, index+1)
				atomic.CompareAndSwapUint64(&c.rx[i], w, rxKernel)
				return false
			}
			// Another chunk got that place: setReturned has seen to this one before the entry was overwritten.
		default:
			return false
		}
		if atomic.CompareAndSwapUint64(&c.rx[i], w, rxWord(rxLeased, reclaimer, 0)) {
			return true
		}
	}
	return false
}
