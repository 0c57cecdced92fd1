package vipl_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"viaxdp/internal/base/secure"
	"viaxdp/internal/base/wire"
	"viaxdp/internal/lab/schedlat"
	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

// testPSK is a key made of one byte.
func testPSK(t testing.TB, b byte) *vipl.PSK {
	t.Helper()
	k, err := vipl.NewPSK(bytes.Repeat([]byte{b}, 32))
	must(t, err)
	return k
}

// sealedNet is a configuration whose connections have a key, which changes often.
func sealedNet(t testing.TB, c memoryConfig) memoryConfig {
	c.psk, c.rekey = testPSK(t, 1), secure.Limits{Frames: 100}
	return c
}

func TestPSKLength(t *testing.T) {
	k, err := vipl.NewPSK(make([]byte, 31))
	errorIf(t, k != nil || !errors.Is(err, vipl.ErrInvalidParameter), "31 bytes: %v, %v", k, err)
}

// A key from a file is that of the file's bytes. One that is too short or too long, or
// cannot be read, is none, and the error names it.
func TestReadPSK(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, bytes []byte) string {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, bytes, 0o600))
		return path
	}
	k, err := vipl.ReadPSK(write("key", bytes.Repeat([]byte{7}, 32)))
	must(t, err)
	n := newMemoryNet(t, memoryConfig{})
	va := createVI(t, n.a.NIC, vipl.VIAttributes{Level: vipl.ReliableDelivery, PSK: k}, nil, nil)
	vb := createVI(t, n.b.NIC, vipl.VIAttributes{Level: vipl.ReliableDelivery, PSK: testPSK(t, 7)}, nil, nil)
	errA, errB := connectPeers(t, n, va, vb)
	noError(t, errors.Join(errA, errB))
	for _, path := range []string{write("short", make([]byte, 31)), write("long", make([]byte, 1<<20+1)), "/dev/zero", dir, filepath.Join(dir, "none")} {
		k, err := vipl.ReadPSK(path)
		errorIf(t, k != nil || !errors.Is(err, vipl.ErrInvalidParameter) || !strings.Contains(err.Error(), path), "%s: %v, %v", path, k, err)
	}
}

// A key that other users can read, or that another user has written, is refused, with the remedy.
func TestReadPSKOfOthers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	must(t, os.WriteFile(path, make([]byte, 32), 0o600))
	for _, mode := range []os.FileMode{0o640, 0o604, 0o620, 0o602, 0o644, 0o666, 0o610} {
		must(t, os.Chmod(path, mode))
		_, err := vipl.ReadPSK(path)
		errorIf(t, !errors.Is(err, vipl.ErrInvalidParameter) || !strings.Contains(err.Error(), "chmod 600 "+path), "mode %#o: %v", mode, err)
	}
	for _, mode := range []os.FileMode{0o600, 0o400} {
		must(t, os.Chmod(path, mode))
		_, err := vipl.ReadPSK(path)
		errorIf(t, err != nil, "mode %#o: %v", mode, err)
	}
	if os.Geteuid() != 0 {
		return
	}
	must(t, os.Chown(path, 60001, -1))
	_, err := vipl.ReadPSK(path)
	errorIf(t, !errors.Is(err, vipl.ErrInvalidParameter) || !strings.Contains(err.Error(), "belongs to user 60001"), "another user's: %v", err)
}

// Two VIs whose keys differ are not connected: both sides get the reason at once. With the same key they are
// connected. A VI's own key goes before that of the NIC handle.
func TestKeysMustAgree(t *testing.T) {
	one, two := testPSK(t, 1), testPSK(t, 2)
	for _, c := range []struct {
		name   string
		handle *vipl.PSK // of both NIC handles
		a, b   *vipl.PSK // of the requester, or the lower address; of the acceptor
		reason wire.CMReason
	}{
		{"neither", nil, nil, nil, 0},
		{"both the same", nil, one, testPSK(t, 1), 0},
		{"different", nil, one, two, wire.CMReasonKey},
		{"requester only", nil, one, nil, wire.CMReasonPlain},
		{"acceptor only", nil, nil, two, wire.CMReasonNoKey},
		{"the handle's", two, nil, two, 0},
		{"another than the handle's", two, one, nil, wire.CMReasonKey},
		{"both another than the handle's", two, one, one, 0},
	} {
		refused := func(t *testing.T, who string, err error) {
			t.Helper()
			switch {
			case c.reason == 0 && err != nil:
				t.Errorf("%s: %v", who, err)
			case c.reason != 0 && (!errors.Is(err, vipl.ErrRejected) || !errors.Is(err, vipl.ErrSecurity) ||
				!strings.Contains(err.Error(), c.reason.String())):
				t.Errorf("%s: %v, want %q", who, err, c.reason)
			}
		}
		make2 := func(t *testing.T) (n *memoryNet, va, vb *vipl.VI, after func()) {
			n = newMemoryNet(t, memoryConfig{psk: c.handle})
			va = newVI(t, n.a.NIC, vipl.ReliableDelivery)
			vb = createVI(t, n.b.NIC, vipl.VIAttributes{Level: vipl.ReliableDelivery, PSK: c.b}, nil, nil)
			must(t, va.SetAttributes(vipl.VIAttributes{Level: vipl.ReliableDelivery, PSK: c.a}))
			return n, va, vb, func() {
				t.Helper()
				want := vipl.Connected
				if c.reason != 0 {
					want = vipl.Idle
				}
				stateIs(t, va, want)
				stateIs(t, vb, want)
			}
		}
		t.Run(c.name, func(t *testing.T) {
			n, va, vb, after := make2(t)
			accepted := accepts(n.b.NIC, vipl.NetAddress{Discriminator: []byte("x")}, vb)
			meter := schedlat.Start()
			defer meter.Close()
			start := meter.Mark()
			err := request(va, address(n.b, "x"))
			refused(t, "requester", err)
			refused(t, "acceptor", <-accepted)
			errorIf(t, start.Over(2*time.Second), "it took %v", time.Since(start.At))
			after()
		})
		t.Run(c.name+", peers", func(t *testing.T) {
			n, va, vb, after := make2(t)
			errA, errB := connectPeers(t, n, va, vb)
			refused(t, "one", errA)
			refused(t, "other", errB)
			after()
		})
	}
}

// Of lengths at which a plain frame fits in a chunk and its sealed form may not,
// every message arrives, by each operation.
func TestSealedAroundAChunk(t *testing.T) {
	_, va, vb, xa, xb := rdmaPair(t, sealedNet(t, longFrames), vipl.ReliableDelivery)
	for size := 3970; size < 4110; size++ {
		fillPattern(xa.buf[0][:size], size)
		postRecv(t, vb, xb, 0, size)
		postSend(t, va, xa, 0, size)
		received(t, vb, 0)
		sent(t, va, 0)
		checkPattern(t, xb.buf[0][:size], size)
		xa.desc[0].SetRDMAWrite(xb.remote(1), segment(xa, 0, size))
		postDesc(t, va, xa, 0)
		sent(t, va, vipl.StatusOpRDMAWrite)
		xa.desc[2].SetRDMARead(xb.remote(1), segment(xa, 2, size))
		postDesc(t, va, xa, 2)
		sent(t, va, vipl.StatusOpRDMARead)
		checkPattern(t, xa.buf[2][:size], size)
	}
}

// An attacker on the path, without the key, appends bytes to a sealed frame. No message changes, and no chunk is written that
// is back with the kernel, although the frame has to wait for an earlier one.
func TestPaddedSealedFrame(t *testing.T) {
	const long, short, count = 8000, 100, 5
	for before := range 20 { // short frames, which move the chunks of the long one through the fill ring
		inBubble(t, fmt.Sprint(before), func(t *testing.T) {
			c := sealedNet(t, longFrames)
			c.bubble, c.noPacking = true, true
			c.queue.RxChunks = 24
			n, va, vb, xa, xb := connectedBoxes(t, c, vipl.ReliableDelivery, 1+count, 32, long)
			path := n.attacker(t, xdpnictest.Config{ChunkSize: 16384, TxChunks: 8, RxChunks: 8})
			postRecvs(t, vb, xb, 32, long)
			postMessage(t, va, xa, 0, long, 100)
			receivedMessage(t, vb, xb.buf[0][:long], 100)
			sent(t, va, 0)
			for k := range before {
				postMessage(t, va, xa, 0, short, k)
				receivedMessage(t, vb, xb.buf[1+k][:short], k)
				sent(t, va, 0)
			}
			var frames [][]byte
			n.a.queue.SetFaults(xdpnictest.Faults{Drop: func(frame []byte) bool {
				frames = append(frames, bytes.Clone(frame))
				return true
			}})
			for k := 1; k <= count; k++ {
				postMessage(t, va, xa, k, short, k)
			}
			frames[count-1] = append(frames[count-1], make([]byte, 6000)...)
			for _, k := range []int{1, 2, 3, 4, 0} { // the first one last
				errorIf(t, !path.SendBytes(frames[k]), "no room for a frame on the path")
				n.b.Poll()
			}
			for k := 1; k <= count; k++ {
				receivedMessage(t, vb, xb.buf[before+k][:short], k)
			}
			n.a.queue.SetFaults(xdpnictest.Faults{})
			disconnect(t, va, vb)
		})
	}
}

// Nothing that the program sends is on the wire as it is, in frames of one chunk or
// of several, nor in a capture, which is of what is on the wire.
func TestNothingInClear(t *testing.T) {
	secret := []byte("what nobody else shall read")
	for _, base := range []memoryConfig{{}, longFrames} {
		for _, sealed := range []bool{false, true} {
			c := base
			if sealed {
				c = sealedNet(t, base)
			}
			n, va, vb := connected(t, c, vipl.ReliableDelivery)
			const size = 12_000
			xa, xb := newBox(t, n.a.NIC, 1, size), newBox(t, n.b.NIC, 1, size)
			var seen, plain atomic.Int64
			watch := xdpnictest.Faults{Drop: func(frame []byte) bool {
				var p wire.Packet
				if p.Decode(frame) != nil || p.Kind != wire.KindSealed {
					plain.Add(1)
				}
				if bytes.Contains(frame, secret) {
					seen.Add(1)
				}
				return false
			}}
			n.a.queue.SetFaults(watch)
			n.b.queue.SetFaults(watch)
			var captured bytes.Buffer
			done, tapped := make(chan struct{}), make(chan struct{}) // tapped is closed when there are as many bytes as in the message
			ended := starts(func() error {
				return n.a.Capture(writer(func(b []byte) (int, error) {
					before := captured.Len()
					captured.Write(b)
					if before < size && captured.Len() >= size {
						close(tapped)
					}
					return len(b), nil
				}), 1<<16, done)
			})
			for n.a.Captures() == 0 {
				runtime.Gosched()
			}
			copy(xa.buf[0], bytes.Repeat(secret, size/len(secret)))
			postRecv(t, vb, xb, 0, size)
			postSend(t, va, xa, 0, size)
			received(t, vb, 0)
			sent(t, va, 0)
			errorIf(t, !bytes.Equal(xa.buf[0][:size], xb.buf[0][:size]), "other bytes arrived")
			noError(t, va.Disconnect())
			<-tapped
			close(done)
			noError(t, <-ended)
			errorIf(t, bytes.Contains(captured.Bytes(), secret) == sealed, "sealed %v: the bytes are in %d captured, or not", sealed, captured.Len())
			got := seen.Load() > 0
			errorIf(t, got == sealed || (plain.Load() == 0) != sealed, "sealed %v: the bytes were seen %d times, %d frames were plain", sealed, seen.Load(), plain.Load())
		}
	}
}

func TestSealedNoAllocation(t *testing.T) {
	eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		noAllocation(t, memoryConfig{psk: testPSK(t, 1)}, level, 64, 3000)
		long := longFrames
		long.psk = testPSK(t, 1)
		noAllocation(t, long, level, 64, 9000, 200_000)
	})
}

// A port with few chunks for frames that it sends, all of them wanted twice, for
// the plain frame and for the sealed one, gets on all the same over a bad way.
func TestSealedWithFewChunks(t *testing.T) {
	for _, chunks := range []int{16, 32, 64} {
		t.Run(fmt.Sprint(chunks), func(t *testing.T) {
			c := longFrames
			c.arena, c.queue.TxChunks, c.noPacking = 8<<20, chunks, true
			n, va, vb := connected(t, sealedNet(t, c), vipl.ReliableDelivery)
			n.wire.SetFaults(xdpnictest.Faults{Seed: 3, Loss: 0.1})
			const size, count = 50_000, 64
			length := func(i int) int { return []int{size, 3000, 3000, 3000, 3000, 3000, 3000, 3000}[i%8] }
			xa, xb := newBox(t, n.a.NIC, count, 64), newBox(t, n.b.NIC, count, size)
			own := registered(t, n.a.NIC, count*size) // is copied, not lent
			for round := range 3 {
				fillPattern(own.buf[0], round)
				postRecvs(t, vb, xb, count, size)
				for i := range count {
					s := own.segs[0]
					s.Data, s.Length = s.Data+uint64(i*size), uint32(length(i))
					xa.desc[i].SetSegments(s)
					must(t, va.PostSend(xa.desc[i], xa.region.Handle()))
				}
				for i := range count {
					received(t, vb, 0)
					fatalIf(t, !bytes.Equal(xb.buf[i][:length(i)], own.buf[0][i*size:][:length(i)]), "round %d: message %d is another", round, i)
					sent(t, va, 0)
				}
			}
			errorIf(t, n.a.Counters().Resent == 0, "nothing was lost")
		})
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }

// What a program does with the address of a requester does not change the request.
func TestAddressOfRequesterIsACopy(t *testing.T) {
	n, va, vb := unconnected(t, memoryConfig{psk: testPSK(t, 1)}, vipl.ReliableDelivery)
	at := address(n.b, "copy")
	l, err := n.b.Listen(at)
	must(t, err)
	asked := starts(func() error {
		return errOf(va.ConnectRequest(vipl.NetAddress{Discriminator: []byte("requester")}, at, ackDelay))
	})
	c, err := l.Wait(t.Context())
	must(t, err)
	clear(c.Remote().Discriminator)
	equal(t, "the discriminator", string(c.Remote().Discriminator), "requester")
	must(t, c.Accept(vb))
	must(t, <-asked)
	noError(t, l.Close())
}
