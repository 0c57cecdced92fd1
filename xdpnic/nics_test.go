package xdpnic

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/nstest"
)

// openNICs opens queue 0 of the two NICs that the environment names, in the
// mode it names, and waits for the link.
func openNICs(t testing.TB, cfg Config) (a, b *end) {
	t.Helper()
	na, nb, name := nstest.NICs(t)
	mode, err := ParseMode(name)
	nstest.Must(t, err)
	cfg.Mode, cfg.Require = mode, true
	o := pairOptions{generic: mode.Generic(), frags: cfg.MultiBuffer, cfg: cfg}
	a, b = openEnd(t, na, o), openEnd(t, nb, o)
	for _, e := range []*end{a, b} {
		awaitRunning(t, e)
		wantMode(t, e, mode)
	}
	return a, b
}

// awaitRunning waits for the link, which some drivers take down to attach a
// program or to bind a socket.
func awaitRunning(t testing.TB, e *end) {
	t.Helper()
	nstest.Must(t, e.ns.Do(func() error {
		if !AwaitRunning(e.ns.Index, waitLimit) {
			return fmt.Errorf("%s: no link", e.ns.Name)
		}
		return nil
	}))
}

// wantMode asks the kernel how the program is attached and the socket bound: a
// zero-copy bind succeeds beside a program in generic mode, too.
func wantMode(t testing.TB, e *end, mode Mode) {
	t.Helper()
	want := uint32(nl.XDP_ATTACHED_DRV)
	if mode.Generic() {
		want = nl.XDP_ATTACHED_SKB
	}
	if x := e.ns.Link(t).Attrs().Xdp; x == nil || x.AttachMode != want {
		t.Errorf("%s: XDP program: %+v, want attach mode %d", e.ns.Name, x, want)
	}
	if i := e.q.Info(); i.ZeroCopy != (mode == ModeZeroCopy) || i.Mode != mode {
		t.Errorf("%s: zero-copy %v, mode %v, want %v", e.ns.Name, i.ZeroCopy, i.Mode, mode)
	}
}

// pump flushes waiting frames and reaps completions while a test waits for something else: a driver in zero-copy
// mode works asynchronously.
func (e *end) pump(t testing.TB) {
	t.Helper()
	nstest.Must(t, e.q.Flush())
	e.q.Refill()
}

// Frames of every length there and back, one at a time: each byte is checked,
// every chunk comes home, and no frame needs a second one to get on its way.
func TestNICsEcho(t *testing.T) {
	for _, tc := range []struct {
		name string
		cfg  Config
	}{
		{"chunks as the MTU asks", Config{}},
		{"chunks of 4096", Config{ChunkSize: 4096}},
		{"few chunks", Config{RxChunks: 64, TxChunks: 16}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, b := openNICs(t, tc.cfg)
			sizes := []int{60, 61, 64, 512, 1024, 1025, 1513, 1514}
			for i, n := range sizes {
				a.pass(t, b, n, byte(i))
				b.pass(t, a, n, byte(i)+100)
			}
			for _, e := range []*end{a, b} {
				eventually(t, "completions", func() bool { e.pump(t); return e.q.TxFree() == e.q.cfg.TxChunks })
				s := stats(t, e.q)
				if n := uint64(len(sizes)); s.TxFrames != n || s.RxFrames != n || s.Transmitted != n || s.Received != n {
					t.Errorf("counters: %+v", s)
				}
			}
			audit(t, a.q, b.q)
		})
	}
}

// A thousand round trips of a single frame. A driver that misses a kick, or the arrival of fresh chunks, stalls
// in one of them.
func TestNICsPingPong(t *testing.T) {
	a, b := openNICs(t, Config{RxChunks: 64, TxChunks: 64})
	start := time.Now()
	const rounds = 1000
	for i := range rounds {
		a.pass(t, b, 64, byte(i))
		b.pass(t, a, 64, byte(i)+1)
	}
	t.Logf("%v a round trip; kicks: %d and %d", time.Since(start)/rounds, stats(t, a.q).TxKicks, stats(t, b.q).TxKicks)
}

// A stream in bursts, with no more frames under way than the receiver has
// chunks: nothing is lost, everything in order.
func TestNICsStream(t *testing.T) {
	a, b := openNICs(t, Config{RxChunks: 256, TxChunks: 128})
	const frames = 4000
	const under = 64 // fewer than a NIC keeps for itself of 256 chunks
	sent, got := 0, 0
	batch := make([]Frame, 64)
	eventually(t, fmt.Sprintf("%d frames", frames), func() bool {
		for sent < frames && sent-got < under {
			addr, buf, ok := a.q.Alloc()
			if !ok {
				break
			}
			n := 64 + sent%1400
			header(buf, b.ns, a.ns)
			fillPattern(buf[14:n], byte(sent))
			if !a.q.Send(addr, n, false) {
				a.q.Release(addr)
				break
			}
			sent++
		}
		a.pump(t)
		for _, f := range batch[:b.q.Receive(batch)] {
			wantPattern(t, f.Data, 64+got%1400, byte(got))
			b.q.Recycle(f.Addr)
			got++
		}
		b.pump(t)
		return got == frames
	})
	s := stats(t, b.q)
	t.Logf("the driver holds %d of %d chunks for frames to come", s.Filled-s.Received, b.q.cfg.RxChunks)
	audit(t, a.q, b.q)
}

// A waiter sleeps until a frame comes; poll(2) is also what wakes a driver.
func TestNICsWait(t *testing.T) {
	a, b := openNICs(t, Config{RxChunks: 64, TxChunks: 64})
	batch := make([]Frame, 8)
	for i := range 50 {
		a.mustSend(t, b, 100, byte(i))
		for n := 0; n == 0; {
			start := time.Now()
			nstest.Must(t, b.q.Wait(waitLimit))
			nstest.FatalIf(t, time.Since(start) >= waitLimit, "the waiter was not woken")
			if n = b.q.Receive(batch); n > 0 {
				wantPattern(t, batch[0].Data, 100, byte(i))
				b.q.Recycle(batch[0].Addr)
				b.q.Refill()
			}
		}
	}
}

// Queues open and close again and again: nothing stays behind that would keep
// the next from working.
func TestNICsAgain(t *testing.T) {
	for i := range 5 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			a, b := openNICs(t, Config{RxChunks: 64, TxChunks: 64})
			b.pass(t, a, 200, byte(i))
		})
	}
}

// The data path in zero-copy mode allocates nothing.
func TestNICsAllocs(t *testing.T) {
	a, b := openNICs(t, Config{RxChunks: 64, TxChunks: 64})
	batch := make([]Frame, 8)
	if n := testing.AllocsPerRun(100, func() {
		addr, buf, ok := a.q.Alloc()
		if !ok {
			return
		}
		header(buf, b.ns, a.ns)
		a.q.Send(addr, 64, false)
		_ = a.q.Flush()
		for range 10000 {
			if n := b.q.Receive(batch); n > 0 {
				for _, f := range batch[:n] {
					b.q.Recycle(f.Addr)
				}
				b.q.Refill()
				break
			}
		}
		a.q.Reap()
	}); n != 0 {
		t.Errorf("%v allocations a frame", n)
	}
}

// In the copying modes a frame may have as many segments as the queue reports: the kernel drops one with more,
// and its chunks never come back.
func TestNICsMostSegments(t *testing.T) {
	na, nb, _ := nstest.NICs(t)
	for _, mode := range []Mode{ModeNative, ModeGeneric} {
		t.Run(mode.String(), func(t *testing.T) {
			if err := na.Do(func() error {
				r, err := attachRedirect(na.Index, mode.Generic(), true)
				if err == nil {
					r.close()
				}
				return err
			}); mode == ModeNative && errors.Is(err, unix.EOPNOTSUPP) {
				t.Logf("the driver has no programs for frames of several buffers: %v", err)
				return
			}
			o := pairOptions{generic: mode.Generic(), frags: true, cfg: Config{MultiBuffer: true, ChunkSize: 4096, RxChunks: 64, TxChunks: 64, Mode: mode, Require: true}}
			a, b := openEnd(t, na, o), openEnd(t, nb, o)
			for _, e := range []*end{a, b} {
				awaitRunning(t, e)
				wantMode(t, e, mode)
			}
			for i := range 3 {
				n := a.q.MaxSegs()
				a.sendSegmented(t, b, n*64, 64, byte(i))
				eventually(t, "completions", func() bool {
					a.pump(t)
					if k := stats(t, a.q).KernelStats.Tx_invalid_descs; k != 0 {
						t.Fatalf("the kernel has dropped %d entries of a frame of %d", k, n)
					}
					return a.q.TxFree() == a.q.cfg.TxChunks
				})
				data, _ := receive(t, b.q)
				wantPattern(t, data, n*64, byte(i))
			}
			audit(t, a.q, b.q)
		})
	}
}

// Chunks that cross pages work if the kernel copies. They are not available in zero-copy mode, nor are segments
// that cross pages.
func TestNICsUnaligned(t *testing.T) {
	na, _, name := nstest.NICs(t)
	mode, err := ParseMode(name)
	nstest.Must(t, err)
	for _, size := range []int{2048, 3000, 4096} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			cfg := Config{Unaligned: true, ChunkSize: size, RxChunks: 64, TxChunks: 64}
			if mode == ModeZeroCopy && size == 3000 {
				cfg.Mode, cfg.Require, cfg.Memory = mode, true, mapped(t, 1<<20)
				q, err := openIn(na, cfg)
				if err == nil {
					q.Close()
				}
				nstest.ErrorIf(t, !errors.Is(err, unix.EOPNOTSUPP), "%v, want EOPNOTSUPP", err)
				return
			}
			a, b := openNICs(t, cfg)
			for i := range 200 { // every chunk, more than once
				n := 60 + i%900
				a.pass(t, b, n, byte(i))
			}
			eventually(t, "completions", func() bool { a.pump(t); return a.q.TxFree() == a.q.cfg.TxChunks })
			if s := stats(t, a.q); s.KernelStats.Tx_invalid_descs != 0 {
				t.Errorf("%+v", s)
			}
			across := []Desc{{Addr: pageSize - 100, Len: 200}} // of whatever is there
			nstest.Equal(t, "a segment across a page is taken", a.q.SendSegs(across, false), mode != ModeZeroCopy)
			audit(t, a.q, b.q)
		})
	}
}

// TestNICsFacts logs what kernel and driver can do, as "fact: NAME: yes" or "no" with the reason. Other tests
// check what they must be able to do.
func TestNICsFacts(t *testing.T) {
	ns, _, _ := nstest.NICs(t)
	nstest.Must(t, ns.Do(func() error {
		fact := func(name string, err error) {
			if err == nil {
				t.Logf("fact: %s: yes", name)
			} else {
				t.Logf("fact: %s: no: %v", name, err)
			}
		}
		_, err := QueryFeatures(ns.Index)
		fact("netdev netlink", err)
		try := func(name string, mode Mode, frags bool, look func(*Queue) error) {
			fact(name, func() error {
				r, err := attachRedirect(ns.Index, mode.Generic(), frags)
				if err != nil {
					return err
				}
				defer r.close()
				q, err := Open(Config{Ifindex: ns.Index, RxChunks: 64, TxChunks: 64, Mode: mode, Require: true, MultiBuffer: frags})
				if err != nil {
					return err
				}
				err = r.register(q, 0)
				if err == nil && look != nil {
					err = look(q)
				}
				return errors.Join(err, q.Close())
			}())
		}
		try("zero-copy", ModeZeroCopy, false, nil)
		try("native", ModeNative, false, func(q *Queue) error {
			if q.Info().TxBudget == 32 {
				fact("TX budget", errors.New("the kernel has no XDP_MAX_TX_SKB_BUDGET: Linux 6.17 and later have"))
			} else {
				fact("TX budget", nil)
			}
			return nil
		})
		try("generic", ModeGeneric, false, nil)
		try("multi-buffer, native", ModeNative, true, nil)
		try("multi-buffer, generic", ModeGeneric, true, nil)
		try("multi-buffer, zero-copy", ModeZeroCopy, true, nil)
		return nil
	}))
}
