package agentd_test

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// setThreadGroups sets the supplementary groups of the calling thread only. Setgroups of package syscall sets those
// of all threads.
func setThreadGroups(groups []uint32) error {
	list := append([]uint32{}, groups...)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(unsafe.SliceData(list))), 0); errno != 0 {
		return errno
	}
	return nil
}
