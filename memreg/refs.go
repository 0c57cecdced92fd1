package memreg

import (
	"math"
	"sync/atomic"
)

// refs counts the users of a thing that ends only when nobody uses it. It is
// below zero when the thing is dead. The zero value is alive and unused.
type refs struct{ n atomic.Int64 }

// dead is far enough below zero that failing calls of acquire, each of which
// moves the count for a moment, cannot bring it back.
const dead = math.MinInt64 / 2

// acquire adds a user; false: dead.
func (r *refs) acquire() bool {
	if r.n.Add(1) > 0 {
		return true
	}
	r.n.Add(-1)
	return false
}

// release takes a user away. One more than there were users is undone, so that
// the thing can still end.
func (r *refs) release() {
	if r.n.Add(-1) == -1 {
		r.n.Add(1)
	}
}

// kill ends the thing if it is alive and unused.
func (r *refs) kill() bool { return r.n.CompareAndSwap(0, dead) }

func (r *refs) alive() bool { return r.n.Load() >= 0 }

func (r *refs) count() int { return int(max(0, r.n.Load())) }
