package bench

import "viaxdp/xdpnic"

// longRaw is how raw AF_XDP sends and takes frames that are longer than a chunk:
// each lies in one piece in a slot of its own, headers included, and the TX ring
// names the pages of the slot; a frame that arrives is in several chunks.
//
// In copy mode the kernel has read a frame when the doorbell returns. So the
// slots are used from the first one on after each flush, and stay in the cache.
type longRaw struct {
	r      *rawXDP
	base   int // of the slots in the UMEM
	slot   int // that next gave
	queued int // entries since the last flush
	segs   [longSlot / longPage]xdpnic.Desc
	pieces [][]byte // of the frame that arrived, all but the first
}

const (
	longPage  = 4096
	longSlot  = 17 * longPage // a frame of the largest MTU
	longSlots = 8
	longFlush = 64 // entries that are handed to the kernel at once
)

// needsLong says whether a frame of the MTU is longer than a chunk.
func needsLong(mtu int, cfg xdpnic.Config) bool {
	return mtu+ethernetHeader > cfg.ChunkSize-xdpnic.PacketHeadroom-cfg.Headroom
}

// units, see chained. Without long frames every frame takes one.
func (r *rawXDP) units(n int) int {
	if r.long == nil {
		return 1
	}
	_, chunk := r.q.FrameCap()
	return (r.skip + n + chunk - 1) / chunk
}

// rest, see chained.
func (r *rawXDP) rest() [][]byte {
	if r.long == nil {
		return nil
	}
	return r.long.pieces
}

func (l *longRaw) next() []byte {
	at := l.base + l.slot*longSlot
	return l.r.arena.Bytes()[at : at+longSlot]
}

func (l *longRaw) commit(n int) error {
	r := l.r
	frame := l.next()
	r.header.put(frame, n)
	size := r.skip + n
	addr := uint64(l.base + l.slot*longSlot)
	count := 0
	for off := 0; off < size; off += longPage {
		l.segs[count] = xdpnic.Desc{Addr: addr + uint64(off), Len: uint32(min(longPage, size-off))}
		count++
	}
	for !r.q.SendSegs(l.segs[:count], false) {
		if err := r.flush(); err != nil {
			return err
		}
	}
	l.slot++
	if l.queued += count; l.queued >= longFlush || l.slot == longSlots {
		return r.flush()
	}
	return nil
}

// flushed notes that the kernel has read all slots.
func (l *longRaw) flushed() { l.slot, l.queued = 0, 0 }

// gather takes the other pieces of a frame of which poll has the first.
func (l *longRaw) gather() {
	r := l.r
	l.pieces = l.pieces[:0]
	for more := true; more; r.at++ {
		f := &r.lease[r.at]
		l.pieces = append(l.pieces, f.Data)
		more = f.More
	}
}
