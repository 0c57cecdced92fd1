package capture

import (
	"encoding/binary"
	"fmt"
	"io"
	"time"
)

// Source is a queue of a program.
type Source struct {
	PID       int
	Command   string
	ID        uint32 // of the queue, in the program
	Interface string
	Queue     int
}

// Frame is a copy of one.
type Frame struct {
	Time time.Time
	ID   uint32 // of the queue, in its program
	Sent bool   // else received
	Len  int    // of the frame; 0: there is none, only Lost
	Data []byte // of it, what was kept; valid until the next Read
	Lost uint64 // frames of this queue left out before this one
}

// Lengths of a record's parts, in bytes: see tapHead in package vipl.
const (
	headLen    = 40
	longestRaw = 1 << 17
)

// Reader reads the records of a program.
type Reader struct {
	r    io.Reader
	head [headLen]byte
	data []byte
}

// NewReader reads records from r.
func NewReader(r io.Reader) *Reader { return &Reader{r: r} }

// Read reads the next frame. It fails with io.EOF when the program ends.
func (r *Reader) Read() (f Frame, err error) {
	if _, err := io.ReadFull(r.r, r.head[:]); err != nil {
		return f, err
	}
	word := func(at int) uint32 { return binary.LittleEndian.Uint32(r.head[at:]) }
	size, kept := word(24), word(28)
	if kept > size || size > longestRaw {
		return f, fmt.Errorf("capture: a record of %d bytes, of a frame of %d: the program speaks another format", kept, size)
	}
	if cap(r.data) < int(kept) {
		r.data = make([]byte, longestRaw)
	}
	f = Frame{
		Time: time.Unix(0, int64(binary.LittleEndian.Uint64(r.head[:]))), Lost: binary.LittleEndian.Uint64(r.head[8:]),
		ID: word(16), Len: int(size), Sent: r.head[32] == 1, Data: r.data[:kept],
	}
	if _, err = io.ReadFull(r.r, f.Data); err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return f, err
}
