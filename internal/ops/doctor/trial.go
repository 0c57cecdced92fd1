package doctor

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"viaxdp/bpf"
	"viaxdp/internal/base/wire"
)

// Results of an XDP program (enum xdp_action of linux/bpf.h).
const (
	xdpDrop     = 1
	xdpPass     = 2
	xdpRedirect = 4
)

var verdictNames = map[uint32]string{xdpDrop: "drop", xdpPass: "pass", xdpRedirect: "redirect"}

// The VI of the trial.
const (
	trialVI  = 0x0001_0002
	trialKey = 0x0123_4567_89ab_cdef
)

// sample is a frame with the verdict that it must get.
type sample struct {
	name  string
	frame []byte
	want  uint32
}

// samples are frames of each way through the demux program.
func samples() ([]sample, error) {
	four := [2]netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")}
	six := [2]netip.Addr{netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")}
	var all []sample
	var failed error
	add := func(name string, want uint32, l wire.Link, h wire.Header, change func(via []byte)) {
		t, err := wire.NewTemplate(l)
		if err != nil {
			failed = errors.Join(failed, err)
			return
		}
		b := make([]byte, t.Len()+wire.HeaderLen)
		via := t.Put(b, wire.HeaderLen)
		h.Put(via)
		wire.PutChecksum(via)
		if change != nil {
			change(via)
		}
		all = append(all, sample{name, b, want})
	}
	good := wire.Header{Kind: wire.KindData, VI: trialVI, Key: trialKey}
	with := func(f func(*wire.Header)) wire.Header {
		h := good
		f(&h)
		return h
	}
	link := wire.Link{Src: four[0], Dst: four[1]}
	add("a frame of a VI", xdpRedirect, link, good, nil)
	add("the same in a VLAN", xdpRedirect, wire.Link{Src: four[0], Dst: four[1], VLAN: 7}, good, nil)
	add("another key", xdpDrop, link, with(func(h *wire.Header) { h.Key++ }), nil)
	add("another VI", xdpDrop, link, with(func(h *wire.Header) { h.VI++ }), nil)
	add("a former VI of the same index", xdpDrop, link, with(func(h *wire.Header) { h.VI += 1 << 16 }), nil)
	add("another sender", xdpDrop, wire.Link{Src: netip.MustParseAddr("192.0.2.3"), Dst: four[1]}, good, nil)
	add("another sender, IPv6", xdpDrop, wire.Link{Src: six[0], Dst: six[1]}, good, nil)
	add("another version", xdpDrop, link, good, func(via []byte) { via[0]++ })
	add("connection management", xdpPass, link, good, func(via []byte) { via[1] |= wire.KindConnect })
	add("another port", xdpPass, wire.Link{Src: four[0], Dst: four[1], Port: wire.Port + wire.Ports}, good, nil)
	arp := make([]byte, 60)
	arp[12], arp[13] = 0x08, 0x06
	all = append(all, sample{"ARP", arp, xdpPass})
	return all, failed
}

// tryDemux loads the program and runs it in the kernel on the samples. Nothing is
// attached, and no frame is sent.
func tryDemux() (t Trial) {
	refused := func(err error) Trial { return Trial{Reason: err.Error()} }
	d, err := bpf.LoadDemux(bpf.Config{MaxVIs: 16, MaxSockets: 1})
	if err != nil {
		return refused(err)
	}
	defer d.Close()
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return refused(fmt.Errorf("AF_XDP socket: %w", err))
	}
	defer unix.Close(fd)
	// Newer kernels (7.3, for one) refuse a socket without an RX ring: ENOBUFS.
	if err := unix.SetsockoptInt(fd, unix.SOL_XDP, unix.XDP_RX_RING, 64); err != nil {
		return refused(fmt.Errorf("AF_XDP socket: RX ring: %w", err))
	}
	if err := d.Register(0, fd); err != nil {
		return refused(err)
	}
	if err := d.EnterVI(trialVI, bpf.VIEntry{Slot: 0, Key: trialKey, Peer: netip.MustParseAddr("192.0.2.1")}); err != nil {
		return refused(err)
	}
	all, err := samples()
	if err != nil {
		return refused(err)
	}
	for _, s := range all {
		got, err := d.Program.Run(&ebpf.RunOptions{Data: s.frame})
		if err != nil {
			return refused(fmt.Errorf("test run: %w", err))
		}
		t.Frames++
		if got != s.want {
			t.Wrong = append(t.Wrong, fmt.Sprintf("%s: %s instead of %s", s.name, verdictNames[got], verdictNames[s.want]))
		}
	}
	t.Ran = true
	return t
}
