package xdpnic

import (
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// umem is the memory of one or more pools, which do not overlap. The memory between
// them is the caller's. The kernel keeps its own count of the sockets that use it.
type umem struct {
	mem    []byte
	mapped bool // newUMEM mapped it, for a caller without memory

	mu    sync.Mutex // the pools' owners may be different goroutines
	pools []*pool
}

// newUMEM takes the caller's memory, or maps n bytes.
func newUMEM(mem []byte, n int) (*umem, error) {
	u := &umem{mem: mem}
	if mem == nil {
		var err error
		u.mem, err = unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE,
			unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
		if err != nil {
			return nil, err
		}
		u.mapped = true
	}
	return u, nil
}

// get adds the pool p to the memory. It fails if p overlaps another pool, because the
// kernel would write frames of one queue over those of the other.
func (u *umem) get(p *pool) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, o := range u.pools {
		if p.base < o.limit() && o.base < p.limit() {
			return fmt.Errorf("the pool at offset %d to %d overlaps that of another queue at %d to %d: %w",
				p.base, p.limit(), o.base, o.limit(), errConfig)
		}
	}
	u.pools = append(u.pools, p)
	p.umem = u
	return nil
}

// put removes p from the memory. Removing the last pool unmaps what newUMEM mapped.
func (u *umem) put(p *pool) error {
	if u == nil {
		return nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.pools = slices.DeleteFunc(u.pools, func(o *pool) bool { return o == p })
	if len(u.pools) > 0 || !u.mapped {
		return nil
	}
	u.mapped = false
	return unix.Munmap(u.mem)
}

// users is the number of pools in the memory.
func (u *umem) users() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.pools)
}
