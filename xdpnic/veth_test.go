package xdpnic

import (
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
		if !q.Send(addr, 64, true) {
			t.Fatal("refused")
		}
		if !q.InFlight(addr) {
			t.Fatal("not in flight after Send")
		}
		nstest.Must(t, q.Flush())
		data, _ := receive(t, b.q)
		wantPattern(t, data, 64, 3)
		eventually(t, "completion", func() bool { q.Reap(); return !q.InFlight(addr) })
		if q.TxFree() != 1 {
			t.Fatalf("%d free: a retained chunk was given away", q.TxFree())
		}
	}
	q.Send(addr, 64, true)
	q.Release(addr) // not yet published even
	if q.TxFree() != 1 {
		t.Fatal("freed under the kernel")
	}
	q.Flush()
	eventually(t, "completion", func() bool { q.Reap(); return q.TxFree() == 2 })
	addr, _, _ = q.Alloc()
	q.Release(addr)
	if q.TxFree() != 2 {
		t.Fatal("not freed")
	}
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
				if time.Now().After(end) {
					t.Fatalf("receiver's drops: %v, want %v", got, tc.want)
				}
			}
			if got := drops(stats(t, a.q)); len(got) != 0 {
				t.Errorf("sender's drops: %v", got)
			}
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
				if a.q.Pending() != DefaultChunks {
					t.Fatalf("pending %d", a.q.Pending())
				}
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
