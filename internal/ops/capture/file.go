package capture

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"runtime"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// File writes frames as pcapng: nanosecond stamps, direction, queue.
type File struct {
	w       *pcapgo.NgWriter
	sources []Source
	count   []uint64 // frames of each
	lost    []uint64 // frames that the program left out
	sum     uint64   // of lost
	began   time.Time
}

// NewFile begins a file for the queues of some programs, at least one. snaplen goes
// into the file's header. The other methods name a source by its place among them.
func NewFile(w io.Writer, sources []Source, snaplen int) (*File, error) {
	if len(sources) == 0 {
		return nil, errors.New("capture: no interface")
	}
	f := &File{sources: sources, count: make([]uint64, len(sources)), lost: make([]uint64, len(sources)), began: time.Now()}
	for _, from := range sources {
		block := pcapgo.NgInterface{
			Name:        fmt.Sprintf("%s queue %d", from.Interface, from.Queue),
			Description: fmt.Sprintf("VIs of process %d (%s)", from.PID, from.Command),
			OS:          runtime.GOOS, LinkType: layers.LinkTypeEthernet, SnapLength: uint32(snaplen), TimestampResolution: 9,
		}
		var err error
		if f.w == nil {
			f.w, err = pcapgo.NewNgWriterInterface(w, block, pcapgo.NgWriterOptions{SectionInfo: pcapgo.NgSectionInfo{
				Hardware: runtime.GOARCH, OS: runtime.GOOS, Application: "via-xdp capture",
			}})
		} else {
			_, err = f.w.AddInterface(block)
		}
		if err != nil {
			return nil, err
		}
	}
	return f, nil
}

// Write appends a frame of a source.
func (f *File) Write(source int, x Frame) error {
	f.Lose(source, x.Lost)
	queue := uint32(f.sources[source].Queue)
	opts := pcapgo.NgPacketOptions{Queue: &queue, Flags: &pcapgo.NgEpbFlags{Direction: pcapgo.NgEpbFlagDirectionInbound}}
	if x.Sent {
		opts.Flags.Direction = pcapgo.NgEpbFlagDirectionOutbound
	}
	f.count[source]++
	return f.w.WritePacketWithOptions(gopacket.CaptureInfo{
		Timestamp: x.Time, CaptureLength: len(x.Data), Length: max(x.Len, len(x.Data)), InterfaceIndex: source,
	}, x.Data, opts)
}

// Lose notes how many frames of a source were left out until now.
func (f *File) Lose(source int, lost uint64) {
	if lost > f.lost[source] {
		f.sum += lost - f.lost[source]
		f.lost[source] = lost
	}
}

// Flush gives the writer what is still held back.
func (f *File) Flush() error { return f.w.Flush() }

// Lost is how many frames the programs left out, as they had no room for them.
func (f *File) Lost() uint64 { return f.sum }

// Close ends the file with the counts of each source. It does not close the
// writer.
func (f *File) Close() error {
	for i := range f.count {
		if err := f.w.WriteInterfaceStats(i, pcapgo.NgInterfaceStatistics{
			LastUpdate: time.Now(), StartTime: f.began, EndTime: time.Now(),
			PacketsReceived: f.count[i] + f.lost[i], PacketsDropped: f.lost[i],
		}); err != nil {
			return err
		}
	}
	return f.w.Flush()
}

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
