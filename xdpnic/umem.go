package xdpnic

import (
	"context"
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

// get adds the pool p to the memory, of a queue with configuration c. It fails if p overlaps another pool, because the
// kernel would write frames of one queue over those of the other, or over what processes that share a queue know of it.
func (u *umem) get(p *pool, c *Config) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	l := c.layout()
	p.limits = [2]uint64{p.base, p.limit() + uint64(l.tableBytes())}
	for _, o := range u.pools {
		if p.limits[0] < o.limits[1] && o.limits[0] < p.limits[1] {
			return fmt.Errorf("the pool at offset %d to %d overlaps that of another queue at %d to %d: %w",
				p.limits[0], p.limits[1], o.limits[0], o.limits[1], errConfig)
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

// Share opens one more socket on the same queue. The new socket has its own RX
// and TX ring. It uses the fill and completion rings and the chunks of q, because
// the kernel keeps one pair per queue (XDP_SHARED_UMEM, net/xdp/xsk.c). The XDP
// program chooses the socket that gets a frame by its XSKMAP entry.
//
// All sockets that share belong to one owner: their completions come mixed on one
// ring, and Flush and Reap of each take them for all. A chunk that one socket has
// received may be recycled through another. They may be closed in any order.
//
// Owner only.
func (q *Queue) Share() (*Queue, error) {
	if q.fd < 0 {
		return nil, ErrClosed
	}
	if q.cfg.shared() {
		return nil, q.fail("share", fmt.Errorf("processes share the queue: %w", errConfig))
	}
	if len(q.extra) > 0 {
		return nil, q.fail("share", fmt.Errorf("the queue has sockets on several queues: %w", errConfig))
	}
	cfg := q.cfg
	cfg.Share = q
	s := newQueue(cfg)
	s.pool = q.pool
	s.pool.users++
	if err := s.openShared(); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (q *Queue) openShared() error {
	if err := q.socket(); err != nil {
		return err
	}
	if err := q.socketRings(); err != nil {
		return err
	}
	if err := q.bind(context.Background()); err != nil {
		return err
	}
	return q.describe()
}

// reclaim returns the chunks in a closed socket's rings to the pool, which other
// sockets still use: TX entries that the kernel will no longer send, and frames
// that were not received. Entries that the kernel took before the close come back
// on the completion ring.
func (q *Queue) reclaim() {
	p := q.pool
	p.reap()
	first := q.tx.cons.Load()
	if q.tx.head-first > q.tx.mask+1 {
		first = q.tx.head // the index is corrupt: the entries are unknown
	}
	for i := first; i != q.tx.head+q.pend; i++ {
		// The kernel may publish its index late (xskq_cons_release): skip entries
		// that it has already completed.
		if addr := q.tx.desc[i&q.tx.mask].Addr; q.InFlight(addr) {
			p.complete(addr)
		}
	}
	for n := q.rx.peek(^uint32(0)); n > 0; n-- {
		d := q.rx.desc[q.rx.tail&q.rx.mask]
		q.rx.tail++
		addr := plainAddr(d.Addr)
		if i := p.chunk(addr); i < p.rx && p.own[i] == ownFill {
			p.returned++
			p.own[i] = ownLeased
			p.recycle(addr)
		}
	}
	p.refill()
}
