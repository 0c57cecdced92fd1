package connmgr

import (
	"sync"
	"testing"
	"time"

	"viaxdp/internal/lab/nstest"
)

// polledTransport counts its polls, and closes done in one of them.
type polledTransport struct {
	Transport
	polls, last int
	done        chan struct{}
}

func (p *polledTransport) Poll() bool {
	if p.polls++; p.polls == p.last {
		close(p.done)
	}
	return p.polls == p.last
}

func (p *polledTransport) isDone() bool { return isClosed(p.done) }

func never() bool { return false }

// A wait spins until its answer has come. Waits without an answer spin ever shorter, until one is answered.
func TestSpin(t *testing.T) {
	var s spinner
	answered := func() {
		p := &polledTransport{last: 3, done: make(chan struct{})}
		for s.spin(p, p.isDone); p.polls < p.last; s.spin(p, p.isDone) { // a spin may end early where there is no CPU for it
		}
		nstest.ErrorIf(t, p.polls != p.last, "%d polls until the answer of poll %d", p.polls, p.last)
		nstest.ErrorIf(t, s.halved.Load() != 0, "after an answer spins are halved %d times", s.halved.Load())
	}
	answered()
	for i := range int32(20) {
		s.spin(&polledTransport{}, never)
		if want := min(i+1, 10); s.halved.Load() != want {
			t.Fatalf("after %d waits in vain spins are halved %d times, not %d", i+1, s.halved.Load(), want)
		}
	}
	begin, polls := time.Now(), 0
	for range 20 {
		p := &polledTransport{}
		s.spin(p, never)
		polls += p.polls
	}
	if took := time.Since(begin); polls > 20*100 {
		t.Errorf("20 waits of peers that do not answer took %d polls and %v", polls, took)
	}
	answered()
}

// Several goroutines that wait do not spin, and nothing is polled of a transport that cannot be.
func TestSpinAlone(t *testing.T) {
	var s spinner
	s.waiting.Store(1)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			p := &polledTransport{}
			if s.spin(p, never); p.polls != 0 {
				t.Errorf("%d polls beside another wait", p.polls)
			}
		})
	}
	all.Wait()
	s.spin(struct{ Transport }{&polledTransport{}}, never)
	nstest.Equal(t, "goroutines that wait", s.waiting.Load(), 1)
}
