package mvich_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"viaxdp/mvich"
)

// What ranks count moves when it should, and by as much.
func TestStats(t *testing.T) {
	j := newJob(t, 2, jobConfig{})
	b := make([]byte, 8)
	j.run(t, func(c *mvich.Comm) error {
		before := j.worlds[c.Rank()].Stats()
		get(c.Sendrecv(b, c.Rank(), 1, make([]byte, 8), c.Rank(), 1))
		if s := j.worlds[c.Rank()].Stats(); s.Local != before.Local+1 {
			return fmt.Errorf("a message to itself: Local is %d, and was %d", s.Local, before.Local)
		}
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
		// Who only receives gives credit by messages of its own that carry nothing else.
		for range many {
			get(c.Recv(make([]byte, 8), 0, 2))
		}
		for end := time.Now().Add(ackDelay); j.worlds[rank].Stats().Waiting == 0; { // nobody receives it yet
			if time.Now().After(end) {
				return errors.New("a message does not come")
			}
			c.Iprobe(0, 4)
		}
		if j.worlds[rank].Stats().Unexpected == 0 {
			return errors.New("a message before its receive is not counted")
		}
		return errOf(c.Recv(make([]byte, 8), 0, 3))
	})
	for rank, s := range []mvich.Stats{j.worlds[0].Stats(), j.worlds[1].Stats()} {
		if s.Connections != 1 || s.Deaths != 0 || (rank == 1) != (s.Noops > 0) {
			t.Errorf("rank %d: %+v", rank, s)
		}
	}
}
