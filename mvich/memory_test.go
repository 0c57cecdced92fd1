package mvich_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"

	"viaxdp/internal/lab/nstest"
	"viaxdp/mvich"
	"viaxdp/vipl"
)

// Memory of the arena carries messages like any other, also parts of it. It cannot be freed while it is in use, and
// does not count as registered.
func TestAlloc(t *testing.T) {
	for _, limit := range []int{1 << 20, 0} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) { sendAllocated(t, limit) })
	}
}

func sendAllocated(t *testing.T, limit int) {
	j := newJob(t, 2, jobConfig{options: with(mvich.WithRegistered(limit))})
	const n = 300_000
	each(t, 2, func(rank int) error {
		w := j.worlds[rank]
		c, other := w.Comm(), 1-rank
		buf, err := w.Alloc(2 * n)
		failIf(err != nil || len(buf) != 2*n, "%d bytes, %w", len(buf), err)
		out, in := buf[:n], buf[n:]
		fill(out, rank)
		get(c.Sendrecv(out, other, 1, in, other, 1))
		must(check(in, other))
		s := w.Stats()
		failIf(s.RegisteredBytes != 0 || s.Registered != 0, "memory of the arena was registered: %+v", s)
		failIf(s.RGET+s.RPUT != 1 || s.R3 != 0, "its message does not go by RDMA: %+v", s)
		r := get(c.Isend(out, other, 2))
		mustBe("freed while it is sent", w.Free(buf), mvich.ErrBusy)
		copyOf := bytes.Clone(in)
		get(c.Recv(copyOf, other, 2))
		must(mvich.WaitAll(r))
		must(w.Free(buf))
		mustBe("freed twice", w.Free(buf), mvich.ErrMemory)
		mustBe("more than the arena has", nstest.Err(w.Alloc(1<<30)), vipl.ErrResource)
		return nstest.Err(w.Alloc(n)) // Finalize takes it back
	})
}

// If the NIC's arena is full, packets use the program's memory.
func TestArenaFull(t *testing.T) {
	j := newJob(t, 2, jobConfig{})
	each(t, 2, func(rank int) error {
		for n := 4 << 20; n >= 4096; n /= 2 {
			for {
				if _, err := j.worlds[rank].Alloc(n); errors.Is(err, vipl.ErrResource) {
					break
				} else if err != nil {
					return err
				}
			}
		}
		return nil
	})
	j.run(t, swapSizes)
	j.spotless(t, mvich.DefaultCredits)
}

// Memory that a message still uses is not freed, by any protocol: later data would overwrite its next content.
func TestFreeInUse(t *testing.T) {
	j := newJob(t, 2, jobConfig{options: with(mvich.WithProtocol(mvich.R3))})
	const n = 20000
	each(t, 2, func(rank int) error {
		w := j.worlds[rank]
		c := w.Comm()
		if rank == 1 {
			_, err := c.Recv(nil, 0, 2)
			if err == nil {
				_, err = c.Recv(make([]byte, n), 0, 1)
			}
			return err
		}
		buf := get(w.Alloc(2 * n))
		for name, begin := range map[string]func() (*mvich.Request, error){
			"a receive":                 func() (*mvich.Request, error) { return c.Irecv(buf[n:], 0, 7) },
			"a message to another rank": func() (*mvich.Request, error) { return c.Isend(buf[n:], 1, 1) },
			"a message to this rank":    func() (*mvich.Request, error) { return c.Issend(buf[n:], 0, 7) },
		} {
			r := get(begin())
			for range 2 {
				mustBe("freed with "+name+" under way", w.Free(buf), mvich.ErrBusy)
				if name != "a message to another rank" {
					break
				}
				if _, _, err := c.Iprobe(1, 7); err != nil { // so that its request goes
					return err
				}
			}
			switch name {
			case "a receive":
				r.Cancel()
			case "a message to another rank":
				must(c.Send(nil, 1, 2))
			default:
				get(c.Recv(make([]byte, n), 0, 7))
			}
			must(mvich.WaitAll(r))
		}
		return w.Free(buf)
	})
}

// A buffer that is used again is registered once; lookups of its parts find it, and the limit evicts old buffers
// for new ones.
func TestRegistrationCache(t *testing.T) {
	const size, limit = 100_000, 250_000
	j := newJob(t, 2, jobConfig{options: with(mvich.WithRegistered(limit))})
	buffers := [2][4][]byte{}
	for rank := range buffers {
		for i := range buffers[rank] {
			buffers[rank][i] = make([]byte, size)
		}
	}
	move := func(i, from, to int) mvich.Stats {
		t.Helper()
		j.run(t, func(c *mvich.Comm) error {
			b := buffers[c.Rank()][i][from:to]
			if c.Rank() == 0 {
				fill(b, i)
				return c.Send(b, 1, 0)
			}
			clear(b)
			get(c.Recv(b, 0, 0))
			return check(b, i)
		})
		return j.worlds[0].Stats()
	}
	for range 5 {
		move(0, 0, size)
	}
	s := move(0, size/2, size)
	nstest.ErrorIf(t, s.Registered != 1 || s.Reused != 5, "one buffer: %+v", s)
	move(1, 0, size)
	move(0, 0, size)
	s = move(2, 0, size)
	nstest.ErrorIf(t, s.Registered != 3 || s.RegisteredBytes != 2*size, "three buffers: %+v", s)
	s = move(0, 0, size) // the one that was unused for longest had to go, and is not this one
	nstest.ErrorIf(t, s.Registered != 3, "the one used last: %+v", s)
	s = move(1, 0, size)
	nstest.ErrorIf(t, s.Registered != 4 || s.RegisteredBytes > limit, "the one used first: %+v", s)
}

// Scratch memory of operations is registered once, and does not evict the program's buffers from the cache.
func TestScratchIsReused(t *testing.T) {
	const ranks, length, limit = 2, 256 << 10, 2 << 20
	const often = "allreduce"
	column := mvich.Vector(length/8, 1, 2, mvich.Elem)
	for name, operation := range map[string]func(c *mvich.Comm, dst, src []float64) error{
		often:      func(c *mvich.Comm, dst, src []float64) error { return mvich.AllReduce(c, dst, src, mvich.Sum) },
		"reduce":   func(c *mvich.Comm, dst, src []float64) error { return mvich.Reduce(c, dst, src, mvich.Sum, 1) },
		"scan":     func(c *mvich.Comm, dst, src []float64) error { return mvich.Scan(c, dst, src, mvich.Sum) },
		"alltoall": func(c *mvich.Comm, dst, _ []float64) error { return mvich.AllToAll(c, dst, dst) },
		"column": func(c *mvich.Comm, dst, _ []float64) error {
			both := make([]float64, 2*len(dst))
			if c.Rank() == 0 {
				return mvich.SendType(c, both, column, 1, 0)
			}
			return nstest.Err(mvich.RecvType(c, both, column, 0, 0))
		},
		"column, later": func(c *mvich.Comm, dst, _ []float64) error {
			both := make([]float64, 2*len(dst))
			r := get(mvich.IsendType(c, both, column, 1-c.Rank(), 0))
			get(mvich.RecvType(c, both, column, 1-c.Rank(), 0))
			return mvich.WaitAll(r)
		},
	} {
		t.Run(name, func(t *testing.T) {
			j := newJob(t, ranks, jobConfig{options: with(mvich.WithRegistered(limit))})
			rounds := 50
			if name == often && !testing.Short() {
				rounds = 1000
			}
			var own, dst, src [ranks][]float64
			for rank := range ranks {
				own[rank], dst[rank], src[rank] = make([]float64, length/8), make([]float64, length/8), make([]float64, length/8)
			}
			swap := func(c *mvich.Comm) error { // sends own, which is registered for that
				other := 1 - c.Rank()
				return nstest.Err(mvich.Sendrecv(c, own[c.Rank()], other, 1, dst[c.Rank()], other, 1))
			}
			registered := func(c *mvich.Comm) uint64 { return j.worlds[c.Rank()].Stats().Registered }
			j.run(t, func(c *mvich.Comm) error {
				do := func() error { return operation(c, dst[c.Rank()], src[c.Rank()]) }
				must(swap(c))
				must(do())
				before := registered(c)
				for range rounds {
					must(do())
				}
				must(swap(c))
				n := registered(c) - before
				failIf(n > 0, "%d buffers registered after the first time", n)
				return nil
			})
			for rank, w := range j.worlds {
				n := w.Stats().RegisteredBytes
				nstest.ErrorIf(t, n > limit, "rank %d: %d bytes registered", rank, n)
			}
		})
	}
}

// Scratch memory of many operations at once is not kept forever.
func TestScratchIsBounded(t *testing.T) {
	const many, size, kept = 60, 512 << 10, 16 << 20
	j := newJob(t, 1, jobConfig{})
	w := j.worlds[0]
	column := mvich.Vector(size, 1, 2, mvich.Elem)
	buf := make([]byte, column.Extent())
	var requests []*mvich.Request
	for range many {
		r, err := mvich.IsendType(w.Comm(), buf, column, 0, 0)
		noError(t, err)
		requests = append(requests, r)
	}
	n := w.Stats().RegisteredBytes
	nstest.FatalIf(t, n <= kept, "%d bytes are registered while all wait", n)
	for range many {
		noError(t, nstest.Err(mvich.RecvType(w.Comm(), buf, column, 0, 0)))
	}
	noError(t, mvich.WaitAll(requests...))
	n = w.Stats().RegisteredBytes
	nstest.ErrorIf(t, n > kept, "%d bytes are registered afterwards, want %d at most", n, kept)
}

// Concurrent operations get separate scratch memory.
func TestScratchIsNotShared(t *testing.T) {
	const ranks, goroutines, rounds = 3, 4, 20
	j := newJob(t, ranks, jobConfig{})
	j.run(t, func(c *mvich.Comm) error {
		errs := make([]error, goroutines)
		var wait sync.WaitGroup
		for i := range goroutines {
			mine := get(c.Dup())
			wait.Go(func() { errs[i] = guard(func() error { return sums(mine, i, rounds) }) })
		}
		wait.Wait()
		return errors.Join(errs...)
	})
}

// sums adds up numbers that differ for each rank and goroutine.
func sums(c *mvich.Comm, goroutine, rounds int) error {
	in, out := make([]int, 12000), make([]int, 12000)
	for round := range rounds {
		want := 0
		for rank := range c.Size() {
			want += rank<<20 + goroutine<<10 + round
		}
		for i := range in {
			in[i] = c.Rank()<<20 + goroutine<<10 + round
		}
		must(mvich.AllReduce(c, out, in, mvich.Sum))
		for i, got := range out {
			if got != want {
				return fmt.Errorf("goroutine %d, round %d: element %d is %#x, want %#x", goroutine, round, i, got, want)
			}
		}
	}
	return nil
}

// An eager message allocates nothing, nor does a collective operation whose scratch the world already has.
func TestNoAllocation(t *testing.T) {
	const trials, rounds = 5, 100
	small, long := make([]byte, 64), make([]byte, mvich.DefaultThreshold)
	in := [2][]byte{make([]byte, len(long)), make([]byte, len(long))}
	column := mvich.Vector(100, 1, 3, mvich.Elem)
	type step func(c *mvich.Comm) error
	// turns has rank 0 send and rank 1 answer.
	turns := func(send, recv step) step {
		return func(c *mvich.Comm) error {
			if c.Rank() == 0 {
				return errors.Join(send(c), recv(c))
			}
			return errors.Join(recv(c), send(c))
		}
	}
	send := func(b []byte) step { return func(c *mvich.Comm) error { return c.Send(b, 1-c.Rank(), 0) } }
	recv := func(c *mvich.Comm) error { return nstest.Err(c.Recv(in[c.Rank()], 1-c.Rank(), 0)) }
	for name, f := range map[string]step{
		"short":       turns(send(small), recv),
		"threshold":   turns(send(long), recv),
		"synchronous": turns(func(c *mvich.Comm) error { return c.Ssend(small, 1-c.Rank(), 0) }, recv),
		"unexpected": turns(func(c *mvich.Comm) error { // it comes before the one that is waited for
			return errors.Join(c.Send(long, 1-c.Rank(), 1), c.Send(small, 1-c.Rank(), 0))
		}, func(c *mvich.Comm) error {
			return errors.Join(recv(c), nstest.Err(c.Recv(in[c.Rank()], 1-c.Rank(), 1)))
		}),
		"probed": turns(send(small), func(c *mvich.Comm) error {
			get(c.Probe(mvich.AnySource, mvich.AnyTag))
			return recv(c)
		}),
		"both ways": func(c *mvich.Comm) error {
			return nstest.Err(c.Sendrecv(small, 1-c.Rank(), 0, in[c.Rank()], 1-c.Rank(), 0))
		},
		"to itself": func(c *mvich.Comm) error {
			return nstest.Err(c.Sendrecv(small, c.Rank(), 0, in[c.Rank()], c.Rank(), 0))
		},
		"barrier": (*mvich.Comm).Barrier,
		"allreduce": func(c *mvich.Comm) error {
			return mvich.AllReduce(c, in[c.Rank()][:64], small, mvich.Sum)
		},
		"reduce": func(c *mvich.Comm) error {
			return errors.Join(mvich.Reduce(c, in[c.Rank()][:64], small, mvich.Sum, 0), c.Barrier())
		},
		"column": turns(func(c *mvich.Comm) error { return mvich.SendType(c, long, column, 1-c.Rank(), 0) }, recv),
		"bcast":  func(c *mvich.Comm) error { return errors.Join(c.Bcast(in[c.Rank()], 0), c.Bcast(in[c.Rank()], 1)) },
	} {
		t.Run(name, func(t *testing.T) {
			j := newJob(t, 2, jobConfig{})
			j.run(t, func(c *mvich.Comm) error {
				if c.Rank() == 1 {
					for range trials * (rounds + 1) {
						must(f(c))
					}
					return nil
				}
				// The measurement covers both ranks, the NIC below them, and the listeners, which allocate now and then but not
				// in every trial.
				least := math.Inf(1)
				var failed error
				for range trials {
					least = min(least, testing.AllocsPerRun(rounds, func() { failed = errors.Join(failed, f(c)) }))
				}
				if failed == nil && least > 0 {
					failed = fmt.Errorf("%v allocations of both ranks", least)
				}
				return failed
			})
		})
	}
}
