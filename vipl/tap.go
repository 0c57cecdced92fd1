package vipl

import (
	"encoding/binary"
	"io"
	"slices"
	"sync"
	"time"

	"viaxdp/xdpnic"
)

// tap copies the frames of a port, in both directions, for a capture. Without a tap the engine only checks the
// length of a slice for each frame.
//
//	engine --> filling ==swap==> draining --> reader
//
// Both buffers are allocated with the tap. A frame for which filling has no room is counted and left out.
type tap struct {
	snaplen  int
	id       uint32        // of the queue
	wake     chan struct{} // filling is not empty
	mu       sync.Mutex    // guards the fields below; the engine holds it for a copy
	filling  []byte
	draining []byte
	lost     uint64
	told     uint64 // value of lost in the last record
}

const (
	tapBuffer = 4 << 20
	// tapHead is the length of the head in front of a frame's bytes, little endian:
	//
	//	 0 time, ns since 1970 (64 bits)   8 frames lost before (64 bits)
	//	16 NICStatus.ID   20 zero   24 length of the frame   28 bytes that follow
	//	32 direction: 0 received, 1 sent   33 zeros
	//
	// A record with a frame length of 0 is not a frame: it reports frames lost after the last one.
	tapHead = 40
)

func newTap(snaplen int, id uint32) *tap {
	return &tap{
		snaplen: max(64, min(snaplen, 1<<17)), id: id, wake: make(chan struct{}, 1),
		filling: make([]byte, 0, tapBuffer), draining: make([]byte, 0, tapBuffer),
	}
}

// begin makes room for a frame of the given length and for one more head, and writes the frame's head. Under t.mu.
func (t *tap) begin(size int, sent byte) bool {
	kept := min(size, t.snaplen)
	if cap(t.filling)-len(t.filling) < 2*tapHead+kept {
		t.lost++
		return false
	}
	t.head(size, kept, sent)
	return true
}

// head writes the head of a record, for which there is room. Under t.mu.
func (t *tap) head(size, kept int, sent byte) {
	b := binary.LittleEndian.AppendUint64(t.filling, uint64(time.Now().UnixNano()))
	b = binary.LittleEndian.AppendUint64(b, t.lost)
	for _, v := range [...]uint32{t.id, 0, uint32(size), uint32(kept)} {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	t.filling = append(b, sent, 0, 0, 0, 0, 0, 0, 0)
	t.told = t.lost
}

// drain returns the bytes added since the last call, valid until the next call. Only one goroutine may use it.
func (t *tap) drain() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lost != t.told {
		t.head(0, 0, 0)
	}
	t.filling, t.draining = t.draining[:0], t.filling
	return t.draining
}

// put copies a frame that is in one or several pieces.
func (t *tap) put(sent byte, pieces ...[]byte) {
	size := 0
	for _, b := range pieces {
		size += len(b)
	}
	t.mu.Lock()
	if t.begin(size, sent) {
		left := t.snaplen
		for _, b := range pieces {
			b = b[:min(len(b), left)]
			t.filling = append(t.filling, b...)
			left -= len(b)
		}
	}
	t.mu.Unlock()
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// tapReceived copies received frames; a long one is several elements. Under the port's lock.
func (p *port) tapReceived(frames []xdpnic.Frame) {
	var pieces [][]byte
	for i := range frames {
		pieces = append(pieces, frames[i].Data)
		if frames[i].More {
			continue
		}
		for _, t := range p.taps {
			t.put(0, pieces...)
		}
		pieces = pieces[:0]
	}
}

// tapLong is tapSent for a frame of several segments.
func (p *port) tapLong(segs []xdpnic.Desc) {
	var pieces [][]byte
	for _, s := range segs {
		pieces = append(pieces, p.mem[s.Addr:s.Addr+uint64(s.Len)])
	}
	p.tapSent(pieces...)
}

// tapSent copies a frame that was put on the TX ring. Under the port's lock.
func (p *port) tapSent(pieces ...[]byte) {
	for _, t := range p.taps {
		t.put(1, pieces...)
	}
}

// Capture writes a copy of every frame of the handle's queue, in both directions, to w, at most snaplen bytes of
// each. It ends when w fails, done is closed, or the last handle of the queue is closed. The records are those that
// package viaxdp/internal/ops/capture reads. During a capture the engine copies each frame, and leaves out frames
// if the writer is too slow. Frames between VIs of one interface are not captured. snaplen is raised to 64 and limited to
// 128 KiB.
//
// The error is that of w. Several captures of a queue may run at a time.
func (n *NIC) Capture(w io.Writer, snaplen int, done <-chan struct{}) error {
	t := newTap(snaplen, n.port.id)
	p := n.port
	p.mu.Lock()
	p.taps = append(p.taps, t)
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		i := slices.Index(p.taps, t)
		p.taps = slices.Delete(p.taps, i, i+1)
		p.mu.Unlock()
	}()
	for over := false; !over; {
		select {
		case <-t.wake:
		case <-done:
			if !p.isClosed() {
				return nil
			}
			over = true
		case <-p.poller.closed:
			over = true // the last frames are still in the buffer
		}
		b := t.drain()
		if len(b) == 0 {
			continue
		}
		if _, err := w.Write(b); err != nil {
			return err
		}
	}
	return nil
}
