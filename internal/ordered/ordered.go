// Package ordered has the store that package sync/atomic lacks: one that lets
// nothing written before it be seen after it (a release), and no more.
//
// sync/atomic stores are also ordered before all later loads. On amd64 that takes
// an exchange, which waits until everything stored before has reached the cache:
// 10 to 20 ns where the lines belong to another CPU, for what a plain move does
// by the processor's own rules (Intel SDM, volume 3A, 8.2.2: stores are not
// reordered with other stores). On other processors, and with the race detector,
// the stores here are those of sync/atomic.
//
// It serves where one goroutine at a time writes, under a lock or by agreement,
// others only look, and nobody has to know that a later load of his comes after
// the store: not for two flags of which each side sets one and looks at the
// other.
//
// All functions and methods may be called concurrently; nothing is allocated.
package ordered

import "sync/atomic"

// Uint32 is a counter with one writer at a time. The zero value is 0.
type Uint32 struct{ v uint32 }

// Load is the value; what was written before it was stored can be read after.
func (u *Uint32) Load() uint32 { return atomic.LoadUint32(&u.v) }

// Store sets the value.
func (u *Uint32) Store(v uint32) { StoreUint32(&u.v, v) }

// Uint64 is a counter with one writer at a time. The zero value is 0.
type Uint64 struct{ v uint64 }

// Load is the value; what was written before it was stored can be read after.
func (u *Uint64) Load() uint64 { return atomic.LoadUint64(&u.v) }

// Store sets the value.
func (u *Uint64) Store(v uint64) { StoreUint64(&u.v, v) }
