package mvich

import (
	"errors"
	"slices"

	"viaxdp/vipl"
)

// registration is memory of the program that the NIC knows.
type registration struct {
	region     *vipl.Region
	start, end uint64 // addresses
	readers    int    // requests that hold it with remoteRead
	writers    int    // and with remoteWrite
	arena      bool   // of Alloc: it stays until it is freed, and frames are sent from it
	users      int    // requests that hold it
	lastUsed   uint64 // on the clock of registrations
}

// rights are what peers may do with registered memory, as long as a request that needs them
// holds it.
type rights uint8

const (
	remoteRead rights = 1 << iota
	remoteWrite

	localOnly rights = 0
)

// at is the offset in the region of the byte at address a.
func (r *registration) at(a uint64) int { return int(a - r.start) }

// errUnregistered says that memory is not to be registered. The message then
// goes through vbufs.
var errUnregistered = errors.New("mvich: more memory than may be registered")

// registrations is the cache of registered memory: buffers are registered when
// they are first used for RDMA and stay so until the limit makes room for
// others, the one that was unused for longest first. What is registered stays
// reachable, so that an address never comes to mean other memory. Peers may read or write
// it only while a request needs that.
type registrations struct {
	nic    *vipl.NIC
	tag    *vipl.Ptag
	limit  int             // bytes
	sorted []*registration // by start
	bytes  int
	clock  uint64

	hits, misses uint64
}

// acquire finds or makes a registration of buf, holds it, and gives peers those rights
// until release. A failure is no reason to give up: the message can go another way.
func (c *registrations) acquire(buf []byte, need rights) (*registration, error) {
	c.clock++
	start := addressOf(buf)
	end := start + uint64(len(buf))
	if r := c.find(start, end); r != nil {
		if err := c.coalesce(r, need, 1); err != nil {
			return nil, err
		}
		c.hits++
		r.lastUsed = c.clock
		return r, nil
	}
	if !c.makeRoom(len(buf)) {
		return nil, errUnregistered
	}
	c.misses++
	region, err := c.nic.RegisterMem(buf, c.attributes(need))
	if err != nil {
		return nil, err
	}
	r := &registration{region: region, start: start, end: end, lastUsed: c.clock}
	r.count(need, 1)
	c.insert(r)
	c.bytes += len(buf)
	return r, nil
}

func (c *registrations) insert(r *registration) {
	c.sorted = slices.Insert(c.sorted, c.after(r.start), r)
}

func (c *registrations) remove(i int) { c.sorted = slices.Delete(c.sorted, i, i+1) }

// release ends one acquire with those rights, which peers have no longer if nobody else
// needs them. The memory stays registered.
func (c *registrations) release(r *registration, need rights) {
	// It fails where the NIC is closed, and nobody reads or writes anything.
	_ = c.coalesce(r, need, -1)
}

// hold adds n requests that hold r with those rights, and gives or takes what follows
// from it.
func (c *registrations) coalesce(r *registration, need rights, n int) error {
	before := r.rights()
	r.count(need, n)
	if r.rights() == before {
		return nil
	}
	err := r.region.SetAttributes(c.attributes(r.rights()))
	if err != nil && n > 0 {
		r.count(need, -n)
	}
	return err
}

func (r *registration) count(need rights, n int) {
	r.users += n
	if need&remoteRead != 0 {
		r.readers += n
	}
	if need&remoteWrite != 0 {
		r.writers += n
	}
}

// rights are what peers have now.
func (r *registration) rights() (now rights) {
	if r.readers > 0 {
		now |= remoteRead
	}
	if r.writers > 0 {
		now |= remoteWrite
	}
	return now
}

// after is the place of the first registration that begins behind start.
func (c *registrations) after(start uint64) int {
	i, _ := slices.BinarySearchFunc(c.sorted, start, func(r *registration, a uint64) int {
		if r.start <= a {
			return -1
		}
		return 1
	})
	return i
}

// find looks for a registration of all of start to end. It looks at those that
// begin at start or closest before it; a larger one that begins further away
// is not found, which costs a registration and nothing else.
func (c *registrations) find(start, end uint64) *registration {
	const nearest = 4
	for i, n := c.after(start)-1, 0; i >= 0 && n < nearest; i, n = i-1, n+1 {
		if c.sorted[i].end >= end {
			return c.sorted[i]
		}
	}
	return nil
}

// inArena says whether buf is memory of Alloc.
func (c *registrations) inArena(buf []byte) bool {
	start := addressOf(buf)
	r := c.find(start, start+uint64(len(buf)))
	return r != nil && r.arena
}

func (c *registrations) attributes(r rights) vipl.MemAttributes {
	return vipl.MemAttributes{
		Ptag: c.tag, EnableRDMARead: r&remoteRead != 0, EnableRDMAWrite: r&remoteWrite != 0,
	}
}

// makeRoom deregisters what is not in use until n more bytes are within the
// limit. False: that cannot be.
func (c *registrations) makeRoom(n int) bool {
	for c.bytes+n > c.limit {
		oldest := -1
		for i, r := range c.sorted {
			if r.users == 0 && !r.arena && (oldest < 0 || r.lastUsed < c.sorted[oldest].lastUsed) {
				oldest = i
			}
		}
		if oldest < 0 || n > c.limit {
			return false
		}
		r := c.sorted[oldest]
		if r.region.Deregister() != nil {
			return false // descriptors of a connection that has just broken hold it
		}
		c.bytes -= int(r.end - r.start)
		c.remove(oldest)
	}
	return true
}

// forget deregisters what is not in use of buf, which nobody will use again.
func (c *registrations) forget(buf []byte) {
	start := addressOf(buf)
	end := start + uint64(len(buf))
	c.sorted = slices.DeleteFunc(c.sorted, func(r *registration) bool {
		if r.start < start || r.end > end || r.users > 0 || r.region.Deregister() != nil {
			return false
		}
		c.bytes -= int(r.end - r.start)
		return true
	})
}

// close deregisters everything.
func (c *registrations) close() error {
	var errs []error
	for _, r := range c.sorted {
		errs = append(errs, r.region.Deregister())
	}
	c.sorted, c.bytes = nil, 0
	return errors.Join(errs...)
}
