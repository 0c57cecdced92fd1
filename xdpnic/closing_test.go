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
		if err := a.Do(func() (err error) {
			q, err = Open(Config{Ifindex: a.Index, Mode: ModeGeneric, BusyTimeout: waitLimit})
			return err
		}); err != nil {
			t.Fatal(err)
		}
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
		if err := q.Close(); err != nil {
			t.Error(err)
		}
		if q.Ready() {
			t.Error("a closed queue has frames")
		}
		close(stop)
		pollers.Wait()
	}
}
