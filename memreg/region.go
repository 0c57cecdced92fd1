package memreg

import "sync/atomic"

// Handle is a memory handle: random, so that a peer cannot guess one, and
// never 0.
type Handle uint32

// Region is registered memory. Everything in it but the count of users and the
// attributes is fixed when it is registered. All of it may be read by any
// goroutine without lock, also after it was deregistered.
type Region struct {
	refs   refs                    // descriptors and remote accesses that use it; dead: deregistered
	now    atomic.Pointer[setting] // the attributes in force; written under the table's mutex
	first  setting                 // those it was registered with; here, so that now points next to itself
	handle Handle
	addr   uint64
	mem    []byte // the bytes; keeps memory of Go alive
	held   int    // Holds, which are none of refs
}

// Handle names the region, together with its address.
func (r *Region) Handle() Handle { return r.handle }

// Addr is the address of the first byte.
func (r *Region) Addr() uint64 { return r.addr }

// Len is the number of bytes.
func (r *Region) Len() int { return len(r.mem) }

// Bytes is the memory.
func (r *Region) Bytes() []byte { return r.mem }

// Attributes tells tag and RDMA rights, as they were set together. After
// Deregister they are the last ones.
func (r *Region) Attributes() Attributes { return r.now.Load().attributes() }

// Ptag is the tag alone.
func (r *Region) Ptag() *Ptag { return r.now.Load().ptag }

// Alive is false once the region is deregistered. It can be so a moment after
// Alive said true: only Acquire holds it.
func (r *Region) Alive() bool { return r.refs.alive() }

// Acquire holds the region, as a posted descriptor does. False: it was
// deregistered.
func (r *Region) Acquire() bool { return r.refs.acquire() }

// Release ends one Acquire, or one [Table.ResolveRemote].
func (r *Region) Release() { r.refs.release() }

// Hold is a cheaper Acquire: a plain addition where Acquire is an atomic one. It is
// for a caller that has one lock around all calls of Hold and Unhold for the region,
// around the [Table.Resolve] by which it has just found the region alive, and around
// Deregister.
func (r *Region) Hold() { r.held++ }

// Unhold ends one Hold.
func (r *Region) Unhold() { r.held-- }

// Users is the number of holders now, those of Hold not counted.
func (r *Region) Users() int { return r.refs.count() }

// Slice returns the n bytes at addr, with no capacity beyond them, or
// ErrRange. Zero bytes are in range from the first byte to just behind the
// last. It does not look at liveness or attributes.
func (r *Region) Slice(addr uint64, n uint32) ([]byte, error) {
	off, size := addr-r.addr, uint64(len(r.mem)) // below the start, off wraps and is too large
	if off > size || uint64(n) > size-off {
		return nil, ErrRange
	}
	return r.mem[off : off+uint64(n) : off+uint64(n)], nil
}
