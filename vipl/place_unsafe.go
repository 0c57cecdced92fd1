package vipl

import (
	"sync/atomic"
	"unsafe"
)

// copyAscending copies src to dst, which have the same length, so that a reader that sees the last word sees
// everything: programs poll the last word of an RDMA write. copy may store in any order, and processors other than
// x86 may make plain stores visible in any order. So the last word is stored separately, with a store that no
// earlier store passes.
//
// The last word has 8 or 4 bytes, depending on the alignment of dst's end and on dst's length. If the end is not a
// multiple of 4, or dst has less than 4 bytes, the last word is the one to three bytes behind the last multiple of
// 4.
func copyAscending(dst, src []byte) {
	end := uintptr(unsafe.Pointer(unsafe.SliceData(dst))) + uintptr(len(dst))
	last := len(dst)
	switch {
	case end%8 == 0 && len(dst) >= 8:
		last -= 8
	case end%4 == 0 && len(dst) >= 4:
		last -= 4
	default:
		last = max(0, last-int(end%4))
		if end%4 == 0 {
			last = 0
		}
	}
	if last < 4 {
		copyBytes(dst[:last], src)
	} else {
		copy(dst[:last], src)
	}
	switch tail := unsafe.Pointer(unsafe.SliceData(dst[last:])); len(dst) - last {
	case 8:
		atomic.StoreUint64((*uint64)(tail), *(*uint64)(unsafe.Pointer(unsafe.SliceData(src[last:]))))
	case 4:
		atomic.StoreUint32((*uint32)(tail), *(*uint32)(unsafe.Pointer(unsafe.SliceData(src[last:]))))
	default:
		var fence atomic.Uint32
		fence.Swap(1) // earlier stores become visible before later ones
		copyBytes(dst[last:], src[last:])
	}
}

// copyBytes copies the bytes one by one. A program may read them within a longer word, by an atomic load, as it
// must for a message that is not a whole word. Processors allow that; the race detector does not know it.
//
//go:norace
func copyBytes(dst, src []byte) {
	for i := range dst {
		dst[i] = src[i]
	}
}
