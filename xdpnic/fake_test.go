package xdpnic

import (
	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/nstest"
)

// fakeRing is ring memory without a kernel, its indices starting anywhere.
func fakeRing(n, entrySize int, start uint32) ringMem {
	off := unix.XDPRingOffset{Producer: 0, Consumer: 128, Flags: 256, Desc: 384}
	m := ringMem{mem: make([]byte, 384+n*entrySize), off: off, n: uint32(n)}
	m.word(off.Producer).Store(start)
	m.word(off.Consumer).Store(start)
	return m
}

// fakeKernel is a queue on fake rings with the kernel's side of them.
type fakeKernel struct {
	q    *Queue
	tx   rxRing         // the kernel consumes what user space produces
	fill completionRing // the kernel consumes this one, too
	rx   txRing
	comp fillRing
}

// fataler is what *testing.T and *rapid.T have in common.
type fataler interface {
	Helper()
	Fatal(...any)
}

func newFakeKernel(t fataler, cfg Config, start uint32) *fakeKernel {
	t.Helper()
	offset := cfg.PoolOffset
	cfg.PoolOffset = 0
	cfg, err := cfg.WithDefaults()
	nstest.Must(t, err)
	cfg.PoolOffset = offset
	r := cfg.Rings
	tx, rx := fakeRing(r.TX, descSize, start), fakeRing(r.RX, descSize, start)
	fill, comp := fakeRing(r.Fill, addrSize, start), fakeRing(r.Completion, addrSize, start)
	q := newQueue(cfg)
	q.sg, q.maxSegs = cfg.MultiBuffer, MaxSegs
	mem := make([]byte, cfg.PoolOffset+cfg.PoolBytes()+1<<16)
	q.pool = newPool(newGeometry(mem, cfg.PoolOffset, cfg.ChunkSize, cfg.RxChunks, cfg.TxChunks))
	q.tx, q.rx, q.pool.fill, q.pool.comp = tx.tx(), rx.rx(), fill.fill(), comp.completion()
	k := &fakeKernel{q: q, tx: tx.rx(), fill: fill.completion(), rx: rx.tx(), comp: comp.fill()}
	q.pool.giveAll()
	return k
}

// transmit takes up to max TX entries and returns them without completing.
func (k *fakeKernel) transmit(max uint32) []Desc {
	n := k.tx.peek(max)
	var taken []Desc
	for i := range n {
		taken = append(taken, k.tx.desc[(k.tx.tail+i)&k.tx.mask])
	}
	k.tx.release(n)
	return taken
}

func (k *fakeKernel) complete(addr uint64) {
	if !k.comp.reserve(1) {
		panic("completion ring full")
	}
	k.comp.addr[k.comp.head&k.comp.mask] = addr
	k.comp.submit(1)
}

// deliver puts a frame of the given segment lengths on the RX ring; false when
// there are not enough chunks or entries.
func (k *fakeKernel) deliver(lens ...int) bool {
	n := uint32(len(lens))
	if k.fill.peek(n) < n || !k.rx.reserve(n) {
		return false
	}
	for i, l := range lens {
		addr := k.fill.addr[(k.fill.tail+uint32(i))&k.fill.mask]
		off := uint64(PacketHeadroom)
		d := Desc{Addr: addr + off, Len: uint32(l)}
		if k.q.cfg.Unaligned {
			d.Addr = addr | off<<offsetShift
		}
		if i < len(lens)-1 {
			d.Options = pktContd
		}
		k.rx.desc[(k.rx.head+uint32(i))&k.rx.mask] = d
	}
	k.fill.release(n)
	k.rx.submit(n)
	return true
}
