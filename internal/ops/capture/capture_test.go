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
	"sync/atomic"
	"testing"
	"time"

	"github.com/gopacket/gopacket/pcapgo"

	"viaxdp/internal/base/programs"
	"viaxdp/internal/base/wire"
	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/pairtest"
	"viaxdp/internal/ops/capture"
	"viaxdp/internal/ops/status"
	"viaxdp/vipl"
)

// start captures from the programs that answer in dir. The summary is there when the capture has ended.
func start(ctx context.Context, t *testing.T, dir string, w io.Writer, c capture.Config) (ended chan error, s *capture.Summary) {
	t.Helper()
	r := status.Take([]string{dir})
	nstest.FatalIf(t, len(r.Failed) > 0, "%v", r.Failed)
	ended, s = make(chan error, 1), new(capture.Summary)
	go func() {
		var err error
		*s, err = capture.Run(ctx, w, r.Targets(), c)
		ended <- err
	}()
	return ended, s
}

// reader reads the file of a capture.
func reader(t *testing.T, from io.Reader) *pcapgo.NgReader {
	t.Helper()
	r, err := pcapgo.NewNgReader(from, pcapgo.DefaultNgReaderOptions)
	nstest.Must(t, err)
	return r
}

// talkers are two connected endpoints of this program, which answers in dir.
func talkers(t *testing.T) (a, b *pairtest.End, dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "proc")
	t.Setenv("VIA_RUNTIME_DIR", dir)
	a, b = pairtest.Connected(t, nstest.Options{}, vipl.ReliableDelivery)
	return a, b, dir
}

// talk has a send to b until something is over, and returns what came of it.
func talk(t *testing.T, a, b *pairtest.End, over <-chan error) error {
	t.Helper()
	for end := time.After(time.Minute); ; {
		a.Send(t, b, []byte("look"))
		select {
		case err := <-over:
			return err
		case <-end:
			t.Fatal("it does not end")
		case <-time.After(time.Millisecond):
		}
	}
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
		var both atomic.Bool // there is enough of each NIC
		ended, s := start(ctx, t, dir, &out, capture.Config{
			Interface: a.NS.Name, Snaplen: 65535, VIs: filter,
			Progress: func(s capture.Summary) { both.Store(slices.Min(s.Queues) >= 24) },
		})
		for !both.Load() {
			a.Send(t, b, message)
			b.Send(t, a, message)
			time.Sleep(time.Millisecond) // no more than the capture's buffers hold where its reader waits for a CPU
		}
		cancel()
		nstest.Must(t, <-ended)
		nstest.ErrorIf(t, s.Frames < 48 || s.Lost > 0 || len(s.Queues) != 2 || (s.Skipped > 0) != (filter != nil),
			"filter %v: %+v", filter, s)
		r, seen := reader(t, &out), map[[2]bool]int{} // sent, to b
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

// A reader of the file sees a frame soon, not when a buffer is full. A writer that fails
// ends the capture.
func TestSeenSoon(t *testing.T) {
	a, b, dir := talkers(t)
	read, write := io.Pipe()
	ended, _ := start(context.Background(), t, dir, write, capture.Config{Snaplen: 65535})
	r := reader(t, read) // the beginning is there before any frame
	seen := make(chan error, 1)
	go func() {
		_, _, err := r.ReadPacketData()
		seen <- err
	}()
	nstest.Must(t, talk(t, a, b, seen))
	read.CloseWithError(io.ErrClosedPipe)
	err := talk(t, a, b, ended)
	nstest.ErrorIf(t, !errors.Is(err, io.ErrClosedPipe) || strings.Count(err.Error(), io.ErrClosedPipe.Error()) != 1,
		"the capture ended with %v", err)
}

// The end of the programs ends the capture, and so does Count. No program is an error.
func TestEnds(t *testing.T) {
	a, b, dir := talkers(t)
	run := func(c capture.Config) (chan error, *capture.Summary) {
		return start(t.Context(), t, dir, io.Discard, c)
	}
	ended, _ := run(capture.Config{Interface: "other"})
	nstest.WantErr(t, "of another interface", <-ended, capture.ErrNobody)
	ended, s := run(capture.Config{Snaplen: 100, Count: 5})
	nstest.Check(t, talk(t, a, b, ended))
	nstest.ErrorIf(t, s.Frames != 5, "%d frames, not 5", s.Frames)
	both := make(chan error, 1) // has one when both are captured
	ended, _ = run(capture.Config{Snaplen: 100, Progress: func(s capture.Summary) {
		if slices.Min(s.Queues) > 0 && len(both) == 0 {
			both <- nil
		}
	}})
	nstest.Check(t, talk(t, a, b, both))
	nstest.Must(t, errors.Join(a.NIC.Close(), b.NIC.Close()))
	await.Until(t, "the capture ends", func() bool { return len(ended) > 0 })
	nstest.Check(t, <-ended)
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
	r := reader(t, &out)
	data, ci, opts, err := r.ReadPacketDataWithOptions()
	if err != nil || string(data) != "abc" || !ci.Timestamp.Equal(stamp) || ci.InterfaceIndex != 0 ||
		*opts.Queue != 3 || opts.Flags.Direction != pcapgo.NgEpbFlagDirectionOutbound {
		t.Errorf("%q, %+v, %+v, %v", data, ci, opts, err)
	}
	data, ci, opts, err = r.ReadPacketDataWithOptions()
	if err != nil || string(data) != "defg" || ci.Length != 300 || ci.InterfaceIndex != 1 || ci.Timestamp.Nanosecond() != 123456790 ||
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
	nstest.WantErr(t, "cut off behind a record's head",
		nstest.Err(capture.NewReader(strings.NewReader(record(0, 3, "abc")[:40])).Read()), io.ErrUnexpectedEOF)
}

// record is what a program sends for a frame of its queue 1: size bytes, data of which it kept, after lost frames.
func record(lost uint64, size uint32, data string) string {
	b := make([]byte, 40)
	binary.LittleEndian.PutUint64(b[8:], lost)
	b[16] = 1
	binary.LittleEndian.PutUint32(b[24:], size)
	binary.LittleEndian.PutUint32(b[28:], uint32(len(data)))
	return string(b) + data
}

// program answers with a status, and with the records of a capture whose frames have at most snaplen bytes.
type program struct {
	status  any
	records func(snaplen int) string
}

func (p program) Status() any { return p.status }
func (p program) Capture(w io.Writer, snaplen int, _ <-chan struct{}) error {
	return nstest.Err(io.WriteString(w, p.records(snaplen)))
}

// only is the one program that answers in a directory, by p.
func only(t *testing.T, p program) []capture.Target {
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

// Frames that a program could not record are counted even if no frame that passes the
// filter follows them. A program that is killed in the middle of a record has ended.
func TestLost(t *testing.T) {
	for name, c := range map[string]struct {
		records string
		vis     []uint32
		want    capture.Summary
	}{
		"not wanted": {record(0, 1, "x") + record(5, 1, "y"), []uint32{1}, capture.Summary{Skipped: 2, Lost: 5, Queues: []uint64{0}}},
		"none":       {record(2, 1, "x") + record(7, 0, ""), nil, capture.Summary{Frames: 1, Lost: 7, Queues: []uint64{1}}},
		"killed":     {record(3, 1, "x") + record(9, 3, "abc")[:41], nil, capture.Summary{Frames: 1, Lost: 3, Queues: []uint64{1}}},
	} {
		p := program{records: func(int) string { return c.records }}
		s, err := capture.Run(context.Background(), io.Discard, only(t, p), capture.Config{Snaplen: 100, VIs: c.vis})
		if err != nil || !slices.Equal(s.Queues, c.want.Queues) || s.Frames != c.want.Frames || s.Skipped != c.want.Skipped || s.Lost != c.want.Lost {
			t.Errorf("%s: %+v, %v, want %+v", name, s, err, c.want)
		}
	}
}

// A program that drops a slow reader has not ended: the capture says so. One that closes its NIC has.
func TestProgramLeaves(t *testing.T) {
	for _, c := range []struct {
		handles []int // of each queue, when the capture ends
		says    bool
	}{{nil, false}, {[]int{0}, false}, {[]int{0, 1}, false}, {[]int{1}, true}} { // the second is not captured
		var s vipl.ProgramStatus
		for i, n := range c.handles {
			s.Nics = append(s.Nics, vipl.NICStatus{ID: uint32(1 + i), Handles: n})
		}
		p := program{s, func(int) string { return "" }}
		_, err := capture.Run(context.Background(), io.Discard, only(t, p), capture.Config{Snaplen: 100})
		if (err != nil) != c.says || c.says && !strings.Contains(err.Error(), "still open") {
			t.Errorf("%v: %v", c.handles, err)
		}
	}
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
	p := program{records: func(most int) string { return record(0, uint32(len(frame)), string(frame[:min(most, len(frame))])) }}
	var out bytes.Buffer
	s, err := capture.Run(context.Background(), &out, only(t, p), capture.Config{Snaplen: snaplen, VIs: []uint32{h.VI}})
	nstest.Must(t, err)
	nstest.FatalIf(t, s.Frames != 1, "%+v", s)
	data, info, err := reader(t, &out).ReadPacketData()
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
	f.Add([]byte(record(0, 100, "abc") + record(0, 2, "de")))
	f.Add([]byte(record(0, 3, "abcd")))
	f.Add([]byte(record(0, 1<<17, strings.Repeat("x", 1<<17))[:40]))
	f.Add([]byte(record(0, 1<<17+1, "a")))
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
