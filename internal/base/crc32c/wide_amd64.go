package crc32c

import "golang.org/x/sys/cpu"

var (
	wide  = cpu.X86.HasAVX512F && cpu.X86.HasAVX512VL && cpu.X86.HasAVX512VPCLMULQDQ && cpu.X86.HasSSE42
	short = cpu.X86.HasSSE42
)

// foldWide is the sum, not inverted, of what gave sum, not inverted, followed by
// b, whose length is a multiple of block and not 0.
//
//go:noescape
func foldWide(sum uint32, b []byte, folds *[8][2]uint64) uint32

// foldShort is the same for any b, eight bytes at a time.
//
//go:noescape
func foldShort(sum uint32, b []byte) uint32
