package mvich_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"viaxdp/mvich"
	"viaxdp/xdpnic/xdpnictest"
)

// Messages of random sizes in random numbers, by all protocols at once, with
// loss: each arrives as it was, and afterwards nothing is missing, no credit, no
// buffer, no request.
func TestNothingIsLost(t *testing.T) {
	const ranks, credits = 4, 8
	faults := xdpnictest.Faults{Seed: 11, Loss: 0.005, Dup: 0.005, Reorder: 0.01, Jitter: 10 * time.Microsecond}
	messages := 3000 // of each rank
	if testing.Short() {
		messages = 300
	}
	j := newJob(t, ranks, jobConfig{faults: faults, options: func(rank int) []mvich.Option {
		return []mvich.Option{
			mvich.WithCredits(credits), mvich.WithUnexpected(200_000), mvich.WithRegistered(300_000), mvich.WithSpin(50),
			mvich.WithProtocol([]mvich.Protocol{mvich.Auto, mvich.R3, mvich.RGET, mvich.RPUT}[rank]),
		}
	}})
	j.run(t, func(c *mvich.Comm) error {
		// The sizes of what each rank sends to the next ones, in turns.
		sizes := func(rank int) func() int {
			rng := rand.New(rand.NewPCG(1, uint64(rank)))
			return func() int { return int(1<<rng.IntN(17)) - 1 + rng.IntN(10) }
		}
		const window = 16
		var out [window]*mvich.Request
		var in [window]*mvich.Request
		var got [window][]byte
		var numbers [window]int
		next := sizes(c.Rank())
		theirs := make([]func() int, ranks)
		for rank := range theirs {
			theirs[rank] = sizes(rank)
		}
		for i := range messages {
			k, away := i%window, 1+i%(ranks-1)
			if i >= window {
				if err := mvich.WaitAll(out[k], in[k]); err != nil {
					return err
				}
				if err := check(got[k], numbers[k]); err != nil {
					return err
				}
			}
			b := make([]byte, next())
			fill(b, i)
			var err error
			if out[k], err = c.Isend(b, (c.Rank()+away)%ranks, i); err != nil {
				return err
			}
			from := (c.Rank() - away + ranks) % ranks
			var n int
			for rank := range theirs { // each rank has drawn once
				if drawn := theirs[rank](); rank == from {
					n = drawn
				}
			}
			got[k], numbers[k] = make([]byte, n), i
			if in[k], err = c.Irecv(got[k], from, i); err != nil {
				return err
			}
		}
		if err := mvich.WaitAll(append(out[:], in[:]...)...); err != nil {
			return err
		}
		for k := range window {
			if err := check(got[k], numbers[k]); err != nil {
				return err
			}
		}
		return nil
	})
	j.spotless(t, credits)
	for rank, w := range j.worlds {
		if s := w.Stats(); s.RegisteredBytes > 300_000 || rank == 0 && (s.Eager == 0 || s.RGET == 0) {
			t.Errorf("rank %d: %+v", rank, s)
		}
	}
}

// A short message costs the program no memory.
func TestNoAllocation(t *testing.T) {
	j := newJob(t, 2, jobConfig{})
	const trials, rounds = 20, 200
	j.run(t, func(c *mvich.Comm) error {
		b := make([]byte, 64)
		if c.Rank() == 1 {
			for range trials * (rounds + 1) {
				if _, err := c.Recv(b, 0, 0); err != nil {
					return err
				}
				if err := c.Send(b, 0, 0); err != nil {
					return err
				}
			}
			return nil
		}
		// Both ranks are measured, and the NIC below them; and the listeners,
		// which allocate now and then, but not in every trial.
		least := math.Inf(1)
		var failed error
		for range trials {
			least = min(least, testing.AllocsPerRun(rounds, func() {
				err := c.Send(b, 1, 0)
				if _, e := c.Recv(b, 1, 0); e != nil || err != nil {
					failed = errors.Join(err, e)
				}
			}))
		}
		if failed == nil && least > 0 {
			failed = fmt.Errorf("%v allocations a round trip", least)
		}
		return failed
	})
}
