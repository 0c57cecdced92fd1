// Package ordered has the release store that package sync/atomic lacks: all writes
// before it are visible to a reader that sees it. It orders nothing else.
//
// sync/atomic stores are also ordered before all later loads. On amd64 that takes
// an exchange, which waits until all earlier stores have reached the cache: 10 to
// 20 ns if the lines belong to another CPU. A plain move is a release store by the
// processor's rules (Intel SDM, volume 3A, 8.2.2: stores are not reordered with
// other stores). On other processors, and with the race detector, the stores of
// this package are those of sync/atomic.
//
// Use it if one goroutine at a time writes, under a lock or by agreement, others
// only read, and the writer does not need a later load to come after the store. It
// does not suffice if each of two sides sets one flag and reads the other.
//
// All functions and methods may be called concurrently; nothing is allocated.
package ordered

import "sync/atomic"

// Uint32 is a counter with one writer at a time. The zero value is 0.
type Uint32 struct{ v uint32 }

// Load returns the value. Everything written before its Store is visible afterwards.
func (u *Uint32) Load() uint32 { return atomic.LoadUint32(&u.v) }

// Store sets the value.
func (u *Uint32) Store(v uint32) { StoreUint32(&u.v, v) }

// Uint64 is a counter with one writer at a time. The zero value is 0.
type Uint64 struct{ v uint64 }

// Load returns the value. Everything written before its Store is visible afterwards.
func (u *Uint64) Load() uint64 { return atomic.LoadUint64(&u.v) }

// Store sets the value.
func (u *Uint64) Store(v uint64) { StoreUint64(&u.v, v) }
