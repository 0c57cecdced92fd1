package main

import (
	"fmt"
	"io"
	"path"
	"slices"
)

// archive writes an initramfs: a cpio archive in the form "newc", as the kernel
// wants it (Documentation/driver-api/early-userspace/buffer-format.rst).
type archive struct {
	w       io.Writer
	written int64
	inode   int
	dirs    []string
	err     error
}

const (
	modeDir  = 0o040755
	modeFile = 0o100755
	modeChar = 0o020600
)

// add writes a file with the directories above it. name is absolute.
func (a *archive) add(name string, data []byte) {
	a.parents(path.Dir(name))
	a.entry(name, modeFile, 0, 0, data)
}

// device writes a character device.
func (a *archive) device(name string, major, minor int) {
	a.parents(path.Dir(name))
	a.entry(name, modeChar, major, minor, nil)
}

func (a *archive) parents(dir string) {
	if dir == "/" || slices.Contains(a.dirs, dir) {
		return
	}
	a.parents(path.Dir(dir))
	a.dirs = append(a.dirs, dir)
	a.entry(dir, modeDir, 0, 0, nil)
}

func (a *archive) entry(name string, mode, major, minor int, data []byte) {
	name = name[1:]
	a.inode++
	const links = 1
	a.printf("070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X",
		a.inode, mode, 0, 0, links, 0, len(data), 0, 0, major, minor, len(name)+1, 0)
	a.printf("%s\x00", name)
	a.pad()
	a.write(data)
	a.pad()
}

// close writes the end mark.
func (a *archive) close() error {
	a.inode = -1 // the mark's is 0
	a.entry("/TRAILER!!!", 0, 0, 0, nil)
	return a.err
}

func (a *archive) printf(format string, args ...any) { a.write(fmt.Appendf(nil, format, args...)) }

func (a *archive) pad() { a.write(make([]byte, -a.written&3)) }

func (a *archive) write(b []byte) {
	if a.err != nil {
		return
	}
	n, err := a.w.Write(b)
	a.written += int64(n)
	a.err = err
}
