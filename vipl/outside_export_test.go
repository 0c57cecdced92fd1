package vipl

import "sync/atomic"

// PopBeside completes descriptors of a queue one by one and dequeues beside somebody
// who does so without the lock. It returns how many were taken, and whether one was
// that is not complete.
func PopBeside(rounds uint64) (taken uint64, early bool) {
	var q workQueue
	q.init(&VI{nic: new(Nic)}, nil, true)
	q.open()
	var end atomic.Bool
	others := make(chan uint64)
	go func() {
		n := uint64(0)
		for !end.Load() {
			if head := q.dequeued.Load(); q.completed.Load() != head && q.claim(head) {
				n++
			}
		}
		others <- n
	}()
	d := new(Descriptor)
	for i := range rounds {
		q.at(i).desc = d
		q.commit()
		q.completed.Store(i + 1)
		for q.ready() && !early {
			if got, _ := q.pop(); got != nil {
				taken++
			}
			early = q.dequeued.Load() > i+1
		}
		if early {
			break
		}
	}
	end.Store(true)
	return taken + <-others, early
}
