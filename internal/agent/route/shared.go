package route

import (
	"sync"
	"sync/atomic"
)

// shared has those who ask at the same time share an answer, which is for all who have asked
// before it was begun: what costs the kernel much costs it no more for many. One who fails fails
// alone. The zero value is ready. get may be called concurrently; the answer must not be changed.
type shared[T any] struct {
	asked atomic.Uint64

	turn     sync.Mutex // held while one asks the kernel
	answered uint64     // so many of those who asked have last; guarded by turn
	last     T          // guarded by turn
}

func (s *shared[T]) get(ask func() (T, error)) (T, error) {
	me := s.asked.Add(1)
	s.turn.Lock()
	defer s.turn.Unlock()
	if s.answered >= me {
		return s.last, nil
	}
	all := s.asked.Load() // who comes later asks for what this may miss
	v, err := ask()
	if err == nil {
		s.answered, s.last = all, v
	}
	return v, err
}
