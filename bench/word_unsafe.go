package bench

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"
)

// lastWord loads the last 8 bytes of b at once, as a big-endian number. What
// was written before them is seen by whoever sees them. The end of b is a
// multiple of 8, and b no shorter than that.
func lastWord(b []byte) uint64 {
	var w [8]byte
	word := (*uint64)(unsafe.Pointer(unsafe.SliceData(b[len(b)-8:])))
	binary.NativeEndian.PutUint64(w[:], atomic.LoadUint64(word))
	return binary.BigEndian.Uint64(w[:])
}
