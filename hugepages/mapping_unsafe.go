package hugepages

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapping is memory of the kernel between two guard pages: an access beyond either end faults instead of corrupting
// other memory.
type mapping struct {
	mem   []byte
	fd    int            // memfd, or -1
	start unsafe.Pointer // includes the lower guard page
	total uintptr        // length with both guard pages
}

// newMapping maps size bytes, a multiple of the page size, on a boundary of baseAlign(size). It does not populate
// them.
func newMapping(size int, shared, huge bool) (m *mapping, err error) {
	m = &mapping{fd: -1}
	flags := unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
	if shared {
		flags = unix.MAP_SHARED
		if m.fd, err = newMemfd(size, huge); err != nil {
			return nil, err
		}
	} else if huge {
		flags |= unix.MAP_HUGETLB | unix.MAP_HUGE_2MB
	}
	if err := m.place(size, flags); err != nil {
		return nil, errors.Join(err, m.close())
	}
	return m, nil
}

// place maps size bytes between guard pages.
func (m *mapping) place(size, flags int) error {
	base, err := m.claim(size)
	if err == nil {
		_, err = unix.MmapPtr(m.fd, 0, base, uintptr(size), unix.PROT_READ|unix.PROT_WRITE, flags|unix.MAP_FIXED)
	}
	if err != nil {
		return err
	}
	m.mem = unsafe.Slice((*byte)(base), size)
	// A child process would share pinned pages copy-on-write, and the NIC could lose them. A child has no use for
	// the arena.
	return unix.Madvise(m.mem, unix.MADV_DONTFORK)
}

// claim reserves address space for size bytes on their boundary and the guard pages around them. It returns where
// the bytes begin.
func (m *mapping) claim(size int) (unsafe.Pointer, error) {
	page := uintptr(os.Getpagesize())
	align := uintptr(baseAlign(size))
	want := uintptr(size) + 2*page
	room := want + align
	p, err := unix.MmapPtr(-1, 0, nil, room, unix.PROT_NONE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, err
	}
	skip := -(uintptr(p) + page) & (align - 1)
	m.start, m.total = unsafe.Add(p, skip), want
	if skip > 0 {
		err = unix.MunmapPtr(p, skip)
	}
	if rest := room - skip - want; rest > 0 && err == nil {
		err = unix.MunmapPtr(unsafe.Add(m.start, want), rest)
	}
	return unsafe.Add(m.start, page), err
}

// newMemfd makes a file of size bytes that can be neither shrunk nor grown.
func newMemfd(size int, huge bool) (int, error) {
	flags := unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	if huge {
		flags |= unix.MFD_HUGETLB | unix.MFD_HUGE_2MB
	}
	fd, err := unix.MemfdCreate("via-xdp", flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate("via-xdp", flags)
	}
	if err != nil {
		return -1, err
	}
	if err = unix.Ftruncate(fd, int64(size)); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS,
			unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// populate makes every page present and writable. If touching a page would raise SIGBUS, it returns EFAULT
// (madvise(2), MADV_POPULATE_WRITE).
func (m *mapping) populate() error {
	for {
		err := unix.Madvise(m.mem, unix.MADV_POPULATE_WRITE)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// address returns the address of the arena.
func (m *mapping) address() uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(m.mem))) }

// close releases everything, also of an incomplete mapping.
func (m *mapping) close() error {
	var errs []error
	if m.start != nil {
		if err := unix.MunmapPtr(m.start, m.total); err != nil {
			errs = append(errs, fmt.Errorf("hugepages: munmap: %w", err))
		}
	}
	if m.fd >= 0 {
		if err := unix.Close(m.fd); err != nil {
			errs = append(errs, fmt.Errorf("hugepages: close memfd: %w", err))
		}
	}
	*m = mapping{fd: -1}
	return errors.Join(errs...)
}

// offsetIn returns the offset in mem at which a slice begins. A slice without capacity has no offset.
func offsetIn(mem, s []byte) (int, bool) {
	if cap(s) == 0 {
		return 0, false
	}
	off := uintptr(unsafe.Pointer(unsafe.SliceData(s))) - uintptr(unsafe.Pointer(unsafe.SliceData(mem)))
	return int(off), off < uintptr(len(mem))
}
