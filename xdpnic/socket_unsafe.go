package xdpnic

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"viaxdp/internal/base/ordered"
)

// setUMEM registers mem as the UMEM of socket fd.
func setUMEM(fd int, mem []byte, chunk, headroom int, flags uint32) error {
	reg := unix.XDPUmemReg{
		Addr:     uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))),
		Len:      uint64(len(mem)),
		Size:     uint32(chunk),
		Headroom: uint32(headroom),
		Flags:    flags,
	}
	_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_XDP, unix.XDP_UMEM_REG,
		uintptr(unsafe.Pointer(&reg)), unsafe.Sizeof(reg), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

func getXDP(fd, option int, value unsafe.Pointer, size uintptr) error {
	n := uint32(size)
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_XDP, uintptr(option),
		uintptr(value), uintptr(unsafe.Pointer(&n)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

func mmapOffsets(fd int) (off unix.XDPMmapOffsets, err error) {
	err = getXDP(fd, unix.XDP_MMAP_OFFSETS, unsafe.Pointer(&off), unsafe.Sizeof(off))
	return off, err
}

func kernelStats(fd int) (s unix.XDPStatistics, err error) {
	err = getXDP(fd, unix.XDP_STATISTICS, unsafe.Pointer(&s), unsafe.Sizeof(s))
	return s, err
}

// zeroCopy reports, by XDP_OPTIONS, whether the socket is bound in zero-copy mode.
func zeroCopy(fd int) (bool, error) {
	var flags uint32
	err := getXDP(fd, unix.XDP_OPTIONS, unsafe.Pointer(&flags), unsafe.Sizeof(flags))
	return flags&unix.XDP_OPTIONS_ZEROCOPY != 0, err
}

// pollIn sleeps until the event descriptor, the socket or one of the sockets of extra is readable, or timeout has
// passed (timeout < 0: no limit), and reports whether the event is. It does not
// allocate.
//
// The raw ppoll(2) writes the remaining time back into ts (fs/select.c,
// poll_select_finish), so a restart after a signal does not lengthen the sleep.
func pollIn(event, socket int, extra []*Queue, timeout time.Duration) (signalled bool, errno unix.Errno) {
	var fds [2 + MaxExtraQueues]unix.PollFd
	fds[0] = unix.PollFd{Fd: int32(event), Events: unix.POLLIN}
	fds[1] = unix.PollFd{Fd: int32(socket), Events: unix.POLLIN}
	for i, a := range extra {
		fds[2+i] = unix.PollFd{Fd: int32(a.wait.fd), Events: unix.POLLIN}
	}
	var ts unix.Timespec
	var tsp *unix.Timespec
	if timeout >= 0 {
		ts = unix.NsecToTimespec(int64(timeout))
		tsp = &ts
	}
	for {
		_, _, errno = unix.Syscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&fds[0])), uintptr(2+len(extra)),
			uintptr(unsafe.Pointer(tsp)), 0, 0, 0)
		if errno != unix.EINTR {
			break
		}
	}
	return fds[0].Revents != 0, errno
}

// pageAligned reports whether mem starts on a page of 4096 bytes.
func pageAligned(mem []byte) bool {
	return uintptr(unsafe.Pointer(unsafe.SliceData(mem)))%pageSize == 0
}

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
