package vipl

import "unsafe"

// placeIn returns the offset of b in mem, the UMEM; false: b does not lie in it.
func placeIn(mem, b []byte) (uint64, bool) {
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b))) - uintptr(unsafe.Pointer(unsafe.SliceData(mem)))
	return uint64(at), at < uintptr(len(mem)) && uintptr(len(b)) <= uintptr(len(mem))-at
}
