package bpf

import "golang.org/x/sys/unix"

// loadDescriptors is how many descriptors must be free when a program is loaded. That takes fewer, those that are kept included.
const loadDescriptors = 12

// needDescriptors fails if the process cannot have that many descriptors more. The ebpf library learns some things about the
// machine once, such as the number of CPUs, and also keeps an error. So a process without descriptors at its first program
// could never load one. It takes others of these errors for a kernel that is too old.
func needDescriptors() (err error) {
	var fds []int
	for len(fds) < loadDescriptors && err == nil {
		var fd int
		if fd, err = unix.Eventfd(0, unix.EFD_CLOEXEC); err == nil {
			fds = append(fds, fd)
		}
	}
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
	return err
}
