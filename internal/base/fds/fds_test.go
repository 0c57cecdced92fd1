package fds_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"viaxdp/internal/base/fds"
	"viaxdp/internal/lab/nstest"
)

// Where not all descriptors can be copied none is left over.
func TestDupAll(t *testing.T) {
	open := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		nstest.Must(t, err)
		return len(all)
	}
	var files []*os.File
	for range 3 {
		f, err := os.Create(filepath.Join(t.TempDir(), "f"))
		nstest.Must(t, err)
		defer f.Close()
		files = append(files, f)
	}
	nstest.Must(t, files[2].Close())
	before := open()
	dups, err := fds.DupAll(files)
	nstest.ErrorIf(t, err == nil || len(dups) != 0, "%d descriptors, %v", len(dups), err)
	if after := open(); after != before {
		t.Errorf("%d descriptors are open, %d before", after, before)
	}
	dups, err = fds.DupAll(files[:2])
	nstest.ErrorIf(t, err != nil || len(dups) != 2, "%d descriptors, %v", len(dups), err)
	fds.Close(dups...)
}

// A shortage is no sign that a program cannot run on the machine.
func TestShort(t *testing.T) {
	for _, err := range []unix.Errno{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS} {
		nstest.ErrorIf(t, !fds.Short(fmt.Errorf("open: %w", os.NewSyscallError("sendto", err))), "%v is no shortage", err)
	}
	for _, err := range []unix.Errno{unix.EPERM, unix.ENODEV, unix.EINVAL} {
		nstest.ErrorIf(t, fds.Short(err), "%v is a shortage", err)
	}
}
