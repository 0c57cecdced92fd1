package vianet

import (
	"container/list"
	"errors"
	"net"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"syscall"

	"viaxdp/vipl"
)

// registry is the registered memory that comes and goes with large transfers: buffers of the program, which stay
// registered for the next time, and staging buffers. All methods may be called concurrently.
//
//	register                  lease                    end
//	 ----------> [ idle ] ------------> [ leased ] ----------> [ idle ]
//	             tag of the registry    tag of the connection
//	             closed to peers        open as asked for
//
// When there is too much idle memory, the least recently used is deregistered. A lookup also finds a buffer inside a
// larger registration, but only if the peer gets no access: it could reach the rest.
type registry struct {
	nic   *vipl.NIC
	home  *vipl.Ptag // of everything that no connection uses
	limit int        // bytes that may be idle

	mu     sync.Mutex
	known  []*lease  // of the program's memory, idle or not, by where it begins
	order  list.List // idle ones, as *lease, the one that was used last in front
	bytes  int       // in order
	stages []*lease  // idle staging buffers

	hits, misses uint64
	failures     atomic.Uint64 // for want of memory
}

// lease is registered memory in the hands of one connection.
type lease struct {
	regs   *registry
	region *vipl.Region
	off    int           // of buf in it
	buf    []byte        // what the connection uses
	all    []byte        // the program's memory that is registered; nil: a staging buffer, or of heap
	place  *list.Element // of those that are idle; nil: leased
	stage  bool
	wiped  *vipl.Ptag // a staging buffer's: of the only connection whose bytes it may have; nil: it may have any
}

// access is what the peer may do with a lease.
type access int

const (
	closed   access = iota // nothing
	copied                 // nothing, and the NIC copies what it sends, so that it has it at once
	readable               // RDMA read
	writable               // RDMA write
)

const (
	stageSize = 64 << 10 // bytes of a staging buffer
	maxStages = 64       // that are kept
)

func newRegistry(nic *vipl.NIC, limit int) (*registry, error) {
	home, err := nic.CreatePtag()
	if err != nil {
		return nil, err
	}
	return &registry{nic: nic, home: home, limit: limit}, nil
}

// lease registers b, which is not empty, for a connection. ErrResource where nothing more can be registered.
func (r *registry) lease(b []byte, tag *vipl.Ptag, a access) (*lease, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.find(b, true)
	if e == nil && a <= copied {
		e = r.find(b, false)
	}
	if e != nil {
		l := r.take(e)
		l.buf, l.off = b, int(addressOf(b)-addressOf(l.all))
		r.hits++
		return l, l.open(tag, a)
	}
	region, err := r.register(b, attributes(tag, a))
	if err != nil {
		return nil, r.failed(err)
	}
	r.misses++
	l := &lease{regs: r, region: region, buf: b, all: b}
	r.known = slices.Insert(r.known, r.behind(addressOf(b)), l)
	return l, nil
}

// behind is the place of the first that begins behind an address.
func (r *registry) behind(at uint64) int {
	return sort.Search(len(r.known), func(i int) bool { return addressOf(r.known[i].all) > at })
}

// find finds idle memory that is b, or that b is a part of. It checks the registrations that begin at b or closest
// before it. It misses a larger one that begins further away, which only costs another registration.
func (r *registry) find(b []byte, exactly bool) *list.Element {
	const nearest = 8
	at := addressOf(b)
	last := r.behind(at) - 1
	for i := last; i >= 0 && i > last-nearest; i-- {
		l := r.known[i]
		before := at - addressOf(l.all)
		if l.place != nil && before+uint64(len(b)) <= uint64(len(l.all)) && (!exactly || len(b) == len(l.all)) {
			return l.place
		}
	}
	return nil
}

// register registers b, and deregisters idle memory for that if necessary. Under mu.
func (r *registry) register(b []byte, a vipl.MemAttributes) (*vipl.Region, error) {
	for {
		region, err := r.nic.RegisterMem(b, a)
		if err == nil || !errors.Is(err, vipl.ErrResource) || r.order.Len() == 0 {
			return region, err
		}
		r.forget(r.order.Back())
	}
}

// stage gives a staging buffer of stageSize bytes.
func (r *registry) stage(tag *vipl.Ptag, a access) (*lease, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.stages); n > 0 {
		l := r.stages[n-1]
		r.stages = r.stages[:n-1]
		l.wipe(tag, a)
		return l, l.open(tag, a)
	}
	region, off, err := r.allocate(stageSize, attributes(tag, a))
	if err != nil {
		return nil, r.failed(err)
	}
	l := &lease{regs: r, region: region, off: off, buf: region.Bytes()[off : off+stageSize], stage: true}
	l.wipe(tag, a)
	return l, nil
}

// wipe clears another connection's data from a staging buffer that the peer is to write. A hostile peer may report a
// write that it has not made, and the program would read the old data.
func (l *lease) wipe(tag *vipl.Ptag, a access) {
	switch {
	case l.wiped == tag:
	case a == writable:
		clear(l.buf)
		l.wiped = tag
	default:
		l.wiped = nil // it takes what is read, which may be shorter than what was there
	}
}

// heap gives size bytes of the program's memory to a connection, until they are deregistered. From there the NIC copies
// what it sends, and so has it at once, also where frames are long.
func (r *registry) heap(tag *vipl.Ptag, size int, a access) (*lease, error) {
	buf := make([]byte, size)
	r.mu.Lock()
	defer r.mu.Unlock()
	region, err := r.register(buf, attributes(tag, a))
	if err != nil {
		return nil, r.failed(err)
	}
	return &lease{regs: r, region: region, buf: buf}, nil
}

func attributes(tag *vipl.Ptag, a access) vipl.MemAttributes {
	return vipl.MemAttributes{Ptag: tag, EnableRDMARead: a == readable, EnableRDMAWrite: a == writable, CopySends: a == copied}
}

// open hands an idle lease to a connection.
func (l *lease) open(tag *vipl.Ptag, a access) error {
	return l.region.SetAttributes(attributes(tag, a))
}

// segment describes n bytes from offset off.
func (l *lease) segment(off, n int) vipl.DataSegment {
	return l.region.Segment(l.off+off, n)
}

// remote names the first byte to the peer.
func (l *lease) remote() vipl.AddressSegment { return l.region.Remote(l.off) }

// end takes the memory back from the connection and revokes the peer's access. No descriptor may use it any more.
func (l *lease) end() {
	r := l.regs
	r.mu.Lock()
	defer r.mu.Unlock()
	if l.open(r.home, closed) != nil {
		return // the NIC is closed
	}
	if l.stage {
		if len(r.stages) < maxStages {
			r.stages = append(r.stages, l)
		} else {
			l.region.Deregister()
		}
		return
	}
	if r.find(l.all, true) != nil || len(l.all) > r.limit {
		r.deregister(l)
		return
	}
	l.place = r.order.PushFront(l)
	for r.bytes += len(l.all); r.bytes > r.limit; {
		r.forget(r.order.Back())
	}
}

// take takes a lease out of those that are idle.
func (r *registry) take(e *list.Element) *lease {
	l := r.order.Remove(e).(*lease)
	r.bytes -= len(l.all)
	l.place = nil
	return l
}

// forget deregisters idle memory.
func (r *registry) forget(e *list.Element) error { return r.deregister(r.take(e)) }

// deregister deregisters memory of the program that is not in use.
func (r *registry) deregister(l *lease) error {
	for i := r.behind(addressOf(l.all)) - 1; i >= 0; i-- { // several may begin there
		if r.known[i] == l {
			r.known = slices.Delete(r.known, i, i+1)
			break
		}
	}
	return l.region.Deregister()
}

// drop deregisters what is idle of a region's memory, before that is freed.
func (r *registry) drop(region *vipl.Region) {
	r.mu.Lock()
	defer r.mu.Unlock()
	first, size := region.Addr(), uint64(len(region.Bytes()))
	for e, next := r.order.Front(), (*list.Element)(nil); e != nil; e = next {
		next = e.Next()
		if e.Value.(*lease).region.Addr()-first < size {
			r.forget(e)
		}
	}
}

// close deregisters everything. No lease is out.
func (r *registry) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for r.order.Len() > 0 {
		errs = append(errs, r.forget(r.order.Back()))
	}
	for _, l := range r.stages {
		errs = append(errs, l.region.Deregister())
	}
	r.stages = nil
	return errors.Join(append(errs, r.home.Destroy())...)
}

// pool gives memory for the buffers of a connection, as allocate does.
func (r *registry) pool(size int, tag *vipl.Ptag) (region *vipl.Region, off int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	region, off, err = r.allocate(size, attributes(tag, closed))
	return region, off, r.failed(err)
}

// allocate returns size bytes of registered memory, aligned for a descriptor: from the NIC's arena or, when that is
// used up, from the heap. off is where they begin in the region. Under mu.
func (r *registry) allocate(size int, a vipl.MemAttributes) (region *vipl.Region, off int, err error) {
	region, err = r.nic.AllocMem(size, a)
	if err == nil || !errors.Is(err, vipl.ErrResource) {
		return region, 0, err
	}
	const align = vipl.DescriptorAlignment
	if region, err = r.register(make([]byte, size+align-1), a); err != nil {
		return nil, 0, err
	}
	return region, int(-region.Addr() % align), nil
}

// buffer is memory of Alloc.
type buffer struct {
	at     uint64 // its address, beside that of others: a search touches few cache lines
	region *vipl.Region
}

// Alloc gives n bytes of the NIC's arena for Read and Write. A Write from there that is a transfer is not copied in user
// space where the frames of the path are long; all else is as with any other memory. It is freed by Free, or Close of the
// stack.
//
// ENOBUFS when the arena has no such piece left: open the NIC with a larger one. EINVAL when n is negative.
func (s *Stack) Alloc(n int) ([]byte, error) {
	switch {
	case n < 0:
		return nil, syscall.EINVAL
	case n == 0:
		return nil, nil
	}
	region, err := s.nic.AllocMem(n, vipl.MemAttributes{Ptag: s.regs.home})
	if err != nil {
		return nil, systemError(s.regs.failed(err))
	}
	buf := region.Bytes()[:n:n]
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isClosed {
		region.Deregister()
		return nil, net.ErrClosed
	}
	s.buffers = slices.Insert(s.buffers, s.bufferAt(addressOf(buf))+1, buffer{addressOf(buf), region})
	return buf, nil
}

// byReference reports whether the NIC sends b without a copy if a VI writes it. It copies what a VI reads.
func (s *Stack) byReference(b []byte) bool { return s.longFrames && s.allocated(b) }

// allocated reports whether b is of Alloc.
func (s *Stack) allocated(b []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := addressOf(b)
	i := s.bufferAt(at)
	return i >= 0 && at-s.buffers[i].at < uint64(len(s.buffers[i].region.Bytes()))
}

// bufferAt is the place of the last buffer that begins at an address or before; -1 where none does.
func (s *Stack) bufferAt(a uint64) int {
	return sort.Search(len(s.buffers), func(i int) bool { return s.buffers[i].at > a }) - 1
}

// Free gives memory of Alloc back, all of it as Alloc gave it. No Read or Write uses it any more. EINVAL: Alloc has
// not given it, or it was freed.
func (s *Stack) Free(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	s.mu.Lock()
	i := s.bufferAt(addressOf(b))
	if i < 0 || s.buffers[i].at != addressOf(b) {
		s.mu.Unlock()
		return syscall.EINVAL
	}
	region := s.buffers[i].region
	s.buffers = slices.Delete(s.buffers, i, i+1)
	s.mu.Unlock()
	s.regs.drop(region)
	return systemError(region.Deregister())
}
