package vipl

import "unsafe"

// placeIn is the offset of b in mem, which is the UMEM; false when b does not
// lie in it.
func placeIn(mem, b []byte) (uint64, bool) {
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b))) - uintptr(unsafe.Pointer(unsafe.SliceData(mem)))
	return uint64(at), at < uintptr(len(mem)) && uintptr(len(b)) <= uintptr(len(mem))-at
}
