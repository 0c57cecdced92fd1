package capture_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket/pcapgo"

	"viaxdp/internal/base/programs"
	"viaxdp/internal/base/wire"
	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/pairtest"
	"viaxdp/internal/ops/capture"
	"viaxdp/vipl"
)

// targets are the programs that answer in dir, with their queues.
func targets(t *testing.T, dir string) (all []capture.Target) {
	t.Helper()
	found, _ := programs.List([]string{dir})
	for _, p := range found {
		var s vipl.ProgramStatus
		nstest.Must(t, p.Status(&s))
		x := capture.Target{Program: p}
		for _, n := range s.Nics {
			x.Sources = append(x.Sources, capture.Source{PID: p.PID, Command: p.Command, ID: n.ID, Interface: n.Interface, Queue: n.Queue})
		}
		all = append(all, x)
	}
	return all
}

// talkers are two connected endpoints of this program, which answers in dir.
func talkers(t *testing.T) (a, b *pairtest.End, dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "proc")
	t.Setenv("VIA_RUNTIME_DIR", dir)
	a, b = pairtest.Connected(t, nstest.Options{}, vipl.ReliableDelivery)
	return a, b, dir
}

// A capture of two NICs that talk has each frame twice, sent and received, with
// the same bytes; one of a VI has those alone that go to it.
func TestRun(t *testing.T) {
	a, b, dir := talkers(t)
	vb, err := b.VI.Query()
	nstest.Must(t, err)
	message := []byte("seen on both sides")
	for _, filter := range [][]uint32{nil, {vb.Number}} {
		ctx, cancel := context.WithCancel(context.Background())
		var out bytes.Buffer
		both := make(chan struct{}) // closed when there is enough of each NIC
		ended := make(chan error, 1)
		var s capture.Summary
		go func() {
			var err error
			s, err = capture.Run(ctx, &out, targets(t, dir), capture.Config{
				Interface: a.NS.Name, Snaplen: 65535, VIs: filter, Progress: func(s capture.Summary) {
					if enough := slices.Min(s.Queues) >= 24; enough && !isClosed(both) {
						close(both)
					}
				},
			})
			ended <- err
		}()
		for !isClosed(both) {
			a.Send(t, b, message)
			b.Send(t, a, message)
			time.Sleep(time.Millisecond) // no more than the capture's buffers hold where its reader waits for a CPU
		}
		cancel()
		nstest.Must(t, <-ended)
		nstest.ErrorIf(t, s.Frames < 48 || s.Lost > 0 || len(s.Queues) != 2 || (s.Skipped > 0) != (filter != nil),
			"filter %v: %+v", filter, s)
		r, err := pcapgo.NewNgReader(&out, pcapgo.DefaultNgReaderOptions)
		nstest.Must(t, err)
		seen := map[[2]bool]int{} // sent, to b
		for {
			data, _, opts, err := r.ReadPacketDataWithOptions()
			if errors.Is(err, io.EOF) {
				break
			}
			nstest.Must(t, err)
			var p wire.Packet
			if err := p.Decode(data); err != nil || p.Verify() != nil {
				t.Fatalf("% x: %v", data, err)
			}
			if bytes.Equal(p.Payload, message) {
				seen[[2]bool{opts.Flags.Direction == pcapgo.NgEpbFlagDirectionOutbound, p.VI == vb.Number}]++
			}
		}
		for _, toB := range []bool{true, false} {
			for _, sent := range []bool{true, false} {
				if n := seen[[2]bool{sent, toB}]; (n > 0) != (toB || filter == nil) {
					t.Errorf("filter %v: %d frames sent %v, to b %v", filter, n, sent, toB)
				}
			}
		}
	}
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// A reader of the file sees a frame soon, not when a buffer is full. A writer that fails
// ends the capture.
func TestSeenSoon(t *testing.T) {
	a, b, dir := talkers(t)
	read, write := io.Pipe()
	ended := make(chan error, 1)
	all := targets(t, dir)
	go func() {
		_, err := capture.Run(context.Background(), write, all, capture.Config{Snaplen: 65535})
		ended <- err
	}()
	r, err := pcapgo.NewNgReader(read, pcapgo.DefaultNgReaderOptions) // the beginning is there before any frame
	nstest.Must(t, err)
	seen := make(chan error, 1)
	go func() {
		_, _, err := r.ReadPacketData()
		seen <- err
	}()
	for {
		a.Send(t, b, []byte("look"))
		select {
		case err := <-seen:
			nstest.Must(t, err)
		case <-time.After(time.Millisecond):
			continue
		}
		break
	}
	read.CloseWithError(io.ErrClosedPipe)
	for {
		a.Send(t, b, []byte("nobody looks"))
		select {
		case err := <-ended:
			if !errors.Is(err, io.ErrClosedPipe) || strings.Count(err.Error(), io.ErrClosedPipe.Error()) != 1 {
				t.Errorf("the capture ended with %v", err)
			}
		case <-time.After(time.Millisecond):
			continue
		}
		break
	}
}

// The end of the programs ends the capture, and so does Count. No program is an error.
func TestEnds(t *testing.T) {
	a, b, dir := talkers(t)
	if _, err := capture.Run(context.Background(), io.Discard, targets(t, dir), capture.Config{Interface: "other"}); !errors.Is(err, capture.ErrNobody) {
		t.Errorf("of another interface: %v", err)
	}
	run := func(c capture.Config) (ended chan error, s *capture.Summary) {
		ended, s = make(chan error, 1), new(capture.Summary)
		all := targets(t, dir)
		go func() {
			var err error
			*s, err = capture.Run(context.Background(), io.Discard, all, c)
			ended <- err
		}()
		return ended, s
	}
	wait := func(ended chan error, meanwhile func()) {
		t.Helper()
		end := time.After(time.Minute)
		for {
			select {
			case err := <-ended:
				nstest.Check(t, err)
				return
			case <-end:
				t.Fatal("it does not end")
			default:
				meanwhile()
			}
		}
	}
	ended, s := run(capture.Config{Snaplen: 100, Count: 5})
	wait(ended, func() { a.Send(t, b, []byte("x")) })
	nstest.ErrorIf(t, s.Frames != 5, "%d frames, not 5", s.Frames)
	both := make(chan struct{}) // closed when both are captured
	ended, _ = run(capture.Config{Snaplen: 100, Progress: func(s capture.Summary) {
		if slices.Min(s.Queues) > 0 && !isClosed(both) {
			close(both)
		}
	}})
	for !isClosed(both) {
		a.Send(t, b, []byte("x"))
	}
	nstest.Must(t, errors.Join(a.NIC.Close(), b.NIC.Close()))
	wait(ended, func() {})
}

// What is written is read again by another reader of pcapng.
func TestFile(t *testing.T) {
	one := capture.Source{PID: 7, Command: "app", ID: 1, Interface: "eth0", Queue: 3}
	two := capture.Source{PID: 8, Command: "bpp", ID: 1, Interface: "eth1", Queue: 4}
	var out bytes.Buffer
	f, err := capture.NewFile(&out, []capture.Source{one, two}, 200)
	nstest.Must(t, err)
	stamp := time.Unix(1700000000, 123456789)
	if err := errors.Join(
		f.Write(0, capture.Frame{Time: stamp, Sent: true, Len: 3, Data: []byte("abc"), Lost: 5}),
		f.Write(1, capture.Frame{Time: stamp.Add(1), Len: 300, Data: []byte("defg")}),
	); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil || f.Lost() != 5 {
		t.Fatal(err, f.Lost())
	}
	r, err := pcapgo.NewNgReader(&out, pcapgo.DefaultNgReaderOptions)
	nstest.Must(t, err)
	data, ci, opts, err := r.ReadPacketDataWithOptions()
	if err != nil || string(data) != "abc" || !ci.Timestamp.Equal(stamp) || ci.InterfaceIndex != 0 ||
		*opts.Queue != 3 || opts.Flags.Direction != pcapgo.NgEpbFlagDirectionOutbound {
		t.Errorf("%q, %+v, %+v, %v", data, ci, opts, err)
	}
	data, ci, opts, err = r.ReadPacketDataWithOptions()
	if err != nil || string(data) != "defg" || ci.Length != 300 || ci.Timestamp.Nanosecond() != 123456790 ||
		*opts.Queue != 4 || opts.Flags.Direction != pcapgo.NgEpbFlagDirectionInbound {
		t.Errorf("%q, %+v, %+v, %v", data, ci, opts, err)
	}
	if _, _, err := r.ReadPacketData(); err != io.EOF {
		t.Error(err)
	}
	nic, err := r.Interface(0)
	if err != nil || nic.Name != "eth0 queue 3" || nic.Statistics.PacketsDropped != 5 || nic.Statistics.PacketsReceived != 6 {
		t.Errorf("%+v, %v", nic, err)
	}
}

// A stream of another format is an error, and causes no large allocation.
func TestForeignStream(t *testing.T) {
	b := bytes.Repeat([]byte{0xff}, 100)
	if _, err := capture.NewReader(bytes.NewReader(b)).Read(); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("%v", err)
	}
	nstest.WantErr(t, "NewReader",
		nstest.Err(capture.NewReader(bytes.NewReader(b[:20])).Read()), io.ErrUnexpectedEOF)
	head := make([]byte, 40)
	head[24], head[28] = 3, 3
	nstest.WantErr(t, "cut off behind a record's head",
		nstest.Err(capture.NewReader(bytes.NewReader(head)).Read()), io.ErrUnexpectedEOF)
}

// only is the one program that answers in a directory, by p.
func only(t *testing.T, p programs.Answers) []capture.Target {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "proc")
	server, err := programs.Serve(dir, p)
	nstest.Must(t, err)
	t.Cleanup(func() { nstest.Check(t, server.Close()) })
	found, _ := programs.List([]string{dir})
	if len(found) != 1 {
		t.Fatal(found)
	}
	return []capture.Target{{Program: found[0], Sources: []capture.Source{{PID: found[0].PID, ID: 1}}}}
}

// told is a program that sends the records that it was made with.
type told []byte

func (p told) Status() any { return nil }
func (p told) Capture(w io.Writer, _ int, _ <-chan struct{}) error {
	_, err := w.Write(p)
	return err
}

// Frames that a program could not record are counted even if no frame that passes the
// filter follows them. A program that is killed in the middle of a record has ended.
func TestLost(t *testing.T) {
	record := func(lost uint64, data string) string {
		b := make([]byte, 40)
		binary.LittleEndian.PutUint64(b[8:], lost)
		b[16], b[24], b[28] = 1, byte(len(data)), byte(len(data))
		return string(b) + data
	}
	for name, c := range map[string]struct {
		records string
		vis     []uint32
		want    capture.Summary
	}{
		"not wanted": {record(0, "x") + record(5, "y"), []uint32{1}, capture.Summary{Skipped: 2, Lost: 5, Queues: []uint64{0}}},
		"none":       {record(2, "x") + record(7, ""), nil, capture.Summary{Frames: 1, Lost: 7, Queues: []uint64{1}}},
		"killed":     {record(3, "x") + record(9, "abc")[:41], nil, capture.Summary{Frames: 1, Lost: 3, Queues: []uint64{1}}},
	} {
		s, err := capture.Run(context.Background(), io.Discard, only(t, told(c.records)), capture.Config{Snaplen: 100, VIs: c.vis})
		if err != nil || !slices.Equal(s.Queues, c.want.Queues) || s.Frames != c.want.Frames || s.Skipped != c.want.Skipped || s.Lost != c.want.Lost {
			t.Errorf("%s: %+v, %v, want %+v", name, s, err, c.want)
		}
	}
}

// leaving is a program that ends a capture at once, with queues of these handles.
type leaving []int

func (p leaving) Status() any {
	var s vipl.ProgramStatus
	for i, handles := range p {
		s.Nics = append(s.Nics, vipl.NICStatus{ID: uint32(1 + i), Handles: handles})
	}
	return s
}
func (p leaving) Capture(io.Writer, int, <-chan struct{}) error { return nil }

// A program that drops a slow reader has not ended: the capture says so. One that closes its NIC has.
func TestProgramLeaves(t *testing.T) {
	for _, c := range []struct {
		p    leaving
		says bool
	}{{nil, false}, {leaving{0}, false}, {leaving{0, 1}, false}, {leaving{1}, true}} { // the second is not captured
		_, err := capture.Run(context.Background(), io.Discard, only(t, c.p), capture.Config{Snaplen: 100})
		if (err != nil) != c.says || c.says && !strings.Contains(err.Error(), "still open") {
			t.Errorf("%v: %v", c.p, err)
		}
	}
}

// cutting is a program that sends a frame, cut to the length that is asked for.
type cutting []byte

func (p cutting) Status() any { return nil }
func (p cutting) Capture(w io.Writer, snaplen int, _ <-chan struct{}) error {
	kept := min(snaplen, len(p))
	b := make([]byte, 40)
	b[16], b[24], b[28] = 1, byte(len(p)), byte(kept)
	_, err := w.Write(append(b, p[:kept]...))
	return err
}

// A filter also finds frames that the file cuts within their headers.
func TestFilterOfShort(t *testing.T) {
	template, err := wire.NewTemplate(wire.Link{
		Src: netip.MustParseAddr("fd00::1"), Dst: netip.MustParseAddr("fd00::2"), VLAN: 7,
	})
	nstest.Must(t, err)
	frame := make([]byte, template.Len()+wire.HeaderLen)
	h := wire.Header{Kind: wire.KindData, VI: 0x10002, Key: 3}
	h.Put(template.Put(frame, wire.HeaderLen))
	const snaplen = 64
	var out bytes.Buffer
	s, err := capture.Run(context.Background(), &out, only(t, cutting(frame)), capture.Config{Snaplen: snaplen, VIs: []uint32{h.VI}})
	nstest.Must(t, err)
	nstest.FatalIf(t, s.Frames != 1, "%+v", s)
	r, err := pcapgo.NewNgReader(&out, pcapgo.DefaultNgReaderOptions)
	nstest.Must(t, err)
	data, info, err := r.ReadPacketData()
	if err != nil || !bytes.Equal(data, frame[:snaplen]) || info.Length != len(frame) {
		t.Errorf("%d bytes of %d, %v", len(data), info.Length, err)
	}
}

// goldenFrames are those of package wire, by name.
func goldenFrames(t *testing.T) (names []string, frames map[string][]byte) {
	t.Helper()
	text, err := os.ReadFile("../../base/wire/testdata/frames.hex")
	nstest.Must(t, err)
	frames = map[string][]byte{}
	for line := range strings.Lines(string(text)) {
		name, digits, _ := strings.Cut(strings.TrimSpace(line), " ")
		frames[name], err = hex.DecodeString(digits)
		nstest.Must(t, err)
		names = append(names, name)
	}
	return names, frames
}

func TestDestinationVI(t *testing.T) {
	_, frames := goldenFrames(t)
	for name, b := range frames {
		var p wire.Packet
		nstest.Must(t, p.Decode(b))
		if vi, ok := capture.DestinationVI(b); !ok || vi != p.VI {
			t.Errorf("%s: VI %#x, %v; want %#x", name, vi, ok, p.VI)
		}
		for n := range len(b) { // cut anywhere: nothing or the truth
			if vi, ok := capture.DestinationVI(b[:n]); ok && vi != p.VI {
				t.Errorf("%s cut at %d: VI %#x", name, n, vi)
			}
		}
	}
	if _, ok := capture.DestinationVI(make([]byte, 60)); ok {
		t.Error("zeros are for a VI")
	}
}

// FuzzReader: reading any records of a program ends, with frames no longer than their announced length.
func FuzzReader(f *testing.F) {
	record := func(size, kept uint32, data []byte) []byte {
		b := make([]byte, 40)
		binary.LittleEndian.PutUint32(b[24:], size)
		binary.LittleEndian.PutUint32(b[28:], kept)
		return append(b, data...)
	}
	f.Add(append(record(100, 3, []byte("abc")), record(2, 2, []byte("de"))...))
	f.Add(record(3, 4, []byte("abcd")))
	f.Add(record(1<<17, 1<<17, nil))
	f.Add(record(1<<17+1, 1, []byte("a")))
	f.Fuzz(func(t *testing.T, b []byte) {
		in := bytes.NewReader(b)
		r := capture.NewReader(in)
		for {
			left := in.Len()
			frame, err := r.Read()
			if err != nil {
				nstest.FatalIf(t, left == 0 && !errors.Is(err, io.EOF), "at the end: %v", err)
				return
			}
			nstest.FatalIf(t, len(frame.Data) > frame.Len || left-in.Len() != 40+len(frame.Data),
				"%d of %d bytes of a frame, and %d of the records", len(frame.Data), frame.Len, left-in.Len())
		}
	})
}

// FuzzDestinationVI: the filter recognizes the same frames of VIs as the engine, with the same number, even if
// a frame was cut after its headers.
func FuzzDestinationVI(f *testing.F) {
	frame := func(link wire.Link) []byte {
		template, err := wire.NewTemplate(link)
		nstest.Must(f, err)
		b := make([]byte, template.Len()+wire.HeaderLen+5)
		h := wire.Header{Kind: wire.KindData, VI: 0x10002, Key: 3, Length: 5}
		inner := template.Put(b, wire.HeaderLen+5)
		h.Put(inner)
		wire.PutChecksum(inner)
		return b
	}
	f.Add(frame(wire.Link{Src: netip.MustParseAddr("10.0.0.1"), Dst: netip.MustParseAddr("10.0.0.2")}), uint16(60))
	f.Add(frame(wire.Link{Src: netip.MustParseAddr("fd00::1"), Dst: netip.MustParseAddr("fd00::2")}), uint16(80))
	f.Add([]byte{12: 0x81, 0, 0, 0, 8, 0}, uint16(16))
	f.Fuzz(func(t *testing.T, b []byte, cut uint16) {
		vi, ok := capture.DestinationVI(b)
		var p wire.Packet
		nstest.FatalIf(t, p.Decode(b) == nil && (!ok || vi != p.VI),
			"a frame of VI %#x is one of %#x, %v", p.VI, vi, ok)
		if short, found := capture.DestinationVI(b[:min(int(cut), len(b))]); found && (!ok || short != vi) {
			t.Fatalf("cut off: VI %#x, whole: %#x, %v", short, vi, ok)
		}
	})
}
