package xdpnic

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/nstest"
)

// Frames of several segments, out and in, up to the largest MTU.
func TestMultiBuffer(t *testing.T) {
	for _, generic := range []bool{true, false} {
		for _, tc := range []struct{ mtu, chunk int }{{1500, 2048}, {9000, 2048}, {9000, 4096}, {65535, 4096}} {
			t.Run(fmt.Sprintf("generic=%v/mtu=%d/chunk=%d", generic, tc.mtu, tc.chunk), func(t *testing.T) {
				a, b := openPair(t, pairOptions{mtu: tc.mtu, generic: generic, frags: true,
					cfg: Config{MultiBuffer: true, ChunkSize: tc.chunk}})
				_, rxCap := b.q.FrameCap()
				for i, n := range []int{64, rxCap, rxCap + 1, tc.mtu / 2, tc.mtu, tc.mtu + 14} {
					if n < 15 || n > tc.mtu+14 || (n+tc.chunk-1)/tc.chunk > MaxSegs {
						continue
					}
					a.sendSegmented(t, b, n, byte(i))
					data, segs := receive(t, b.q)
					wantPattern(t, data, n, byte(i))
					if want := (n + rxCap - 1) / rxCap; segs != want {
						t.Errorf("%d bytes came in %d segments, want %d", n, segs, want)
					}
				}
				eventually(t, "completions", func() bool { a.q.Reap(); return a.q.TxFree() == a.q.cfg.TxChunks })
				audit(t, a.q, b.q)
			})
		}
	}
}

// sendSegmented sends n bytes in as many chunks as it takes.
func (e *end) sendSegmented(t *testing.T, to *end, n int, seed byte) {
	t.Helper()
	flat := make([]byte, n)
	header(flat, to.ns, e.ns)
	fillPattern(flat[14:], seed)
	var segs []Desc
	for len(flat) > 0 {
		addr, buf := e.mustAlloc(t)
		k := copy(buf, flat)
		flat = flat[k:]
		segs = append(segs, Desc{Addr: addr, Len: uint32(k)})
	}
	if !e.q.SendSegs(segs, false) {
		t.Fatalf("SendSegs of %d segments refused", len(segs))
	}
	nstest.Must(t, e.q.Flush())
}

// openWithMemory opens a pair; a's queue also has memory of the caller.
func openWithMemory(t *testing.T, unaligned bool) (a, b *end, mem []byte) {
	t.Helper()
	cfg := Config{MultiBuffer: true, ChunkSize: 2048, RxChunks: 64, TxChunks: 64, Unaligned: unaligned}
	mem = mapped(t, 1<<20) // first: it goes after the queues
	a, b = openPair(t, pairOptions{mtu: 9000, generic: true, frags: true, cfg: cfg})
	cfg.Memory = mem
	nstest.Must(t, a.ns.Do(func() error {
		a.q.Close()
		q, err := a.open(cfg)
		if err == nil {
			a.q = q
		}
		return err
	}))
	return a, b, mem
}

// A header from a TX chunk and payload from registered memory make one frame of up to 18 segments. One with 19 is
// refused here, since the kernel would lose it without notice.
func TestPayloadByReference(t *testing.T) {
	for _, unaligned := range []bool{false, true} {
		t.Run(fmt.Sprintf("unaligned=%v", unaligned), func(t *testing.T) {
			a, b, mem := openWithMemory(t, unaligned)
			q := a.q
			region := q.Info().PoolBytes
			if unaligned {
				region += 1000 // crosses chunks and pages
			}
			fillPattern(mem[region:region+17*400], 7)
			addr, buf, _ := q.Alloc()
			header(buf, b.ns, a.ns)
			frame := func(segments int) []Desc {
				segs := []Desc{{Addr: addr, Len: 14}}
				for i := range segments - 1 {
					at := region + i*400
					if !unaligned {
						at = region + i%5*400 // stay in a chunk
					}
					segs = append(segs, Desc{Addr: uint64(at), Len: 400})
				}
				return segs
			}
			if q.SendSegs(frame(MaxSegs+1), true) {
				t.Fatal("19 segments taken")
			}
			if n := stats(t, q).TxRefused; n != 1 {
				t.Fatalf("TxRefused = %d", n)
			}
			if !q.SendSegs(frame(MaxSegs), true) {
				t.Fatal("18 segments refused")
			}
			nstest.Must(t, q.Flush())
			data, _ := receive(t, b.q)
			if unaligned {
				wantPattern(t, data, 14+17*400, 7)
			} else if len(data) != 14+17*400 {
				t.Fatalf("got %d bytes", len(data))
			}
			eventually(t, "completion", func() bool { q.Reap(); return !q.InFlight(addr) })
			s := stats(t, q)
			if s.KernelStats.Tx_invalid_descs != 0 || s.Completed != MaxSegs {
				t.Fatalf("stats: %+v", s)
			}
			q.Release(addr)
			audit(t, q)
		})
	}
}

// A frame that is cancelled on the ring is one that the kernel sends and completes as any
// other, and has nothing of the caller's memory.
func TestCancelOnTheRing(t *testing.T) {
	for _, unaligned := range []bool{false, true} {
		a, b, mem := openWithMemory(t, unaligned)
		q := a.q
		if !q.Info().TxCopied || q.Info().ZeroCopy {
			t.Fatalf("%+v", q.Info())
		}
		// What is for no socket of the queue goes on to the kernel, and may be seen there.
		var neighbour int
		nstest.Must(t, b.ns.Do(func() (err error) {
			const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8
			if neighbour, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, all); err == nil {
				err = unix.Bind(neighbour, &unix.SockaddrLinklayer{Protocol: all, Ifindex: b.ns.Index})
			}
			return err
		}))
		defer unix.Close(neighbour)
		region := q.Info().PoolBytes
		send := func() uint64 {
			t.Helper()
			addr, buf := a.mustAlloc(t)
			header(buf, b.ns, a.ns)
			segs := []Desc{{Addr: addr, Len: 64}, {Addr: uint64(region), Len: 2048}, {Addr: uint64(region + 2048), Len: 2048}}
			if !q.SendSegs(segs, false) {
				t.Fatal("refused")
			}
			q.publish()
			return addr
		}
		secret := []byte("secret")
		copy(mem[region:], bytes.Repeat(secret, 4096/len(secret)))
		first, second := send(), send()
		nstest.ErrorIf(t, !q.Reading(first) || !q.Cancel(first), "not cancelled")
		nstest.Must(t, q.Flush())
		nstest.ErrorIf(t, q.Reading(second) || !q.Cancel(second), "the kernel reads what it has copied")
		if data, _ := receive(t, b.q); len(data) != 64+4096 || !bytes.Contains(data, secret) {
			t.Errorf("unaligned %v: a frame of %d bytes", unaligned, len(data))
		}
		data := make([]byte, 1<<16)
		n := 0
		eventually(t, "the cancelled frame", func() bool {
			var err error
			n, _, err = unix.Recvfrom(neighbour, data, unix.MSG_DONTWAIT)
			return err == nil && n >= 14 && [14]byte(data) == [14]byte{} // the kernel's own are others
		})
		if data = data[:n]; n != 64+2 || bytes.Contains(data, secret[:1]) {
			t.Errorf("unaligned %v: a cancelled frame of %d bytes: %q", unaligned, n, data[:min(n, 100)])
		}
		eventually(t, "completion", func() bool { q.Reap(); return q.TxFree() == 64 })
		if s := stats(t, q); s.KernelStats.Tx_invalid_descs != 0 || s.Completed != 6 {
			t.Errorf("stats: %+v", s)
		}
		audit(t, q)
	}
}

// If a socket for frames of several chunks is refused because of the kernel's version, the error names the
// first version that has them. A newer kernel refuses something else, here a queue that does not exist.
func TestMultiBufferRefused(t *testing.T) {
	ns, _ := nstest.Pair(t, nstest.Options{})
	q, err := openIn(ns, Config{QueueID: 1, RxChunks: 64, TxChunks: 64, Mode: ModeGeneric, Require: true, MultiBuffer: true})
	if err == nil {
		q.Close()
	}
	var u unix.Utsname
	nstest.Must(t, unix.Uname(&u))
	old := beforeSG(unix.ByteSliceToString(u.Release[:]))
	if !errors.Is(err, unix.EINVAL) || strings.Contains(err.Error(), "before 6.6") != old || !strings.Contains(err.Error(), "queue number") {
		t.Errorf("%v, want the kernel's age in it: %v", err, old)
	}
	for release, want := range map[string]bool{
		"5.15.0-91-generic": true, "6.1.0-50-cloud-amd64": true, "6.5.13": true, "6.6.0-rc1": false, "6.18.5": false, "7.0": false, "?": false,
	} {
		nstest.ErrorIf(t, beforeSG(release) != want, "%s is before XDP_USE_SG: want %v", release, want)
	}
}
