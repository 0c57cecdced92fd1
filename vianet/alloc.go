package vianet

import (
	"net"
	"syscall"

	"viaxdp/vipl"
)

// Alloc gives n bytes of the NIC's arena for Read and Write. A large Write from
// there is not copied in user space where the frames of the path are long; all
// else is as with any other memory. It is freed by Free, or Close of the stack.
//
// ENOBUFS when the arena has no such piece left: open the NIC with a larger one. EINVAL
// when n is negative.
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
	s.buffers[&buf[0]] = region
	return buf, nil
}

// lends says whether the NIC sends b without a copy if a VI writes it: it copies
// what a VI reads.
func (s *Stack) lends(b []byte) bool { return s.longFrames && s.allocated(b) }

// allocated says whether b is of Alloc.
func (s *Stack) allocated(b []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, region := range s.buffers {
		if at := addressOf(b) - region.Addr(); at < uint64(len(region.Bytes())) {
			return true
		}
	}
	return false
}

// Free gives memory of Alloc back, all of it as Alloc gave it. No Read or Write
// uses it any more. EINVAL: Alloc has not given it, or it was freed.
func (s *Stack) Free(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	s.mu.Lock()
	region := s.buffers[&b[0]]
	delete(s.buffers, &b[0])
	s.mu.Unlock()
	if region == nil {
		return syscall.EINVAL
	}
	s.regs.drop(region)
	return systemError(region.Deregister())
}
