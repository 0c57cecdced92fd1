// Package fds handles file descriptors: copies of those of files, those received with a message (unix(7), SCM_RIGHTS), and
// whether enough are free.
package fds

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// With calls f with the descriptor of a file or socket, which stays open meanwhile, and returns
// its error.
func With(c syscall.Conn, f func(fd int) error) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	cerr := raw.Control(func(fd uintptr) { err = f(int(fd)) })
	return errors.Join(cerr, err)
}

// WithAll is With for several files.
func WithAll(files []*os.File, f func(fds []int) error) error {
	return withAll(files, nil, f)
}

func withAll(files []*os.File, before []int, f func(fds []int) error) error {
	if len(files) == 0 {
		return f(before)
	}
	return With(files[0], func(fd int) error { return withAll(files[1:], append(before, fd), f) })
}

// Dup returns a copy of a file's descriptor, closed on exec.
func Dup(c syscall.Conn) (dup int, err error) {
	dup = -1
	err = With(c, func(fd int) error {
		dup, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		return os.NewSyscallError("dup", err)
	})
	return dup, err
}

// DupFile returns a file of that name with a copy of the descriptor.
func DupFile(fd int, name string) (*os.File, error) {
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("dup", err)
	}
	return os.NewFile(uintptr(dup), name), nil
}

// DupAll returns copies of the descriptors of all files, or, with an error, of none.
func DupAll(files []*os.File) (dups []int, err error) {
	for _, f := range files {
		fd, err := Dup(f)
		if err != nil {
			Close(dups...)
			return nil, err
		}
		dups = append(dups, fd)
	}
	return dups, nil
}

// Need fails if the process cannot open n descriptors more.
func Need(n int) (err error) {
	var all []int
	for len(all) < n && err == nil {
		var fd int
		if fd, err = unix.Eventfd(0, unix.EFD_CLOEXEC); err == nil {
			all = append(all, fd)
		}
	}
	Close(all...)
	return err
}

// Short reports whether an error means that memory or descriptors are short at the moment.
func Short(err error) bool {
	return errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) ||
		errors.Is(err, unix.ENOBUFS) // netlink, and sockets
}

// Peer returns the credentials of the process at the other end of a Unix socket, as of connect(2).
func Peer(c syscall.Conn) (cred *unix.Ucred, err error) {
	err = With(c, func(fd int) (err error) {
		cred, err = unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		return err
	})
	return cred, err
}

// Close closes descriptors.
func Close(fds ...int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// CloseFiles closes files; nil is none.
func CloseFiles(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}

// Received returns the descriptors in the control messages of a datagram, which are the caller's and
// closed on exec.
func Received(oob []byte) (fds []int) {
	messages, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	for i := range messages {
		if got, err := syscall.ParseUnixRights(&messages[i]); err == nil {
			fds = append(fds, got...)
		}
	}
	for _, fd := range fds {
		unix.CloseOnExec(fd)
	}
	return fds
}
