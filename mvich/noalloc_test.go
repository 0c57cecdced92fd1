package mvich_test

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"viaxdp/mvich"
)

// A message that is eager costs the program no memory, nor does a collective operation whose buffers the world has
// lent before.
func TestNoAllocation(t *testing.T) {
	const trials, rounds = 5, 100
	small, long := make([]byte, 64), make([]byte, mvich.DefaultThreshold)
	in := [2][]byte{make([]byte, len(long)), make([]byte, len(long))}
	column := mvich.Vector(100, 1, 3, mvich.Elem)
	// turns has rank 0 send and rank 1 answer.
	turns := func(c *mvich.Comm, send func() error, recv func() error) error {
		if c.Rank() == 0 {
			return errors.Join(send(), recv())
		}
		return errors.Join(recv(), send())
	}
	recv := func(c *mvich.Comm) error { _, err := c.Recv(in[c.Rank()], 1-c.Rank(), 0); return err }
	for name, f := range map[string]func(c *mvich.Comm) error{
		"short": func(c *mvich.Comm) error {
			return turns(c, func() error { return c.Send(small, 1-c.Rank(), 0) }, func() error { return recv(c) })
		},
		"threshold": func(c *mvich.Comm) error {
			return turns(c, func() error { return c.Send(long, 1-c.Rank(), 0) }, func() error { return recv(c) })
		},
		"synchronous": func(c *mvich.Comm) error {
			return turns(c, func() error { return c.Ssend(small, 1-c.Rank(), 0) }, func() error { return recv(c) })
		},
		"unexpected": func(c *mvich.Comm) error { // it comes before the one that is waited for
			return turns(c, func() error {
				return errors.Join(c.Send(long, 1-c.Rank(), 1), c.Send(small, 1-c.Rank(), 0))
			}, func() error {
				err := recv(c)
				_, first := c.Recv(in[c.Rank()], 1-c.Rank(), 1)
				return errors.Join(err, first)
			})
		},
		"probed": func(c *mvich.Comm) error {
			return turns(c, func() error { return c.Send(small, 1-c.Rank(), 0) }, func() error {
				get(c.Probe(mvich.AnySource, mvich.AnyTag))
				return recv(c)
			})
		},
		"both ways": func(c *mvich.Comm) error {
			return errOf(c.Sendrecv(small, 1-c.Rank(), 0, in[c.Rank()], 1-c.Rank(), 0))
		},
		"to itself": func(c *mvich.Comm) error {
			return errOf(c.Sendrecv(small, c.Rank(), 0, in[c.Rank()], c.Rank(), 0))
		},
		"barrier": (*mvich.Comm).Barrier,
		"allreduce": func(c *mvich.Comm) error {
			return mvich.AllReduce(c, in[c.Rank()][:64], small, mvich.Sum)
		},
		"reduce": func(c *mvich.Comm) error {
			return errors.Join(mvich.Reduce(c, in[c.Rank()][:64], small, mvich.Sum, 0), c.Barrier())
		},
		"column": func(c *mvich.Comm) error {
			return turns(c, func() error { return mvich.SendType(c, long, column, 1-c.Rank(), 0) },
				func() error { return recv(c) })
		},
		"bcast": func(c *mvich.Comm) error { return errors.Join(c.Bcast(in[c.Rank()], 0), c.Bcast(in[c.Rank()], 1)) },
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
				// Both ranks are measured, and the NIC below them; and the listeners, which allocate now and then,
				// but not in every trial.
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
