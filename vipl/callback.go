package vipl

import (
	"sync"
	"sync/atomic"
)

// caller calls the program's handlers one after the other, in the order in
// which they came up, on a goroutine of its own that lives as long as there are
// any. The goroutine holds no lock while a handler runs. When the NIC is closed, those
// that have not begun are forgotten: what they would be about is gone.
type caller struct {
	over *atomic.Bool // Nic.shut

	mu      sync.Mutex
	calls   []func()
	running bool
}

// call has f called. It does not wait; any lock may be held.
func (c *caller) call(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, f)
	if !c.running {
		c.running = true
		go c.run()
	}
}

// waiting is the number of calls that have not begun.
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
