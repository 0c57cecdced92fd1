package xdpnic

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/nstest"
)

// programs are those of the tests; with the build tag asavie there is one more.
var programs = map[string]func() error{asEcho: echoMain}

func TestMain(m *testing.M) {
	nstest.RunProgram(programs)
	goleak.VerifyTestMain(m)
}

// etherType of the test's frames: for local experiments (IEEE 802).
const etherType = 0x88b5

// redirect is an attached XDP program that sends frames of our EtherType to sockets.
type redirect struct {
	prog *ebpf.Program
	xsks *ebpf.Map
	link link.Link
}

// attachRedirect attaches a program that sends the frames of our EtherType that come in on queue q to the socket in
// slot q.
func attachRedirect(ifindex int, generic, frags bool) (*redirect, error) {
	return attach(ifindex, generic, frags, 14, asm.LoadMem(asm.R2, asm.R1, 16, asm.Word)) // rx_queue_index
}

// attachBySlot is the same for the slot that the first byte names, and the number of the queue further on.
func attachBySlot(ifindex int, generic bool) (*redirect, error) {
	return attach(ifindex, generic, true, 15, asm.LoadMem(asm.R2, asm.R2, 14, asm.Byte),
		asm.LoadMem(asm.R5, asm.R1, 16, asm.Word), asm.Add.Reg(asm.R2, asm.R5))
}

// attach attaches a program to the interface of a namespace. The instructions of slot put its number into R2, where the
// frame's first bytes, of that length, are; R1 has the context.
func attach(ifindex int, generic, frags bool, length int32, slot ...asm.Instruction) (*redirect, error) {
	xsks, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.XSKMap, KeySize: 4, ValueSize: 4, MaxEntries: 256})
	if err != nil {
		return nil, err
	}
	be := make([]byte, 2)
	binary.BigEndian.PutUint16(be, etherType)
	spec := &ebpf.ProgramSpec{
		Name: "test_redirect", Type: ebpf.XDP, License: "Dual BSD/GPL",
		Instructions: slices.Concat(asm.Instructions{
			asm.LoadMem(asm.R2, asm.R1, 0, asm.Word), // data
			asm.LoadMem(asm.R3, asm.R1, 4, asm.Word), // data_end
			asm.Mov.Reg(asm.R4, asm.R2),
			asm.Add.Imm(asm.R4, length),
			asm.JGT.Reg(asm.R4, asm.R3, "pass"),
			asm.LoadMem(asm.R5, asm.R2, 12, asm.Half),
			asm.JNE.Imm(asm.R5, int32(binary.NativeEndian.Uint16(be)), "pass"),
		}, slot, asm.Instructions{
			asm.LoadMapPtr(asm.R1, xsks.FD()),
			asm.Mov.Imm(asm.R3, 1), // XDP_DROP without a socket
			asm.FnRedirectMap.Call(),
			asm.Return(),
			asm.Mov.Imm(asm.R0, 2).WithSymbol("pass"),
			asm.Return(),
		}),
	}
	if frags {
		spec.Flags = unix.BPF_F_XDP_HAS_FRAGS
	}
	r := &redirect{xsks: xsks}
	if r.prog, err = ebpf.NewProgram(spec); err != nil {
		r.close()
		return nil, fmt.Errorf("%+v", err)
	}
	flags := link.XDPDriverMode
	if generic {
		flags = link.XDPGenericMode
	}
	if r.link, err = link.AttachXDP(link.XDPOptions{Program: r.prog, Interface: ifindex, Flags: flags}); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

func (r *redirect) register(q *Queue, slot int) error {
	return r.xsks.Put(uint32(slot), uint32(q.FD()))
}

func (r *redirect) close() {
	if r.link != nil {
		r.link.Close()
	}
	if r.prog != nil {
		r.prog.Close()
	}
	r.xsks.Close()
}

// end is one end of a veth pair with a program and a queue.
type end struct {
	ns *nstest.NS
	*redirect
	q *Queue
}

type pairOptions struct {
	mtu, queues int
	generic     bool
	frags       bool
	cfg         Config // both ends; Ifindex is filled in
}

// openEnd opens queue cfg.QueueID at one end.
func openEnd(t testing.TB, ns *nstest.NS, o pairOptions) *end {
	t.Helper()
	e := &end{ns: ns}
	nstest.Must(t, ns.Do(func() (err error) {
		if e.redirect, err = attachRedirect(ns.Index, o.generic, o.frags); err != nil {
			return err
		}
		e.q, err = e.open(o.cfg)
		return err
	}))
	t.Cleanup(func() {
		if t.Failed() {
			s, err := e.q.Stats()
			t.Logf("%s: %+v %v", ns.Name, s, err)
		}
		nstest.Check(t, e.q.Close())
		e.redirect.close()
	})
	return e
}

// open opens a queue of the end's interface and registers it. It must run in
// the namespace.
func (e *end) open(cfg Config) (*Queue, error) {
	cfg.Ifindex, cfg.BusyTimeout = e.ns.Index, waitLimit // the kernel lets go of a queue in its own time
	q, err := Open(cfg)
	if err != nil {
		return nil, err
	}
	slots := append([]int{cfg.QueueID}, cfg.ExtraQueues...)
	for i, fd := range q.FDs() {
		if err := e.xsks.Put(uint32(slots[i]), uint32(fd)); err != nil {
			q.Close()
			return nil, err
		}
	}
	return q, nil
}

// beside opens another queue of the end's interface.
func (e *end) beside(t testing.TB, cfg Config) *end {
	t.Helper()
	other := &end{ns: e.ns, redirect: e.redirect}
	nstest.Must(t, e.ns.Do(func() (err error) { other.q, err = other.open(cfg); return err }))
	t.Cleanup(func() { nstest.Check(t, other.q.Close()) })
	return other
}

// openSenders opens a queue at each number of a namespace's interface, up to n. A veth in native mode sends on queue i what
// arrives on queue i.
func openSenders(t testing.TB, ns *nstest.NS, n int) (all []*end) {
	t.Helper()
	first := openEnd(t, ns, pairOptions{})
	all = append(all, first)
	for i := 1; i < n; i++ {
		all = append(all, first.beside(t, Config{QueueID: i}))
	}
	return all
}

func openPair(t testing.TB, o pairOptions) (a, b *end) {
	t.Helper()
	na, nb := nstest.Pair(t, nstest.Options{MTU: o.mtu, Queues: o.queues})
	a, b = openEnd(t, na, o), openEnd(t, nb, o)
	return a, b
}

// header writes an Ethernet header from a to b.
func header(buf []byte, to, from *nstest.NS) {
	copy(buf, to.MAC)
	copy(buf[6:], from.MAC)
	binary.BigEndian.PutUint16(buf[12:], etherType)
}

// fillPattern writes bytes that depend on seed behind the header.
func fillPattern(buf []byte, seed byte) {
	for i := range buf {
		buf[i] = byte(i)*7 + byte(i>>8)*13 + seed
	}
}

// mustAlloc takes a TX chunk, and waits for one: a frame that has arrived need not
// have completed yet.
func (e *end) mustAlloc(t testing.TB) (addr uint64, buf []byte) {
	t.Helper()
	eventually(t, "a free chunk", func() (ok bool) {
		if addr, buf, ok = e.q.Alloc(); !ok {
			e.pump(t)
		}
		return ok
	})
	return addr, buf
}

// mustSend sends one frame of n bytes.
func (e *end) mustSend(t testing.TB, to *end, n int, seed byte) {
	t.Helper()
	addr, buf := e.mustAlloc(t)
	header(buf, to.ns, e.ns)
	fillPattern(buf[14:n], seed)
	nstest.FatalIf(t, !e.q.Send(addr, n, false), "Send refused")
	nstest.Must(t, e.q.Flush())
}

// pass sends one frame of n bytes to the other end, where it must arrive.
func (e *end) pass(t testing.TB, to *end, n int, seed byte) {
	t.Helper()
	e.mustSend(t, to, n, seed)
	data, _ := receive(t, to.q)
	wantPattern(t, data, n, seed)
}

// openIn opens a queue of the interface of a namespace.
func openIn(ns *nstest.NS, cfg Config) (q *Queue, err error) {
	cfg.Ifindex = ns.Index
	err = ns.Do(func() (err error) { q, err = Open(cfg); return err })
	return q, err
}

// mapped maps n bytes until the end of the test, after the queues of openEnd are closed.
func mapped(t testing.TB, n int) []byte {
	t.Helper()
	mem, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	nstest.Must(t, err)
	t.Cleanup(func() { unix.Munmap(mem) })
	return mem
}

const waitLimit = time.Minute

// eventually waits until ok.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(waitLimit); !ok(); {
		nstest.FatalIf(t, time.Now().After(deadline), "%s: not within %v", what, waitLimit)
		time.Sleep(20 * time.Microsecond)
	}
}

// receive waits for one whole frame and returns a copy; the chunks go back.
func receive(t testing.TB, q *Queue) (data []byte, segs int) {
	t.Helper()
	frames := make([]Frame, 64)
	n := 0
	eventually(t, "a frame", func() bool {
		if q.extra != nil { // such tests have frames of one segment
			n = q.Receive(frames[:1])
			return n > 0
		}
		// One frame only: take the smallest batch that holds it.
		for k := 1; k <= len(frames) && n == 0 && q.Ready(); k++ {
			if avail := int(q.rx.peek(uint32(k))); avail < k {
				break
			}
			if q.rx.desc[(q.rx.tail+uint32(k)-1)&q.rx.mask].Options&pktContd == 0 {
				n = q.Receive(frames[:k])
			}
		}
		return n > 0
	})
	for i, f := range frames[:n] {
		nstest.FatalIf(t, f.More != (i < n-1), "segment %d of %d: More is %v", i, n, f.More)
		data = append(data, f.Data...)
		q.Recycle(f.Addr)
	}
	q.Refill()
	return data, n
}

// wantPattern checks a frame made by mustSend or its like.
func wantPattern(t testing.TB, data []byte, n int, seed byte) {
	t.Helper()
	nstest.FatalIf(t, len(data) != n, "got %d bytes, want %d", len(data), n)
	want := make([]byte, n-14)
	fillPattern(want, seed)
	nstest.FatalIf(t, !bytes.Equal(data[14:], want), "bytes differ")
}

func audit(t testing.TB, qs ...*Queue) {
	t.Helper()
	for _, q := range qs {
		nstest.Check(t, q.Audit())
	}
}

func stats(t testing.TB, q *Queue) Stats {
	t.Helper()
	s, err := q.Stats()
	nstest.Must(t, err)
	return s
}

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
	q.info.MaxSegs = MaxSegs
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
