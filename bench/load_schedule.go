package bench

import (
	"math/rand/v2"
	"time"
)

// A schedule gives the times at which messages are due, counted from the start,
// in ascending order.
type schedule struct {
	gap    float64    // ns between messages, on average
	random *rand.Rand // nil: equal gaps
	n      float64    // messages so far
	at     float64    // ns; when the last one was due, of random times
}

func newSchedule(l Load) *schedule {
	s := &schedule{gap: float64(time.Second) / l.Rate}
	if l.Poisson {
		s.random = rand.New(rand.NewPCG(l.Seed, 0))
	}
	return s
}

// next is when the next message is due.
func (s *schedule) next() time.Duration {
	if s.random != nil {
		s.at += s.random.ExpFloat64() * s.gap
		return time.Duration(s.at)
	}
	// By multiplication, so that no error adds up.
	at := s.n * s.gap
	s.n++
	return time.Duration(at)
}
