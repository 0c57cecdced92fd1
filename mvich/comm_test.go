package mvich_test

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"viaxdp/internal/lab/nstest"
	"viaxdp/mvich"
)

// Split orders ranks by key; sources and destinations are ranks of the new communicator, which can be split again.
// RankOf and WorldRank are inverse.
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
			failIf(s != nil, "a communicator of no color")
			return nil
		}
		both := [][]int{{4, 2, 0}, {5, 3, 1}} // in the world, by rank in s
		members := both[color]
		failIf(s.Size() != 3 || members[s.Rank()] != c.Rank(), "rank %d of %d", s.Rank(), s.Size())
		for rank, world := range members {
			got := [4]int{s.WorldRank(rank), s.RankOf(world), c.WorldRank(world), c.RankOf(world)}
			failIf(got != [4]int{world, rank, world, world},
				"rank %d is %d in the world, which is rank %d", rank, s.WorldRank(rank), s.RankOf(world))
		}
		for _, none := range append(both[1-color], n, mvich.AnySource, mvich.ProcNull) {
			failIf(s.RankOf(none) != -1 || (none < 0 || none >= 3) && s.WorldRank(none) != -1,
				"%d, which is no member: rank %d, or %d in the world", none, s.RankOf(none), s.WorldRank(none))
		}
		all := make([]int, 3)
		err := mvich.AllGather(s, all, []int{c.Rank()})
		failIf(err != nil || !slices.Equal(all, members), "%v, %w", all, err)
		next, last := (s.Rank()+1)%3, (s.Rank()+2)%3
		in := make([]int, 1)
		status, err := mvich.Sendrecv(s, []int{c.Rank()}, next, 0, in, mvich.AnySource, 0)
		failIf(err != nil || status.Source != last || in[0] != members[last], "%d from %+v, %w", in[0], status, err)
		again := get(s.Split(0, s.Rank()))
		sum := []int{c.Rank()}
		err = mvich.AllReduce(again, sum, sum, mvich.Sum)
		failIf(err != nil || sum[0] != []int{6, 9}[color], "sum %d, %w", sum[0], err)
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
				_, err := mvich.Recv(made[c.Rank()][i], got, last, 0)
				failIf(err != nil || got[0] != i, "round %d: communicator %d got a message of %d, %w", round, i, got[0], err)
			}
			return nil
		})
	}
}

// Init fails for all ranks of one process if their options differ, or if one of them cannot begin. None waits for it.
func TestDifferentOptions(t *testing.T) {
	nic := newJob(t, 1, jobConfig{}).hosts[0].NIC
	for name, credits := range map[string][2]int{"different": {8, 9}, "too few": {1, 8}} {
		launchers := mvich.Local(2)
		each(t, 2, func(rank int) error {
			mustBe(name, nstest.Err(mvich.Init(nic, launchers[rank], mvich.WithCredits(credits[rank]))), mvich.ErrSettings)
			return nil
		})
	}
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
	nstest.WantErr(t, "the environment", nstest.Err(mvich.Init(j.hosts[0].NIC, mvich.Local(1)[0])), mvich.ErrSettings)
}

// If Init fails, it does not tell the launcher that the rank is done. So a launcher of processes takes the rank's exit for a death.
func TestInitFails(t *testing.T) {
	nic := newJob(t, 1, jobConfig{}).hosts[0].NIC
	l := &withoutFence{Launcher: mvich.Local(1)[0]}
	if _, err := mvich.Init(nic, l); !errors.Is(err, errNoFence) || l.closed {
		t.Errorf("%v; the launcher is closed: %v", err, l.closed)
	}
}

var errNoFence = errors.New("no fence")

// withoutFence is a launcher whose fences fail.
type withoutFence struct {
	mvich.Launcher
	closed bool
}

func (*withoutFence) Fence() error { return errNoFence }

func (l *withoutFence) Close() error {
	l.closed = true
	return nil
}

// No context is given twice; after the last one Dup fails.
func TestLastContext(t *testing.T) {
	j := newJob(t, 3, jobConfig{})
	mvich.LastContext(j.worlds[0])
	j.run(t, func(c *mvich.Comm) error {
		d := get(c.Dup())
		for range 2 {
			failIf(nstest.Err(c.Dup()) == nil, "a communicator beyond the last one")
			failIf(nstest.Err(d.Split(0, 0)) == nil, "a part of one beyond the last one")
		}
		return errors.Join(d.Barrier(), c.Barrier())
	})
}
