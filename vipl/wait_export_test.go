package vipl

import (
	"sync/atomic"
	"time"
)

// Hesitant is a queue whose waiters may be held between their look at it and their
// sleep, as by a scheduler that has others to run.
type Hesitant struct {
	port *port
	nic  *Nic
	sig  signal
	done atomic.Int32 // what has completed and was not taken

	Looks atomic.Int32  // at the queue, in vain
	Hold  chan struct{} // who has looked waits until it is closed
}

// NewHesitant makes one. For its life somebody else sleeps for the port, who is not
// woken.
func (n *Nic) NewHesitant() (h *Hesitant, leave func()) {
	h = &Hesitant{port: n.port, nic: n, Hold: make(chan struct{})}
	h.sig.init()
	for {
		n.port.poll() // so that background does not sleep any more
		n.port.nic.Wake()
		select {
		case n.port.sleeping <- struct{}{}:
			return h, func() { <-n.port.sleeping }
		case <-time.After(time.Millisecond):
		}
	}
}

func (h *Hesitant) ready() bool     { return h.done.Load() > 0 }
func (h *Hesitant) notify() *signal { return &h.sig }
func (h *Hesitant) handle() *Nic    { return h.nic }

// destroyed is asked by who has looked in vain and is about to sleep.
func (h *Hesitant) destroyed() error {
	h.Looks.Add(1)
	<-h.Hold
	return nil
}

// Complete completes several at once.
func (h *Hesitant) Complete(n int) {
	h.port.mu.Lock()
	defer h.port.mu.Unlock()
	for range n {
		h.done.Add(1)
		h.port.raise(&h.sig)
	}
}

// WakeInVain wakes one who waits, for whom nothing is left.
func (h *Hesitant) WakeInVain() {
	h.port.mu.Lock()
	defer h.port.mu.Unlock()
	h.port.raise(&h.sig)
}

// Wait waits for one, and takes it.
func (h *Hesitant) Wait(timeout time.Duration) error {
	for end := h.port.deadline(timeout); ; {
		if err := h.port.wait(h, end); err != nil {
			return err
		}
		if n := h.done.Load(); n > 0 && h.done.CompareAndSwap(n, n-1) {
			return nil
		}
	}
}

// wakes is a port that counts how often it is woken.
type wakes struct {
	Port
	n int
}

func (w *wakes) Wake() { w.n++ }

// WakesOfSleep counts how often who sleeps for a port is woken when so many
// descriptors complete and as much becomes due earlier, before he has looked again.
func WakesOfSleep(completions int) int {
	w := &wakes{}
	p := &port{nic: w}
	p.due.Store(never)
	s := signal{waiters: 1}
	s.init()
	p.sleepBy.Store(never)
	for range completions {
		p.raise(&s)
		p.lazy = true
		p.unrung.Store(1)
		p.finish(0, false)
	}
	return w.n
}

// Unlocked says whether nobody has the lock of n's engine just now.
func (n *Nic) Unlocked() bool {
	ok := n.port.mu.TryLock()
	if ok {
		n.port.mu.Unlock()
	}
	return ok
}
