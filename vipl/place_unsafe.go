package vipl

import (
	"sync/atomic"
	"unsafe"
)

// copyAscending copies src to dst, which are of one length, so that whoever
// sees the last word of it sees everything: programs poll the last word of an
// RDMA write. copy may store in any order, and processors other than x86 may
// show plain stores in any order, so that the last word goes by itself, by a
// store that nothing before it passes.
//
// The last word is one of 8 or of 4 bytes, as dst's end is aligned and as dst has so
// many. At an end that is no multiple of 4, and of less than 4 bytes, it is the one to
// three bytes behind the last one.
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
		fence.Swap(1) // what was stored before is seen before
		copyBytes(dst[last:], src[last:])
	}
}

// copyBytes copies the bytes one by one. A program may look at them within a longer
// word, by an atomic load, as it has to with a message that is no word: processors
// allow that, and the race detector does not know it.
//
//go:norace
func copyBytes(dst, src []byte) {
	for i := range dst {
		dst[i] = src[i]
	}
}
