package hugepages

import (
	"errors"
	"fmt"
	"math"
	"os"

	"golang.org/x/sys/unix"
)

// Adopt maps an arena that another process has made, from its memfd and its Info. None of its blocks may be
// allocated; from now on this process allocates them. Adopt takes over the descriptor, also on error. It fails if
// the file is smaller than the Info says, or could shrink, or cannot be mapped.
func Adopt(fd int, info Info) (*Arena, error) {
	m := &mapping{fd: fd}
	fail := func(err error) (*Arena, error) {
		return nil, errors.Join(fmt.Errorf("hugepages: adopt: %w", err), m.close())
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fail(err)
	}
	if info.Size <= 0 || info.Size > math.MaxInt/4 || info.Size%os.Getpagesize() != 0 || st.Size < int64(info.Size) ||
		info.Reserve < 0 || info.Reserve > info.Size {
		return fail(fmt.Errorf("a file of %d bytes for an arena of %d with %d reserved", st.Size, info.Size, info.Reserve))
	}
	// If another process shrank the file later, access to the lost pages would raise SIGBUS.
	if seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return fail(errors.Join(errors.New("the file is no memfd that is sealed against shrinking"), err))
	}
	if err := m.place(info.Size, unix.MAP_SHARED); err != nil {
		return fail(err)
	}
	if info.Kind != Pages {
		// Huge mappings exist only for huge pages; harmless if there are none.
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
