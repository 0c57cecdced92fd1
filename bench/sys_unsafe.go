package bench

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sendNow is send(2) that does not block and is not announced to the Go
// scheduler, as a C program would call it: the kernel's best case.
func sendNow(fd int, p []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd),
		uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)),
		unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	return int(n), errno
}

// recvNow is recv(2) that does not block and is not announced to the Go scheduler.
func recvNow(fd int, p []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd),
		uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)),
		unix.MSG_DONTWAIT, 0, 0)
	return int(n), errno
}

// lastWord loads the last 8 bytes of b at once, as a big-endian number. What
// was written before them is visible to a reader that sees them. The end of b is a
// multiple of 8, and b no shorter than that.
func lastWord(b []byte) uint64 {
	var w [8]byte
	word := (*uint64)(unsafe.Pointer(unsafe.SliceData(b[len(b)-8:])))
	binary.NativeEndian.PutUint64(w[:], atomic.LoadUint64(word))
	return binary.BigEndian.Uint64(w[:])
}
