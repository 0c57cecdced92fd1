package hugepages

import (
	"fmt"
	"strings"
)

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
