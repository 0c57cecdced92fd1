package gso

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// send sends head and the pieces as one message. The kernel has taken a copy when it returns. Like the doorbell of an AF_XDP
// queue it does not sleep, so a raw system call suffices.
func (m *message) send(fd int, head []byte, pieces [][]byte) unix.Errno {
	if len(pieces) >= len(m.iov) {
		return unix.EMSGSIZE
	}
	m.iov[0].Base = unsafe.SliceData(head)
	m.iov[0].SetLen(len(head))
	for i, p := range pieces {
		m.iov[i+1].Base = unsafe.SliceData(p)
		m.iov[i+1].SetLen(len(p))
	}
	h := &m.header
	h.Name, h.Namelen = &m.name[0], m.nameLen // the kernel ignores both names if they have no bytes
	h.Control = &m.control[0]
	h.SetControllen(m.used)
	h.Iov = &m.iov[0]
	h.SetIovlen(len(pieces) + 1)
	_, _, errno := unix.RawSyscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(h)), unix.MSG_DONTWAIT)
	for i := range pieces {
		m.iov[i+1].Base = nil // keep no memory of the program alive
	}
	return errno
}
