package vipl

import "viaxdp/xdpnic"

// heldFrames keeps the leases of frames that came early: a place for each chunk
// that they may have, those of one frame chained. If they had all, the frames that
// they wait for could not arrive.
type heldFrames struct {
	places []heldChunk
	free   []uint32
}

type heldChunk struct {
	chunk xdpnic.Frame
	next  uint32 // the frame's next chunk, if chunk.More
}

// init leaves a quarter of the chunks to other frames, as share does, and room for
// one of most chunks where that does not take more than half, beside what refill
// has not given back yet.
func (h *heldFrames) init(chunks, most, late int) {
	n := max(0, chunks-max(chunks/4, min(most, chunks/2))-late)
	h.places = make([]heldChunk, n)
	for i := range n {
		h.free = append(h.free, uint32(n-1-i))
	}
}

// fits says whether put has room for a frame of so many chunks.
func (h *heldFrames) fits(chunks int) bool { return chunks <= len(h.free) }

// put keeps a frame and returns by what take knows it.
func (h *heldFrames) put(frame []xdpnic.Frame) uint64 {
	next := uint32(0)
	for k := len(frame) - 1; k >= 0; k-- {
		i := h.free[len(h.free)-1]
		h.free = h.free[:len(h.free)-1]
		h.places[i] = heldChunk{frame[k], next}
		next = i
	}
	return uint64(next)
}

// take gives a frame back, in the room of into.
func (h *heldFrames) take(tag uint64, into []xdpnic.Frame) []xdpnic.Frame {
	frame := into[:0]
	for i := uint32(tag); ; i = h.places[i].next {
		h.free = append(h.free, i)
		frame = append(frame, h.places[i].chunk)
		if !h.places[i].chunk.More {
			return frame
		}
	}
}
