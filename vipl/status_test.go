package vipl_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"viaxdp/internal/nstest"
	"viaxdp/internal/pairtest"
	"viaxdp/internal/programs"
	"viaxdp/vipl"
	"viaxdp/wire"
)

// What a program says of itself by its socket is what is so.
func TestStatusOfProgram(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "proc")
	t.Setenv("VIA_RUNTIME_DIR", dir)
	t.Run("open", func(t *testing.T) {
		a, b := pairtest.Connected(t, nstest.Options{}, vipl.ReliableDelivery)
		for range 3 {
			a.Send(t, b, make([]byte, 100))
		}
		if _, err := a.Nic.CreateCQ(100); err != nil {
			t.Fatal(err)
		}
		found, _ := programs.List([]string{dir})
		if len(found) != 1 || found[0].PID != os.Getpid() {
			t.Fatalf("programs %+v", found)
		}
		var s vipl.ProgramStatus
		if err := found[0].Status(&s); err != nil {
			t.Fatal(err)
		}
		if len(s.Nics) != 2 || len(s.Nics[0].VIs) != 1 || len(s.Nics[1].VIs) != 1 {
			t.Fatalf("%+v", s)
		}
		na, nb := s.Nics[0], s.Nics[1]
		va, vb := na.VIs[0], nb.VIs[0]
		if va.State != "connected" || va.Level != "reliable-delivery" || va.Peer != b.NS.IPv4 || va.PeerVI != vb.Number ||
			va.SendDone != 3 || va.RecvDone != 0 || va.SendUnread != 0 || va.Sent < 3 {
			t.Errorf("a's VI: %+v", va)
		}
		if vb.Peer != a.NS.IPv4 || vb.RecvDone != 3 || vb.RecvPosted != 0 || vb.SendDone != 0 {
			t.Errorf("b's VI: %+v", vb)
		}
		if na.Interface != a.NS.Name || na.Handles != 1 || na.Mode != "generic" || na.Ptags != 1 || na.Mem.Regions != 1 ||
			na.Mem.Bytes != 128+2*pairtest.Size || na.Mem.Arena < 1<<20 || len(na.CQs) != 1 || na.CQs[0].Size < 100 {
			t.Errorf("a's NIC: %+v", na)
		}
		if nb.Counters.Messages != 3 || nb.Demux["redirected"] < 3 || nb.Socket["rx_frames"] < 3 || na.Socket["tx_frames"] < 3 {
			t.Errorf("b's counters: %+v", nb)
		}
	})
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s is still there", dir)
	}
}

// record reads one of Capture's records.
func record(r io.Reader) (sent bool, size int, data []byte, err error) {
	var head [40]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return false, 0, nil, err
	}
	data = make([]byte, binary.LittleEndian.Uint32(head[28:]))
	if _, err := io.ReadFull(r, data); err != nil {
		return false, 0, nil, err
	}
	if at := time.Unix(0, int64(binary.LittleEndian.Uint64(head[:]))); time.Since(at).Abs() > time.Minute {
		return false, 0, nil, fmt.Errorf("stamped %v", at)
	}
	return head[32] == 1, int(binary.LittleEndian.Uint32(head[24:])), data, nil
}

// Both directions are captured, short frames, long ones whose data the kernel
// reads where the program has it, and what is left of a cut one.
func TestCapture(t *testing.T) {
	a, b := pairtest.Connected(t, nstest.Options{MTU: 9000}, vipl.ReliableDelivery)
	for _, c := range []struct{ snaplen, size int }{{1 << 16, 100}, {1 << 16, pairtest.Size}, {200, pairtest.Size}} {
		message := bytes.Repeat([]byte{byte(c.snaplen), 0xa5}, c.size/2)
		r, w := io.Pipe()
		done, ended := make(chan struct{}), make(chan error, 1)
		go func() {
			err := a.Nic.Capture(w, c.snaplen, done)
			w.Close()
			ended <- err
		}()
		var seen [2]atomic.Int32 // frames with the message: received, sent
		go func() {
			for {
				sent, size, data, err := record(r)
				if err != nil {
					return // the capture has ended
				}
				if len(data) != min(size, c.snaplen) {
					t.Errorf("%d of %d bytes", len(data), size)
				}
				var p wire.Packet
				whole := c.snaplen > c.size
				if err := p.Decode(data); whole && (err != nil || p.Verify() != nil) {
					t.Errorf("a frame that is none: %v", err)
				}
				if whole && bytes.Equal(p.Payload, message) || !whole && size > c.size {
					seen[map[bool]int{true: 1}[sent]].Add(1)
				}
			}
		}()
		end := time.Now().Add(patience)
		wait := func(more func() bool) {
			t.Helper()
			for more() {
				if time.Now().After(end) {
					t.Fatalf("%+v: received %d, sent %d", c, seen[0].Load(), seen[1].Load())
				}
			}
		}
		wait(func() bool { // until the tap is there
			a.Send(t, b, message)
			b.Send(t, a, message)
			return seen[0].Load() == 0 || seen[1].Load() == 0
		})
		const n = 20
		before := [2]int32{seen[0].Load(), seen[1].Load()}
		for range n {
			a.Send(t, b, message)
			b.Send(t, a, message)
		}
		wait(func() bool { return seen[0].Load() < before[0]+n || seen[1].Load() < before[1]+n })
		close(done)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// gate is a writer whose first Write waits until it is opened.
type gate struct {
	bytes.Buffer
	reached, open chan struct{}
}

func newGate() *gate { return &gate{reached: make(chan struct{}), open: make(chan struct{})} }

func (g *gate) Write(b []byte) (int, error) {
	select {
	case <-g.reached:
	default:
		close(g.reached)
		<-g.open
	}
	return g.Buffer.Write(b)
}

// What was captured before the handle's end comes, although nobody has read it by then.
func TestCaptureToTheEnd(t *testing.T) {
	last := []byte("the last message")
	for range 4 {
		a, b := pairtest.Connected(t, nstest.Options{}, vipl.ReliableDelivery)
		w, ended := newGate(), make(chan error, 1)
		go func() { ended <- a.Nic.Capture(w, 1<<16, nil) }()
		for reached := false; !reached; {
			a.Send(t, b, []byte("the first message"))
			select {
			case <-w.reached:
				reached = true
			default:
			}
		}
		a.Send(t, b, last)
		if err := a.Nic.Close(); err != nil {
			t.Fatal(err)
		}
		close(w.open)
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		seen := false
		for w.Len() > 0 {
			sent, _, data, err := record(w)
			if err != nil {
				t.Fatal(err)
			}
			var p wire.Packet
			seen = seen || sent && p.Decode(data) == nil && bytes.Equal(p.Payload, last)
		}
		if !seen {
			t.Fatal("the last message is not there")
		}
	}
}

// Frames for which there was no room are told of although none comes behind them.
func TestCaptureTellsTheLost(t *testing.T) {
	const size, lost = 1000, 5
	drain := vipl.FillTap(size, lost)
	records := bytes.NewReader(drain())
	told := uint64(0)
	for n := 0; records.Len() > 0; n++ {
		var head [40]byte
		records.ReadAt(head[:], records.Size()-int64(records.Len()))
		told = binary.LittleEndian.Uint64(head[8:])
		_, got, _, err := record(records)
		if err != nil || (got != size || told != 0) && records.Len() > 0 {
			t.Fatalf("record %d: %d bytes, %d lost, %v", n, got, told, err)
		}
		if records.Len() == 0 && got != 0 {
			t.Errorf("the last record is of a frame of %d bytes", got)
		}
	}
	if told != lost {
		t.Errorf("%d frames lost are told, not %d", told, lost)
	}
	if again := drain(); len(again) != 0 {
		t.Errorf("they are told again: %x", again)
	}
}

// Behind a part of a record there comes nothing, of no queue: it would be read as the rest.
func TestCapturesOfSeveralQueues(t *testing.T) {
	var out bytes.Buffer
	broken := vipl.LockedWriter(writer(func(b []byte) (int, error) {
		if out.Len() == 0 {
			out.Write(b[:3])
			return 3, os.ErrDeadlineExceeded
		}
		return out.Write(b)
	}))
	for range 2 {
		if _, err := broken.Write([]byte("a record")); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
	}
	if out.String() != "a r" {
		t.Errorf("%q was written", out.String())
	}
}

// A writer that fails ends the capture, and so does closing the handle.
func TestCaptureEnds(t *testing.T) {
	a, b := pairtest.Connected(t, nstest.Options{}, vipl.ReliableDelivery)
	r, w := io.Pipe()
	r.Close()
	ended := make(chan error, 1)
	go func() { ended <- a.Nic.Capture(w, 100, nil) }()
	for over := false; !over; {
		a.Send(t, b, []byte("x"))
		select {
		case err := <-ended:
			if !errors.Is(err, io.ErrClosedPipe) {
				t.Error(err)
			}
			over = true
		default:
		}
	}
	began := make(chan struct{})
	go func() {
		close(began)
		ended <- a.Nic.Capture(io.Discard, 100, nil)
	}()
	<-began
	if err := a.Nic.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
