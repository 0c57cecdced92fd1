package vipl

import (
	"sync"
	"sync/atomic"
)

// caller calls the program's handlers one at a time, in the order in which they were queued. It uses a goroutine of
// its own, which lives while handlers are queued and holds no lock while one runs. When the NIC is closed, handlers
// that have not started are dropped, since the objects they are about are gone.
type caller struct {
	over *atomic.Bool // NIC.shut

	mu      sync.Mutex
	calls   []func()
	running bool
}

// call queues f. It does not wait, and may be called with any lock held.
func (c *caller) call(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, f)
	if !c.running {
		c.running = true
		go c.run()
	}
}

// waiting returns the number of calls that have not started.
func (c *caller) waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.calls)
}

func (c *caller) run() {
	for {
		c.mu.Lock()
		if len(c.calls) == 0 || c.over.Load() {
			c.calls, c.running = nil, false
			c.mu.Unlock()
			return
		}
		f := c.calls[0]
		c.calls = c.calls[1:]
		c.mu.Unlock()
		f()
	}
}
