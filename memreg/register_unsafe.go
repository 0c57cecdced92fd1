package memreg

import (
	"fmt"
	"math"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Register makes a region of a Go slice: of its length, not its capacity. The
// region keeps the memory alive and the collector does not move it.
//
// Errors: ErrLength, ErrPtag, ErrLimit, ErrClosed.
func (t *Table) Register(buf []byte, attr Attributes) (*Region, error) {
	if len(buf) == 0 {
		return nil, ErrLength
	}
	return t.register(buf[:len(buf):len(buf)], attr)
}

// RegisterForeign makes a region of n bytes at an address, such as C memory.
// The bytes are brought in now, as registering them with a NIC would do, which
// finds an address that is none. They must stay mapped until the region is
// deregistered. An address in Go's heap keeps that memory alive.
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
	if err := bringIn(addr, n); err != nil {
		return nil, err
	}
	return t.register(foreign(addr, n), attr)
}

func (t *Table) register(mem []byte, attr Attributes) (*Region, error) {
	r := &Region{mem: mem, addr: address(mem), first: newSetting(attr)}
	r.now.Store(&r.first)
	if err := t.add(r); err != nil {
		return nil, err
	}
	return r, nil
}

func address(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// foreign makes a slice of an address that bringIn has accepted. The pointer is
// read from the variable's memory rather than converted, because the rules of
// package unsafe know conversions only from pointers of Go.
func foreign(addr, n uint64) []byte {
	p := uintptr(addr)
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&p))), int(n))
}

// bringIn makes the kernel populate all pages of [addr, addr+n) for reading,
// which it refuses where they could not be read: better an error here than a
// signal on the data path. ENOMEM: not mapped; EINVAL: no right to read, a
// device's memory, or a kernel before Linux 5.14; EFAULT: reading would raise
// SIGBUS (madvise(2), MADV_POPULATE_READ).
func bringIn(addr, n uint64) error {
	page := uint64(os.Getpagesize())
	if addr < page { // Go takes a pointer to the first page for a corrupt one
		return fmt.Errorf("%w: %#x", ErrAddress, addr)
	}
	first := addr &^ (page - 1)
	size := (addr - first + n + page - 1) &^ (page - 1)
	err := populate(first, size)
	if err != nil {
		return fmt.Errorf("%w: %d bytes at %#x are not mapped, not readable, or a device's (%w)", ErrAddress, n, addr, err)
	}
	return nil
}

// populate takes numbers, not a slice: whole pages may belong to more than one
// object, and none of them is ours.
func populate(addr, n uint64) error {
	for {
		_, _, errno := unix.Syscall(unix.SYS_MADVISE, uintptr(addr), uintptr(n), unix.MADV_POPULATE_READ)
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
			continue
		}
		return errno
	}
}
