package mvich_test

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"viaxdp/internal/lab/nstest"
	"viaxdp/mvich"
)

// Each call that waits for or tests requests returns complete ones once. Test calls return nothing before; TestAll
// returns nothing before all are complete.
func TestTaking(t *testing.T) {
	const count = 20
	one := func(i int, s mvich.Status, err error) ([]mvich.Outcome, error) {
		if i < 0 {
			return nil, err
		}
		return []mvich.Outcome{{Index: i, Status: s, Err: err}}, nil
	}
	for name, take := range map[string]func(requests []*mvich.Request) ([]mvich.Outcome, error){
		"WaitAny":  func(r []*mvich.Request) ([]mvich.Outcome, error) { return one(mvich.WaitAny(r)) },
		"TestAny":  func(r []*mvich.Request) ([]mvich.Outcome, error) { return one(mvich.TestAny(r)) },
		"WaitSome": mvich.WaitSome,
		"TestSome": mvich.TestSome,
	} {
		t.Run(name, func(t *testing.T) {
			waits := strings.HasPrefix(name, "Wait")
			newJob(t, 2, jobConfig{}).run(t, func(c *mvich.Comm) error {
				if c.Rank() == 0 {
					get(c.Recv(nil, 1, count))
					for tag := count - 1; tag >= 0; tag-- {
						must(mvich.Send(c, []int{tag * tag}, 1, tag))
					}
					return nil
				}
				values, requests := make([]int, count), make([]*mvich.Request, count)
				for tag := range count {
					requests[tag] = get(mvich.Irecv(c, values[tag:tag+1], 0, tag))
				}
				all := slices.Clone(requests)
				some, err := mvich.TestSome(requests)
				failIf(len(some) > 0 || err != nil || !waits && len(get(take(requests))) > 0,
					"taken before anything was sent: %+v, %v", some, err)
				done, err := mvich.TestAll(all...)
				failIf(done || err != nil, "all done before anything was sent, %v", err)
				must(c.Send(nil, 0, count))
				for left := count; left > 0; {
					some := get(take(requests))
					failIf(waits && len(some) == 0, "nothing is taken")
					for _, o := range some {
						failIf(o.Err != nil || requests[o.Index] != nil, "%+v", o)
						failIf(o.Status.Tag != o.Index || values[o.Index] != o.Index*o.Index, "%+v", o)
					}
					left -= len(some)
				}
				some = get(take(requests))
				failIf(len(some) > 0, "one more: %+v", some)
				done, err = mvich.TestAll(all...)
				failIf(!done || err != nil, "in the end: %v, %v", done, err)
				return nil
			})
		})
	}
}

// Requests of two worlds cannot be waited for together.
func TestMixed(t *testing.T) {
	j := newJob(t, 2, jobConfig{})
	var requests []*mvich.Request
	for _, w := range j.worlds {
		r, err := w.Comm().Irecv(nil, mvich.AnySource, 0)
		noError(t, err)
		requests = append(requests, r)
	}
	_, _, err := mvich.WaitAny(requests)
	nstest.WantErr(t, "WaitAny", err, mvich.ErrMixed)
	nstest.WantErr(t, "WaitSome", nstest.Err(mvich.WaitSome(requests)), mvich.ErrMixed)
	for _, r := range requests {
		r.Cancel()
	}
}

// Many goroutines of each rank wait at a time, each for its own messages, of the other rank and of its own: the one
// that makes progress wakes the others.
func TestGoroutines(t *testing.T) {
	const goroutines, rounds = 8, 200
	j := newJob(t, 2, jobConfig{options: with(mvich.WithSpin(20))})
	j.run(t, func(c *mvich.Comm) error {
		errs := make([]error, goroutines)
		var wait sync.WaitGroup
		for g := range goroutines {
			other := 1 - c.Rank()
			if g%4 == 3 { // pairs of goroutines of one rank
				other = c.Rank()
			}
			wait.Go(func() {
				errs[g] = guard(func() error {
					for i := range rounds {
						in := make([]int, 1)
						_, err := mvich.Sendrecv(c, []int{i}, other, g, in, other, g)
						failIf(err != nil || in[0] != i, "round %d: %d, %w", i, in[0], err)
					}
					return nil
				})
			})
		}
		wait.Wait()
		return errors.Join(errs...)
	})
	j.spotless(t, mvich.DefaultCredits)
}

// Several goroutines use AnySource receives, probe first and receive then, and cancel receives without a message.
// Each message is received once.
func TestWildcardsAtOnce(t *testing.T) {
	const ranks, messages, goroutines = 3, 100, 4
	lengths := []int{0, 8, 5000, 5001, 16384, 16385, 30000}
	j := newJob(t, ranks, jobConfig{options: with(mvich.WithSpin(20))})
	j.run(t, func(c *mvich.Comm) error {
		if c.Rank() > 0 {
			for i := range messages {
				b := make([]byte, lengths[i%len(lengths)])
				fill(b, i)
				must(c.Send(b, 0, i))
			}
			return nil
		}
		var left atomic.Int64
		left.Store((ranks - 1) * messages)
		var taken [ranks][messages]atomic.Int64
		take := func(b []byte, look bool) error {
			source, tag := mvich.AnySource, mvich.AnyTag
			if look {
				s, there, err := c.Iprobe(source, tag)
				if err != nil || !there {
					time.Sleep(10 * time.Microsecond) // others have the processor
					return err
				}
				source, tag = s.Source, s.Tag
			}
			r := get(c.Irecv(b, source, tag))
			if _, done, _ := r.Test(); !done && r.Cancel() {
				time.Sleep(10 * time.Microsecond)
				return nil
			}
			s, err := r.Wait()
			failIf(err != nil || s.Cancelled || s.Bytes != lengths[s.Tag%len(lengths)], "%+v, %w", s, err)
			n := taken[s.Source][s.Tag].Add(1)
			failIf(n > 1, "message %d of rank %d came %d times", s.Tag, s.Source, n)
			left.Add(-1)
			return check(b[:s.Bytes], s.Tag)
		}
		var errs [goroutines]error
		var wait sync.WaitGroup
		for g := range goroutines {
			wait.Go(func() {
				b := make([]byte, 30000)
				for errs[g] == nil && left.Load() > 0 {
					errs[g] = guard(func() error { return take(b, g%2 == 0) })
				}
			})
		}
		wait.Wait()
		return errors.Join(errs[:]...)
	})
	j.spotless(t, mvich.DefaultCredits)
}
