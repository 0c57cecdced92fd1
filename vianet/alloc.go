package vianet

import (
	"net"
	"slices"
	"sort"
	"syscall"

	"viaxdp/vipl"
)

// buffer is memory of Alloc.
type buffer struct {
	at     uint64 // its address, beside that of others: who looks for one touches few cache lines
	region *vipl.Region
}

// Alloc gives n bytes of the NIC's arena for Read and Write. A large Write from there is not copied in user space
// where the frames of the path are long; all else is as with any other memory. It is freed by Free, or Close of the
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

// lends says whether the NIC sends b without a copy if a VI writes it: it copies what a VI reads.
func (s *Stack) byReference(b []byte) bool { return s.longFrames && s.allocated(b) }

// allocated says whether b is of Alloc.
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
