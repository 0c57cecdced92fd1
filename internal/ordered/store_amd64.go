//go:build !race

package ordered

// StoreUint32 stores v at p, behind everything that was stored before.
//
//go:noescape
func StoreUint32(p *uint32, v uint32)

// StoreUint64 stores v at p, behind everything that was stored before.
//
//go:noescape
func StoreUint64(p *uint64, v uint64)
