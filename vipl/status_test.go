package vipl_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"viaxdp/internal/base/programs"
	"viaxdp/internal/base/wire"
	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/pairtest"
	"viaxdp/vipl"
)

// The status that a program returns on its socket is correct.
func TestStatusOfProgram(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "proc")
	t.Setenv("VIA_RUNTIME_DIR", dir)
	t.Run("open", func(t *testing.T) {
		a, b := pairtest.Connected(t, nstest.Options{}, vipl.ReliableDelivery)
		for range 3 {
			a.Send(t, b, make([]byte, 100))
		}
		must(t, errOf(a.NIC.CreateCQ(100)))
		found, _ := programs.List([]string{dir})
		fatalIf(t, len(found) != 1 || found[0].PID != os.Getpid(), "programs %+v", found)
		var s vipl.ProgramStatus
		must(t, found[0].Status(&s))
		fatalIf(t, len(s.Nics) != 2 || len(s.Nics[0].VIs) != 1 || len(s.Nics[1].VIs) != 1, "%+v", s)
		na, nb := s.Nics[0], s.Nics[1]
		va, vb := na.VIs[0], nb.VIs[0]
		if va.State != "connected" || va.Level != "reliable-delivery" || va.Peer != b.NS.IPv4 || va.PeerVI != vb.Number ||
			va.SendDone != 3 || va.RecvDone != 0 || va.SendUnread != 0 || va.Sent < 3 {
			t.Errorf("a's VI: %+v", va)
		}
		errorIf(t, vb.Peer != a.NS.IPv4 || vb.RecvDone != 3 || vb.RecvPosted != 0 || vb.SendDone != 0, "b's VI: %+v", vb)
		if na.Interface != a.NS.Name || na.Handles != 1 || na.Mode != "generic" || na.Ptags != 1 || na.Mem.Regions != 1 ||
			na.Mem.Bytes != 128+2*pairtest.Size || na.Mem.Arena < 1<<20 || len(na.CQs) != 1 || na.CQs[0].Size < 100 {
			t.Errorf("a's NIC: %+v", na)
		}
		errorIf(t, nb.Counters.Messages != 3 || nb.Demux["redirected"] < 3 || nb.Socket["rx_frames"] < 3 || na.Socket["tx_frames"] < 3, "b's counters: %+v", nb)
	})
	_, err := os.Stat(dir)
	errorIf(t, !os.IsNotExist(err), "%s is still there", dir)
}

// A program whose socket cannot be made works all the same, and a note of its NIC has the cause.
func TestUnusableRuntimeDir(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	t.Setenv("VIA_RUNTIME_DIR", filepath.Join(file, "proc"))
	a, b := pairtest.Connected(t, nstest.Options{}, vipl.ReliableDelivery)
	a.Send(t, b, make([]byte, 100))
	for _, n := range []*vipl.NIC{a.NIC, b.NIC} {
		notes := strings.Join(n.Info().Notes, "\n")
		errorIf(t, !strings.Contains(notes, "via-xdp res") || !strings.Contains(notes, file), "notes %q do not have the cause", notes)
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

// Both directions are captured: short frames, long ones whose data the kernel reads in the program's memory,
// and the beginning of truncated ones.
func TestCapture(t *testing.T) {
	t.Parallel()
	a, b := pairtest.Connected(t, nstest.Options{MTU: 9000}, vipl.ReliableDelivery)
	for _, c := range []struct{ snaplen, size int }{{1 << 16, 100}, {1 << 16, pairtest.Size}, {200, pairtest.Size}} {
		message := bytes.Repeat([]byte{byte(c.snaplen), 0xa5}, c.size/2)
		r, w := io.Pipe()
		done := make(chan struct{})
		ended := starts(func() error {
			defer w.Close()
			return a.NIC.Capture(w, c.snaplen, done)
		})
		var seen [2]atomic.Int32 // frames with the message: received, sent
		go func() {
			for {
				sent, size, data, err := record(r)
				if err != nil {
					return // the capture has ended
				}
				errorIf(t, len(data) != min(size, c.snaplen), "%d of %d bytes", len(data), size)
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
		end := time.Now().Add(ackDelay)
		wait := func(more func() bool) {
			t.Helper()
			for more() {
				fatalIf(t, time.Now().After(end), "%+v: received %d, sent %d", c, seen[0].Load(), seen[1].Load())
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
		noError(t, <-ended)
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

// What was captured before the handle's end is written, although it had not been read by then.
func TestCaptureToTheEnd(t *testing.T) {
	for range 4 {
		n, va, vb, xa, xb := connectedBoxes(t, memoryConfig{}, vipl.ReliableDelivery, 1, 1, 64)
		send := func(size int) {
			postRecv(t, vb, xb, 0, 64)
			postSend(t, va, xa, 0, size)
			sent(t, va, 0)
			received(t, vb, 0)
		}
		w := newGate()
		ended := starts(func() error { return n.a.Capture(w, 1<<16, nil) })
		for reached := false; !reached; {
			send(10)
			select {
			case <-w.reached:
				reached = true
			default:
			}
		}
		const last = 50
		send(last)
		must(t, n.a.Close())
		close(w.open)
		must(t, <-ended)
		seen := false
		for w.Len() > 0 {
			sent, _, data, err := record(w)
			must(t, err)
			var p wire.Packet
			seen = seen || sent && p.Decode(data) == nil && len(p.Payload) == last
		}
		fatalIf(t, !seen, "the last message is not there")
	}
}

// Frames for which there was no room are reported although no frame follows them.
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
		fatalIf(t, err != nil || (got != size || told != 0) && records.Len() > 0, "record %d: %d bytes, %d lost, %v", n, got, told, err)
		errorIf(t, records.Len() == 0 && got != 0, "the last record is of a frame of %d bytes", got)
	}
	errorIf(t, told != lost, "%d frames lost are told, not %d", told, lost)
	again := drain()
	errorIf(t, len(again) != 0, "they are told again: %x", again)
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
	errorIf(t, out.String() != "a r", "%q was written", out.String())
}

// A writer that fails ends the capture, and so does closing the handle.
func TestCaptureEnds(t *testing.T) {
	t.Parallel()
	a, b := pairtest.Connected(t, nstest.Options{}, vipl.ReliableDelivery)
	r, w := io.Pipe()
	r.Close()
	ended := starts(func() error { return a.NIC.Capture(w, 100, nil) })
	for over := false; !over; {
		a.Send(t, b, []byte("x"))
		select {
		case err := <-ended:
			errorIf(t, !errors.Is(err, io.ErrClosedPipe), "%v", err)
			over = true
		default:
		}
	}
	began := make(chan struct{})
	ended = starts(func() error {
		close(began)
		return a.NIC.Capture(io.Discard, 100, nil)
	})
	<-began
	must(t, a.NIC.Close())
	noError(t, <-ended)
}
