package mvich_test

import (
	"bytes"
	"errors"
	"syscall"
	"testing"
	"time"

	"viaxdp/hugepages"
	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/schedlat"
	"viaxdp/mvich"
	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

var loss = xdpnictest.Faults{
	Seed: 7, Loss: 0.01, Dup: 0.01, Reorder: 0.02, Corrupt: 0.005, Jitter: 20 * time.Microsecond,
}

var none xdpnictest.Faults

// sizes are around every bound of the protocols.
var sizes = []int{0, 1, 8, 64, 1000, 4999, 5000, 5001, 8159, 8160, 8161, 16383, 16384, 16385, 16415, 16416, 16417, 20000, 65536, 1 << 20, 1<<20 + 1, 4 << 20}

// aboveThreshold is how many of sizes are larger than mvich.DefaultThreshold.
const aboveThreshold = 9

// Every size by every protocol, with and without losses, in both directions at once.
func TestProtocols(t *testing.T) {
	for _, way := range []struct {
		name   string
		faults xdpnictest.Faults
	}{{name: "quiet"}, {"lossy", loss}} {
		for _, p := range []mvich.Protocol{mvich.Auto, mvich.Eager, mvich.R3, mvich.RGET, mvich.RPUT} {
			t.Run(way.name+"/"+p.String(), func(t *testing.T) {
				j := newJob(t, 2, jobConfig{faults: way.faults, options: with(mvich.WithProtocol(p))})
				j.run(t, swapSizes)
				j.run(t, swapSizesLater)
				j.spotless(t, mvich.DefaultCredits)
				s := j.worlds[0].Stats()
				used := map[mvich.Protocol]uint64{
					mvich.Auto: s.RGET, mvich.Eager: s.Eager, mvich.R3: s.R3, mvich.RGET: s.RGET, mvich.RPUT: s.RPUT,
				}
				wrong := used[p] < 8 || p > mvich.Eager && used[p] < 2*uint64(len(sizes)-1) || p == mvich.Auto && (s.RPUT != aboveThreshold || s.RGET != aboveThreshold)
				nstest.ErrorIf(t, wrong || s.Fallbacks > 0, "protocols used: %+v", s)
			})
		}
	}
}

// swapSizes has two ranks exchange a message of each size, in calls that wait.
func swapSizes(c *mvich.Comm) error { return swapSizesBy(c, c.Sendrecv) }

// swapSizesLater does so by requests.
func swapSizesLater(c *mvich.Comm) error {
	return swapSizesBy(c, func(out []byte, dst, sendTag int, in []byte, src, recvTag int) (mvich.Status, error) {
		r, s := get(c.Irecv(in, src, recvTag)), get(c.Isend(out, dst, sendTag))
		get(s.Wait())
		return r.Wait()
	})
}

func swapSizesBy(c *mvich.Comm, exchange func([]byte, int, int, []byte, int, int) (mvich.Status, error)) error {
	other := 1 - c.Rank()
	for i, n := range sizes {
		out, in := make([]byte, n), make([]byte, n)
		fill(out, i+c.Rank())
		s, err := exchange(out, other, i, in, other, i)
		failIf(err != nil, "%d bytes: %w", n, err)
		failIf(s != (mvich.Status{Source: other, Tag: i, Bytes: n, Size: n}), "%d bytes: %+v", n, s)
		must(check(in, i+other))
	}
	return nil
}

// A long message is written if its sender waits in the call, and read if it may compute meanwhile.
func TestWaitingCallsWrite(t *testing.T) {
	j := newJob(t, 2, jobConfig{})
	b := [2][]byte{make([]byte, 20000), make([]byte, 20000)}
	for name, test := range map[string]struct {
		send    func(c *mvich.Comm, b []byte) error
		written bool
	}{
		"Send":     {func(c *mvich.Comm, b []byte) error { return c.Send(b, 1, 0) }, true},
		"Ssend":    {func(c *mvich.Comm, b []byte) error { return c.Ssend(b, 1, 0) }, true},
		"Sendrecv": {func(c *mvich.Comm, b []byte) error { return nstest.Err(c.Sendrecv(b, 1, 0, nil, mvich.ProcNull, 0)) }, true},
		"Bcast":    {func(c *mvich.Comm, b []byte) error { return c.Bcast(b, 0) }, true},
		"Isend":    {func(c *mvich.Comm, b []byte) error { return nstest.Err(get(c.Isend(b, 1, 0)).Wait()) }, false},
		"Issend":   {func(c *mvich.Comm, b []byte) error { return nstest.Err(get(c.Issend(b, 1, 0)).Wait()) }, false},
	} {
		before := j.worlds[0].Stats()
		j.run(t, func(c *mvich.Comm) error {
			switch {
			case c.Rank() == 0:
				return test.send(c, b[0])
			case name == "Bcast":
				return c.Bcast(b[1], 0)
			}
			return nstest.Err(c.Recv(b[1], 0, 0))
		})
		after := j.worlds[0].Stats()
		written, read := after.RPUT-before.RPUT, after.RGET-before.RGET
		nstest.ErrorIf(t, written+read != 1 || written == 1 != test.written, "%s: %d messages were written, %d read", name, written, read)
	}
}

// If the receiver lacks the right or the memory for a protocol, its message uses another one.
func TestFallback(t *testing.T) {
	for name, c := range map[string]struct {
		options [2][]mvich.Option
		used    func(s mvich.Stats) uint64
	}{
		"nobody registers": {
			[2][]mvich.Option{{mvich.WithRegistered(0)}, {mvich.WithRegistered(0)}},
			func(s mvich.Stats) uint64 { return min(s.R3, s.Fallbacks) },
		},
		"the receiver does not register, get": {
			[2][]mvich.Option{{mvich.WithProtocol(mvich.RGET)}, {mvich.WithRegistered(0)}},
			func(s mvich.Stats) uint64 { return s.R3 },
		},
		"the receiver does not register, put": {
			[2][]mvich.Option{{mvich.WithProtocol(mvich.RPUT)}, {mvich.WithRegistered(0)}},
			func(s mvich.Stats) uint64 { return s.R3 },
		},
		"the sender does not register, put": {
			[2][]mvich.Option{{mvich.WithProtocol(mvich.RPUT), mvich.WithRegistered(0)}, {}},
			func(s mvich.Stats) uint64 { return min(s.R3, s.Fallbacks) },
		},
		"no reads": {
			[2][]mvich.Option{{}, {mvich.WithRDMA(false, true)}},
			func(s mvich.Stats) uint64 { return s.RPUT },
		},
		"neither": {
			[2][]mvich.Option{{}, {mvich.WithRDMA(false, false)}},
			func(s mvich.Stats) uint64 { return s.R3 },
		},
	} {
		t.Run(name, func(t *testing.T) {
			j := newJob(t, 2, jobConfig{options: func(rank int) []mvich.Option { return c.options[rank] }})
			j.run(t, swapSizes)
			j.spotless(t, mvich.DefaultCredits)
			s := j.worlds[0].Stats()
			nstest.ErrorIf(t, c.used(s) < 5, "%+v", s)
		})
	}
}

// A one-way flood is stopped before it fills the receiver's memory: it goes on as envelopes.
func TestUnexpectedLimit(t *testing.T) {
	const limit, size, count = 1 << 16, 4000, 500
	j := newJob(t, 2, jobConfig{options: with(mvich.WithUnexpected(limit))})
	j.run(t, func(c *mvich.Comm) error {
		if c.Rank() == 0 {
			requests := make([]*mvich.Request, count)
			for i := range requests {
				b := make([]byte, size)
				fill(b, i)
				var err error
				if requests[i], err = c.Isend(b, 1, 1); err != nil {
					return err
				}
			}
			must(c.Send(nil, 1, 2))
			return mvich.WaitAll(requests...)
		}
		get(c.Recv(nil, 0, 2)) // all others have come before it
		b := make([]byte, size)
		for i := range count {
			get(c.Recv(b, 0, 1))
			must(check(b, i))
		}
		return nil
	})
	const most = limit/size + 4*mvich.DefaultCredits
	s := j.worlds[0].Stats()
	nstest.ErrorIf(t, s.Eager > most || s.RGET < count-most, "%d messages were eager, and %d not", s.Eager, s.RGET)
	j.spotless(t, mvich.DefaultCredits)
}

// A rank that exceeds the limit again and again, each time by no more than its credits, is not taken for hostile.
func TestUnexpectedLimitAgain(t *testing.T) {
	const limit, size, count, credits = 1000, 2000, 6, 8
	j := newJob(t, 2, jobConfig{options: with(mvich.WithUnexpected(limit), mvich.WithCredits(credits))})
	j.run(t, func(c *mvich.Comm) error {
		for range 2 * credits {
			if c.Rank() == 0 {
				for tag := range count {
					must(c.Send(make([]byte, size), 1, tag))
				}
			} else {
				get(c.Probe(0, count-1)) // all others have come before it
				for tag := range count {
					get(c.Recv(make([]byte, size), 0, tag))
				}
			}
			must(c.Barrier())
		}
		return nil
	})
}

// A message that is too long fills the buffer and fails the receive, by each protocol, before or after the
// receive is posted. The sender gets no error.
func TestTruncated(t *testing.T) {
	for _, p := range []mvich.Protocol{mvich.Auto, mvich.R3, mvich.RGET, mvich.RPUT} {
		t.Run(p.String(), func(t *testing.T) {
			j := newJob(t, 2, jobConfig{options: with(mvich.WithProtocol(p))})
			j.run(t, func(c *mvich.Comm) error {
				for i, n := range []int{100, 5000, 100000, 3 << 20} {
					for _, room := range []int{0, 1, n / 2, n - 1} {
						b := make([]byte, n)
						if c.Rank() == 0 {
							fill(b, i)
							must(errors.Join(c.Send(b, 1, 0), c.Send(b, 1, 0)))
							continue
						}
						for range 2 {
							clear(b)
							s, err := c.Recv(b[:room], 0, 0)
							failIf(!errors.Is(err, mvich.ErrTruncated) || s.Bytes != room || s.Size != n,
								"%d bytes into %d: %+v, %v", n, room, s, err)
							must(check(b[:room], i))
							failIf(bytes.Count(b[room:], []byte{0}) < n-room,
								"%d bytes into %d: written behind the buffer", n, room)
						}
					}
				}
				return nil
			})
			j.spotless(t, mvich.DefaultCredits)
		})
	}
}

// A synchronous send completes when it is matched and not before, of bytes and of the elements of a type.
func TestSynchronous(t *testing.T) {
	j := newJob(t, 2, jobConfig{})
	j.run(t, func(c *mvich.Comm) error {
		column, m := mvich.Vector(300, 1, 2, mvich.Elem), make([]float64, 600)
		must(c.Barrier()) // they are connected: what need not wait goes at once
		for _, n := range []int{0, 10, 10000, 20000, len(m)} {
			b, typed := make([]byte, n), n == len(m)
			if c.Rank() == 1 {
				get(c.Recv(nil, 0, 2)) // the other one has tested
				if !typed {
					get(c.Recv(b, 0, 1))
					continue
				}
				get(mvich.RecvType(c, m, column, 0, 1))
				get(mvich.RecvType(c, m, column, 0, 1))
				must(c.Send(nil, 0, 3))
				continue
			}
			begin := func() (*mvich.Request, error) { return c.Issend(b, 1, 1) }
			if typed {
				begin = func() (*mvich.Request, error) { return mvich.IssendType(c, m, column, 1, 1) }
			}
			r := get(begin())
			for range 20 {
				time.Sleep(time.Millisecond)
				_, done, _ := r.Test()
				failIf(done, "it is complete before its receive is posted")
			}
			must(c.Send(nil, 1, 2))
			get(r.Wait())
			if typed {
				must(mvich.SsendType(c, m, column, 1, 1))
				get(c.Recv(nil, 1, 3))
			}
		}
		return nil
	})
}

// A rank sends to itself, before and after the receive, short and long.
func TestSelf(t *testing.T) {
	j := newJob(t, 1, jobConfig{})
	j.run(t, func(c *mvich.Comm) error {
		for i, n := range sizes {
			out, in := make([]byte, n), make([]byte, n)
			fill(out, i)
			sent := get(c.Isend(out, 0, i))
			get(c.Recv(in, mvich.AnySource, i))
			get(sent.Wait())
			must(check(in, i))
			clear(in)
			get(c.Sendrecv(out, 0, i, in, 0, mvich.AnyTag))
			must(check(in, i))
		}
		return c.Barrier()
	})
	j.spotless(t, 0)
}

// Ranks on one NIC communicate like others.
func TestSharedNIC(t *testing.T) {
	j := newJob(t, 2, jobConfig{shared: true})
	j.run(t, swapSizes)
	j.spotless(t, mvich.DefaultCredits)
}

func TestProbe(t *testing.T) {
	j := newJob(t, 2, jobConfig{})
	j.run(t, func(c *mvich.Comm) error {
		if c.Rank() == 0 {
			return errors.Join(c.Send(make([]byte, 10), 1, 3), c.Send(make([]byte, 20000), 1, 4))
		}
		for _, want := range []mvich.Status{{Source: 0, Tag: 4, Bytes: 20000, Size: 20000}, {Source: 0, Tag: 3, Bytes: 10, Size: 10}} {
			s, err := c.Probe(mvich.AnySource, want.Tag)
			failIf(err != nil || s != want, "%+v, %v", s, err)
			s, there, err := c.Iprobe(0, want.Tag)
			failIf(s != want || !there || err != nil, "%+v, %v, %v", s, there, err)
			get(c.Recv(make([]byte, s.Bytes), s.Source, s.Tag))
			_, there, err = c.Iprobe(0, want.Tag)
			failIf(there || err != nil, "it is there once more: %v", err)
		}
		return nil
	})
}

// A message that a rank sends to itself, and that waits for its receive, wakes a Probe that sleeps.
func TestProbeWokenByOwnMessage(t *testing.T) {
	j := newJob(t, 1, jobConfig{})
	meter := schedlat.Start()
	defer meter.Close()
	j.run(t, func(c *mvich.Comm) error {
		found := make(chan error, 1)
		go func() { found <- nstest.Err(c.Probe(0, 1)) }()
		time.Sleep(50 * time.Millisecond)
		start := meter.Mark()
		r := get(c.Issend(nil, 0, 1))
		must(<-found)
		nstest.ErrorIf(t, start.Over(mvich.LongWait/2), "it took %v", time.Since(start.At))
		get(c.Recv(nil, 0, 1))
		return nstest.Err(r.Wait())
	})
}

func TestCancel(t *testing.T) {
	j := newJob(t, 2, jobConfig{})
	j.run(t, func(c *mvich.Comm) error {
		if c.Rank() == 1 {
			return c.Send([]byte{42}, 0, 1)
		}
		wrong := get(c.Irecv(make([]byte, 1), 1, 2))
		b := make([]byte, 1)
		right := get(c.Irecv(b, 1, 1))
		failIf(!wrong.Cancel() || wrong.Cancel(), "it cannot be cancelled, or twice")
		s, err := wrong.Wait()
		failIf(!s.Cancelled || err != nil, "%+v, %v", s, err)
		s, err = right.Wait()
		failIf(s.Cancelled || err != nil || b[0] != 42, "%+v, %v, %d", s, err, b[0])
		failIf(right.Cancel(), "a complete receive was cancelled")
		return nil
	})
	j.spotless(t, mvich.DefaultCredits)
}

// Wrong arguments are reported, and do no harm.
func TestWrongArguments(t *testing.T) {
	j := newJob(t, 1, jobConfig{})
	c := j.worlds[0].Comm()
	for name, err := range map[string]error{
		"rank":      c.Send(nil, 1, 0),
		"negative":  c.Send(nil, -1, 0),
		"tag":       c.Send(nil, 0, -1),
		"large tag": c.Send(nil, 0, mvich.MaxTag+1),
		"root":      c.Bcast(nil, 1),
		"count":     mvich.AllReduce(c, make([]int, 1), make([]int, 2), mvich.Sum),
		"parts":     mvich.Gatherv(c, make([]int, 1), []int{2}, nil, make([]int, 2), 0),
		"type":      mvich.SendType(c, make([]int, 3), mvich.Vector(2, 1, 3, mvich.Elem), 0, 0),
	} {
		nstest.ErrorIf(t, err == nil, "%s: no error", name)
	}
	s, err := c.Recv(nil, mvich.ProcNull, 5)
	nstest.ErrorIf(t, err != nil || s.Source != mvich.ProcNull, "%+v, %v", s, err)
	noError(t, c.Send(nil, mvich.ProcNull, 5))
}

// A sleep that Wake has ended, without anything to find, does not change the polling.
func TestSpinAfterWake(t *testing.T) {
	j := newJob(t, 1, jobConfig{options: with(mvich.WithSpin(1000))})
	before, after := mvich.SpinAfterWake(j.worlds[0])
	nstest.Equal(t, "polls", after, before)
}

// Each counter changes when it should, by the right amount.
func TestStats(t *testing.T) {
	j := newJob(t, 2, jobConfig{})
	b := make([]byte, 8)
	j.run(t, func(c *mvich.Comm) error {
		before := j.worlds[c.Rank()].Stats()
		get(c.Sendrecv(b, c.Rank(), 1, make([]byte, 8), c.Rank(), 1))
		s := j.worlds[c.Rank()].Stats()
		failIf(s.Local != before.Local+1, "a message to itself: Local is %d, and was %d", s.Local, before.Local)
		return c.Barrier()
	})
	const many = 20 * mvich.DefaultCredits
	each(t, 2, func(rank int) error {
		c := j.worlds[rank].Comm()
		if rank == 0 {
			for range many {
				must(c.Send(b, 1, 2))
			}
			return c.Send(b, 1, 3)
		}
		// A rank that only receives sends its credits in noops.
		for range many {
			get(c.Recv(make([]byte, 8), 0, 2))
		}
		for end := time.Now().Add(testTimeout); j.worlds[rank].Stats().Waiting == 0; { // no receive is posted yet
			failIf(time.Now().After(end), "a message does not come")
			c.Iprobe(0, 4)
		}
		failIf(j.worlds[rank].Stats().Unexpected == 0, "a message before its receive is not counted")
		return nstest.Err(c.Recv(make([]byte, 8), 0, 3))
	})
	for rank, s := range []mvich.Stats{j.worlds[0].Stats(), j.worlds[1].Stats()} {
		nstest.ErrorIf(t, s.Connections != 1 || s.Deaths != 0 || (rank == 1) != (s.Noops > 0), "rank %d: %+v", rank, s)
	}
}

// vethNICs opens a NIC at both ends of a veth pair. remove removes their interfaces.
func vethNICs(t *testing.T, mtu int) (nics []*vipl.NIC, remove func() error) {
	a, b := nstest.Pair(t, nstest.Options{MTU: mtu})
	for _, ns := range []*nstest.NS{a, b} {
		nstest.Must(t, ns.Do(func() error {
			n, err := vipl.OpenNIC(ns.Name, vipl.WithHugepages(hugepages.Avoid), vipl.WithSilence(calm))
			nics = append(nics, n)
			return err
		}))
		n := nics[len(nics)-1]
		t.Cleanup(func() { noError(t, n.Close()) })
	}
	return nics, func() error {
		link, err := a.Netlink().LinkByName(a.Name)
		if err == nil {
			err = a.Netlink().LinkDel(link)
		}
		return err
	}
}

// A rank whose interface is removed ends, also if it waits for anybody and has no connection that could end.
func TestInterfaceRemoved(t *testing.T) {
	nics, remove := vethNICs(t, 1500)
	launchers := mvich.Local(2)
	each(t, 2, func(rank int) error {
		nics[rank].ErrorCallback(func(vipl.ErrorDescriptor) {})
		w := get(mvich.Init(nics[rank], launchers[rank]))
		r := get(w.Comm().Irecv(nil, mvich.AnySource, 1))
		if rank == 0 {
			must(remove())
		}
		mustBe("receive", nstest.Err(r.Wait()), syscall.ENODEV)
		mustBe("finalize", w.Finalize(), syscall.ENODEV)
		return nil
	})
}

// Two ranks on both ends of a veth pair: every size, credits that run out, and collective operations.
func TestVeth(t *testing.T) {
	for name, mtu := range map[string]int{"1500": 1500, "9000": 9000} {
		t.Run(name, func(t *testing.T) {
			nics, _ := vethNICs(t, mtu)
			launchers := mvich.Local(2)
			each(t, 2, func(rank int) error {
				w := get(mvich.Init(nics[rank], launchers[rank]))
				c := w.Comm()
				must(swapSizes(c))
				for i := range 500 { // far more than there are credits, both ways
					must(mvich.Send(c, []int{i}, 1-rank, i))
				}
				for i := range 500 {
					get(mvich.Recv(c, make([]int, 1), 1-rank, i))
				}
				everyRooted(c, 5000, 1)
				everyUnrooted(c, 5000)
				must(arenaByReference(w, nics[rank], mtu))
				return w.Finalize()
			})
		})
	}
}

// arenaByReference sends a long message from memory of the arena and one from the program's, by requests. Only the first is
// written, and sent by reference, and only if frames are long.
func arenaByReference(w *mvich.World, nic *vipl.NIC, mtu int) error {
	const n = 1 << 20
	arena := get(w.Alloc(n))
	c, other := w.Comm(), 1-w.Rank()
	long := mtu > 4096 && nic.Info().NIC.MultiBuffer
	for _, test := range []struct {
		out   []byte
		byRef bool
	}{{make([]byte, n), false}, {arena, long}} {
		fill(test.out, w.Rank())
		must(c.Barrier())
		in, before, frames := make([]byte, n), w.Stats(), nic.Counters().ByReference
		r, out := get(c.Irecv(in, other, 1)), get(c.Isend(test.out, other, 1))
		get(out.Wait())
		get(r.Wait())
		must(check(in, other))
		must(c.Barrier())
		after := w.Stats()
		written := after.RPUT - before.RPUT
		failIf(written == 1 != test.byRef || after.RGET-before.RGET+written != 1,
			"%+v after %+v, written: %v", after, before, test.byRef)
		byRef := nic.Counters().ByReference - frames
		failIf(byRef > n/9000 != test.byRef, "%d frames were sent by reference: %v", byRef, test.byRef)
	}
	return nil
}
