package hugepages

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Policy selects whether New uses hugepages.
type Policy int

const (
	Auto    Policy = iota // the best step that works
	Require               // hugetlb pages or an error
	Avoid                 // ordinary pages, even if better ones are available
)

// String returns "auto", "require" or "avoid".
func (p Policy) String() string {
	if p < Auto || p > Avoid {
		return fmt.Sprintf("Policy(%d)", int(p))
	}
	return [...]string{Auto: "auto", Require: "require", Avoid: "avoid"}[p]
}

// Config describes an arena. Sizes are bytes.
type Config struct {
	Size    int    // at least; rounded up to 2 MB, with Avoid to the base page size
	Reserve int    // bytes at the start that Alloc never returns, such as the UMEM's chunk pool
	Shared  bool   // use a memfd, which another process can map
	Policy  Policy // zero: Auto
}

// MappedBytes is the size of the arena that New makes: Size, rounded up.
func (c Config) MappedBytes() int {
	if c.Policy == Avoid {
		return roundUp(c.Size, os.Getpagesize())
	}
	return roundUp(c.Size, hugeSize)
}

// Errors of an arena; test for them with errors.Is.
var (
	ErrBlocksOut = errors.New("hugepages: blocks of the arena are still allocated")
	ErrClosed    = errors.New("hugepages: arena is closed")
)

// Arena is a mapping and the allocator of its blocks. All methods are safe for
// concurrent use.
type Arena struct {
	info  Info
	buddy *Buddy

	mu sync.Mutex // orders Alloc and Free against Close
	m  *mapping   // nil when closed
}

// New maps and populates an arena. The memory is zero.
//
// Lack of hugepages is an error only with Require. In that case, and if not even ordinary pages are available, the
// error unwraps to the [Refusal] and its errno.
func New(cfg Config) (*Arena, error) {
	switch {
	case cfg.Size <= 0:
		return nil, ErrSize
	case cfg.Size > math.MaxInt/4:
		return nil, fmt.Errorf("hugepages: size of %d bytes is beyond any address space", cfg.Size)
	case cfg.Reserve < 0 || cfg.Reserve > cfg.Size:
		return nil, fmt.Errorf("hugepages: reserve of %d bytes in an arena of %d: it must lie between 0 and the size", cfg.Reserve, cfg.Size)
	case cfg.Policy < Auto || cfg.Policy > Avoid:
		return nil, fmt.Errorf("hugepages: unknown policy %d", int(cfg.Policy))
	}
	m, info, err := climb(cfg)
	if err != nil {
		return nil, err
	}
	info.Reserve = cfg.Reserve
	buddy, err := NewBuddy(info.Size, cfg.Reserve)
	if err != nil {
		return nil, errors.Join(err, m.close())
	}
	return &Arena{info: info, buddy: buddy, m: m}, nil
}

// Bytes returns all of the arena, reserve included; nil after Close. It begins on a multiple of the smallest power
// of two that is not below its length.
func (a *Arena) Bytes() []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.m == nil {
		return nil
	}
	return a.m.mem
}

// FD returns the memfd of a shared arena, or -1 for a private or closed one. It belongs to the arena: duplicate it
// or pass it on, but do not close it. It is close-on-exec, and sealed against resizing.
func (a *Arena) FD() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.m == nil {
		return -1
	}
	return a.m.fd
}

// Info returns which pages the arena got and why not better ones. The caller may keep it, but must not change
// Refused, which is shared.
func (a *Arena) Info() Info { return a.info }

// Alloc returns a zeroed block of size bytes whose address, and whose offset
// in Bytes, is a multiple of align: a power of two up to the arena's size, or
// 0 for MinBlock. Its capacity is its length.
//
// Errors: ErrSize, ErrAlign, ErrNoSpace, ErrClosed.
func (a *Arena) Alloc(size, align int) ([]byte, error) {
	a.mu.Lock()
	if a.m == nil {
		a.mu.Unlock()
		return nil, ErrClosed
	}
	off, err := a.buddy.Alloc(size, align)
	if err != nil {
		a.mu.Unlock()
		return nil, err
	}
	block := a.m.mem[off : off+size : off+size]
	a.mu.Unlock()
	clear(block) // Close fails while the block is allocated
	return block, nil
}

// Free frees a block that Alloc returned; a shorter slice that begins at the block's start is accepted. The memory
// must not be used afterwards.
//
// Errors: ErrForeign, ErrNotAllocated (also for a block freed before, unless it has been allocated again),
// ErrClosed.
func (a *Arena) Free(block []byte) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.m == nil {
		return ErrClosed
	}
	off, ok := offsetIn(a.m.mem, block)
	if !ok {
		return ErrForeign
	}
	return a.buddy.Free(off)
}

// Stats returns the allocator's statistics; after Close the last ones.
func (a *Arena) Stats() Stats { return a.buddy.Stats() }

// Close unmaps the arena and closes its memfd. While blocks are allocated it fails with ErrBlocksOut and changes
// nothing, so that no slice of Alloc becomes invalid. Slices of Bytes, including the reserve, must not be used
// after Close. A second Close does nothing.
func (a *Arena) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.m == nil {
		return nil
	}
	if s := a.buddy.Stats(); s.Blocks > 0 {
		return fmt.Errorf("%w: %d, with %d bytes", ErrBlocksOut, s.Blocks, s.Total-s.Free)
	}
	err := a.m.close()
	a.m = nil
	return err
}

// roundUp returns the smallest multiple of unit, a power of two, that is not
// below n.
func roundUp(n, unit int) int { return (n + unit - 1) &^ (unit - 1) }

// baseAlign returns the alignment of an arena of n bytes. It ensures that the alignment of an offset is the
// alignment of its address.
func baseAlign(n int) int { return max(os.Getpagesize(), 1<<bits.Len(uint(n-1))) }

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
	if err := populate(m.mem); err != nil {
		return fail(err)
	}
	buddy, err := NewBuddy(info.Size, info.Reserve)
	if err != nil {
		return fail(err)
	}
	info.Shared = true
	return &Arena{info: info, buddy: buddy, m: m}, nil
}

// Sizes of pages in bytes. Arenas use hugepages of 2 MB only: the size that
// amd64 and arm64 (with 4 KB pages) share.
const hugeSize = 2 << 20

// Kind is the step at which an arena was made: the kind of its pages.
type Kind int

// The steps, best first.
const (
	Hugetlb Kind = iota // 2 MB pages of the hugetlb pool
	THP                 // transparent hugepages, at least one
	Pages               // ordinary pages
)

// String returns "hugetlb", "thp" or "4k".
func (k Kind) String() string {
	if k < Hugetlb || k > Pages {
		return fmt.Sprintf("Kind(%d)", int(k))
	}
	return [...]string{Hugetlb: "hugetlb", THP: "thp", Pages: "4k"}[k]
}

// Info describes the pages of an arena, and the reasons why they are not better ones. It does not change during
// the life of the arena.
type Info struct {
	Kind     Kind
	Size     int  // bytes mapped: Config.Size rounded up to whole pages of the step
	Reserve  int  // bytes at the start that Alloc never returns
	PageSize int  // 2 MB if all of the arena lies on 2 MB pages, else the base page size
	Huge     int  // bytes on 2 MB pages when the arena was opened
	Shared   bool // backed by a memfd

	// Refused has one entry for every better step, best first.
	Refused []Refusal
}

// String returns one line for a log: the step, and the reasons.
func (i Info) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "%d KB on %s pages", i.Size>>10, i.Kind)
	if i.Kind == THP && i.Huge < i.Size {
		fmt.Fprintf(&s, " (%d KB of it on 2 MB pages)", i.Huge>>10)
	}
	for _, r := range i.Refused {
		s.WriteString("; not ")
		s.WriteString(r.Error())
	}
	return s.String()
}

// Refusal is the reason why a step was not taken. It is an error that unwraps
// to the errno.
type Refusal struct {
	Step   Kind
	Err    error  // errno of the call that failed; nil if the policy or a setting ruled the step out
	Cause  string // what the errno means here
	Remedy string // what the machine's owner can do; "" if nothing
}

// Error returns step, cause, errno and remedy.
func (r Refusal) Error() string {
	s := r.Step.String() + ": " + r.Cause
	if r.Err != nil {
		s += " (" + r.Err.Error() + ")"
	}
	if r.Remedy != "" {
		s += "; " + r.Remedy
	}
	return s
}

// Unwrap returns the errno.
func (r Refusal) Unwrap() error { return r.Err }
