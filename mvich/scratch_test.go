package mvich_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"viaxdp/mvich"
)

// What operations need beside the program's buffers is registered once and no more: it does not drive those out of
// the cache.
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
			return errOf(mvich.RecvType(c, both, column, 0, 0))
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
				return errOf(mvich.Sendrecv(c, own[c.Rank()], other, 1, dst[c.Rank()], other, 1))
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
				if n := registered(c) - before; n > 0 {
					return fmt.Errorf("%d buffers registered after the first time", n)
				}
				return nil
			})
			for rank, w := range j.worlds {
				if s := w.Stats(); s.RegisteredBytes > limit {
					t.Errorf("rank %d: %d bytes registered", rank, s.RegisteredBytes)
				}
			}
		})
	}
}

// What many operations at once have needed does not stay for ever.
func TestScratchIsBounded(t *testing.T) {
	const many, size, kept = 60, 512 << 10, 16 << 20
	j := newJob(t, 1, jobConfig{})
	w := j.worlds[0]
	column := mvich.Vector(size, 1, 2, mvich.Elem)
	buf := make([]byte, column.Extent())
	var requests []*mvich.Request
	for range many {
		r, err := mvich.IsendType(w.Comm(), buf, column, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		requests = append(requests, r)
	}
	if n := w.Stats().RegisteredBytes; n <= kept {
		t.Fatalf("%d bytes are registered while all wait", n)
	}
	for range many {
		if _, err := mvich.RecvType(w.Comm(), buf, column, 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := mvich.WaitAll(requests...); err != nil {
		t.Fatal(err)
	}
	if n := w.Stats().RegisteredBytes; n > kept {
		t.Errorf("%d bytes are registered afterwards, want %d at most", n, kept)
	}
}

// Operations that go on at once get memory of their own.
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

// sums adds up numbers of which each rank and each goroutine has others.
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
