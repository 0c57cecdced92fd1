package xdpnic

import (
	"sync"
	"testing"

	"viaxdp/internal/lab/nstest"
)

// Whoever polls while the owner closes the queue finds it empty: the rings'
// memory stays readable.
func TestReadyBesideClose(t *testing.T) {
	a, _ := nstest.Pair(t, nstest.Options{})
	for range 5 {
		var q *Queue
		must(t, a.Do(func() (err error) {
			q, err = Open(Config{Ifindex: a.Index, Mode: ModeGeneric, BusyTimeout: waitLimit})
			return err
		}))
		stop := make(chan struct{})
		var pollers sync.WaitGroup
		for range 2 {
			pollers.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						q.Ready()
					}
				}
			})
		}
		noError(t, q.Close())
		if q.Ready() {
			t.Error("a closed queue has frames")
		}
		close(stop)
		pollers.Wait()
	}
}
