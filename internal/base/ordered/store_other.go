//go:build race || !amd64 || !gc

package ordered

import "sync/atomic"

// StoreUint32 stores v at p, behind everything that was stored before.
func StoreUint32(p *uint32, v uint32) { atomic.StoreUint32(p, v) }

// StoreUint64 stores v at p, behind everything that was stored before.
func StoreUint64(p *uint64, v uint64) { atomic.StoreUint64(p, v) }
