//go:build !race && gc

package ordered

import "sync/atomic"

// The functions here are part of whoever calls them, a move each, where one of
// assembly would cost two calls. A compiler may do with a plain store what it
// likes; what gc does is to leave one out that another store to the same word
// follows, with only other stores between them: that of a datum, if the counter
// that announces it did not stand in between as anything but a store. So there is
// an atomic load of the word as well, of which gc thinks as of a call (all stores
// before it are made), and which costs the processor nothing.

// StoreUint32 stores v at p, behind everything that was stored before.
func StoreUint32(p *uint32, v uint32) {
	atomic.LoadUint32(p)
	*p = v
}

// StoreUint64 stores v at p, behind everything that was stored before.
func StoreUint64(p *uint64, v uint64) {
	atomic.LoadUint64(p)
	*p = v
}
