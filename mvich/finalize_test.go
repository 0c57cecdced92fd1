package mvich_test

import (
	"testing"
	"time"

	"viaxdp/mvich"
)

// A rank that has got what it needs to end stays until the others have, too: what it
// has sent them last may be lost, for longer than the end of a connection waits.
func TestLastMessageIsLost(t *testing.T) {
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
