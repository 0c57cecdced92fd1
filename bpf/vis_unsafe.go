package bpf

import (
	"errors"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// openVITable maps the BPF_F_MMAPABLE array m, whose elements are contiguous, each
// rounded up to 8 bytes (kernel/bpf/arraymap.c).
func openVITable(m *ebpf.Map) (viTable, error) {
	n := int(m.MaxEntries())
	mem, err := unix.Mmap(m.FD(), 0, n*int(unsafe.Sizeof(demuxViEntry{})),
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return viTable{}, err
	}
	first := (*demuxViEntry)(unsafe.Pointer(unsafe.SliceData(mem)))
	return viTable{m: m, mem: mem, entries: unsafe.Slice(first, n)}, nil
}

func (t *viTable) close() error {
	if t.mem == nil {
		return nil
	}
	err := errors.Join(unix.Munmap(t.mem), t.m.Close())
	*t = viTable{}
	return err
}

// The kernel's element size is the structure's, rounded up to 8.
var _ [unsafe.Sizeof(demuxViEntry{}) % 8]struct{} = [0]struct{}{}
