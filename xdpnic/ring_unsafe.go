package xdpnic

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"viaxdp/internal/base/ordered"
)

// ringNeedWakeup is the flag of <linux/if_xdp.h> in the flags word of the TX
// and fill rings.
const ringNeedWakeup = unix.XDP_RING_NEED_WAKEUP

// ringMem is one mapped ring: indices and entries.
type ringMem struct {
	mem []byte
	off unix.XDPRingOffset
	n   uint32 // entries, a power of two
}

// mapRing maps one ring of the socket fd into memory.
func mapRing(fd int, pgoff int64, off unix.XDPRingOffset, n, entrySize int) (ringMem, error) {
	mem, err := unix.Mmap(fd, pgoff, int(off.Desc)+n*entrySize,
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return ringMem{}, err
	}
	return ringMem{mem: mem, off: off, n: uint32(n)}, nil
}

func (m *ringMem) unmap() error {
	if m.mem == nil {
		return nil
	}
	err := unix.Munmap(m.mem)
	m.mem = nil
	return err
}

// blank replaces a mapped ring by a mapping of zeros. This releases the kernel's
// ring at once, while a goroutine that reads the indices now or later finds an
// empty ring and does not fault. The zeros are unmapped when owner is collected.
func (m *ringMem) blank(owner *Queue) error {
	if m.mem == nil {
		return nil
	}
	mem := m.mem
	m.mem = nil
	if _, err := unix.MmapPtr(-1, 0, unsafe.Pointer(unsafe.SliceData(mem)), uintptr(len(mem)),
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED); err != nil {
		return err
	}
	runtime.AddCleanup(owner, func(mem []byte) { unix.Munmap(mem) }, mem)
	return nil
}

func (m *ringMem) word(off uint64) *ordered.Uint32 {
	return (*ordered.Uint32)(unsafe.Pointer(&m.mem[off]))
}

func (m *ringMem) producer() producer {
	p := producer{
		prod: m.word(m.off.Producer), cons: m.word(m.off.Consumer),
		flags: m.word(m.off.Flags), mask: m.n - 1,
	}
	p.head = p.prod.Load()
	p.refresh()
	return p
}

func (m *ringMem) consumer() consumer {
	c := consumer{
		prod: m.word(m.off.Producer), cons: m.word(m.off.Consumer), mask: m.n - 1,
	}
	c.tail = c.cons.Load()
	c.seen = c.tail
	return c
}

func (m *ringMem) descs() []Desc {
	return unsafe.Slice((*Desc)(unsafe.Pointer(&m.mem[m.off.Desc])), m.n)
}

func (m *ringMem) addrs() []uint64 {
	return unsafe.Slice((*uint64)(unsafe.Pointer(&m.mem[m.off.Desc])), m.n)
}

func (m *ringMem) tx() txRing     { return txRing{m.producer(), m.descs()} }
func (m *ringMem) rx() rxRing     { return rxRing{m.consumer(), m.descs()} }
func (m *ringMem) fill() fillRing { return fillRing{m.producer(), m.addrs()} }
func (m *ringMem) completion() completionRing {
	return completionRing{m.consumer(), m.addrs()}
}

// Bytes of an entry of the RX and TX rings, and of the other two.
const (
	descSize = int(unsafe.Sizeof(Desc{}))
	addrSize = 8
)

// An entry is struct xdp_desc, of 16 bytes.
var _ [descSize - 16]struct{} = [0]struct{}{}

// RxIndices returns the two words that Ready compares: the RX ring's producer
// index, stored by the kernel, and its consumer index, stored by Receive. They
// let programs in other languages poll without calling Ready. Read them
// atomically, never write them, and keep the Queue reachable for the garbage
// collector while they are in use. After Close they are always equal. Two words do not tell of several RX rings: with
// Config.ExtraQueues they always differ, so that each poll calls Ready.
func (q *Queue) RxIndices() (produced, consumed *uint32) {
	if q.extra != nil {
		return &unequal[0], &unequal[1]
	}
	return (*uint32)(unsafe.Pointer(q.look.prod)), (*uint32)(unsafe.Pointer(q.look.cons))
}

// unequal stands for the indices of several RX rings.
var unequal = [2]uint32{0, 1}
