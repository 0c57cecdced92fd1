package xdpnictest_test

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/internal/base/wire"
	"viaxdp/internal/lab/nstest"
	"viaxdp/xdpnic"
	"viaxdp/xdpnic/xdpnictest"
)

// conserved checks that every frame that a sent is accounted for.
func conserved(t *testing.T, a, b *xdpnictest.Queue) {
	t.Helper()
	s, r := a.Stats(), b.Stats()
	if in, out := s.Carried+s.Duplicated, s.Cut+s.Filtered+s.Lost+s.LostBurst+s.Nowhere+r.Arrived; in != out {
		t.Errorf("%d frames went in, %d came out: %+v %+v", in, out, s, r)
	}
	if out := r.RxCut + r.RxNotOurs + r.RxRefused + r.RxTooLong + r.RxRingFull + r.RxNoFill + r.RxQueued; r.Arrived != out {
		t.Errorf("%d frames arrived, %d are accounted for: %+v", r.Arrived, out, r)
	}
}

// run sends n frames under f and returns the numbers that arrived, in their
// order, and the sender's counts.
func run(t *testing.T, f xdpnictest.Faults, n int) (got []int, s xdpnictest.Stats) {
	synctest.Test(t, func(t *testing.T) {
		a, b := pair(t, xdpnictest.Config{})
		a.SetFaults(f)
		for i := range n {
			sendAll(t, a, i, i+1)
			got = append(got, receive(b)...)
		}
		time.Sleep(time.Second)
		got = append(got, receive(b)...)
		s = a.Stats()
		conserved(t, a, b)
		nstest.Equal(t, "free chunks", a.Owners().Free, xdpnictest.DefaultChunks)
	})
	return got, s
}

// A wire that is closed has nothing on the way, whatever the faults are set to then.
func TestFaultsAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, qs := joined(t, xdpnictest.Config{}, xdpnictest.Config{})
		a, b := qs[0], qs[1]
		a.SetFaults(xdpnictest.Faults{Reorder: 1})
		sendAll(t, a, 0, 1) // it waits for others to overtake it
		w.Close()
		w.SetFaults(xdpnictest.Faults{})
		sendAll(t, a, 1, 2)
		nstest.Equal(t, "frames that arrived", len(receive(b)), 0)
		conserved(t, a, b)
	})
}

// Each fault takes place, is counted, and has the documented effect.
func TestFaults(t *testing.T) {
	const n, few = 2000, 500 // few: all of them find an RX chunk at the same time
	near := func(got uint64, want float64) bool { return float64(got) > 0.7*want && float64(got) < 1.3*want }
	for _, c := range []struct {
		name   string
		faults xdpnictest.Faults
		check  func(got []int, s xdpnictest.Stats) bool
	}{
		{"loss", xdpnictest.Faults{Seed: 1, Loss: 0.1}, func(got []int, s xdpnictest.Stats) bool {
			return near(s.Lost, 0.1*n) && len(got) == n-int(s.Lost) && slices.IsSorted(got)
		}},
		{"burst", xdpnictest.Faults{Seed: 1, Burst: 0.01, BurstLen: 10}, func(got []int, s xdpnictest.Stats) bool {
			longest, last := 0, -1
			for _, k := range got {
				longest, last = max(longest, k-last-1), k
			}
			return near(s.LostBurst, 0.01*n*5.5) && longest >= 5 && len(got)+int(s.LostBurst) == n
		}},
		{"dup", xdpnictest.Faults{Seed: 1, Dup: 0.1}, func(got []int, s xdpnictest.Stats) bool {
			return near(s.Duplicated, 0.1*n) && len(got) == n+int(s.Duplicated) && slices.Equal(slices.Compact(got), count(0, n))
		}},
		{"reorder", xdpnictest.Faults{Seed: 1, Reorder: 0.1}, func(got []int, s xdpnictest.Stats) bool {
			late, latest := 0, 0
			for i, k := range got {
				if i > k {
					late++
				}
				latest = max(latest, i-k)
			}
			slices.Sort(got)
			return near(s.Reordered, 0.1*n) && near(uint64(late), 0.1*n) && latest <= 4 && slices.Equal(got, count(0, n))
		}},
		{"corrupt", xdpnictest.Faults{Seed: 1, Corrupt: 0.2}, func(got []int, s xdpnictest.Stats) bool {
			return near(s.Corrupted, 0.2*n) && len(got) == n && !slices.IsSorted(got)
		}},
		{"jitter", xdpnictest.Faults{Seed: 1, Jitter: time.Millisecond}, func(got []int, s xdpnictest.Stats) bool {
			return s.Delayed == few && len(got) == few && !slices.IsSorted(got)
		}},
		{"drop", xdpnictest.Faults{Drop: func(f []byte) bool { return f[23]&1 != 0 }}, func(got []int, s xdpnictest.Stats) bool {
			return s.Filtered == n/2 && len(got) == n/2
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			frames := n
			if c.faults.Jitter > 0 {
				frames = few
			}
			got, s := run(t, c.faults, frames)
			if arrived := len(got); !c.check(got, s) {
				t.Errorf("%d arrived; %+v", arrived, s)
			}
		})
	}
}

func TestSeedDecides(t *testing.T) {
	f := xdpnictest.Faults{
		Seed: 42, Loss: 0.05, Burst: 0.01, Dup: 0.05, Reorder: 0.1, Corrupt: 0.05, Delay: time.Millisecond, Jitter: time.Millisecond,
	}
	first, s1 := run(t, f, 1000)
	again, s2 := run(t, f, 1000)
	nstest.ErrorIf(t, !slices.Equal(first, again) || s1 != s2, "the same seed gave another run")
	f.Seed++
	if other, _ := run(t, f, 1000); slices.Equal(first, other) {
		t.Error("another seed gave the same run")
	}
}

func TestDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := pair(t, xdpnictest.Config{})
		a.SetFaults(xdpnictest.Faults{Delay: 5 * time.Millisecond})
		start := time.Now()
		sendAll(t, a, 0, 100)
		for _, step := range []time.Duration{5*time.Millisecond - 1, 0} {
			nstest.FatalIf(t, b.Ready(), "too early")
			time.Sleep(step)
		}
		must(t, b.Wait(time.Second))
		nstest.Equal(t, "time until they arrived", time.Since(start), 5*time.Millisecond)
		synctest.Wait()
		nstest.Same(t, "frames of one delay", receive(b), count(0, 100))
	})
}

// The last frames of a run are not held back for ever.
func TestHeldBackFramesCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := pair(t, xdpnictest.Config{})
		a.SetFaults(xdpnictest.Faults{Reorder: 1, Delay: time.Millisecond})
		sendAll(t, a, 0, 1)
		time.Sleep(2*time.Millisecond - 1)
		nstest.ErrorIf(t, b.Ready(), "too early")
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		nstest.Equal(t, "frames", len(receive(b)), 1)
		sendAll(t, a, 1, 3)
		a.SetFaults(xdpnictest.Faults{})
		time.Sleep(time.Millisecond)
		synctest.Wait()
		nstest.Equal(t, "frames", len(receive(b)), 2)
	})
}

func TestCut(t *testing.T) {
	a, b := pair(t, xdpnictest.Config{})
	b.Cut(true)
	sendAll(t, a, 0, 3)
	sendAll(t, b, 0, 2)
	b.Cut(false)
	sendAll(t, a, 3, 4)
	if got := receive(b); !slices.Equal(got, []int{3}) || a.Ready() {
		t.Errorf("got %v", got)
	}
	nstest.ErrorIf(t, b.Stats().RxCut != 3 || b.Stats().Cut != 2, "%+v", b.Stats())
	conserved(t, a, b)
}

func TestAdmit(t *testing.T) {
	link := wire.Link{Src: netip.MustParseAddr("10.0.0.1"), Dst: netip.MustParseAddr("10.0.0.2"), Port: wire.Port}
	template, err := wire.NewTemplate(link)
	must(t, err)
	a, b := pair(t, xdpnictest.Config{Admit: func(vi uint32, key uint64, src netip.Addr) bool {
		return vi == 0x10001 && key == 7 && src == link.Src
	}})
	data := func(vi uint32, key uint64) {
		a.SendFrame(&template, wire.Header{Kind: wire.KindData, VI: vi, Key: key}, nil)
	}
	data(0x10001, 7)
	data(0x10002, 7)
	data(0x10001, 8)
	sendAll(t, a, 0, 1)
	var frames [8]xdpnic.Frame
	nstest.Equal(t, "frames that came in", b.Receive(frames[:]), 1)
	b.Recycle(frames[0].Addr)
	if s := b.Stats(); s.RxRefused != 2 || s.RxNotOurs != 1 {
		t.Errorf("%+v", s)
	}
	conserved(t, a, b)
}

// A lying kernel is counted, chunks stay where they belong, and Audit does not
// blame the program.
func TestLies(t *testing.T) {
	a, b := pair(t, xdpnictest.Config{CompletionRing: 2048})
	l := xdpnictest.Lies{
		Seed: 3, DoubleCompletion: 0.1, WildCompletion: 0.1, WildRx: 0.1, RxLength: 0.1, Split: 0.1,
		RefuseSend: 0.1, FlushError: 0.1, Stall: 0.1,
	}
	a.SetLies(l)
	b.SetLies(l)
	sent := 0
	for n := range 1000 {
		addr, buf, ok := a.Alloc()
		nstest.FatalIf(t, !ok, "chunks are gone")
		clear(buf[:frameLen])
		binary.BigEndian.PutUint32(buf[20:], uint32(n))
		if a.Send(addr, frameLen, false) {
			sent++
		} else {
			a.Release(addr)
		}
		if err := a.Flush(); err != nil && err != xdpnic.ErrLinkDown {
			t.Fatal(err)
		}
		receive(b)
	}
	for a.Pending() > 0 {
		a.Flush()
	}
	receive(b)
	s, r := a.Stats(), b.Stats()
	for name, v := range map[string]uint64{
		"double": s.LiedDoubleCompletion, "wild completion": s.LiedWildCompletion, "send": s.LiedSend, "flush": s.LiedFlush,
		"stall": s.Stalled, "wild rx": r.LiedWildRx, "length": r.LiedLength, "split": r.LiedSplit,
		"bad completions": s.TxBadCompletions, "bad entries": r.RxBadEntries,
	} {
		nstest.ErrorIf(t, v < 50 || v > 300, "%s: %d", name, v)
	}
	nstest.ErrorIf(t, r.RxQueued != uint64(sent) || r.RxBadEntries != r.LiedWildRx, "sent %d, %+v", sent, r)
	nstest.ErrorIf(t, a.Owners().Free != xdpnictest.DefaultChunks || b.Owners().Filled != xdpnictest.DefaultChunks, "%+v %+v", a.Owners(), b.Owners())
}

func TestLostAndLateCompletions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := pair(t, xdpnictest.Config{TxChunks: 100})
		a.SetLies(xdpnictest.Lies{Seed: 1, LostCompletion: 0.5})
		sendAll(t, a, 0, 50)
		lost := a.Stats().LiedLostCompletion
		if o := a.Owners(); lost < 15 || lost > 35 || uint64(o.InFlight) != lost || o.Free != 100-int(lost) {
			t.Errorf("%d lost, %+v", lost, o)
		}
		a.SetLies(xdpnictest.Lies{LateCompletion: time.Millisecond})
		addr := send(t, a, 50, true)
		flush(t, a)
		if got := receive(b); len(got) != 51 || !a.InFlight(addr) {
			t.Errorf("got %d, in flight %v", len(got), a.InFlight(addr))
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		nstest.ErrorIf(t, a.Reap() != 1 || a.InFlight(addr), "did not complete")
		a.Release(addr)
	})
}
