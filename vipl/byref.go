package vipl

import (
	"slices"

	"viaxdp/hugepages"
)

// Memory that is sent by reference: the TX ring names it (long.go), and nothing is copied. The program may reuse
// the memory when two things are true. The peer has acknowledged the frame, or never will. And neither the kernel
// nor the NIC reads the memory any more. The acknowledgement alone is not enough: a peer may acknowledge or refuse
// a frame that it has not received, and would then receive what the program writes next.
//
// posted.unread counts the frames of a descriptor whose memory may still be read. Only free and disown
// decrement it.

// cancelSettles is how long a cancelled frame must have stayed on the TX ring of a zero-copy NIC until it is
// certain that the driver has not read the entry in its old form: a driver takes an entry off when it reads it.
const cancelSettles = 100_000_000 // ns

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
			c.resentLoop = len(p.tx.looped) > 0
		}
		p.nic.Release(tag >> tagShift)
		return
	}
	i := uint32(tag >> tagShift)
	l := &p.long
	c.chunks -= l.sent[i].own
	if f := &l.sent[i]; f.vi != nil && p.reading(f) {
		f.cancelledAt = never
		l.unread = append(l.unread, i)
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
	l := &p.long
	f := &l.sent[i]
	p.giveUp(f)
	if f.vi != nil {
		f.vi.send.at(f.at).unread--
		f.vi = nil
	}
	l.free = append(l.free, i)
}

// cancel takes the memory of v, whose connection has ended, out of the frames that may still be read.
func (p *port) cancel(v *VI, now int64) {
	l := &p.long
	for k := 0; k < len(l.unread); {
		f := &l.sent[l.unread[k]]
		if f.vi != v || !p.nic.Cancel(f.segs[0].Addr) {
			if f.vi == v {
				f.cancelledAt = min(f.cancelledAt, now)
			}
			k++
			continue
		}
		p.freeUnread(k)
	}
}

// freeUnread frees the frame at index k of longFrames.unread.
func (p *port) freeUnread(k int) {
	l := &p.long
	last := len(l.unread) - 1
	i := l.unread[k]
	l.unread[k] = l.unread[last]
	l.unread = l.unread[:last]
	p.free(i)
}

// sweep completes the sends whose memory is no longer read.
func (p *port) sweep(now int64) {
	l := &p.long
	for k := 0; k < len(l.unread); {
		f := &l.sent[l.unread[k]]
		v := f.vi
		settled := f.cancelledAt != never && now-f.cancelledAt >= cancelSettles
		if p.reading(f) && !(settled && p.nic.Cancel(f.segs[0].Addr)) {
			k++
			continue
		}
		p.freeUnread(k)
		if v == nil { // the NIC handle was closed meanwhile
			p.freeBlocks(false)
			continue
		}
		p.settleQueue(&v.send)
		if c := v.conn; c != nil && v.send.waiting() != nil {
			p.enqueue(c) // a wrong descriptor completes after those before it
		}
	}
}

// disown detaches the sends of v from their frames, because its NIC handle is closed. The frames stay until they
// have been read.
func (p *port) disown(v *VI) {
	for _, i := range p.long.unread {
		if f := &p.long.sent[i]; f.vi == v {
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
	p.long.blocks = append(p.long.blocks, b)
	return nil
}

// freeBlocks frees the blocks that are no longer read, or all. Under the lock.
func (p *port) freeBlocks(all bool) {
	l := &p.long
	l.blocks = slices.DeleteFunc(l.blocks, func(b block) bool {
		free := all || !p.mayRead(b.buf)
		if free {
			_ = b.arena.Free(b.buf) // it was allocated there
		}
		return free
	})
}

// mayRead reports whether memory of the arena may still be read for a frame.
func (p *port) mayRead(b []byte) bool {
	addr, _ := placeIn(p.mem, b)
	for _, i := range p.long.unread {
		f := &p.long.sent[i]
		for _, s := range f.segs[f.own:] {
			if s.Addr < addr+uint64(len(b)) && addr < s.Addr+uint64(s.Len) {
				return true
			}
		}
	}
	return false
}
