package xdpnictest

import (
	"sync/atomic"

	"viaxdp/wire"
)

// Queue is a NIC queue in memory, with the methods of xdpnic.Queue. See the
// package comment for who may call what.
type Queue struct {
	wire  *Wire
	cfg   Config
	wait  waiter
	avail atomic.Int64 // entries on the RX ring, for Ready

	// Everything below is guarded by wire.mu.
	mac      [6]byte
	mem      []byte
	base     uint64 // address of chunk 0
	size     uint64 // bytes of a chunk
	rxChunks int
	chunks   []chunk // RX chunks first
	owners   [numStates]int
	wrong    []error // the first misuses
	closed   bool
	cut      bool
	n        Stats
	pkt      wire.Packet

	stack []uint64     // free TX chunks, the last is taken first
	tx    ring[entry]  // segments, published and not
	comp  ring[uint64] // addresses that completed
	kern  int          // entries that the kernel has taken and not completed

	fill     ring[int] // chunk numbers
	recycled []int     // chunk numbers, not yet on the fill ring
	rx       ring[arrival]

	faults Faults
	faulty bool
	dice   dice
	burst  int       // frames of a burst still to lose
	back   []*onLine // frames held back
	onWay  int       // frames on the wire
	lies   Lies
	lying  bool
	liars  [numLiars]dice
}

// What the kernel lies about; each has its own stream of choices.
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
	more bool // the frame goes on in the next
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
		cfg.Memory = make([]byte, cfg.PoolOffset+cfg.PoolBytes())
	}
	if err := cfg.check(); err != nil {
		return nil, err
	}
	q := &Queue{
		wire: w, cfg: cfg, mac: cfg.MAC, mem: cfg.Memory,
		base: uint64(cfg.PoolOffset), size: uint64(cfg.ChunkSize),
		rxChunks: cfg.RxChunks, chunks: make([]chunk, cfg.RxChunks+cfg.TxChunks),
		stack: make([]uint64, 0, cfg.TxChunks), recycled: make([]int, 0, cfg.RxChunks),
		tx: newRing[entry](cfg.TxRing), comp: newRing[uint64](cfg.CompletionRing),
		fill: newRing[int](cfg.FillRing), rx: newRing[arrival](cfg.RxRing),
	}
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
	for i := len(q.chunks) - 1; i >= q.rxChunks; i-- {
		q.stack = append(q.stack, q.addr(i)) // the lowest address is on top
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ends = append(w.ends, q)
	q.setFaults(Faults{})
	return q, nil
}

// SetFaults says what happens from now on to the frames that q sends. Choices
// start anew from the seed.
func (q *Queue) SetFaults(f Faults) {
	q.wire.mu.Lock()
	defer q.wire.mu.Unlock()
	q.setFaults(f)
}

func (q *Queue) setFaults(f Faults) {
	q.faults, q.burst = f, 0
	q.faulty = f.Loss > 0 || f.Burst > 0 || f.Dup > 0 || f.Corrupt > 0 || f.Reorder > 0 || f.Delay > 0 || f.Jitter > 0
	q.dice = newDice(f.Seed, q.place())
	if !q.faulty {
		for len(q.back) > 0 { // nothing will overtake them any more
			q.back[0].behind = 1
			q.overtake()
		}
	}
}

// place is q's number on the wire.
func (q *Queue) place() uint64 {
	for i, e := range q.wire.ends {
		if e == q {
			return uint64(i + 1)
		}
	}
	return 0
}

// SetLies says what q's kernel lies about from now on.
func (q *Queue) SetLies(l Lies) {
	q.wire.mu.Lock()
	defer q.wire.mu.Unlock()
	q.lies = l
	q.lying = l != (Lies{Seed: l.Seed})
	for i := range q.liars {
		q.liars[i] = newDice(l.Seed, q.place()<<8+uint64(i))
	}
}

// Cut takes q off the wire, both ways and without a sign, or puts it on again.
func (q *Queue) Cut(off bool) {
	q.wire.mu.Lock()
	defer q.wire.mu.Unlock()
	q.cut = off
}

// FrameCap is the largest frame in one chunk, sent and received, in bytes.
func (q *Queue) FrameCap() (tx, rx int) {
	return q.cfg.ChunkSize, q.cfg.ChunkSize - headroom - q.cfg.Headroom
}

// MaxSegs is the largest number of segments of a frame, 1 without multi-buffer.
func (q *Queue) MaxSegs() int {
	if q.cfg.MultiBuffer {
		return maxSegs
	}
	return 1
}

// RxChunks is the number of RX chunks.
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
