package vipl

import "viaxdp/xdpnic"

// reorderBuffer keeps the leases of frames that arrived out of order. It has one place for each chunk that they may
// use; the chunks of one frame are chained. They may not use all chunks, or the missing frames could not arrive.
type reorderBuffer struct {
	places []reorderChunk
	free   []uint32
}

type reorderChunk struct {
	chunk xdpnic.Frame
	next  uint32 // index of the frame's next chunk, if chunk.More
}

// init reserves a quarter of the chunks for other frames, as share does, or more for a frame of most chunks, but at
// most half. It also leaves out the late chunks that refill has not returned yet.
func (h *reorderBuffer) init(chunks, most, late int) {
	n := max(0, chunks-max(chunks/4, min(most, chunks/2))-late)
	h.places = make([]reorderChunk, n)
	for i := range n {
		h.free = append(h.free, uint32(n-1-i))
	}
}

// fits reports whether put has room for a frame of the given number of chunks.
func (h *reorderBuffer) fits(chunks int) bool { return chunks <= len(h.free) }

// put keeps a frame and returns the tag for take.
func (h *reorderBuffer) put(frame []xdpnic.Frame) uint64 {
	next := uint32(0)
	for k := len(frame) - 1; k >= 0; k-- {
		i := h.free[len(h.free)-1]
		h.free = h.free[:len(h.free)-1]
		h.places[i] = reorderChunk{frame[k], next}
		next = i
	}
	return uint64(next)
}

// take removes the frame with the given tag and returns it, in the memory of into.
func (h *reorderBuffer) take(tag uint64, into []xdpnic.Frame) []xdpnic.Frame {
	frame := into[:0]
	for i := uint32(tag); ; i = h.places[i].next {
		h.free = append(h.free, i)
		frame = append(frame, h.places[i].chunk)
		if !h.places[i].chunk.More {
			return frame
		}
	}
}
