package steer

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ifreq is struct ifreq with a pointer.
type ifreq struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [16]byte
}

func (i *Interface) ioctl(data unsafe.Pointer) error {
	name, err := i.name()
	if err != nil {
		return err
	}
	var r ifreq
	copy(r.name[:], name)
	r.data = data
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(i.fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&r)))
	runtime.KeepAlive(&r)
	if errno != 0 {
		return errno
	}
	return nil
}

// rxnfc passes c to the driver, and fills locations with what follows it.
func (i *Interface) rxnfc(c *rxnfc, locations []uint32) error {
	// rule_locs lies behind count, before the structure's end.
	const head = int(unsafe.Offsetof(c.count)) + 4
	buf := make([]uint64, max(int(unsafe.Sizeof(*c)), head+4*len(locations)+7)/8)
	p := (*rxnfc)(unsafe.Pointer(unsafe.SliceData(buf)))
	*p = *c
	if err := i.ioctl(unsafe.Pointer(p)); err != nil {
		return err
	}
	*c = *p
	words := unsafe.Slice((*uint32)(unsafe.Pointer(p)), len(buf)*2)
	copy(locations, words[head/4:])
	return nil
}

// Table returns the indirection table.
func (i *Interface) Table() ([]uint32, error) {
	size := [2]uint32{cmdIndirGet, 0}
	if err := i.ioctl(unsafe.Pointer(&size)); err != nil {
		return nil, err
	}
	if size[1] > maxTable {
		return nil, unix.E2BIG
	}
	buf := make([]uint32, 2+size[1])
	buf[0], buf[1] = cmdIndirGet, size[1]
	if err := i.ioctl(unsafe.Pointer(unsafe.SliceData(buf))); err != nil {
		return nil, err
	}
	return buf[2:], nil
}

// SetTable replaces the indirection table; an empty one stands for the kernel's default.
func (i *Interface) SetTable(t []uint32) error {
	buf := append([]uint32{cmdIndirSet, uint32(len(t))}, t...)
	return i.ioctl(unsafe.Pointer(unsafe.SliceData(buf)))
}
