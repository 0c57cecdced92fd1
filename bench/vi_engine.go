package bench

import (
	"runtime"
	"sync"
	"sync/atomic"

	"viaxdp/vipl"
)

// engined is a VI whose frames are received by a goroutine that does nothing
// else, as a provider with an engine of its own would do it. The goroutine that
// sends and receives messages only looks at the status of descriptors in
// memory.
//
// A worker has one CPU. So that its two goroutines hand it to each other, and
// do not wait for the kernel to take it from one of them, they run on threads
// that the Go scheduler chooses, at one place in its list of processors.
type engined struct{ *vi }

func newEngined(v *vi) *engined {
	oneProcessor.enter()
	return &engined{v}
}

// Ping, see Endpoint.
func (e *engined) Ping(r Round, rtt []int64) (span Span, err error) {
	e.beside(func() { span, err = e.vi.Ping(r, rtt) })
	return span, err
}

// Echo, see Endpoint.
func (e *engined) Echo(r Round) (err error) {
	e.beside(func() { err = e.vi.Echo(r) })
	return err
}

// Send, see Endpoint.
func (e *engined) Send(r Round) (span Span, err error) {
	e.beside(func() { span, err = e.vi.Send(r) })
	return span, err
}

// Receive, see Endpoint.
func (e *engined) Receive(r Round) (span Span, err error) {
	e.beside(func() { span, err = e.vi.Receive(r) })
	return span, err
}

// Close, see Endpoint.
func (e *engined) Close() error {
	oneProcessor.leave()
	return e.vi.Close()
}

// beside runs a round beside the engine, both off the calling goroutine, which
// may be locked to a thread.
func (e *engined) beside(round func()) {
	var over atomic.Bool
	var both sync.WaitGroup
	both.Go(func() {
		for !over.Load() {
			e.nic.Poll()
			runtime.Gosched()
		}
	})
	both.Go(func() {
		round()
		over.Store(true)
	})
	both.Wait()
}

// byMemory looks at the status of the oldest descriptor of a queue.
type byMemory struct{ v *vi }

func (m *byMemory) send(wait bool) (*vipl.Descriptor, error) {
	if !complete(&m.v.sends, wait) {
		return nil, vipl.ErrNotDone
	}
	return m.v.vi.SendDone()
}

func (m *byMemory) recv(wait bool) (*vipl.Descriptor, error) {
	if !complete(&m.v.recvs, wait) {
		return nil, vipl.ErrNotDone
	}
	return m.v.vi.RecvDone()
}

// complete says that a ring's oldest descriptor is complete; if not, the
// engine has its turn.
func complete(r *ring, wait bool) bool {
	if r.out() > 0 && r.oldest().Status()&vipl.StatusDone != 0 {
		return true
	}
	if wait {
		runtime.Gosched()
	}
	return false
}

// oneProcessor sets GOMAXPROCS to 1 while somebody needs it.
var oneProcessor processorLimit

type processorLimit struct {
	mu     sync.Mutex
	users  int
	before int
}

func (l *processorLimit) enter() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.users++; l.users == 1 {
		l.before = runtime.GOMAXPROCS(1)
	}
}

func (l *processorLimit) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.users--; l.users == 0 {
		runtime.GOMAXPROCS(l.before)
	}
}
