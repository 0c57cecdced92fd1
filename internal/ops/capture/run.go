package capture

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"viaxdp/internal/base/programs"
	"viaxdp/internal/base/wire"
)

// Config of Run.
type Config struct {
	Interface string        // empty: all
	VIs       []uint32      // frames to one of them only; none: all
	Snaplen   int           // bytes of a frame that are kept
	Count     uint64        // frames after which to stop; 0: none
	Progress  func(Summary) // called for each frame that arrives; may be nil
}

// Summary says what was captured.
type Summary struct {
	Frames  uint64   `json:"frames"`
	Skipped uint64   `json:"skipped"` // by the filter
	Lost    uint64   `json:"lost"`    // left out by the programs
	Queues  []uint64 `json:"queues"`  // frames of each
}

// ErrNobody is returned if there is no program to capture from.
var ErrNobody = errors.New("no program with an open NIC answers")

// Target is a program and its queues.
type Target struct {
	programs.Program
	Sources []Source
}

// headers is how many bytes of a frame DestinationVI needs at most: Ethernet with a VLAN tag, IPv6, UDP, and VIA's up to the
// VI's number.
const headers = 18 + 40 + 8 + 8

// flushEvery is the longest time until a reader of the file sees a frame.
const flushEvery = 200 * time.Millisecond

// queue names a queue of a program.
type queue struct {
	pid int
	id  uint32
}

// recording is a running capture.
type recording struct {
	Config
	sources []Source
	of      map[queue]int // place of a queue in sources: a hostile program has very many
	cancel  func()        // ends it

	mu     sync.Mutex // of all below
	out    *bufio.Writer
	file   *File
	sum    Summary
	failed error
}

func newRecording(c Config, out *bufio.Writer, targets []Target) *recording {
	r := &recording{Config: c, out: out, of: make(map[queue]int)}
	for _, t := range targets {
		for _, x := range t.Sources {
			if c.Interface == "" || x.Interface == c.Interface {
				r.of[queue{x.PID, x.ID}] = len(r.sources)
				r.sources = append(r.sources, x)
			}
		}
	}
	r.sum.Queues = make([]uint64, len(r.sources))
	return r
}

// Run captures frames of programs to w until ctx ends, all of them have ended,
// or there are enough.
func Run(ctx context.Context, w io.Writer, targets []Target, c Config) (Summary, error) {
	r := newRecording(c, bufio.NewWriterSize(w, 1<<20), targets)
	if len(r.sources) == 0 {
		return r.sum, ErrNobody
	}
	var err error
	if r.file, err = NewFile(r.out, r.sources, c.Snaplen); err != nil {
		return r.sum, err
	}
	ctx, r.cancel = context.WithCancel(ctx)
	defer r.cancel()
	asked := c.Snaplen
	if len(c.VIs) > 0 {
		asked = max(asked, headers)
	}
	var wait sync.WaitGroup
	for _, t := range targets {
		if !slices.ContainsFunc(r.sources, func(x Source) bool { return x.PID == t.PID }) {
			continue
		}
		stream, err := t.Capture(asked)
		if err != nil {
			r.fail(err)
			continue
		}
		wait.Go(func() {
			defer context.AfterFunc(ctx, func() { stream.Close() })()
			defer stream.Close()
			err := r.follow(t.PID, stream)
			if err == nil && ctx.Err() == nil && r.open(t.Program) {
				err = errLeft
			}
			if err != nil && ctx.Err() == nil {
				r.fail(fmt.Errorf("process %d: %w", t.PID, err))
			}
		})
	}
	ended := make(chan struct{})
	go func() {
		wait.Wait()
		close(ended)
	}()
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C: // a reader may follow the file
			r.write(r.file.Flush)
		case <-ended:
			r.write(r.file.Close)
			return r.sum, r.failed
		}
	}
}

// follow takes the frames of a process until it ends or the stream is closed.
func (r *recording) follow(pid int, stream io.Reader) error {
	frames := NewReader(stream)
	for {
		f, err := frames.Read()
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil // it has ended, perhaps in the midst of a record
		}
		if err != nil {
			return err
		}
		r.take(pid, f)
	}
}

// errLeft says that frames may be missing at the end.
var errLeft = errors.New("it has ended the capture, and its NIC is still open: the file, or what reads it, took frames too slowly, or too many captures run")

// open reports whether a program still has one of the queues open.
func (r *recording) open(p programs.Program) bool {
	var now struct {
		NICs []struct {
			ID      uint32 `json:"id"`
			Handles int    `json:"handles"` // 0: it is being closed
		} `json:"nics"`
	}
	if p.Status(&now) != nil {
		return false
	}
	for _, n := range now.NICs {
		if _, ours := r.of[queue{p.PID, n.ID}]; ours && n.Handles > 0 {
			return true
		}
	}
	return false
}

// take writes a frame if it is wanted, and ends the capture when there are enough.
func (r *recording) take(pid int, f Frame) {
	i, ok := r.of[queue{pid, f.ID}]
	r.mu.Lock()
	defer r.mu.Unlock()
	enough := func() bool { return r.Count > 0 && r.sum.Frames >= r.Count }
	if ok && !enough() {
		r.file.Lose(i, f.Lost) // whether this frame is wanted or not
	}
	switch {
	case enough() || !ok: // of another interface, or a queue opened since
	case f.Len == 0: // none
	case !r.wants(f.Data):
		r.sum.Skipped++
	default:
		r.sum.Frames++
		r.sum.Queues[i]++
		f.Data = f.Data[:min(len(f.Data), r.Snaplen)]
		r.unwritten(r.file.Write(i, f))
	}
	if enough() {
		r.cancel()
	}
	r.sum.Lost = r.file.Lost()
	if r.Progress != nil {
		r.Progress(r.sum)
	}
}

// write has the file write something, and gives it to the reader.
func (r *recording) write(part func() error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := part()
	if err == nil {
		err = r.out.Flush()
	}
	r.unwritten(err)
}

// fail records an error of a program; the capture goes on with the others.
func (r *recording) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = errors.Join(r.failed, err)
}

// unwritten ends the capture if the file cannot be written. Every write then fails with the
// same error, so it is recorded once.
func (r *recording) unwritten(err error) {
	if err == nil {
		return
	}
	if !errors.Is(r.failed, err) {
		r.failed = errors.Join(r.failed, err)
	}
	r.cancel()
}

// wants reports whether a frame passes the filter.
func (c *Config) wants(frame []byte) bool {
	if len(c.VIs) == 0 {
		return true
	}
	vi, ok := DestinationVI(frame)
	return ok && slices.Contains(c.VIs, vi)
}

// DestinationVI reads the number of the VI that a frame is for, also of one that
// was cut behind the headers. ok is false for what is no frame of a VI.
func DestinationVI(frame []byte) (vi uint32, ok bool) {
	b := frame
	skip := func(n int) bool {
		if len(b) < n {
			return false
		}
		b = b[n:]
		return true
	}
	if !skip(12) || len(b) < 2 {
		return 0, false
	}
	proto := binary.BigEndian.Uint16(b)
	if proto == 0x8100 || proto == 0x88a8 {
		if !skip(4) || len(b) < 2 {
			return 0, false
		}
		proto = binary.BigEndian.Uint16(b)
	}
	if !skip(2) {
		return 0, false
	}
	switch {
	case proto == 0x0800 && len(b) > 9 && b[0] == 0x45 && b[9] == 17:
		ok = skip(20)
	case proto == 0x86dd && len(b) > 6 && b[0]>>4 == 6 && b[6] == 17:
		ok = skip(40)
	}
	if !ok || !skip(8) || len(b) < 8 || b[0] != wire.Version || b[1]&wire.KindConnect != 0 {
		return 0, false
	}
	return binary.BigEndian.Uint32(b[4:]), true
}
