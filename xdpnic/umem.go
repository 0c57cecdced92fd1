package xdpnic

import (
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// umem is the memory that one or more pools lie in. It is only memory: who
// owns which part is the pools' and the caller's matter. The kernel keeps its
// own count of the sockets that use it.
type umem struct {
	mem    []byte
	mapped bool         // mapped here, for a caller without memory
	users  atomic.Int32 // pools; their owners may be different goroutines
}

// newUmem takes the caller's memory, or maps n bytes.
func newUmem(mem []byte, n int) (*umem, error) {
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

func (u *umem) get() *umem {
	u.users.Add(1)
	return u
}

// put lets go of the memory; the last one unmaps what newUmem has mapped.
func (u *umem) put() error {
	if u == nil || u.users.Add(-1) > 0 || !u.mapped {
		return nil
	}
	u.mapped = false
	return unix.Munmap(u.mem)
}
