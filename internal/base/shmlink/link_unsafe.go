package shmlink

import (
	"sync/atomic"
	"unsafe"
)

// word returns the shared word at an offset, a multiple of 4.
func word(mem []byte, at int) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&mem[at]))
}
