package xdpnictest

import (
	"errors"
	"fmt"
	"net/netip"
)

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
	// Memory stands for the UMEM. The pool of chunks lies in it at PoolOffset,
	// RX chunks first. nil: memory of its own, just large enough.
	Memory     []byte
	PoolOffset int // bytes

	ChunkSize          int // bytes, a power of two
	Headroom           int // bytes before a received frame, beyond 256
	RxChunks, TxChunks int

	// Rings, in entries. Default: the fill ring holds the RX chunks, as does the
	// RX ring; the TX and completion rings hold the TX chunks.
	FillRing, RxRing, TxRing, CompletionRing int

	MultiBuffer bool // frames of several segments

	// MAC is the hardware address. The zero one takes what any other queue of
	// the wire sends.
	MAC [6]byte

	// Admit decides as the demux program would whether a frame may come in:
	// by the VI and key that it carries and its source address. Frames that are
	// no VIA data frames are not asked about and do not come in. nil: all do.
	// It is called with the wire locked: it must not call the queue.
	Admit func(vi uint32, key uint64, src netip.Addr) bool
}

// PoolBytes is the size of the pool of chunks.
func (c Config) PoolBytes() int {
	c.defaults()
	return (c.RxChunks + c.TxChunks) * c.ChunkSize
}

func (c *Config) defaults() {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.ChunkSize, DefaultChunkSize)
	def(&c.RxChunks, DefaultChunks)
	def(&c.TxChunks, DefaultChunks)
	def(&c.FillRing, c.RxChunks)
	def(&c.RxRing, c.RxChunks)
	def(&c.TxRing, c.TxChunks)
	def(&c.CompletionRing, c.TxRing)
}

func (c *Config) check() error {
	switch {
	case c.ChunkSize < 512 || c.ChunkSize&(c.ChunkSize-1) != 0:
		return fmt.Errorf("xdpnictest: chunks of %d bytes: a power of two from 512 on", c.ChunkSize)
	case c.Headroom < 0 || c.ChunkSize-headroom-c.Headroom < minFrame:
		return fmt.Errorf("xdpnictest: headroom of %d bytes in chunks of %d", c.Headroom, c.ChunkSize)
	case c.RxChunks < 0 || c.TxChunks < 0 || c.RxRing < 1 || c.TxRing < 1 || c.CompletionRing < 1:
		return errors.New("xdpnictest: a negative number of chunks or ring entries")
	case c.FillRing < c.RxChunks:
		return fmt.Errorf("xdpnictest: fill ring of %d entries for %d RX chunks", c.FillRing, c.RxChunks)
	case c.PoolOffset < 0 || c.PoolOffset%c.ChunkSize != 0:
		return fmt.Errorf("xdpnictest: pool offset %d: a multiple of the chunk size", c.PoolOffset)
	case c.PoolOffset+c.PoolBytes() > len(c.Memory):
		return fmt.Errorf("xdpnictest: pool of %d bytes at %d in memory of %d", c.PoolBytes(), c.PoolOffset, len(c.Memory))
	}
	return nil
}
