package xdpnic

import (
	"errors"
	"fmt"
	"math/bits"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Facts of the kernel.
const (
	// PacketHeadroom is how many bytes the kernel keeps free before each
	// received frame, on top of Config.Headroom (XDP_PACKET_HEADROOM).
	PacketHeadroom = unix.XDP_PACKET_HEADROOM
	// MinChunk and MaxChunk bound the chunk size in bytes (net/xdp/xdp_umem.c:
	// XDP_UMEM_MIN_CHUNK_SIZE and PAGE_SIZE).
	MinChunk, MaxChunk = 2048, pageSize
	// MaxSegs is the largest number of TX ring entries of one frame in copy
	// mode: a linear part and MAX_SKB_FRAGS (17) pages. The kernel drops a
	// longer frame and counts it only in tx_invalid_descs.
	MaxSegs = 18
	// MinFrame is the shortest frame in bytes: an Ethernet header.
	MinFrame = 14

	pageSize = 4096
)

// Defaults.
const (
	DefaultChunks = 512 // RX chunks, and TX chunks
	// DefaultSendBuffer is the socket's send buffer in bytes as the kernel
	// counts them: about 768 for a short frame. It bounds the number of frames
	// that the kernel has at a time. veth's queue holds 256 frames and loses the
	// 257th (EBUSY). With this bound the kernel returns EAGAIN instead, and the
	// frame stays on the TX ring.
	DefaultSendBuffer = 192 << 10
	// DefaultTxBudget is the largest number of entries that one kick hands over,
	// on kernels where it can be set (Linux 6.17 and later; 32 before). It
	// spreads the cost of the system call over enough frames, and keeps the
	// thread in the kernel for at most about 100 us.
	DefaultTxBudget = 128
	// DefaultBusyTimeout is how long Open retries while a queue is busy. A queue
	// stays busy for 20 to 25 ms after its last socket is closed, and for seconds on
	// an overloaded machine.
	DefaultBusyTimeout = 2 * time.Second
)

// Rings are the sizes of a socket's four rings in entries, powers of two.
type Rings struct {
	Fill, Completion int // rings of the pool: chunks to the kernel, and back from it
	RX, TX           int // rings of the socket: frames
}

// ringHeader is the head of a ring before its entries: struct xdp_ring (net/xdp/xsk_queue.h), with
// cache lines of 64 bytes.
const ringHeader = 320

// Bytes returns the memory that the kernel allocates for the rings (xskq_create), in whole pages. It counts
// towards no limit of locked memory, and stays until the socket is gone.
func (r Rings) Bytes() int {
	return ringBytes(r.Fill, addrSize) + ringBytes(r.Completion, addrSize) + r.SocketBytes()
}

// SocketBytes is Bytes of the RX and TX rings alone. If processes share a queue, each has these.
func (r Rings) SocketBytes() int { return ringBytes(r.RX, descSize) + ringBytes(r.TX, descSize) }

func ringBytes(entries, size int) int {
	return (ringHeader + entries*size + pageSize - 1) &^ (pageSize - 1)
}

// BusyPoll holds the socket options of preferred busy polling, for NICs with a
// NAPI instance per queue (Documentation/networking/napi.rst). Leave it zero
// on veth, where it has no effect or slows down.
type BusyPoll struct {
	Prefer bool // SO_PREFER_BUSY_POLL; not with zero-copy, see Trust
	// Trust allows Prefer with zero-copy. Set it only for a driver that sends
	// from the NAPI instance that it receives from.
	Trust  bool
	Usec   int // SO_BUSY_POLL, microseconds; 0: option not set
	Budget int // SO_BUSY_POLL_BUDGET, frames; 0: option not set
}

// Config describes which queue to open and how. The zero value of a field means
// its default; only Ifindex has none.
type Config struct {
	Ifindex int // interface index in the network namespace of the calling thread
	QueueID int // queue of the interface, from 0
	// ExtraQueues are further queues from which the Queue receives, at most MaxExtraQueues. Each has a socket, and RX chunks as
	// many as RxChunks: see Queue.FDs. Not in zero-copy mode.
	ExtraQueues []int

	// Memory is the UMEM, all of it: page aligned, a multiple of 4096 bytes,
	// and valid until the Queue is closed. The pool of chunks lies in it at
	// PoolOffset; the rest is the caller's registered memory, which SendSegs
	// sends without a copy. nil: Open maps PoolBytes of memory of its own.
	Memory     []byte
	PoolOffset int // bytes, a multiple of 4096

	ChunkSize   int  // bytes. 0: 2048 when a frame of the MTU fits and nothing is received without a copy, else 4096
	Headroom    int  // bytes that the kernel leaves free before a frame, on top of PacketHeadroom
	Unaligned   bool // chunks of any size from 2048 to 4096; registered memory may cross chunk boundaries
	MultiBuffer bool // frames of several segments, in both directions (XDP_USE_SG)
	RxChunks    int  // number of chunks for receiving
	TxChunks    int  // number of chunks for sending

	// Rings holds the sizes of the four rings, in entries, powers of two;
	// default: the power of two that holds the chunks. The fill ring must hold
	// all RX chunks, the completion ring as much as the TX ring.
	Rings Rings

	// Mode is the best data path to try; ModeAuto: all of them. With Require,
	// Open fails if Mode is not available, instead of trying the next one.
	Mode    Mode
	Require bool

	SendBuffer int // bytes, see DefaultSendBuffer; < 0: leave the system's default
	TxBudget   int // entries a kick, 32 to the size of the TX ring; < 0: leave 32
	BusyPoll   BusyPoll
	// MaxSegs is the largest number of segments of a frame sent. Default: what
	// the mode allows (18 when copying, 17 on virtio-net, or the driver's
	// xdp-zc-max-segs).
	MaxSegs     int
	BusyTimeout time.Duration // see DefaultBusyTimeout; < 0: do not try again

	// Sharing lets other processes use the queue, too: see Join. Memory must be in a file that
	// they can map.
	Sharing Sharing

	// Share makes the new queue use the registered memory of another Queue
	// (XDP_SHARED_UMEM), which may be on another queue, device or namespace. The
	// new queue has its own rings and pool. Memory, ChunkSize, Headroom,
	// Unaligned, MultiBuffer, Mode and Require are taken from the other Queue.
	// PoolOffset must lie past its pool, and it must not be closed while Open
	// runs. For a second socket on the same queue see Queue.Share.
	Share *Queue
}

// WithDefaults replaces zero fields by their defaults and checks the others. If
// ChunkSize is 0 it asks the kernel for the MTU. Open calls it. Callers use it
// to learn PoolBytes before they allocate memory.
func (c Config) WithDefaults() (Config, error) {
	if c.Share != nil {
		s := c.Share.cfg
		c.Memory, c.ChunkSize, c.Headroom = s.Memory, s.ChunkSize, s.Headroom
		c.Unaligned, c.MultiBuffer, c.Mode, c.Require = s.Unaligned, s.MultiBuffer, s.Mode, s.Require
	}
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.RxChunks, DefaultChunks)
	def(&c.TxChunks, DefaultChunks)
	if err := c.checkChunks(); err != nil { // the ring sizes depend on them
		return c, err
	}
	if c.ChunkSize == 0 {
		if err := c.chunkFromMTU(); err != nil {
			return c, err
		}
	}
	if err := errors.Join(c.checkSharing(), c.checkExtra()); err != nil {
		return c, err
	}
	r, l := &c.Rings, c.layout()
	def(&r.Fill, powerOfTwo(l.rx))
	def(&r.RX, c.rxRing())
	def(&r.TX, powerOfTwo(c.txChunks()))
	def(&r.Completion, c.completionRing())
	def(&c.SendBuffer, DefaultSendBuffer)
	def(&c.TxBudget, min(DefaultTxBudget, r.TX))
	if c.BusyTimeout == 0 {
		c.BusyTimeout = DefaultBusyTimeout
	}
	return c, c.check()
}

func (c *Config) checkChunks() error {
	if c.RxChunks < 1 || c.TxChunks < 1 || c.RxChunks > 1<<24 || c.TxChunks > 1<<24 {
		return c.bad("%d RX and %d TX chunks: each must be 1 to 16 Mi", c.RxChunks, c.TxChunks)
	}
	return nil
}

func (c *Config) chunkFromMTU() error {
	link, err := linkOf(c.Ifindex)
	if err != nil {
		return &OpError{Op: "mtu", Ifindex: c.Ifindex, Queue: c.QueueID, Err: err}
	}
	const ethernet = 14 + 4 // header and one VLAN tag
	c.ChunkSize = MinChunk
	if link.Attrs().MTU+ethernet > MinChunk-PacketHeadroom-c.Headroom || c.mayZeroCopy(link.Attrs()) {
		c.ChunkSize = MaxChunk
	}
	return nil
}

// mayZeroCopy reports whether the queue may get zero-copy mode, for which chunks
// of 2048 bytes are too small: NICs take buffers in steps of 1024 bytes, so igb
// writes only 1024 bytes into the 1792 that such a chunk leaves.
func (c *Config) mayZeroCopy(link *netlink.LinkAttrs) bool {
	if steps := Ladder(c.Mode, c.Require); len(steps) == 0 || steps[0] != ModeZeroCopy {
		return false
	}
	return zeroCopyPossible(link, QueryFeatures)
}

// zeroCopyPossible reports whether an interface may have zero-copy queues. A kernel before 6.3 does not say what a driver can do:
// a device on a bus may.
func zeroCopyPossible(link *netlink.LinkAttrs, query func(ifindex int) (Features, error)) bool {
	f, err := query(link.Index)
	return err == nil && f.XDP.Has(FeatureZeroCopy) || err != nil && link.ParentDevBus != ""
}

func (c *Config) check() error {
	if err := errors.Join(c.checkChunks(), c.checkSharing(), c.checkExtra()); err != nil {
		return err
	}
	switch n := c.ChunkSize; {
	case n < MinChunk || n > MaxChunk:
		return c.bad("chunk size %d: the kernel takes %d to %d bytes", n, MinChunk, MaxChunk)
	case !c.Unaligned && n != powerOfTwo(n):
		return c.bad("chunk size %d: must be a power of two unless chunks are unaligned", n)
	case c.Headroom < 0 || c.Headroom > n-PacketHeadroom-MinFrame:
		return c.bad("headroom %d: a chunk of %d bytes has no room for a frame after the kernel's %d", c.Headroom, n, PacketHeadroom)
	}
	for _, r := range []struct {
		name string
		n    int
	}{
		{"fill", c.Rings.Fill}, {"completion", c.Rings.Completion},
		{"RX", c.Rings.RX}, {"TX", c.Rings.TX},
	} {
		if r.n < 1 || r.n > 1<<24 || r.n != powerOfTwo(r.n) {
			return c.bad("%s ring of %d entries: must be a power of two", r.name, r.n)
		}
	}
	switch l := c.layout(); {
	case c.Rings.Fill < l.rx:
		return c.bad("fill ring of %d entries does not hold %d RX chunks", c.Rings.Fill, l.rx)
	case c.shared() && c.Rings.RX < c.rxChunks():
		return c.bad("RX ring of %d entries: a process that shares a queue needs %d", c.Rings.RX, c.rxChunks())
	case c.Rings.Completion < c.Rings.TX:
		return c.bad("completion ring of %d entries is smaller than the TX ring of %d",
			c.Rings.Completion, c.Rings.TX)
	case c.PoolOffset < 0 || c.PoolOffset%pageSize != 0:
		return c.bad("pool offset %d: must be a multiple of %d", c.PoolOffset, pageSize)
	case c.Memory == nil:
		if c.PoolOffset != 0 {
			return c.bad("pool offset %d without memory", c.PoolOffset)
		}
		return nil
	case !pageAligned(c.Memory) || len(c.Memory)%pageSize != 0:
		return c.bad("memory must start on a page and be a multiple of %d bytes long; it has %d", pageSize, len(c.Memory))
	case c.PoolOffset > len(c.Memory) || c.PoolBytes() > len(c.Memory)-c.PoolOffset:
		return c.bad("a pool of %d bytes, of chunks of %d, at offset %d does not fit %d bytes of memory",
			c.PoolBytes(), c.ChunkSize, c.PoolOffset, len(c.Memory))
	}
	return nil
}

// PoolBytes is the size of the pool of chunks, those of ExtraQueues included, in whole pages. Call
// it on the result of WithDefaults.
func (c Config) PoolBytes() int {
	n := c.firstPoolBytes()
	if len(c.ExtraQueues) > 0 {
		a := c.extra(0)
		n += len(c.ExtraQueues) * a.firstPoolBytes()
	}
	return n
}

// firstPoolBytes is the size of the pool of queue QueueID.
func (c *Config) firstPoolBytes() int {
	l := c.layout()
	n := l.chunks()*c.ChunkSize + l.tableBytes()
	return (n + pageSize - 1) / pageSize * pageSize
}

func (c *Config) bad(format string, args ...any) error {
	return &OpError{Op: "config", Ifindex: c.Ifindex, Queue: c.QueueID,
		Err: fmt.Errorf(format+": %w", append(args, errConfig)...)}
}

var errConfig = errors.New("bad configuration")

// powerOfTwo is the smallest power of two that is at least n.
func powerOfTwo(n int) int { return 1 << bits.Len(uint(max(n, 1)-1)) }
