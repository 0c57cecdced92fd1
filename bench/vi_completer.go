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
// RecvDone and RecvWait. It answers as those do, with ErrNotDone or ErrTimeout
// when there is none; only with wait may it sleep.
type completer interface {
	next(recv, wait bool) (*vipl.Descriptor, error)
}

// byCQ polls the completion queue of both work queues.
type byCQ struct {
	cq     *vipl.CQ
	vi     *vipl.VI
	sleeps bool

	sends, recvs int // entries that were taken, of descriptors that were not
}

func (c *byCQ) next(recv, wait bool) (*vipl.Descriptor, error) {
	count := &c.sends
	if recv {
		count = &c.recvs
	}
	for *count == 0 {
		if err := c.take(wait); err != nil {
			return nil, err
		}
	}
	*count--
	return dequeue(c.vi, recv)
}

// dequeue takes the oldest completed descriptor off a work queue.
func dequeue(vi *vipl.VI, recv bool) (*vipl.Descriptor, error) {
	if recv {
		return vi.RecvDone()
	}
	return vi.SendDone()
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

func (h *byHandler) next(recv, wait bool) (*vipl.Descriptor, error) {
	from := h.sends
	if recv {
		from = h.recvs
	}
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

func (e *engined) Ping(r Round, rtt []int64) (span Span) {
	e.beside(func() { span = e.vi.Ping(r, rtt) })
	return span
}

func (e *engined) Echo(r Round) { e.beside(func() { e.vi.Echo(r) }) }

func (e *engined) Send(r Round) (span Span) {
	e.beside(func() { span = e.vi.Send(r) })
	return span
}

func (e *engined) Receive(r Round) (span Span) {
	e.beside(func() { span = e.vi.Receive(r) })
	return span
}

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

// next lets the engine have its turn if the descriptor is not complete.
func (m *byMemory) next(recv, wait bool) (*vipl.Descriptor, error) {
	r := &m.v.sends
	if recv {
		r = &m.v.recvs
	}
	if r.out() > 0 && r.oldest().Status()&vipl.StatusDone != 0 {
		return dequeue(m.v.vi, recv)
	}
	if wait {
		runtime.Gosched()
	}
	return nil, vipl.ErrNotDone
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
