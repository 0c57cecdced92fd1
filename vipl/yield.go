package vipl

import (
	"sync"
	"time"

	"viaxdp/internal/base/thread"
)

// A program that polls keeps its CPU, and what it waits for may need that CPU: its peer, where a host has more programs than
// CPUs. Each message would then wait for the end of a time slice, 3 ms. So a process whose polls have been in vain for yieldAfter
// yields the CPU every pollsPerTime polls, or rarely where no other thread wants it.
const yieldAfter = 50 * time.Microsecond

// cpuShare decides when to yield.
type cpuShare struct {
	thread.Yielder
	found uint32        // what changes with polls that find work, completed descriptors that are dequeued, and posts
	since time.Duration // when found last changed
}

// due reports whether to yield now.
func (c *cpuShare) due(found uint32, now time.Duration) bool {
	if found != c.found {
		c.found, c.since = found, now
		return false
	}
	return now-c.since >= yieldAfter && c.Due()
}

// sharing is the share of this process. A program that polls several queues waits for none of them while one has work.
var sharing struct {
	sync.Mutex
	cpuShare
}

// yield is replaced by tests.
var yield = thread.Yield

// yieldCPU lets other threads have this CPU if it is due. Without the lock.
func (p *port) yieldCPU() {
	if !p.poller.yields.Load() || !sharing.TryLock() {
		return
	}
	found, ok := allFound()
	start := time.Duration(clock())
	due := ok && sharing.due(found, start)
	sharing.Unlock()
	if !due {
		return
	}
	yield()
	sharing.Lock()
	sharing.Yielded(time.Duration(clock()) - start)
	sharing.Unlock()
}

// allFound returns cpuShare.found of all queues. It is not ok while an engine starts or stops.
func allFound() (found uint32, ok bool) {
	if !ports.TryLock() {
		return 0, false
	}
	defer ports.Unlock()
	for _, s := range ports.open {
		found += s.poller.turns.Load() + s.poller.taken.Load() + s.coalescer.idleAtPost.Load()
	}
	return found, true
}
