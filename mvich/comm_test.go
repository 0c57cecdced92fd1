package mvich_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"viaxdp/internal/lab/nstest"
	"viaxdp/mvich"
)

// Split orders ranks by key; sources and destinations are ranks of the new communicator, which can be split again.
func TestSplit(t *testing.T) {
	const n = 7
	j := newJob(t, n, jobConfig{options: with(mvich.WithSpin(50))})
	j.run(t, func(c *mvich.Comm) error {
		color := c.Rank() % 2
		if c.Rank() == 6 {
			color = mvich.Undefined
		}
		s := get(c.Split(color, -c.Rank()))
		if c.Rank() == 6 {
			if s != nil {
				return errors.New("a communicator of no color")
			}
			return nil
		}
		members := [][]int{{4, 2, 0}, {5, 3, 1}}[color] // in the world, by rank in s
		if s.Size() != 3 || members[s.Rank()] != c.Rank() {
			return fmt.Errorf("rank %d of %d", s.Rank(), s.Size())
		}
		all := make([]int, 3)
		if err := mvich.AllGather(s, all, []int{c.Rank()}); err != nil || !slices.Equal(all, members) {
			return fmt.Errorf("%v, %w", all, err)
		}
		next, last := (s.Rank()+1)%3, (s.Rank()+2)%3
		in := make([]int, 1)
		status, err := mvich.Sendrecv(s, []int{c.Rank()}, next, 0, in, mvich.AnySource, 0)
		if err != nil || status.Source != last || in[0] != members[last] {
			return fmt.Errorf("%d from %+v, %w", in[0], status, err)
		}
		again := get(s.Split(0, s.Rank()))
		sum := []int{c.Rank()}
		if err := mvich.AllReduce(again, sum, sum, mvich.Sum); err != nil || sum[0] != []int{6, 9}[color] {
			return fmt.Errorf("sum %d, %w", sum[0], err)
		}
		return nil
	})
}

// Several goroutines of a rank make communicators at once, each from a different one. The communicators have separate
// messages, even if another rank makes them one after the other.
func TestDupAtOnce(t *testing.T) {
	const ranks, parents, rounds = 3, 4, 30
	j := newJob(t, ranks, jobConfig{options: with(mvich.WithSpin(0))})
	var of, made [ranks][parents]*mvich.Comm
	j.run(t, func(c *mvich.Comm) (err error) {
		for i := range parents {
			if of[c.Rank()][i], err = c.Dup(); err != nil {
				return err
			}
		}
		return nil
	})
	for round := range rounds {
		j.run(t, func(c *mvich.Comm) error {
			me := c.Rank()
			var errs [parents]error
			var dups sync.WaitGroup
			for i := range parents {
				if i = (i + me) % parents; round%2 == 1 && me == 2 {
					made[me][i], errs[i] = of[me][i].Dup()
					continue
				}
				dups.Go(func() { made[me][i], errs[i] = of[me][i].Dup() })
			}
			dups.Wait()
			return errors.Join(errs[:]...)
		})
		j.run(t, func(c *mvich.Comm) error {
			next, last := (c.Rank()+1)%ranks, (c.Rank()+ranks-1)%ranks
			for i, d := range made[c.Rank()] {
				must(mvich.Send(d, []int{i}, next, 0))
			}
			for i := range parents {
				i = parents - 1 - i
				got := make([]int, 1)
				if _, err := mvich.Recv(made[c.Rank()][i], got, last, 0); err != nil || got[0] != i {
					return fmt.Errorf("round %d: communicator %d got a message of %d, %w", round, i, got[0], err)
				}
			}
			return nil
		})
	}
}

// Init fails for ranks with different options.
func TestDifferentOptions(t *testing.T) {
	j := newJob(t, 1, jobConfig{})
	launchers := mvich.Local(2)
	each(t, 2, func(rank int) error {
		w, err := mvich.Init(j.hosts[0].NIC, launchers[rank], mvich.WithCredits(8+rank))
		if !errors.Is(err, mvich.ErrSettings) {
			return fmt.Errorf("%v, %v", w, err)
		}
		return nil
	})
}

func TestWrongOptions(t *testing.T) {
	j := newJob(t, 1, jobConfig{})
	for name, o := range map[string]mvich.Option{
		"threshold": mvich.WithThreshold(-1), "large threshold": mvich.WithThreshold(1 << 30),
		"credits": mvich.WithCredits(3), "many credits": mvich.WithCredits(100000),
		"protocol": mvich.WithProtocol(9), "registered": mvich.WithRegistered(-1), "patience": mvich.WithConnectTimeout(0),
	} {
		nstest.WantErr(t, name, nstest.Err(mvich.Init(j.hosts[0].NIC, mvich.Local(1)[0], o)), mvich.ErrSettings)
	}
	t.Setenv(mvich.ThresholdVariable, "many")
	if _, err := mvich.Init(j.hosts[0].NIC, mvich.Local(1)[0]); !errors.Is(err, mvich.ErrSettings) {
		t.Error(err)
	}
}

// The environment sets the threshold, and an option overrides it.
func TestThreshold(t *testing.T) {
	t.Setenv(mvich.ThresholdVariable, "100")
	for _, c := range []struct {
		options   []mvich.Option
		threshold int
	}{{nil, 100}, {[]mvich.Option{mvich.WithThreshold(20000)}, 20000}} {
		j := newJob(t, 2, jobConfig{options: with(c.options...)})
		j.run(t, func(w *mvich.Comm) error {
			b := make([]byte, c.threshold+1)
			for _, n := range []int{c.threshold, c.threshold + 1} {
				get(w.Sendrecv(b[:n], 1-w.Rank(), 0, make([]byte, n), 1-w.Rank(), 0))
			}
			return nil
		})
		if s := j.worlds[0].Stats(); s.Eager != 1 || s.RGET != 1 {
			t.Errorf("threshold %d: %+v", c.threshold, s)
		}
	}
}

// No context is given twice; after the last one Dup fails.
func TestLastContext(t *testing.T) {
	j := newJob(t, 3, jobConfig{})
	mvich.LastContext(j.worlds[0])
	j.run(t, func(c *mvich.Comm) error {
		d := get(c.Dup())
		for range 2 {
			if _, err := c.Dup(); err == nil {
				return errors.New("a communicator beyond the last one")
			}
			if _, err := d.Split(0, 0); err == nil {
				return errors.New("a part of one beyond the last one")
			}
		}
		return errors.Join(d.Barrier(), c.Barrier())
	})
}

// RankOf and WorldRank are inverse.
func TestRanksOfTheWorld(t *testing.T) {
	const n = 5
	j := newJob(t, n, jobConfig{options: with(mvich.WithSpin(50))})
	j.run(t, func(c *mvich.Comm) error {
		part := get(c.Split(c.Rank()%2, -c.Rank()))
		members, others := []int{4, 2, 0}, []int{3, 1}
		if c.Rank()%2 == 1 {
			members, others = others, members
		}
		for rank, world := range members {
			if part.WorldRank(rank) != world || part.RankOf(world) != rank || c.WorldRank(world) != world || c.RankOf(world) != world {
				return fmt.Errorf("rank %d is %d in the world, which is rank %d", rank, part.WorldRank(rank), part.RankOf(world))
			}
		}
		for _, world := range append(others, n, mvich.AnySource, mvich.ProcNull) {
			if rank := part.RankOf(world); rank != -1 {
				return fmt.Errorf("rank %d of the world, which is no member, is rank %d", world, rank)
			}
		}
		for _, rank := range []int{len(members), mvich.AnySource, mvich.ProcNull} {
			if world := part.WorldRank(rank); world != -1 {
				return fmt.Errorf("rank %d, which is not there, is %d in the world", rank, world)
			}
		}
		return nil
	})
}
