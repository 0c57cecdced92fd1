package crc32c

import "golang.org/x/sys/cpu"

var (
	wide  = cpu.X86.HasAVX512F && cpu.X86.HasAVX512VL && cpu.X86.HasAVX512VPCLMULQDQ && cpu.X86.HasSSE42
	short = cpu.X86.HasSSE42
)

// foldWide returns the sum of the bytes with the given sum followed by b. Both sums are not inverted. The length of
// b is a multiple of register and at least leastWide.
//
//go:noescape
func foldWide(sum uint32, b []byte, folds *[8][2]uint64) uint32

// foldCopy is foldWide, and copies b to dst.
//
//go:noescape
func foldCopy(sum uint32, dst *byte, b []byte, folds *[8][2]uint64) uint32

// foldShort is the same for any b, eight bytes at a time.
//
//go:noescape
func foldShort(sum uint32, b []byte) uint32
