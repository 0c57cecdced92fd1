package bench

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"

	"viaxdp/bpf"
	"viaxdp/hugepages"
	"viaxdp/internal/base/wire"
	"viaxdp/internal/lab/fail"
	"viaxdp/xdpnic"
)

// rawXDP is an AF_XDP queue with nothing above it: frames of UDP with headers
// made beforehand, whose content stays in the chunk. It is what the VI
// transports are compared with.
type rawXDP struct {
	*rawNIC
	arena *hugepages.Arena
	q     *xdpnic.Queue

	// The chunk that next gave.
	addr  uint64
	chunk []byte

	lease   [ringLease]xdpnic.Frame
	got, at int // segments in lease; the next one to give

	long *longRaw // where a frame may be longer than a chunk; else nil
}

func openRawXDP(o opening) *rawXDP {
	r := &rawXDP{}
	r.rawNIC = openRawNIC(o, r)
	if err := fail.Try(r.awaitLink); err != nil {
		fail.If(errors.Join(err, r.close()))
	}
	return r
}

func (r *rawXDP) open(ifi *net.Interface, p Params, m xdpnic.Mode) int {
	cfg := fail.Must(xdpnic.Config{
		Ifindex: ifi.Index, QueueID: p.Queue,
		RxChunks: ringChunks, TxChunks: ringChunks, Mode: m, Require: true,
	}.WithDefaults())
	cfg.MultiBuffer = !p.VI.NoMultiBuffer && needsLong(ifi.MTU, cfg)
	policy := hugepages.Avoid
	if p.Hugepages {
		policy = hugepages.Auto
	}
	pool := cfg.PoolBytes()
	size := pool
	if cfg.MultiBuffer {
		size += longSlots * longSlot
	}
	r.arena = fail.Must(hugepages.New(hugepages.Config{Size: size, Reserve: size, Policy: policy}))
	cfg.Memory = r.arena.Bytes()
	r.q = fail.Must(xdpnic.Open(cfg))
	// Where the kernel sends without a copy, it may still read a frame when its
	// place is wanted again.
	if cfg.MultiBuffer && !r.q.Info().ZeroCopy {
		r.long = &longRaw{r: r, base: pool}
	}
	return r.q.FD()
}

func (r *rawXDP) shut() error {
	var errs []error
	if r.q != nil {
		errs = append(errs, r.q.Close())
	}
	if r.arena != nil {
		errs = append(errs, r.arena.Close())
	}
	r.q, r.arena = nil, nil
	return errors.Join(errs...)
}

func (r *rawXDP) hello() Hello {
	most := min(r.q.FrameCap())
	if r.long != nil {
		most = longSlot
	}
	return r.describe(most, r.arena.Info().Kind.String())
}

func (r *rawXDP) next() []byte {
	if r.long != nil {
		return r.long.next()[r.skip:]
	}
	var ok bool
	if r.addr, r.chunk, ok = r.q.Alloc(); !ok {
		return nil
	}
	return r.chunk[r.skip:]
}

func (r *rawXDP) commit(n int) {
	if r.long != nil {
		r.long.commit(n)
		return
	}
	r.header.PutHead(r.chunk, n)
	for !r.q.Send(r.addr, r.skip+n, false) {
		r.flush()
	}
}

// flush repeats until the kernel has taken all: it takes no more than its
// queue to the peer holds.
func (r *rawXDP) flush() {
	for {
		fail.If(r.q.Flush())
		if r.q.Pending() == 0 {
			r.watch.progress()
			if r.long != nil {
				r.long.flushed()
			}
			return
		}
		fail.If(r.watch.idle())
	}
}

func (r *rawXDP) poll() []byte {
	if r.at == r.got {
		if r.got > 0 {
			for i := range r.lease[:r.got] {
				r.q.Recycle(r.lease[i].Addr)
			}
			r.q.Refill()
		}
		r.at, r.got = 0, r.q.Receive(r.lease[:])
		if r.got == 0 {
			return nil
		}
	}
	frame := r.lease[r.at]
	r.at++
	switch {
	case frame.More && r.long == nil: // another program's: no frame of ours takes several chunks
		for more := true; more; r.at++ {
			more = r.lease[r.at].More
		}
		return frame.Data[:0]
	case frame.More:
		r.long.gather()
		return frame.Data[min(r.skip, len(frame.Data)):]
	}
	if r.long != nil {
		r.long.pieces = r.long.pieces[:0]
	}
	return udpContent(frame.Data, r.skip)
}

func (r *rawXDP) wait() { fail.If(r.q.Wait(maxSleep)) }

// udpContent is the content of a frame whose headers are skip bytes long. A
// NIC may have padded the frame; UDP knows the length.
func udpContent(frame []byte, skip int) []byte {
	if len(frame) < skip {
		return frame[:0]
	}
	n := int(binary.BigEndian.Uint16(frame[skip-4:])) - udpHeader
	return frame[skip : skip+max(0, min(n, len(frame)-skip))]
}

// longRaw is how raw AF_XDP sends and takes frames that are longer than a chunk: each
// lies in one piece in a slot of its own, headers included, and the TX ring has an
// entry for each page of the slot. A received frame is in several chunks.
//
// In copy mode the kernel has read a frame when the doorbell returns. So the slots are
// used from the first one on after each flush, and stay in the cache.
type longRaw struct {
	r      *rawXDP
	base   int // of the slots in the UMEM
	slot   int // that next gave
	queued int // entries since the last flush
	segs   [longSlot / longPage]xdpnic.Desc
	pieces [][]byte // of the frame that arrived, all but the first
}

const (
	longPage  = 4096
	longSlot  = 17 * longPage // a frame of the largest MTU
	longSlots = 8
	longFlush = 64 // entries that are handed to the kernel at once
)

// needsLong reports whether a frame of the MTU is longer than a chunk.
func needsLong(mtu int, cfg xdpnic.Config) bool {
	return mtu+ethernetHeader > cfg.ChunkSize-xdpnic.PacketHeadroom-cfg.Headroom
}

// units, see chained. Without long frames every frame takes one.
func (r *rawXDP) units(n int) int {
	if r.long == nil {
		return 1
	}
	_, chunk := r.q.FrameCap()
	return (r.skip + n + chunk - 1) / chunk
}

func (r *rawXDP) rest() [][]byte {
	if r.long == nil {
		return nil
	}
	return r.long.pieces
}

func (l *longRaw) next() []byte {
	at := l.base + l.slot*longSlot
	return l.r.arena.Bytes()[at : at+longSlot]
}

func (l *longRaw) commit(n int) {
	r := l.r
	frame := l.next()
	r.header.PutHead(frame, n)
	size := r.skip + n
	addr := uint64(l.base + l.slot*longSlot)
	count := 0
	for off := 0; off < size; off += longPage {
		l.segs[count] = xdpnic.Desc{Addr: addr + uint64(off), Len: uint32(min(longPage, size-off))}
		count++
	}
	for !r.q.SendSegs(l.segs[:count], false) {
		r.flush()
	}
	l.slot++
	if l.queued += count; l.queued >= longFlush || l.slot == longSlots {
		r.flush()
	}
}

// flushed notes that the kernel has read all slots.
func (l *longRaw) flushed() { l.slot, l.queued = 0, 0 }

// gather takes the remaining pieces of a frame. poll has the first.
func (l *longRaw) gather() {
	r := l.r
	l.pieces = l.pieces[:0]
	for more := true; more; r.at++ {
		f := &r.lease[r.at]
		l.pieces = append(l.pieces, f.Data)
		more = f.More
	}
}

// ringWindow is how many frames a side with rings of ringChunks takes at once:
// less than its chunks by a batch in its hands and room for other frames.
const (
	ringChunks = 512
	ringLease  = 64
	ringWindow = ringChunks - 2*ringLease
)

// rings are a socket on a queue. open fails by package fail; shut closes what open has made, all or a part of it.
type rings interface {
	open(ifi *net.Interface, p Params, m xdpnic.Mode) (fd int)
	shut() error
	hello() Hello
}

// rawNIC is the interface of an AF_XDP transport and the program on it that gives
// all frames of one UDP port to one socket.
type rawNIC struct {
	params   Params
	rings    rings
	watch    watchdog
	ifi      *net.Interface
	mode     xdpnic.Mode
	features []string
	program  *bpf.Redirect
	header   wire.Template
	skip     int // bytes of headers before the content
}

// openRawNIC finds the interface and attaches the program by the best mode with
// which r opens.
func openRawNIC(o opening, r rings) *rawNIC {
	n := &rawNIC{
		params: o.Params, rings: r, watch: o.watch(), ifi: fail.Must(o.netInterface()), skip: headersLen(o.Local),
	}
	want := fail.Must(xdpnic.ParseMode(o.Mode))
	if l, err := netlink.LinkByIndex(n.ifi.Index); want == xdpnic.ModeAuto && err == nil && l.Type() == "veth" {
		want = xdpnic.ModeGeneric // the faster one there, which VIs take as well
	}
	try := func(m xdpnic.Mode) error {
		program, err := bpf.NewRedirect(bpf.RedirectConfig{
			Port: rawPort, MaxQueues: o.Queue + 1, Frags: !m.Generic() && n.ifi.MTU > bpf.PageMTU,
		})
		if err != nil {
			return err
		}
		where := bpf.Native
		if m.Generic() {
			where = bpf.Generic
		}
		err = fail.Try(func() {
			fail.If(program.Attach(n.ifi.Index, where))
			fail.If(program.Register(o.Queue, r.open(n.ifi, o.Params, m)))
		})
		if err != nil {
			return errors.Join(err, r.shut(), program.Close())
		}
		n.program = program
		return nil
	}
	mode, _, err := xdpnic.Climb(want, want != xdpnic.ModeAuto, try)
	fail.If(err)
	n.mode = mode
	if f, err := xdpnic.QueryFeatures(n.ifi.Index); err == nil {
		n.features = featureNames(f)
	}
	return n
}

func (n *rawNIC) connect(peer Hello) {
	n.header = fail.Must(newHeaders(n.rings.hello(), peer))
}

func (n *rawNIC) close() error { return errors.Join(n.program.Close(), n.rings.shut()) }

// linkTime is how long a link may take to come back after an attach.
const linkTime = 4 * time.Second

// awaitLink waits until the link is back: frames sent before are lost, and are not
// retransmitted.
func (n *rawNIC) awaitLink() {
	if !xdpnic.AwaitRunning(n.ifi.Index, linkTime) {
		fail.With("interface %s has no link after %v", n.ifi.Name, linkTime)
	}
}

// describe tells of this side, for frames that are at most frameBytes long.
func (n *rawNIC) describe(frameBytes int, memory string) Hello {
	frame := min(n.ifi.MTU+ethernetHeader, frameBytes)
	return Hello{
		Addr: n.params.Local, MAC: n.ifi.HardwareAddr,
		Payload: frame - headersLen(n.params.Local), Window: ringWindow,
		Facts: Facts{
			Interface: n.ifi.Name, Mode: n.mode.String(), Features: n.features,
			MTU: n.ifi.MTU, FrameBytes: frame, Memory: memory,
		},
	}
}

// ethernetHeader is the length of an Ethernet header without a tag.
const ethernetHeader = 14

// rawPort is the UDP port of raw frames, which no frame of a VI has.
const rawPort = wire.Port + wire.Ports

// newHeaders are the Ethernet, IP and UDP headers of frames from one side to the other, on the
// same segment.
func newHeaders(from, to Hello) (wire.Template, error) {
	if len(from.MAC) != 6 || len(to.MAC) != 6 {
		return wire.Template{}, errors.New("raw frames need an Ethernet interface on both sides")
	}
	if from.Addr.Is4() != to.Addr.Is4() {
		return wire.Template{}, errors.New("one side has an IPv4 address, the other one an IPv6 address")
	}
	return wire.NewTemplate(wire.Link{
		SrcMAC: [6]byte(from.MAC), DstMAC: [6]byte(to.MAC), Src: from.Addr, Dst: to.Addr, Port: rawPort,
	})
}

// headersLen is the length of the headers before the content.
func headersLen(a netip.Addr) int {
	if a.Is4() {
		return ethernetHeader + ipv4Header + udpHeader
	}
	return ethernetHeader + ipv6Header + udpHeader
}
