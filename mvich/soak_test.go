package mvich_test

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/testsize"
	"viaxdp/mvich"
	"viaxdp/xdpnic/xdpnictest"
)

// Messages of random sizes in random numbers, by all protocols at once, with losses: each arrives intact. After each
// round no credit, buffer or request is missing, and at the end no goroutine. The number of buffers stays bounded.
// VIA_MESSAGES=1000000 takes a minute of a processor.
func TestNothingIsLost(t *testing.T) {
	const ranks, credits, mostOfRound = 4, 8, 3000
	faults := xdpnictest.Faults{Seed: 11, Loss: 0.005, Dup: 0.005, Reorder: 0.01, Jitter: 10 * time.Microsecond}
	j := newJob(t, ranks, jobConfig{faults: faults, options: func(rank int) []mvich.Option {
		return []mvich.Option{
			mvich.WithCredits(credits), mvich.WithUnexpected(200_000), mvich.WithRegistered(300_000), mvich.WithSpin(50),
			mvich.WithProtocol([]mvich.Protocol{mvich.Auto, mvich.R3, mvich.RGET, mvich.RPUT}[rank]),
		}
	}})
	each := (testsize.Number(t, "VIA_MESSAGES", 1200, 30_000) + ranks - 1) / ranks
	for round, left := uint64(1), each; left > 0; round++ {
		n := min(left, mostOfRound)
		j.run(t, func(c *mvich.Comm) error { return scatterAround(c, round, n) })
		j.spotless(t, credits)
		left -= n
	}
	for rank, w := range j.worlds {
		s := w.Stats()
		nstest.ErrorIf(t, s.RegisteredBytes > 300_000 || rank == 0 && (s.Eager == 0 || s.RGET == 0) || s.Vbufs > 1024, "rank %d: %+v", rank, s)
		sent := s.Eager + s.R3 + s.RGET + s.RPUT
		nstest.ErrorIf(t, sent < uint64(each), "rank %d has sent %d messages, want %d at least", rank, sent, each)
	}
}

// scatterAround has each rank send n messages to the others in turn, and check what it receives. Seed and rank
// determine their lengths and content.
func scatterAround(c *mvich.Comm, seed uint64, n int) error {
	ranks := c.Size()
	sizes := func(rank int) func() int {
		rng := rand.New(rand.NewPCG(seed, uint64(rank)))
		return func() int { return int(1<<rng.IntN(17)) - 1 + rng.IntN(10) }
	}
	const window = 16
	var out, in [window]*mvich.Request
	var got [window][]byte
	var numbers [window]int
	next := sizes(c.Rank())
	theirs := make([]func() int, ranks)
	for rank := range theirs {
		theirs[rank] = sizes(rank)
	}
	for i := range n {
		k, away := i%window, 1+i%(ranks-1)
		if i >= window {
			must(mvich.WaitAll(out[k], in[k]))
			must(check(got[k], numbers[k]))
		}
		b := make([]byte, next())
		fill(b, i)
		var err error
		if out[k], err = c.Isend(b, (c.Rank()+away)%ranks, i); err != nil {
			return err
		}
		from := (c.Rank() - away + ranks) % ranks
		var size int
		for rank := range theirs { // each rank has drawn once
			if drawn := theirs[rank](); rank == from {
				size = drawn
			}
		}
		got[k], numbers[k] = make([]byte, size), i
		if in[k], err = c.Irecv(got[k], from, i); err != nil {
			return err
		}
	}
	must(mvich.WaitAll(append(out[:], in[:]...)...))
	for k := range min(n, window) {
		must(check(got[k], numbers[k]))
	}
	return nil
}

// A rank gives credits back for all that it has taken before it leaves a call in which it slept, so that the other
// rank can send while it computes.
func TestCreditsBeforeLeaving(t *testing.T) {
	j := newJob(t, 2, jobConfig{options: with(mvich.WithCredits(4), mvich.WithSpin(0))})
	computes, over := make(chan struct{}), make(chan struct{})
	j.run(t, func(c *mvich.Comm) error {
		buf := make([]byte, 8)
		times := func(f func() error) error { return errors.Join(f(), f()) }
		send := func() error { return c.Send(buf, 1, 0) }
		recv := func() error { _, err := c.Recv(buf, 0, 0); return err }
		if c.Rank() == 1 {
			err := times(recv)
			close(computes)
			<-over
			return errors.Join(err, times(recv))
		}
		defer close(over)
		err := times(send)
		<-computes
		return errors.Join(err, times(send))
	})
}
