package hugepages

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// What an agent hands over that is no arena is an error, whatever it is, and its descriptor is
// closed.
func TestAdoptRefusesFiles(t *testing.T) {
	const size = 1 << 20
	memfd := func(seals int) func() (int, error) {
		return func() (int, error) {
			fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
			if err == nil {
				err = unix.Ftruncate(fd, size)
			}
			if err == nil {
				_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
			}
			return fd, err
		}
	}
	good := memfd(unix.F_SEAL_SHRINK)
	open := func(path string, flags int) func() (int, error) {
		return func() (int, error) { return unix.Open(path, flags|unix.O_CLOEXEC, 0) }
	}
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, make([]byte, size), 0o600))
	for name, c := range map[string]struct {
		file func() (int, error)
		info Info
	}{
		"no size":                        {good, Info{}},
		"less than none":                 {good, Info{Size: -size}},
		"more than the file has":         {good, Info{Size: size + os.Getpagesize()}},
		"more than an address space has": {good, Info{Size: math.MaxInt}},
		"half a page":                    {good, Info{Size: size - 64}},
		"reserved more than all":         {good, Info{Size: size, Reserve: size + 1}},
		"reserved less than nothing":     {good, Info{Size: size, Reserve: -1}},
		"not sealed":                     {memfd(0), Info{Size: size}},
		"sealed against writing":         {memfd(unix.F_SEAL_SHRINK | unix.F_SEAL_WRITE), Info{Size: size}},
		"a file":                         {open(file, unix.O_RDWR), Info{Size: size}},
		"a file to read":                 {open(file, unix.O_RDONLY), Info{Size: size}},
		"a directory":                    {open(t.TempDir(), unix.O_RDONLY), Info{Size: 4096}},
		"a device":                       {open("/dev/zero", unix.O_RDWR), Info{Size: size}},
		"a socket":                       {func() (int, error) { return unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0) }, Info{Size: size}},
	} {
		fd, err := c.file()
		if err != nil {
			t.Fatal(name, err)
		}
		if a, err := Adopt(fd, c.info); err == nil {
			t.Errorf("%s: no error", name)
			a.Close()
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil {
			t.Errorf("%s: the descriptor is open", name)
		}
	}
	fd, err := good()
	must(t, err)
	a, err := Adopt(fd, Info{Size: size, Reserve: 4096})
	must(t, err)
	noError(t, a.Close())
}
