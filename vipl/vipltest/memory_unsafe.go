package vipltest

import (
	"sync/atomic"
	"unsafe"

	"viaxdp/vipl"
)

// descriptorAt lays a descriptor over memory at any address, as a program in C may do. b holds 64 bytes.
func descriptorAt(b []byte) *vipl.Descriptor {
	return (*vipl.Descriptor)(unsafe.Pointer(unsafe.SliceData(b[:64])))
}

// load64 and load32 read a word that a peer may be writing. b is aligned to it.
func load64(b []byte) uint64 {
	return atomic.LoadUint64((*uint64)(unsafe.Pointer(unsafe.SliceData(b[:8]))))
}

func load32(b []byte) uint32 {
	return atomic.LoadUint32((*uint32)(unsafe.Pointer(unsafe.SliceData(b[:4]))))
}

// stray returns a descriptor in memory that is not registered.
func stray() *vipl.Descriptor {
	b := make([]byte, 128)
	return descriptorAt(b[-addressOf(b)&(vipl.DescriptorAlignment-1):])
}

// addressOf returns the virtual address of b's first byte.
func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }
