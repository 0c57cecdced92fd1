package vipl

import (
	"slices"

	"viaxdp/hugepages"
	"viaxdp/xdpnic"
)

// Memory that is sent by reference: the TX ring names it (long.go), and nothing is copied. The program may reuse
// the memory when two things are true. The peer has acknowledged the frame, or never will. And neither the kernel
// nor the NIC reads the memory any more. The acknowledgement alone is not enough: a peer may acknowledge or refuse
// a frame that it has not received, and would then receive what the program writes next.
//
// posted.unread counts the frames of a descriptor whose memory may still be read. Only free and disown
// decrement it.

// cancelSettles is for cancelled entries on the TX ring of a zero-copy NIC. A driver removes an entry when it reads
// it. So if the entry is still there after this time, the driver has not read its old contents.
const cancelSettles = 100_000_000 // ns

// keptFrames has the long frames that were sent. Invariant: a frame is in one of three states. It is outstanding:
// the reliable sender has its tag. It is unread: the peer has it or never will, but the program's memory in it may
// still be read. Or it is free.
type keptFrames struct {
	sent   []longFrame
	free   []uint32 // indices of free ones
	unread []uint32
	blocks []block // memory that unread frames name and whose NIC handle is closed
}

// reserve makes room for as many frames of at most most segments as there are TX chunks, since each frame that is
// not free has one for its headers. It is called for the first connection with long frames.
func (k *keptFrames) reserve(chunks, most int) {
	if k.sent != nil {
		return
	}
	segs := make([]xdpnic.Desc, chunks*most)
	k.sent, k.free, k.unread = make([]longFrame, chunks), make([]uint32, chunks), make([]uint32, 0, chunks)
	for i := range k.sent {
		k.sent[i].segs = segs[i*most : i*most : (i+1)*most]
		k.free[i] = uint32(chunks - 1 - i) // the lowest is used first
	}
}

// put keeps a copy of f. It returns its tag in the reliable sender: like that of a short frame, but with a length
// of 0.
func (k *keptFrames) put(f *longFrame) (tag uint64) {
	i := k.free[len(k.free)-1]
	k.free = k.free[:len(k.free)-1]
	to := &k.sent[i]
	to.segs, to.own = append(to.segs[:0], f.segs...), f.own
	to.vi, to.at, to.cancelledAt = f.vi, f.at, never
	return uint64(i) << tagShift
}

// at returns the long frame with the given tag.
func (k *keptFrames) at(tag uint64) *longFrame { return &k.sent[tag>>tagShift] }

// release gives back a frame that the peer has received or never will: its chunks and, unless it may still be read,
// the program's memory in it.
func (p *port) release(c *conn, tag uint64) {
	if !isLong(tag) {
		c.chunks--
		if c.resentLoop {
			if f := p.onLoop(c, tag>>tagShift); f != nil {
				f.retain = false // the chunk is given back when it has arrived
				return
			}
			c.resentLoop = len(p.loop.queued) > 0
		}
		p.nic.Release(tag >> tagShift)
		return
	}
	i := uint32(tag >> tagShift)
	k := &p.long.kept
	c.chunks -= k.sent[i].own
	if f := &k.sent[i]; f.vi != nil && p.reading(f) {
		f.cancelledAt = never
		k.unread = append(k.unread, i)
		return
	}
	p.free(i)
}

// reading reports whether memory of the program that a frame names may still be read. Usually the frame completed
// before its acknowledgement arrived.
func (p *port) reading(f *longFrame) bool {
	head := f.segs[0].Addr
	return p.nic.Reading(head) && !p.iface.gone && (p.nic.Reap() == 0 || p.nic.Reading(head))
}

// free gives back a frame that is neither needed nor read any more.
func (p *port) free(i uint32) {
	k := &p.long.kept
	f := &k.sent[i]
	p.giveUp(f)
	if f.vi != nil {
		f.vi.send.at(f.at).unread--
		f.vi = nil
	}
	k.free = append(k.free, i)
}

// cancel takes the memory of v, whose connection has ended, out of the frames that may still be read.
func (p *port) cancel(v *VI, now int64) {
	k := &p.long.kept
	for n := 0; n < len(k.unread); {
		f := &k.sent[k.unread[n]]
		if f.vi != v || !p.nic.Cancel(f.segs[0].Addr) {
			if f.vi == v {
				f.cancelledAt = min(f.cancelledAt, now)
			}
			n++
			continue
		}
		p.freeUnread(n)
	}
}

// freeUnread frees the frame at index n of keptFrames.unread.
func (p *port) freeUnread(n int) {
	k := &p.long.kept
	last := len(k.unread) - 1
	i := k.unread[n]
	k.unread[n] = k.unread[last]
	k.unread = k.unread[:last]
	p.free(i)
}

// sweep completes the sends whose memory is no longer read.
func (p *port) sweep(now int64) {
	k := &p.long.kept
	for n := 0; n < len(k.unread); {
		f := &k.sent[k.unread[n]]
		v := f.vi
		settled := f.cancelledAt != never && now-f.cancelledAt >= cancelSettles
		if p.reading(f) && !(settled && p.nic.Cancel(f.segs[0].Addr)) {
			n++
			continue
		}
		p.freeUnread(n)
		if v == nil { // the NIC handle was closed meanwhile
			p.freeBlocks(false)
			continue
		}
		p.settleQueue(&v.send)
		p.raise(&v.swept)
		if c := v.conn; c != nil && v.send.waiting() != nil {
			p.enqueue(c) // a wrong descriptor completes after those before it
		}
	}
}

// disown detaches the sends of v from their frames, because its NIC handle is closed. The frames stay until they
// have been read.
func (p *port) disown(v *VI) {
	for _, i := range p.long.kept.unread {
		if f := &p.long.kept.sent[i]; f.vi == v {
			v.send.at(f.at).unread--
			f.vi = nil
		}
	}
}

// block is memory of AllocMem that outlives its NIC handle.
type block struct {
	arena *hugepages.Arena
	buf   []byte
}

// freeBlock frees a block for other handles of the arena: now, or once no frame that names it can be read.
func (p *port) freeBlock(b block) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over || !p.mayRead(b.buf) {
		return b.arena.Free(b.buf)
	}
	p.long.kept.blocks = append(p.long.kept.blocks, b)
	return nil
}

// freeBlocks frees the blocks that are no longer read, or all. Under the lock.
func (p *port) freeBlocks(all bool) {
	k := &p.long.kept
	k.blocks = slices.DeleteFunc(k.blocks, func(b block) bool {
		free := all || !p.mayRead(b.buf)
		if free {
			_ = b.arena.Free(b.buf) // it was allocated there
		}
		return free
	})
}

// mayRead reports whether memory of the arena may still be read for a frame.
func (p *port) mayRead(b []byte) bool {
	addr, inside := placeIn(p.mem, b)
	if !inside {
		return false
	}
	for _, i := range p.long.kept.unread {
		f := &p.long.kept.sent[i]
		for _, s := range f.segs[f.own:] {
			if s.Addr < addr+uint64(len(b)) && addr < s.Addr+uint64(s.Len) {
				return true
			}
		}
	}
	return false
}

// longFrame is a frame of several segments that a reliable VI has sent.
type longFrame struct {
	segs []xdpnic.Desc
	own  int // the first own segments are TX chunks

	// vi and at name the VI and the send queue index of the descriptor whose memory the other segments are
	// (byref.go). vi is nil if there is no such memory.
	vi          *VI
	at          uint64
	cancelledAt int64 // never: it was not cancelled
}

// A frame's tag in the reliable sender: the address of its chunk, and its length.
const (
	tagShift = 16
	tagMask  = 1<<tagShift - 1
)

func isLong(tag uint64) bool { return tag&tagMask == 0 }

func (p *port) giveUp(f *longFrame) {
	for _, s := range f.segs[:f.own] {
		p.nic.Release(s.Addr)
	}
}
