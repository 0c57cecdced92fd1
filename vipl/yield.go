package vipl

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A program that polls keeps its CPU, and what it waits for may need that CPU: its peer, where a host has more programs than
// CPUs. Each message would then wait for the end of a time slice, 3 ms. So a process whose polls have been in vain for yieldAfter
// yields the CPU every 256 polls. Where no other thread wanted it for many times in a row, it does so rarely: a yield costs half a
// microsecond, in which a message waits.
const (
	yieldAfter  = 50 * time.Microsecond
	yieldAlone  = 3 * time.Microsecond // no other thread runs in as little
	yieldTries  = 64                   // yields in vain before they become rare
	yieldSeldom = 255                  // opportunities that are then left out
)

// cpuShare decides when to yield.
type cpuShare struct {
	found uint32        // what changes with polls that find work, completed descriptors that are dequeued, and posts
	since time.Duration // when found last changed
	vain  int           // yields in a row in which no other thread ran
	left  int           // opportunities that are still left out
}

// due reports whether to yield now.
func (c *cpuShare) due(found uint32, now time.Duration) bool {
	switch {
	case found != c.found:
		c.found, c.since = found, now
		return false
	case now-c.since < yieldAfter:
		return false
	case c.left > 0:
		c.left--
		return false
	}
	return true
}

// yielded records how long a yield took.
func (c *cpuShare) yielded(took time.Duration) {
	if took > yieldAlone {
		c.vain = 0
	} else if c.vain++; c.vain >= yieldTries {
		c.left = yieldSeldom
	}
}

// sharing is the share of this process. A program that polls several queues waits for none of them while one has work.
var sharing struct {
	sync.Mutex
	cpuShare
}

// schedYield is sched_yield(2), which does not fail.
var schedYield = func() { _, _, _ = unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

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
	schedYield()
	sharing.Lock()
	sharing.yielded(time.Duration(clock()) - start)
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
