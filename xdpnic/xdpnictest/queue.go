package xdpnictest

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"

	"viaxdp/internal/base/wire"
)

// Queue is a NIC queue in memory, with the methods of xdpnic.Queue. The package comment lists the goroutines
// that may call each method.
type Queue struct {
	wire  *Wire
	cfg   Config
	wait  waiter
	avail atomic.Int64 // entries on the RX ring, for Ready

	// Everything below is guarded by wire.mu.
	mem    []byte
	size   uint64  // bytes of a chunk
	chunks []chunk // RX chunks first
	owners [numStates]int
	wrong  []error // the first misuses
	closed bool
	cut    bool
	n      Stats
	pkt    wire.Packet

	stack []uint64     // free TX chunks, the last is taken first
	tx    ring[entry]  // segments, published and not
	taken ring[entry]  // taken off the TX ring and not sent: only while a zero-copy NIC stalls
	comp  ring[uint64] // addresses that completed
	kern  int          // entries that the kernel has taken and not completed

	fill     ring[int] // chunk numbers
	recycled []int     // chunk numbers, not yet on the fill ring
	rx       ring[arrival]

	faults       Faults
	faulty       bool
	randomSource randomSource
	back         []*onLine // frames held back
	lies         Lies
	lying        bool
	liars        [numLiars]randomSource
}

// The kernel's lies. Each kind has its own random source.
const (
	lieSend = iota
	lieFlush
	lieCompletion
	lieRx
	numLiars
)

// entry is one segment on the TX ring.
type entry struct {
	addr uint64
	n    uint32
	more bool // the frame continues in the next entry

	blank bool // cancelled: it names no memory
}

// arrival is one segment on the RX ring.
type arrival struct {
	addr uint64
	n    uint64
	more bool
}

// Queue joins a new queue to the wire. All its RX chunks are on the fill ring.
func (w *Wire) Queue(cfg Config) (*Queue, error) {
	cfg.defaults()
	if cfg.Memory == nil {
		cfg.Memory = make([]byte, cfg.PoolBytes())
	}
	if err := cfg.check(); err != nil {
		return nil, err
	}
	q := &Queue{
		wire: w, cfg: cfg, mem: cfg.Memory, size: uint64(cfg.ChunkSize), chunks: make([]chunk, cfg.RxChunks+cfg.TxChunks),
		stack: make([]uint64, 0, cfg.TxChunks), recycled: make([]int, 0, cfg.RxChunks),
		tx: newRing[entry](cfg.TxRing), taken: newRing[entry](cfg.CompletionRing), comp: newRing[uint64](cfg.CompletionRing),
		fill: newRing[int](cfg.RxChunks), rx: newRing[arrival](cfg.RxRing),
	}
	q.wait.cond.L = &q.wait.mu
	for i := range q.chunks {
		c := &q.chunks[i]
		c.last = "the beginning"
		if !q.isTx(i) {
			c.state = filled
			q.fill.put(i)
		}
		q.owners[c.state]++
		q.freeze(i)
	}
	for i := len(q.chunks) - 1; i >= cfg.RxChunks; i-- {
		q.stack = append(q.stack, q.addr(i)) // the lowest address is on top
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ends = append(w.ends, q)
	q.setFaults(Faults{})
	return q, nil
}

// SetFaults sets the faults of the frames that q sends from now on. The random source restarts from the seed.
func (q *Queue) SetFaults(f Faults) {
	q.wire.mu.Lock()
	defer q.wire.mu.Unlock()
	q.setFaults(f)
}

func (q *Queue) setFaults(f Faults) {
	q.faults = f
	q.faulty = f.Loss > 0 || f.Burst > 0 || f.Dup > 0 || f.Corrupt > 0 || f.Reorder > 0 || f.Delay > 0 || f.Jitter > 0
	q.randomSource = newRandomSource(f.Seed, q.place())
	if !q.faulty {
		for len(q.back) > 0 { // no later frame can overtake them
			q.back[0].behind = 1
			q.overtake()
		}
	}
}

// place returns q's number on the wire, from 1.
func (q *Queue) place() uint64 { return uint64(slices.Index(q.wire.ends, q) + 1) }

// SetLies sets the lies of q's kernel from now on.
func (q *Queue) SetLies(l Lies) {
	q.wire.mu.Lock()
	defer q.wire.mu.Unlock()
	q.lies = l
	q.lying = l != (Lies{Seed: l.Seed})
	for i := range q.liars {
		q.liars[i] = newRandomSource(l.Seed, q.place()<<8+uint64(i))
	}
	if l.Stall == 0 {
		q.transmit() // a NIC continues without a call
	}
}

// Cut disconnects q from the wire in both directions without notice, or reconnects it.
func (q *Queue) Cut(off bool) {
	q.wire.mu.Lock()
	defer q.wire.mu.Unlock()
	q.cut = off
}

// FrameCap returns the largest frame in one chunk, sent and received, in bytes.
func (q *Queue) FrameCap() (tx, rx int) {
	return q.cfg.ChunkSize, q.cfg.ChunkSize - headroom
}

// MaxSegs returns the largest number of segments of a frame, 1 without multi-buffer.
func (q *Queue) MaxSegs() int {
	if q.cfg.MultiBuffer {
		return maxSegs
	}
	return 1
}

// RxChunks returns the number of RX chunks.
func (q *Queue) RxChunks() int { return q.cfg.RxChunks }

// Close takes the queue off the wire and ends every Wait. Afterwards the other
// methods are harmless: nothing to receive, no room to send, ErrClosed.
func (q *Queue) Close() error {
	q.wire.mu.Lock()
	q.closed = true
	q.avail.Store(0)
	q.wire.mu.Unlock()
	q.wait.close()
	return nil
}

// Defaults of a Config.
const (
	DefaultChunks    = 512
	DefaultChunkSize = 2048 // bytes

	headroom = 256 // bytes before a received frame, as xdpnic.PacketHeadroom
	minFrame = 14  // bytes, as xdpnic.MinFrame
	maxSegs  = 18  // segments of a frame sent, as xdpnic.MaxSegs
)

// Config describes a queue. The zero value of a field means its default.
type Config struct {
	// Memory stands for the UMEM. It begins with the pool of chunks, RX chunks
	// first. nil: memory of its own, just large enough.
	Memory []byte

	ChunkSize          int // bytes, a power of two
	RxChunks, TxChunks int

	// Rings, in entries. Default: the RX ring holds the RX chunks, as the fill ring
	// does; the TX and completion rings hold the TX chunks.
	RxRing, TxRing, CompletionRing int

	MultiBuffer bool // frames of several segments
	MaxFrame    int  // bytes of the longest frame that may be sent; 0: any
	// ZeroCopy: Flush hands the entries to a NIC, which reads a frame when it sends it.
	// Lies.Stall then stops the NIC, not the kernel: the TX ring empties.
	ZeroCopy bool

	// MAC is the hardware address. A queue with the zero address receives all that other queues of the wire
	// send.
	MAC [6]byte

	// Admit decides in place of the demux program whether a data frame may come in: by its VI and key and its
	// source address. nil: all may. Other frames never come in. Admit is called with the wire locked, so it
	// must not call the queue.
	Admit func(vi uint32, key uint64, src netip.Addr) bool
}

// PoolBytes returns the size of the pool of chunks.
func (c Config) PoolBytes() int {
	c.defaults()
	return (c.RxChunks + c.TxChunks) * c.ChunkSize
}

func (c *Config) defaults() {
	c.ChunkSize = cmp.Or(c.ChunkSize, DefaultChunkSize)
	c.RxChunks, c.TxChunks = cmp.Or(c.RxChunks, DefaultChunks), cmp.Or(c.TxChunks, DefaultChunks)
	c.RxRing, c.TxRing = cmp.Or(c.RxRing, c.RxChunks), cmp.Or(c.TxRing, c.TxChunks)
	c.CompletionRing = cmp.Or(c.CompletionRing, c.TxRing)
}

func (c *Config) check() error {
	switch {
	case c.ChunkSize < 512 || c.ChunkSize&(c.ChunkSize-1) != 0:
		return fmt.Errorf("xdpnictest: chunks of %d bytes: a power of two from 512 on", c.ChunkSize)
	case c.RxChunks < 0 || c.TxChunks < 0 || c.RxRing < 1 || c.TxRing < 1 || c.CompletionRing < 1:
		return errors.New("xdpnictest: a negative number of chunks or ring entries")
	case c.PoolBytes() > len(c.Memory):
		return fmt.Errorf("xdpnictest: pool of %d bytes in memory of %d", c.PoolBytes(), len(c.Memory))
	}
	return nil
}

// ring is a queue of bounded length.
type ring[T any] struct {
	at   []T
	head int // first entry
	n    int // entries
}

func newRing[T any](size int) ring[T] { return ring[T]{at: make([]T, size)} }

func (r *ring[T]) room() int { return len(r.at) - r.n }

// put adds an entry; there must be room.
func (r *ring[T]) put(v T) {
	r.at[(r.head+r.n)%len(r.at)] = v
	r.n++
}

// peek returns entry i from the head.
func (r *ring[T]) peek(i int) *T { return &r.at[(r.head+i)%len(r.at)] }

// pop removes n entries.
func (r *ring[T]) pop(n int) {
	r.head = (r.head + n) % len(r.at)
	r.n -= n
}

// Stats are the counts of a queue since it was made. The conservation law for
// the frames of a wire with two queues, when nothing is on the way:
//
//	Carried + Duplicated = Cut + Filtered + Lost + LostBurst + Nowhere + the peer's Arrived
//	Arrived = RxCut + RxNotOurs + RxRefused + RxTooLong + RxRingFull + RxNoFill + RxQueued
type Stats struct {
	TxFrames         uint64 // frames taken by Send and SendSegs
	TxFull           uint64 // refused because the TX ring was full
	TxCompleted      uint64 // entries taken off the completion ring
	TxBadCompletions uint64 // ignored completions: no chunk in flight

	// Outcomes of the frames that the queue sent.
	Carried    uint64 // frames given to the wire
	Cut        uint64 // drop: the wire, or this queue, was cut
	Filtered   uint64 // drop: Faults.Drop
	Lost       uint64 // drop: Faults.Loss
	LostBurst  uint64 // drop: Faults.Burst
	Nowhere    uint64 // drop: no queue has that hardware address
	Duplicated uint64 // frames that went twice
	Corrupted  uint64 // frames with flipped bits
	Reordered  uint64 // frames held back for others to overtake
	Delayed    uint64 // frames that took time

	// Outcomes of the frames that arrived for the queue.
	Arrived    uint64
	RxCut      uint64 // drop: this queue was cut or closed
	RxNotOurs  uint64 // drop: no VIA data frame; the kernel's stack would get it
	RxRefused  uint64 // drop: refused by Admit (unknown VI, key, source)
	RxTooLong  uint64 // drop: longer than a chunk, without multi-buffer
	RxRingFull uint64 // drop: the RX ring was full
	RxNoFill   uint64 // drop: the fill ring was empty
	RxQueued   uint64 // frames put on the RX ring

	RxFrames      uint64 // frames handed out by Receive
	RxTooManySegs uint64 // drop: more segments than the caller's batch
	RxBadEntries  uint64 // RX entries ignored: no chunk that the kernel was given

	// Lies by kind.
	LiedSend, LiedFlush, Stalled                                 uint64
	LiedLostCompletion, LiedDoubleCompletion, LiedWildCompletion uint64
	LiedWildRx, LiedLength, LiedSplit                            uint64

	Misuses uint64 // wrong uses by the program; Audit names the first
}

// Stats returns the current counts.
func (q *Queue) Stats() Stats {
	q.wire.mu.Lock()
	defer q.wire.mu.Unlock()
	return q.n
}

// Lost returns how many frames Faults.Loss has lost, on all queues.
func (w *Wire) Lost() (n uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, q := range w.ends {
		n += q.n.Lost
	}
	return n
}
