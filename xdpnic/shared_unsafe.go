package xdpnic

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"viaxdp/internal/base/ordered"
)

var _ [unsafe.Sizeof(partitionWords{}) - partitionBytes]struct{} = [0]struct{}{}

// tableWords returns the words of the table behind the chunks.
func tableWords(table []byte, l *layout) (parts []partitionWords, rx, tx []uint64) {
	base := unsafe.Pointer(unsafe.SliceData(table))
	parts = unsafe.Slice((*partitionWords)(base), 1+l.guests)
	words := unsafe.Slice((*uint64)(unsafe.Add(base, (1+l.guests)*partitionBytes)), l.chunks())
	return parts, words[:l.rx:l.rx], words[l.rx:]
}

// word is a ring index for compare-and-swap.
func word(u *ordered.Uint32) *uint32 { return (*uint32)(unsafe.Pointer(u)) }

// membarrierGlobal is MEMBARRIER_CMD_GLOBAL of <linux/membarrier.h>.
const membarrierGlobal = 1

// awaitGracePeriod waits until every CPU has left what it was doing in the kernel's network stack.
func awaitGracePeriod() {
	if _, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, membarrierGlobal, 0, 0); errno != 0 {
		time.Sleep(50 * time.Millisecond)
	}
}
