package xdpnic

import (
	"context"
	"errors"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Desc is an entry of the RX or TX ring, a segment of a frame: address in the
// UMEM, length in bytes, options (struct xdp_desc, 16 bytes, linux/if_xdp.h).
type Desc = unix.XDPDesc

// Frame is one received segment.
type Frame struct {
	Addr uint64 // address of Data in the UMEM; Recycle takes it
	Data []byte // the bytes, in the UMEM; the caller's until Recycle
	More bool   // the frame continues in the next segment (multi-buffer)
}

// Queue is one AF_XDP socket on one queue of an interface, with its rings and its chunks, and one more for each of
// Config.ExtraQueues. The package comment lists the goroutines that may call each method.
type Queue struct {
	// Fields of the data path. Owner only.
	pool *pool
	tx   txRing
	pend uint32 // entries written at tx.head, not published
	zc   bool   // bound in zero-copy mode
	// fence orders a store to a ring before the load of a flag: a locked
	// instruction orders all memory accesses.
	fence atomic.Uint32
	fd    int
	rx    rxRing
	// n has the counts that the owner keeps. Its Transmitted counts entries that were published; Stats subtracts those that are
	// still on the ring, and adds the counts of the pool and the kernel.
	n     Stats
	extra []*Queue // of Config.ExtraQueues; constant once the queue is open
	turn  int      // the queue that Receive looked at last: 0 is this one, n is extra[n-1]
	// The pools of extra follow each other at extraBase, each of extraBytes.
	extraBase, extraBytes uint64

	// Set by Open, constant afterwards.
	cfg   Config
	info  Info
	txMem ringMem
	rxMem ringMem
	last  Stats // the counts at Close

	// Fields that any goroutine may use.
	_    [64]byte
	wait waiter
	look consumer // the RX ring's indices, for Ready; Close leaves them
}

// Info describes an open queue. It does not change.
type Info struct {
	Ifindex, QueueID int
	ExtraQueues      []int
	// Mode as far as the bind decides it: zero-copy, or the copying mode that
	// Config.Mode led to.
	Mode     Mode
	Attempts []Attempt // the steps tried, with the reason for each better mode that was refused
	ZeroCopy bool      // zero-copy, as XDP_OPTIONS reports
	// NeedWakeup reports that the kernel may ask for kicks. In copy mode every
	// Flush kicks.
	NeedWakeup  bool
	MultiBuffer bool
	// TxCopied reports that the kernel has copied a frame once it has taken it off
	// the TX ring. Otherwise (zero-copy mode, and virtio-net) the kernel or the NIC
	// reads the UMEM until the frame completes.
	TxCopied    bool
	Unaligned   bool
	Shared      bool    // the queue uses the UMEM of another socket
	Sharing     Sharing // the processes that may use the queue, and this one's number
	Headroom    int     // bytes, beyond PacketHeadroom
	MaxSegs     int     // largest number of TX ring entries of a frame
	SendBuffer  int     // bytes, as the kernel counts them
	TxBudget    int     // TX ring entries per kick
	PoolOffset  int     // bytes
	PoolBytes   int     // bytes
	Features    Features
	FeaturesErr error // why Features is empty
	Rings       Rings
	Chunks      int // RX and TX chunks of the pool
	ChunkSize   int // bytes
}

// Open makes a socket on a queue: it registers the memory, maps the four rings,
// gives all RX chunks to the kernel and binds. Frames arrive once the caller has
// put FD into the XSKMAP of an XDP program attached to the interface.
//
// Open works in the network namespace of the calling thread. It needs
// CAP_NET_RAW, and CAP_IPC_LOCK or a sufficient RLIMIT_MEMLOCK. While the queue
// is busy it retries for Config.BusyTimeout. Errors are *OpError.
func Open(cfg Config) (*Queue, error) { return OpenContext(context.Background(), cfg) }

// OpenContext is Open with a context. If ctx ends while the queue is busy, it fails at
// once with an error that wraps the cause.
func OpenContext(ctx context.Context, cfg Config) (*Queue, error) {
	cfg, err := cfg.WithDefaults()
	if err != nil {
		return nil, err
	}
	if cfg.Share != nil && cfg.Share.fd < 0 {
		return nil, &OpError{Op: "share", Ifindex: cfg.Ifindex, Queue: cfg.QueueID, Err: ErrClosed}
	}
	q := newQueue(cfg)
	if err := q.open(ctx); err != nil {
		q.Close()
		return nil, err
	}
	return q, nil
}

func newQueue(cfg Config) *Queue {
	q := &Queue{cfg: cfg, fd: -1}
	q.wait.event = -1
	q.look = shutConsumer()
	q.shut()
	return q
}

func (q *Queue) fail(op string, err error) error {
	return &OpError{Op: op, Ifindex: q.cfg.Ifindex, Queue: q.cfg.QueueID, Err: err}
}

func (q *Queue) open(ctx context.Context) (err error) {
	c := &q.cfg
	if err := q.socket(); err != nil {
		return err
	}
	var u *umem
	if c.Share != nil {
		u = c.Share.pool.umem
	} else {
		if u, err = newUMEM(c.Memory, c.PoolBytes()); err != nil {
			return q.fail("memory", err)
		}
		c.Memory = u.mem
	}
	q.pool = newPool(c.geometry())
	if err := u.get(q.pool, &q.cfg); err != nil {
		return q.fail("memory", err)
	}
	if c.Share == nil {
		var flags uint32
		if c.Unaligned {
			flags = unix.XDP_UMEM_UNALIGNED_CHUNK_FLAG
		}
		if err := setUMEM(q.fd, c.Memory, c.ChunkSize, c.Headroom, flags); err != nil {
			return q.fail("umem", err)
		}
	}
	if err := q.poolRings(); err != nil {
		return err
	}
	if err := q.socketRings(); err != nil {
		return err
	}
	if q.cfg.shared() {
		q.pool.takePartition()
	}
	q.pool.giveAll()
	if err := q.bind(ctx); err != nil {
		return err
	}
	if err := q.describe(); err != nil {
		return err
	}
	return q.openExtra(ctx)
}

// socket makes the socket and the event descriptor.
func (q *Queue) socket() (err error) {
	if q.fd, err = unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
		q.fd = -1
		return q.fail("socket", err)
	}
	if q.wait.event, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		q.wait.event = -1
		return q.fail("eventfd", err)
	}
	q.wait.fd = q.fd
	return nil
}

// poolRings makes and maps the fill and completion rings.
func (q *Queue) poolRings() error {
	r := &q.cfg.Rings
	if err := q.setInt("fill ring", unix.XDP_UMEM_FILL_RING, r.Fill); err != nil {
		return err
	}
	if err := q.setInt("completion ring", unix.XDP_UMEM_COMPLETION_RING, r.Completion); err != nil {
		return err
	}
	return q.mapPoolRings()
}

func (q *Queue) mapPoolRings() error {
	r := &q.cfg.Rings
	off, err := mmapOffsets(q.fd)
	if err != nil {
		return q.fail("ring offsets", err)
	}
	p := q.pool
	p.fillMem, err = mapRing(q.fd, unix.XDP_UMEM_PGOFF_FILL_RING, off.Fr, r.Fill, addrSize)
	if err != nil {
		return q.fail("map fill ring", err)
	}
	p.compMem, err = mapRing(q.fd, unix.XDP_UMEM_PGOFF_COMPLETION_RING, off.Cr, r.Completion, addrSize)
	if err != nil {
		return q.fail("map completion ring", err)
	}
	p.fill, p.comp = p.fillMem.fill(), p.compMem.completion()
	if q.cfg.shared() {
		if err := p.initShared(&q.cfg); err != nil {
			return q.fail("share", err)
		}
	}
	return nil
}

// socketRings makes and maps the RX and TX rings and sets the options that
// belong to them.
func (q *Queue) socketRings() error {
	r := &q.cfg.Rings
	if err := q.setInt("RX ring", unix.XDP_RX_RING, r.RX); err != nil {
		return err
	}
	if err := q.setInt("TX ring", unix.XDP_TX_RING, r.TX); err != nil {
		return err
	}
	if err := q.mapSocketRings(); err != nil {
		return err
	}
	return q.socketOptions()
}

func (q *Queue) mapSocketRings() error {
	r := &q.cfg.Rings
	off, err := mmapOffsets(q.fd)
	if err != nil {
		return q.fail("ring offsets", err)
	}
	if q.rxMem, err = mapRing(q.fd, unix.XDP_PGOFF_RX_RING, off.Rx, r.RX, descSize); err != nil {
		return q.fail("map RX ring", err)
	}
	if q.txMem, err = mapRing(q.fd, unix.XDP_PGOFF_TX_RING, off.Tx, r.TX, descSize); err != nil {
		return q.fail("map TX ring", err)
	}
	q.rx, q.tx = q.rxMem.rx(), q.txMem.tx()
	q.look = q.rx.consumer
	return nil
}

func (q *Queue) setInt(op string, option, value int) error {
	if err := unix.SetsockoptInt(q.fd, unix.SOL_XDP, option, value); err != nil {
		return q.fail(op, err)
	}
	return nil
}

// FD returns the socket's descriptor, to be put into an XSKMAP. The Queue keeps
// ownership: do not close it. It is -1 after Close.
func (q *Queue) FD() int { return q.fd }

// Info describes the open queue. Any goroutine.
func (q *Queue) Info() Info { return q.info }

// Close releases the socket (which leaves the XSKMAPs and unbinds), the rings,
// and the memory that Open mapped. It wakes the goroutines in Wait and waits
// until they have returned. The caller removes its map entries first. If other
// sockets share the pool, they get back the chunks in this socket's rings.
//
// Owner only. After Close every method is harmless: there is nothing to receive
// and no room to send, and Flush and Wait return ErrClosed. A second Close does
// nothing.
func (q *Queue) Close() error {
	if q.wait.closed.Swap(true) {
		return nil
	}
	q.wait.evict()
	var errs []error
	if q.fd >= 0 {
		q.last, _ = q.Stats()
	}
	for _, a := range q.extra {
		errs = append(errs, a.Close())
	}
	if q.fd >= 0 {
		errs = append(errs, unix.Close(q.fd))
		q.fd = -1
	}
	if q.wait.event >= 0 {
		errs = append(errs, unix.Close(q.wait.event))
		q.wait.event = -1
	}
	p := q.pool
	p.users--
	if p.users > 0 {
		q.reclaim()
	} else {
		errs = append(errs, p.fillMem.unmap(), p.compMem.unmap(), p.umem.put(p))
	}
	errs = append(errs, q.txMem.unmap(), q.rxMem.blank(q))
	q.shut()
	if err := errors.Join(errs...); err != nil {
		return q.fail("close", err)
	}
	return nil
}

// shut replaces the rings and the pool by empty ones.
func (q *Queue) shut() {
	q.tx, q.rx, q.pend = txRing{producer: shutProducer()}, rxRing{consumer: shutConsumer()}, 0
	q.pool = newPool(geometry{size: 1, shift: 1})
}
