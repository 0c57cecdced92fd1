package bench

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"viaxdp/internal/lab/fail"
	"viaxdp/vipl"
)

// A completer finds completed descriptors by other means than SendDone, SendWait,
// RecvDone and RecvWait. Its methods answer as those do, with ErrNotDone or ErrTimeout
// when there is none; only with wait may they sleep.
type completer interface {
	send(wait bool) (*vipl.Descriptor, error)
	recv(wait bool) (*vipl.Descriptor, error)
}

// byCQ polls the completion queue of both work queues.
type byCQ struct {
	cq     *vipl.CQ
	vi     *vipl.VI
	sleeps bool

	sends, recvs int // entries that were taken, of descriptors that were not
}

func (c *byCQ) send(wait bool) (*vipl.Descriptor, error) {
	for c.sends == 0 {
		if err := c.take(wait); err != nil {
			return nil, err
		}
	}
	c.sends--
	return c.vi.SendDone()
}

func (c *byCQ) recv(wait bool) (*vipl.Descriptor, error) {
	for c.recvs == 0 {
		if err := c.take(wait); err != nil {
			return nil, err
		}
	}
	c.recvs--
	return c.vi.RecvDone()
}

// take takes the next entry.
func (c *byCQ) take(wait bool) (err error) {
	var recv bool
	if wait && c.sleeps {
		_, recv, err = c.cq.Wait(maxSleep)
	} else {
		_, recv, err = c.cq.Done()
	}
	switch {
	case err != nil:
		return err
	case recv:
		c.recvs++
	default:
		c.sends++
	}
	return nil
}

// byHandler has handlers that hand descriptors over to the goroutine that
// waits for them. There is one at a time for each work queue, which sets itself
// again.
type byHandler struct {
	sends, recvs chan *vipl.Descriptor // room for all that are posted: a handler never waits
	timer        *time.Timer
}

func newByHandler(vi *vipl.VI) (*byHandler, error) {
	h := &byHandler{
		sends: make(chan *vipl.Descriptor, viRing), recvs: make(chan *vipl.Descriptor, viRing),
		timer: time.NewTimer(maxSleep),
	}
	var sent, received func(*vipl.VI, *vipl.Descriptor)
	// Setting a handler fails once the VI is closed, and then none is needed.
	sent = func(vi *vipl.VI, d *vipl.Descriptor) { h.sends <- d; _ = vi.SendNotify(sent) }
	received = func(vi *vipl.VI, d *vipl.Descriptor) { h.recvs <- d; _ = vi.RecvNotify(received) }
	if err := vi.SendNotify(sent); err != nil {
		return nil, err
	}
	return h, vi.RecvNotify(received)
}

func (h *byHandler) send(wait bool) (*vipl.Descriptor, error) { return h.next(h.sends, wait) }
func (h *byHandler) recv(wait bool) (*vipl.Descriptor, error) { return h.next(h.recvs, wait) }

func (h *byHandler) next(from chan *vipl.Descriptor, wait bool) (*vipl.Descriptor, error) {
	select {
	case d := <-from:
		return whole(d)
	default:
	}
	if !wait {
		return nil, vipl.ErrNotDone
	}
	h.timer.Reset(maxSleep)
	select {
	case d := <-from:
		return whole(d)
	case <-h.timer.C:
		return nil, vipl.ErrTimeout
	}
}

// whole gives a completed descriptor with the error that Done would give.
func whole(d *vipl.Descriptor) (*vipl.Descriptor, error) {
	if d.Status().Failed() {
		return d, vipl.ErrDescriptor
	}
	return d, nil
}

// engined is a VI whose frames are received by a goroutine that does nothing else, as a
// provider with an engine of its own would do it. The goroutine that sends and receives
// messages only polls the status of descriptors in memory.
//
// A worker has one CPU. Its two goroutines yield to each other in the Go scheduler,
// which runs both on one of its processors, so that neither waits for the kernel to
// preempt the other.
type engined struct{ *vi }

func newEngined(v *vi) *engined {
	oneProcessor.enter()
	return &engined{v}
}

// Ping, see endpoint.
func (e *engined) Ping(r Round, rtt []int64) (span Span) {
	e.beside(func() { span = e.vi.Ping(r, rtt) })
	return span
}

// Echo, see endpoint.
func (e *engined) Echo(r Round) { e.beside(func() { e.vi.Echo(r) }) }

// Send, see endpoint.
func (e *engined) Send(r Round) (span Span) {
	e.beside(func() { span = e.vi.Send(r) })
	return span
}

// Receive, see endpoint.
func (e *engined) Receive(r Round) (span Span) {
	e.beside(func() { span = e.vi.Receive(r) })
	return span
}

// Close, see endpoint.
func (e *engined) Close() error {
	oneProcessor.leave()
	return e.vi.Close()
}

// beside runs a round beside the engine, both off the calling goroutine, which
// may be locked to a thread.
func (e *engined) beside(round func()) {
	var over atomic.Bool
	var both sync.WaitGroup
	var err error
	both.Go(func() {
		for !over.Load() {
			e.nic.Poll()
			runtime.Gosched()
		}
	})
	both.Go(func() {
		err = fail.Try(round)
		over.Store(true)
	})
	both.Wait()
	fail.If(err)
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

// oneProcessor sets GOMAXPROCS to 1 while an endpoint needs it.
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
