package testbed

import (
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/fail"
	"viaxdp/internal/lab/veth"
)

// MaxStar is the most namespaces of a Star: as many hosts as XDPNet4 has.
const MaxStar = 250

// Star is network namespaces without a name, each with an interface, that reach
// each other: two by a veth pair, more by a bridge in a namespace of its own.
// They last as long as the Star, and the processes that were started in them.
// Methods are for one goroutine, Close for any.
//
//	via0 ---- via0          via0   via0   via0
//	  0         1             |      |      |
//	                        ==+======+======+== bridge
type Star struct {
	*group           // the hub, if there is one, is the last
	Ends   []End     // one of each namespace
	counts *ebpf.Map // of the frames at the hub of a lossy one
}

// StarInterface is the name of the interface in each namespace of a Star.
const StarInterface = "via0"

// NewStar makes n namespaces, 1 to MaxStar, joined with an MTU. Without the
// privilege for it the error is a *MissingError. On an error nothing is left.
func NewStar(n, mtu int) (*Star, error) { return newStar(n, mtu, n != 2, func(*Star) {}) }

// newStar makes a star, with a hub or of two without one. change, the last step, may fail by package fail.
func newStar(n, mtu int, hub bool, change func(*Star)) (_ *Star, err error) {
	s := &Star{group: newGroup()}
	s.sysfs = true
	defer s.endIf(&err)
	defer fail.Catch(&err)
	if n < 1 || n > MaxStar {
		fail.With("%d namespaces: 1 to %d can be joined", n, MaxStar)
	}
	pair := Pair{Names: [2]string{StarInterface, StarInterface}, Net4: XDPNet4, Net6: XDPNet6, MTU: mtu}
	fail.If(pair.Check())
	fail.If(Require(Namespaces))
	s.grow(n)
	if hub {
		s.grow(1)
		s.bridge(n, mtu)
	} else {
		ends := join(s.two(), pair)
		s.Ends = ends[:]
	}
	for _, ns := range s.spaces[:n] {
		ready(place{ns, StarInterface})
	}
	change(s)
	return s, nil
}

// bridge joins the namespaces in the last one.
func (s *Star) bridge(n, mtu int) {
	hub := s.spaces[n]
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = "hub", mtu
	bridge := &netlink.Bridge{LinkAttrs: attrs}
	fail.If(explain(veth.In(hub, func(h *netlink.Handle) error {
		if err := h.LinkAdd(bridge); err != nil {
			return err
		}
		return h.LinkSetUp(bridge)
	}), "bridge"))
	for i := range n {
		fail.During(fmt.Sprint("namespace ", i), func() { s.Ends = append(s.Ends, s.spoke(hub, bridge, i, mtu)) })
	}
}

// spokeName is the hub's end of the pair with namespace i.
func spokeName(i int) string { return fmt.Sprint("spoke", i) }

// spoke joins namespace i with the hub.
func (s *Star) spoke(hub netns.NsHandle, bridge netlink.Link, i, mtu int) End {
	p := Pair{Names: [2]string{spokeName(i), StarInterface}, MTU: mtu}
	err := veth.Make([2]netns.NsHandle{hub, s.spaces[i]}, p, func(v *netlink.Veth) { v.MasterIndex = bridge.Attrs().Index })
	fail.If(explain(err, "veth pair"))
	fail.If(veth.OnLink(hub, spokeName(i), (*netlink.Handle).LinkSetUp))
	return fail.Must(veth.Up(s.spaces[i], StarInterface, veth.Nth(XDPNet4, i+1), veth.Nth(XDPNet6, i+1)))
}

// Children starts this program with args once in each namespace, each on the CPU that
// cpus has for it, -1: on any; their standard error gets one write at a time, and is
// discarded with nil. They end with the Star, first by their control connections.
func (s *Star) Children(args []string, cpus []int, stderr io.Writer) (_ []*Side, err error) {
	defer fail.Catch(&err)
	s.children(args, cpus[:len(s.Ends)], stderr)
	for i, side := range s.sides {
		side.Ends = s.Ends[i : i+1]
	}
	return s.sides, nil
}

// Drops are the frames that the kernel has counted as dropped by the Star's
// interfaces, of the namespaces and of the hub, whichever way they went. One frame
// may be counted at both ends of a pair.
func (s *Star) Drops() (n uint64, err error) {
	for i, ns := range s.spaces {
		err := veth.In(ns, func(h *netlink.Handle) error {
			links, err := h.LinkList()
			for _, l := range links {
				if st := l.Attrs().Statistics; st != nil {
					n += st.RxDropped + st.TxDropped
				}
			}
			return err
		})
		if err != nil {
			return 0, fmt.Errorf("namespace %d: %w", i, err)
		}
	}
	return n, nil
}

// ownSysfs gives the calling thread a /sys that shows the interfaces of its network
// namespace, as some programs read it. No other thread sees that /sys.
func ownSysfs() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return explain(err, "mount namespace")
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("mounts of its own: %w", err)
	}
	// EBUSY: an earlier process in the same namespace has mounted it.
	if err := unix.Mount("sysfs", "/sys", "sysfs", 0, ""); err != nil && err != unix.EBUSY {
		return fmt.Errorf("mount /sys: %w", err)
	}
	return nil
}

// NewLossyStar is [NewStar] with a hub, also for two, that loses a share of the frames,
// each by itself, and counts them. The kernel's offloads are off: frames are as on a
// wire, so that the kernel's TCP meets the same losses, frame by frame, as we do. With
// a loss of 0 the path is the same, without losses.
//
// An XDP program on the hub's end of each pair drops them. Unlike a [Middle] it takes
// no thread that would compete for CPUs with the programs, which may be many.
func NewLossyStar(n, mtu int, loss float64) (*Star, error) {
	if !(loss >= 0 && loss <= 1) {
		return nil, fmt.Errorf("a loss of %v: want a share, 0 to 1", loss)
	}
	return newStar(n, mtu, true, func(s *Star) { s.lose(loss) })
}

// Counts of a hub that loses frames: their places in its map.
const (
	starTaken = iota
	starLost
	starCounts
)

// lose has the hub lose a share of the frames, by an XDP program on all its interfaces.
func (s *Star) lose(share float64) {
	for i, e := range s.Ends {
		fail.If(s.Do(i, func() error { return plainFrames(e.Name) }))
	}
	counts, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: starCounts})
	fail.If(explain(err, "map of the hub's counts"))
	s.counts, s.closers = counts, append(s.closers, counts.Close)
	sieve, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "via_sieve", Type: ebpf.XDP, License: "Dual BSD/GPL",
		Instructions: sieveOf(counts, share), Flags: unix.BPF_F_XDP_HAS_FRAGS,
	})
	fail.If(explain(err, "XDP program of the hub"))
	defer sieve.Close() // the links keep it
	hub := len(s.Ends)
	fail.If(s.Do(hub, func() (err error) {
		defer fail.Catch(&err)
		for i := range s.Ends {
			spoke := fail.Must(netlink.LinkByName(spokeName(i)))
			l, err := link.AttachXDP(link.XDPOptions{Program: sieve, Interface: spoke.Attrs().Index, Flags: link.XDPGenericMode})
			fail.If(explain(err, "XDP program on the hub's "+spokeName(i)))
			s.closers = append(s.closers, l.Close)
		}
		return nil
	}))
}

// sieveOf is the program: a random number decides, and each frame is counted.
func sieveOf(counts *ebpf.Map, share float64) asm.Instructions {
	const drop, pass = 1, 2 // XDP_DROP, XDP_PASS
	count := func(place int32, end string, verdict int32) asm.Instructions {
		return asm.Instructions{
			asm.StoreImm(asm.RFP, -4, int64(place), asm.Word).WithSymbol(fmt.Sprint("count", place)),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -4),
			asm.LoadMapPtr(asm.R1, counts.FD()),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, end),
			asm.Mov.Imm(asm.R1, 1),
			asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
			asm.Mov.Imm(asm.R0, verdict).WithSymbol(end),
		}
	}
	program := count(starTaken, "decide", pass)
	program = append(program,
		asm.FnGetPrandomU32.Call(),
		asm.LoadImm(asm.R1, int64(math.Round(share*(1<<32))), asm.DWord),
		asm.JLT.Reg(asm.R0, asm.R1, fmt.Sprint("count", starLost)),
		asm.Mov.Imm(asm.R0, pass),
		asm.Return(),
	)
	return append(append(program, count(starLost, "lost", drop)...), asm.Return())
}

// Counts are the frames that have come to the hub of a lossy star, and those of them
// that it has lost.
func (s *Star) Counts() (taken, lost uint64, err error) {
	if s.counts == nil {
		return 0, 0, errors.New("the namespaces are not joined by a hub that loses frames")
	}
	err = errors.Join(s.counts.Lookup(uint32(starTaken), &taken), s.counts.Lookup(uint32(starLost), &lost))
	return taken, lost, err
}
