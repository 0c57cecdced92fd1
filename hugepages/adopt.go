package hugepages

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Adopt maps an arena that another process has made: its memfd and its Info.
// None of its blocks may be out there; from now on they are given out here. The
// descriptor is the arena's, also after an error. Errors: a file that is smaller
// than the Info says, or cannot be mapped.
func Adopt(fd int, info Info) (*Arena, error) {
	m := &mapping{fd: fd}
	fail := func(err error) (*Arena, error) {
		return nil, errors.Join(fmt.Errorf("hugepages: adopt: %w", err), m.close())
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fail(err)
	}
	if info.Size <= 0 || st.Size < int64(info.Size) || info.Reserve < 0 || info.Reserve > info.Size {
		return fail(fmt.Errorf("a file of %d bytes for an arena of %d with %d reserved", st.Size, info.Size, info.Reserve))
	}
	if err := m.place(info.Size, unix.MAP_SHARED); err != nil {
		return fail(err)
	}
	if info.Kind != Pages {
		// Only huge mappings of huge pages; harmless where there are none.
		_ = unix.Madvise(m.mem, unix.MADV_HUGEPAGE)
	}
	if err := m.populate(); err != nil {
		return fail(err)
	}
	buddy, err := NewBuddy(info.Size, info.Reserve)
	if err != nil {
		return fail(err)
	}
	info.Shared = true
	return &Arena{info: info, buddy: buddy, m: m}, nil
}
