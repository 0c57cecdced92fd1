package hugepages

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/nstest"
)

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// residentPages asks mincore(2), one byte a page.
func residentPages(mem []byte) ([]byte, error) {
	vec := make([]byte, (len(mem)+os.Getpagesize()-1)/os.Getpagesize())
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, address(mem), uintptr(len(mem)), address(vec))
	if errno != 0 {
		return nil, errno
	}
	return vec, nil
}

// mapsLine returns the entry of /proc/self/maps that holds an address.
func mapsLine(t *testing.T, at uintptr) string {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	nstest.Must(t, err)
	for line := range strings.Lines(string(maps)) {
		var from, to uintptr
		if n, _ := fmt.Sscanf(line, "%x-%x", &from, &to); n == 2 && at >= from && at < to {
			return line
		}
	}
	return ""
}

// smapsOf returns the entry of /proc/self/smaps that holds an address.
func smapsOf(t *testing.T, at uintptr) string {
	t.Helper()
	smaps, err := os.ReadFile("/proc/self/smaps")
	nstest.Must(t, err)
	_, entry, _ := strings.Cut(string(smaps), mapsLine(t, at))
	head, rest, _ := strings.Cut(entry, "VmFlags:")
	flags, _, _ := strings.Cut(rest, "\n")
	return head + "VmFlags:" + flags + " "
}

// mapped reports whether all of mem is mapped.
func mapped(mem []byte) bool { return unix.Madvise(mem, unix.MADV_NORMAL) == nil }
