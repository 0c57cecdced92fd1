package memreg

import (
	"fmt"
	"math"
	"os"
	"slices"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Register makes a region of a Go slice: of its length, not its capacity. The region keeps the memory alive; the
// garbage collector does not move it.
//
// Errors: ErrLength, ErrPtag, ErrLimit, ErrClosed.
func (t *Table) Register(buf []byte, attr Attributes) (*Region, error) {
	if len(buf) == 0 {
		return nil, ErrLength
	}
	return t.register(buf[:len(buf):len(buf)], attr)
}

// RegisterForeign makes a region of n bytes at an address, such as C memory. It populates the pages, which detects
// an invalid address. The bytes must stay mapped until the region is deregistered. An address in Go's heap keeps
// that memory alive.
//
// Errors: ErrLength; ErrAddress for memory that is not mapped, not readable or
// a device's, or an end beyond the address space; ErrPtag, ErrLimit, ErrClosed.
func (t *Table) RegisterForeign(addr, n uint64, attr Attributes) (*Region, error) {
	if n == 0 {
		return nil, ErrLength
	}
	if n > t.limits.MaxBlockBytes {
		return nil, fmt.Errorf("%w: a region of %d bytes, at most %d are allowed; register it in pieces", ErrLimit, n, t.limits.MaxBlockBytes)
	}
	if addr > math.MaxInt64 || n > math.MaxInt64-addr {
		return nil, fmt.Errorf("%w: %d bytes at %#x end beyond the address space", ErrAddress, n, addr)
	}
	if err := t.bringIn(addr, n); err != nil {
		return nil, err
	}
	return t.register(foreign(addr, n), attr)
}

func (t *Table) register(mem []byte, attr Attributes) (*Region, error) {
	r := &Region{mem: mem, addr: address(mem)}
	r.first = r.newSetting(attr)
	r.now.Store(&r.first)
	if err := t.add(r); err != nil {
		return nil, err
	}
	return r, nil
}

func address(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// foreign makes a slice of an address that bringIn has accepted. It reads the pointer from the variable's memory
// instead of converting it, because package unsafe permits only conversions of Go pointers.
func foreign(addr, n uint64) []byte {
	p := uintptr(addr)
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&p))), int(n))
}

// bringIn makes the kernel populate all pages of [addr, addr+n) for reading. It fails if they cannot be read: an
// error here is better than a signal on the data path. ENOMEM: not mapped; EINVAL: not readable, a device's memory,
// or a kernel before Linux 5.14; EFAULT: reading would raise SIGBUS (madvise(2), MADV_POPULATE_READ).
//
// Pages that were populated lately, and are still in memory, are not populated again: a program that registers a
// buffer for each message would pay 0.2 us a page for it.
func (t *Table) bringIn(addr, n uint64) error {
	page := uint64(os.Getpagesize())
	if addr < page { // Go treats a pointer to the first page as corrupt
		return fmt.Errorf("%w: %#x", ErrAddress, addr)
	}
	r := pages{addr &^ (page - 1), (addr + n + page - 1) &^ (page - 1)}
	if t.populated.has(r) && r.resident(page) {
		return nil
	}
	if err := populate(r.first, r.end-r.first, unix.MADV_POPULATE_READ); err != nil {
		return fmt.Errorf("%w: %d bytes at %#x are not mapped, not readable, or a device's (%w)", ErrAddress, n, addr, err)
	}
	t.populated.add(r)
	return nil
}

// canWrite reports whether the first and the last page can be written: a peer's write would be a signal otherwise. It leaves
// the other pages alone, because a large region may be used in parts. Middleware registers what it sends with all rights,
// also constants. So this is no error, and the region only keeps peers from writing.
func (r *Region) canWrite() bool {
	if !r.writable {
		page := uint64(os.Getpagesize())
		first, last := r.addr&^(page-1), (r.addr+uint64(len(r.mem))-1)&^(page-1)
		r.writable = populate(first, page, unix.MADV_POPULATE_WRITE) == nil &&
			(first == last || populate(last, page, unix.MADV_POPULATE_WRITE) == nil)
	}
	return r.writable
}

// pages are the addresses of the first page and behind the last one.
type pages struct{ first, end uint64 }

// recent are the pages that were populated last.
type recent struct {
	mu   sync.Mutex
	ring [16]pages
	next int
}

func (r *recent) has(p pages) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.ring[:], func(q pages) bool { return q.first <= p.first && p.end <= q.end })
}

func (r *recent) add(p pages) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ring[r.next] = p
	r.next = (r.next + 1) % len(r.ring)
}

// resident reports whether all pages are mapped and in memory (mincore(2)).
func (p pages) resident(page uint64) bool {
	var in [1024]byte
	for at := p.first; at < p.end; {
		n := min(p.end-at, uint64(len(in))*page)
		if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(at), uintptr(n), uintptr(unsafe.Pointer(&in))); errno != 0 {
			return false
		}
		for _, b := range in[:n/page] {
			if b&1 == 0 {
				return false
			}
		}
		at += n
	}
	return true
}

// populate takes numbers instead of a slice: the pages may belong to several objects, none of them ours.
func populate(addr, n uint64, how uintptr) error {
	for {
		_, _, errno := unix.Syscall(unix.SYS_MADVISE, uintptr(addr), uintptr(n), how)
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
			continue
		}
		return errno
	}
}
