package nstest

import (
	"testing"

	"golang.org/x/sys/unix"
)

// WithDescriptors calls f while the process can open only n descriptors more. Other tests of the process must not run meanwhile.
func WithDescriptors(t testing.TB, n int, f func()) {
	t.Helper()
	var limit unix.Rlimit
	Must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	low := limit
	low.Cur = min(limit.Cur, 256)
	Must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &low))
	all := takeDescriptors()
	kept := len(all) - n
	defer func() {
		closeDescriptors(all[:kept])
		Must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	}()
	closeDescriptors(all[kept:])
	f()
}

// FreeDescriptors counts how many descriptors the process can still open.
func FreeDescriptors() int {
	all := takeDescriptors()
	defer closeDescriptors(all)
	return len(all)
}

// takeDescriptors takes all that are free.
func takeDescriptors() (all []int) {
	for fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC); err == nil; fd, err = unix.Eventfd(0, unix.EFD_CLOEXEC) {
		all = append(all, fd)
	}
	return all
}

func closeDescriptors(all []int) {
	for _, fd := range all {
		unix.Close(fd)
	}
}
