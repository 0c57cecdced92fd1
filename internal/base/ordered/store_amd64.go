//go:build !race && gc

package ordered

import "sync/atomic"

// These functions are inlined as one move each; in assembly each would cost two calls.
// A compiler may move or remove plain stores. gc removes a store if another store to
// the same word follows with only stores between them. If the counter that announces
// a datum were only a store, gc could remove an earlier store of the datum. The
// atomic load of the word prevents that: gc treats it like a call, before which all
// stores are made, and it costs the processor nothing.

// StoreUint32 stores v at p, after everything that was stored before.
func StoreUint32(p *uint32, v uint32) {
	atomic.LoadUint32(p)
	*p = v
}

// StoreUint64 stores v at p, after everything that was stored before.
func StoreUint64(p *uint64, v uint64) {
	atomic.LoadUint64(p)
	*p = v
}
