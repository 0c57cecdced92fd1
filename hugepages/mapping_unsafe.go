package hugepages

import (
	"errors"
	"fmt"
	"os"
	"sync"
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

// placeAttempts bounds how often place looks for room that other threads then take.
const placeAttempts = 100

// placing is held by place. Two that run at once can take each other's room again and again, in step.
var placing sync.Mutex

// place maps size bytes between guard pages.
//
// It maps where nothing is, and never over a reservation of its own. The kernel may unmap a reservation and fail
// then, for want of huge pages for example. What another thread maps there next would look like ours.
func (m *mapping) place(size, flags int) error {
	placing.Lock()
	defer placing.Unlock()
	err := error(unix.EEXIST)
	for i := 0; errors.Is(err, unix.EEXIST) && i < placeAttempts; i++ {
		var base unsafe.Pointer
		if base, err = vacant(size); err == nil {
			err = m.placeAt(base, size, flags)
		}
	}
	if err != nil {
		return err
	}
	// A child process would share pinned pages copy-on-write, and the NIC could lose them. A child has no use for
	// the arena.
	return unix.Madvise(m.mem, unix.MADV_DONTFORK)
}

// placeAt is place at base. EEXIST means that something is mapped there. After an error nothing of it is mapped.
func (m *mapping) placeAt(base unsafe.Pointer, size, flags int) error {
	page := uintptr(os.Getpagesize())
	start, end := unsafe.Add(base, -int(page)), unsafe.Add(base, size)
	const guard = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_NORESERVE
	if err := mapAt(start, page, -1, unix.PROT_NONE, guard); err != nil {
		return err
	}
	if err := mapAt(base, uintptr(size), m.fd, unix.PROT_READ|unix.PROT_WRITE, flags); err != nil {
		return errors.Join(err, unix.MunmapPtr(start, page))
	}
	if err := mapAt(end, page, -1, unix.PROT_NONE, guard); err != nil {
		return errors.Join(err, unix.MunmapPtr(start, page+uintptr(size)))
	}
	m.start, m.total = start, uintptr(size)+2*page
	m.mem = unsafe.Slice((*byte)(base), size)
	return nil
}

// mapAt maps size bytes at p, or fails with EEXIST if something is mapped there.
func mapAt(p unsafe.Pointer, size uintptr, fd, protection, flags int) error {
	_, err := unix.MmapPtr(fd, 0, p, size, protection, flags|unix.MAP_FIXED_NOREPLACE)
	return err
}

var errAddressSpace = errors.New("no room in the process's address space")

// vacant returns where size bytes on their boundary, and guard pages around them, have room. The room is not reserved.
func vacant(size int) (unsafe.Pointer, error) {
	page, align := uintptr(os.Getpagesize()), uintptr(baseAlign(size))
	room := uintptr(size) + 2*page + align
	p, err := unix.MmapPtr(-1, 0, nil, room, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errAddressSpace, err)
	}
	skip := -(uintptr(p) + page) & (align - 1)
	return unsafe.Add(p, skip+page), unix.MunmapPtr(p, room)
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

// populate makes every page of mem present and writable. If touching a page would raise SIGBUS, it returns EFAULT
// (madvise(2), MADV_POPULATE_WRITE).
func populate(mem []byte) error {
	for {
		err := unix.Madvise(mem, unix.MADV_POPULATE_WRITE)
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
