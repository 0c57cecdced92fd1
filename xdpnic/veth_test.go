package xdpnic

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/nstest"
)

// Frames there and back, in both copying modes and with all kinds of chunks:
// each byte is checked, and every chunk comes home.
func TestEcho(t *testing.T) {
	for _, generic := range []bool{true, false} {
		for _, tc := range []struct {
			name string
			cfg  Config
		}{
			{"aligned 2048", Config{}},
			{"aligned 4096", Config{ChunkSize: 4096}},
			{"headroom", Config{Headroom: 128, ChunkSize: 2048}},
			{"unaligned 2048", Config{Unaligned: true, ChunkSize: 2048}},
			{"unaligned 3000", Config{Unaligned: true, ChunkSize: 3000}},
			{"multi-buffer", Config{MultiBuffer: true}},
			{"multi-buffer, three segments", Config{MultiBuffer: true, MaxSegs: 3}},
			{"small rings", Config{RxChunks: 8, TxChunks: 4}},
		} {
			t.Run(fmt.Sprintf("generic=%v/%s", generic, tc.name), func(t *testing.T) {
				a, b := openPair(t, pairOptions{generic: generic, frags: tc.cfg.MultiBuffer, cfg: tc.cfg})
				for i, n := range []int{14, 15, 60, 64, 512, 1514} {
					a.pass(t, b, n, byte(i))
					b.pass(t, a, n, byte(i)+100)
				}
				for _, e := range []*end{a, b} {
					eventually(t, "completions", func() bool { e.q.Reap(); return e.q.TxFree() == e.q.cfg.TxChunks })
					s := stats(t, e.q)
					if s.TxFrames != 6 || s.RxFrames != 6 || s.Transmitted != 6 || s.Completed != 6 || s.Received != 6 {
						t.Errorf("counters: %+v", s)
					}
					s.Each(func(c Counter) {
						nstest.ErrorIf(t, c.Drop && c.Value != 0, "%s = %d", c.Name, c.Value)
					})
					segs := e.q.MaxSegs()
					nstest.ErrorIf(t, (segs > 1) != tc.cfg.MultiBuffer || tc.cfg.MaxSegs > 0 && segs != tc.cfg.MaxSegs, "%d segments", segs)
					info := e.q.Info()
					if info.Mode != ModeNative || info.ZeroCopy || len(info.Attempts) != 2 ||
						!errors.Is(info.Attempts[0].Err, unix.EOPNOTSUPP) {
						t.Errorf("info: %+v", info)
					}
				}
				audit(t, a.q, b.q)
			})
		}
	}
}

// A retained chunk stays the caller's over its completions and can be sent
// again; Release gives it back, at once or on completion.
func TestRetain(t *testing.T) {
	a, b := openPair(t, pairOptions{generic: true, cfg: Config{TxChunks: 2}})
	q := a.q
	addr, buf, _ := q.Alloc()
	header(buf, b.ns, a.ns)
	fillPattern(buf[14:64], 3)
	for range 3 {
		nstest.FatalIf(t, !q.Send(addr, 64, true), "refused")
		nstest.FatalIf(t, !q.InFlight(addr), "not in flight after Send")
		nstest.Must(t, q.Flush())
		data, _ := receive(t, b.q)
		wantPattern(t, data, 64, 3)
		eventually(t, "completion", func() bool { q.Reap(); return !q.InFlight(addr) })
		nstest.FatalIf(t, q.TxFree() != 1, "%d free: a retained chunk was given away", q.TxFree())
	}
	q.Send(addr, 64, true)
	q.Release(addr) // not yet published even
	nstest.FatalIf(t, q.TxFree() != 1, "freed under the kernel")
	q.Flush()
	eventually(t, "completion", func() bool { q.Reap(); return q.TxFree() == 2 })
	addr, _, _ = q.Alloc()
	q.Release(addr)
	nstest.FatalIf(t, q.TxFree() != 2, "not freed")
	audit(t, q)
}

// Every frame that is lost at the receiver is counted by name there.
func TestDropsHaveNames(t *testing.T) {
	drops := func(s Stats) map[string]uint64 {
		m := map[string]uint64{}
		s.Each(func(c Counter) {
			if c.Value != 0 && (c.Drop || strings.HasPrefix(c.Name, "rx_fill_ring_empty")) {
				m[c.Name] = c.Value
			}
		})
		return m
	}
	for _, tc := range []struct {
		name   string
		frags  bool
		mtu    int
		a, b   Config
		frames int
		size   int
		want   map[string]uint64
	}{
		{"fill ring empty", false, 1500, Config{}, Config{RxChunks: 4, Rings: Rings{RX: 64}}, 10, 64,
			map[string]uint64{"rx_dropped": 6, "rx_fill_ring_empty_descs": 6}},
		{"RX ring full", false, 1500, Config{}, Config{RxChunks: 64, Rings: Rings{RX: 4}}, 10, 64,
			map[string]uint64{"rx_ring_full": 6}},
		{"longer than a chunk", true, 3000, Config{ChunkSize: 4096}, Config{ChunkSize: 2048}, 3, 2000,
			map[string]uint64{"rx_dropped": 3}},
		{"fill ring too short for a frame", true, 3000, Config{ChunkSize: 4096},
			Config{ChunkSize: 2048, MultiBuffer: true, RxChunks: 1, Rings: Rings{RX: 64}}, 2, 2000,
			map[string]uint64{"rx_dropped": 2}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			na, nb := nstest.Pair(t, nstest.Options{MTU: tc.mtu})
			a := openEnd(t, na, pairOptions{generic: true, frags: tc.frags, cfg: tc.a})
			b := openEnd(t, nb, pairOptions{generic: true, frags: tc.frags, cfg: tc.b})
			for range tc.frames {
				a.mustSend(t, b, tc.size, 1)
			}
			eventually(t, "completions", func() bool { a.q.Reap(); return a.q.TxFree() == DefaultChunks })
			// A frame may complete as a copy of it goes on, which is dropped a moment later.
			var got map[string]uint64
			for end := time.Now().Add(waitLimit); ; time.Sleep(time.Millisecond) {
				if got = drops(stats(t, b.q)); maps.Equal(got, tc.want) {
					break
				}
				nstest.FatalIf(t, time.Now().After(end), "receiver's drops: %v, want %v", got, tc.want)
			}
			nstest.Same(t, "sender's drops", drops(stats(t, a.q)), map[string]uint64{})
			audit(t, a.q, b.q)
		})
	}
}

// Many frames with one Flush arrive all: the kernel takes them in several
// kicks, and with the default send buffer none is lost on the way.
func TestBurst(t *testing.T) {
	for _, generic := range []bool{true, false} {
		for _, budget := range []int{-1, 0} {
			t.Run(fmt.Sprintf("generic=%v/budget=%d", generic, budget), func(t *testing.T) {
				a, b := openPair(t, pairOptions{generic: generic, cfg: Config{TxBudget: budget}})
				for range DefaultChunks {
					addr, buf, _ := a.q.Alloc()
					header(buf, b.ns, a.ns)
					a.q.Send(addr, 64, false)
				}
				nstest.FatalIf(t, a.q.Pending() != DefaultChunks, "pending %d", a.q.Pending())
				flushes := uint64(0)
				eventually(t, "all taken", func() bool {
					flushes++
					nstest.Must(t, a.q.Flush())
					return a.q.Pending() == 0
				})
				frames := make([]Frame, 64)
				got := 0
				eventually(t, "all received", func() bool { got += b.q.Receive(frames); return got == DefaultChunks })
				s := stats(t, a.q)
				nstest.ErrorIf(t, s.TxLostBusy != 0 || s.Transmitted != DefaultChunks, "%+v", s)
				budget := a.q.Info().TxBudget
				nstest.ErrorIf(t, s.TxKicks < uint64(DefaultChunks/budget) || s.TxKicks <= flushes || s.TxAgain == 0,
					"%d flushes, %d kicks of %d entries, %d again", flushes, s.TxKicks, budget, s.TxAgain)
			})
		}
	}
}

// A frame that the driver refuses (here: longer than the interface takes) is
// lost and counted; those around it arrive, and all chunks come back.
func TestLostFrameIsCounted(t *testing.T) {
	a, b := openPair(t, pairOptions{generic: true})
	for _, n := range []int{64, 1700, 65, 66, 1700} {
		addr, buf, _ := a.q.Alloc()
		header(buf, b.ns, a.ns)
		fillPattern(buf[14:n], byte(n))
		a.q.Send(addr, n, false)
	}
	nstest.Must(t, a.q.Flush())
	for _, n := range []int{64, 65, 66} {
		data, _ := receive(t, b.q)
		wantPattern(t, data, n, byte(n))
	}
	eventually(t, "completions", func() bool { a.q.Reap(); return a.q.TxFree() == DefaultChunks })
	if s := stats(t, a.q); s.TxLostBusy != 2 || s.Transmitted != 5 || s.Completed != 5 || a.q.Pending() != 0 {
		t.Errorf("%+v, pending %d", s, a.q.Pending())
	}
	audit(t, a.q)
}

// Frames that find no carrier are lost and counted, and the counter's meaning names that cause.
func TestNoCarrierIsCounted(t *testing.T) {
	a, b := openPair(t, pairOptions{generic: true})
	b.ns.SetLink(t, false)
	for range 3 {
		a.mustSend(t, b, 64, 1)
	}
	s := stats(t, a.q)
	s.Each(func(c Counter) {
		if c.Name == "tx_lost_busy" && (c.Value != 3 || !strings.Contains(c.Meaning, "no carrier")) {
			t.Errorf("%d of 3 frames without a carrier are %q", c.Value, c.Meaning)
		}
	})
	audit(t, a.q)
}

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
					a.sendSegmented(t, b, n, tc.chunk, byte(i))
					data, segs := receive(t, b.q)
					wantPattern(t, data, n, byte(i))
					nstest.Equal(t, fmt.Sprintf("segments of %d bytes", n), segs, (n+rxCap-1)/rxCap)
				}
				eventually(t, "completions", func() bool { a.q.Reap(); return a.q.TxFree() == a.q.cfg.TxChunks })
				audit(t, a.q, b.q)
			})
		}
	}
}

// sendSegmented sends n bytes in segments of at most that many.
func (e *end) sendSegmented(t *testing.T, to *end, n, most int, seed byte) {
	t.Helper()
	flat := make([]byte, n)
	header(flat, to.ns, e.ns)
	fillPattern(flat[14:], seed)
	var segs []Desc
	for len(flat) > 0 {
		addr, buf := e.mustAlloc(t)
		k := copy(buf[:most], flat)
		flat = flat[k:]
		segs = append(segs, Desc{Addr: addr, Len: uint32(k)})
	}
	nstest.FatalIf(t, !e.q.SendSegs(segs, false), "SendSegs of %d segments refused", len(segs))
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
			nstest.FatalIf(t, q.SendSegs(frame(MaxSegs+1), true), "19 segments taken")
			nstest.Equal(t, "TxRefused", stats(t, q).TxRefused, 1)
			nstest.FatalIf(t, !q.SendSegs(frame(MaxSegs), true), "18 segments refused")
			nstest.Must(t, q.Flush())
			data, _ := receive(t, b.q)
			if unaligned {
				wantPattern(t, data, 14+17*400, 7)
			} else if len(data) != 14+17*400 {
				t.Fatalf("got %d bytes", len(data))
			}
			eventually(t, "completion", func() bool { q.Reap(); return !q.InFlight(addr) })
			s := stats(t, q)
			nstest.FatalIf(t, s.KernelStats.Tx_invalid_descs != 0 || s.Completed != MaxSegs, "stats: %+v", s)
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
		nstest.FatalIf(t, !q.Info().TxCopied || q.Info().ZeroCopy, "%+v", q.Info())
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
			nstest.FatalIf(t, !q.SendSegs(segs, false), "refused")
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
