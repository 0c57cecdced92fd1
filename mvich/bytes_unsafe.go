package mvich

import "unsafe"

// bytesOf is the memory of s as bytes.
func bytesOf[T Element](s []T) []byte {
	if len(s) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*sizeOf[T]())
}

// elementsOf is the first n elements that b, of aligned, has room for.
func elementsOf[T Element](b []byte, n int) []T {
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), n)
}

// aligned makes n bytes where any element may begin.
func aligned(n int) []byte { return bytesOf(make([]complex128, (n+15)/16))[:n:n] }

// sizeOf is the size of an element in bytes.
func sizeOf[T Element]() int { return int(unsafe.Sizeof(*new(T))) }

// addressOf is the virtual address of b's first byte.
func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }
