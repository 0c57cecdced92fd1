package mvich_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/mvich"
)

// A rank that has got what it needs to end stays until the others have, too: what it has sent them last may be lost,
// for longer than the end of a connection waits.
func TestLastMessageIsLost(t *testing.T) { synctest.Test(t, lastMessageIsLost) }

func lastMessageIsLost(t *testing.T) {
	j := newJob(t, 2, jobConfig{dying: true}) // Finalize is called here
	j.run(t, func(c *mvich.Comm) error { return c.Barrier() })
	first, last := j.worlds[1], j.worlds[0]
	each(t, 2, func(rank int) error {
		if rank == 1 {
			return first.Finalize()
		}
		for last.Stats().Waiting == 0 { // until the other one is in it, and waits
			last.Comm().Iprobe(mvich.AnySource, mvich.AnyTag) // progress
			time.Sleep(time.Millisecond)
		}
		j.hosts[1].Queue.Cut(true)
		time.AfterFunc(time.Second, func() { j.hosts[1].Queue.Cut(false) })
		return last.Finalize()
	})
}

// What was begun and is not complete when Finalize is called ends with it, however it is asked for.
func TestFinalizeEndsRequests(t *testing.T) {
	j := newJob(t, 3, jobConfig{dying: true}) // Finalize is called here
	each(t, 3, func(rank int) error {
		w := j.worlds[rank]
		c := w.Comm()
		if rank < 2 { // they are connected
			get(c.Sendrecv(nil, 1-rank, 1, nil, 1-rank, 1))
		}
		requests := make(map[string]*mvich.Request)
		for name, source := range map[string]int{"of anybody": mvich.AnySource, "of the next": (rank + 1) % 3, "of itself": rank} {
			r := get(c.Irecv(make([]byte, 1), source, 2))
			requests["receive "+name] = r
		}
		for name, to := range map[string]int{"to the next": (rank + 1) % 3, "to itself": rank} {
			r := get(c.Issend(make([]byte, 10000), to, 3))
			requests["send "+name] = r
		}
		waited := make(chan error, 1)
		other := get(c.Irecv(nil, mvich.AnySource, 4))
		go func() { _, err := other.Wait(); waited <- err }()
		must(w.Finalize())
		for name, r := range requests {
			if _, done, err := r.Test(); !done || err == nil {
				return fmt.Errorf("%s: complete %v, %v", name, done, err)
			}
			if _, err := r.Wait(); !strings.HasSuffix(name, "the next") && !errors.Is(err, mvich.ErrFinalized) {
				return fmt.Errorf("%s: %v", name, err) // the next may have said before that it leaves
			}
		}
		if err := <-waited; !errors.Is(err, mvich.ErrFinalized) {
			return fmt.Errorf("a receive that another goroutine waits for: %v", err)
		}
		return nil
	})
}

// Of goroutines that finalize a world at once one does.
func TestFinalizeAtOnce(t *testing.T) {
	const goroutines = 4
	j := newJob(t, 2, jobConfig{dying: true}) // Finalize is called here
	errs := make(chan error, 2*goroutines)
	each(t, 2*goroutines, func(i int) error {
		errs <- j.worlds[i%2].Finalize()
		return nil
	})
	done := 0
	for range 2 * goroutines {
		switch err := <-errs; {
		case err == nil:
			done++
		case !errors.Is(err, mvich.ErrFinalized):
			t.Error(err)
		}
	}
	if done != 2 {
		t.Errorf("%d of 2 worlds were finalized", done)
	}
}
