package memreg

import (
	"math"
	"sync/atomic"
)

// refs counts the users of an object that may end only when it has none. A negative count means that the object is
// dead. The zero value is alive and unused.
type refs struct{ n atomic.Int64 }

// dead is far enough below zero that failing calls of acquire, which change the count for a moment, cannot make it
// positive.
const dead = math.MinInt64 / 2

// acquire adds a user; false: dead.
func (r *refs) acquire() bool {
	if r.n.Add(1) > 0 {
		return true
	}
	r.n.Add(-1)
	return false
}

// release removes a user. A release without a user is undone, so that the object can still end.
func (r *refs) release() {
	if r.n.Add(-1) == -1 {
		r.n.Add(1)
	}
}

// kill marks the object as dead if it is alive and unused.
func (r *refs) kill() bool { return r.n.CompareAndSwap(0, dead) }

func (r *refs) alive() bool { return r.n.Load() >= 0 }

func (r *refs) count() int { return int(max(0, r.n.Load())) }
