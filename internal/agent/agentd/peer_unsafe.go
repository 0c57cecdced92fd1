package agentd

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// peerGroups returns the supplementary groups of the process at the other end of a Unix socket, at the time
// of connect(2).
func peerGroups(fd uintptr) ([]uint32, error) {
	groups := make([]uint32, 64)
	for {
		size := uint32(4 * len(groups)) // bytes
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&size)), 0)
		switch {
		case errno == 0:
			return groups[:size/4], nil
		case errno != unix.ERANGE || int(size) <= 4*len(groups): // size is now what they need
			return nil, errno
		}
		groups = make([]uint32, size/4)
	}
}
