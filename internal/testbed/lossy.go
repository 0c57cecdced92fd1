package testbed

import (
	"errors"
	"fmt"
	"math"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"viaxdp/internal/thread"
)

// NewLossyStar is [NewStar] with a hub, also for two, that loses a share of the
// frames, each by itself, and counts them. Nothing of the kernel's offloads is left:
// every frame is one of a wire, so that the kernel's TCP meets the same losses, frame
// by frame, as we do. With a loss of 0 it is the same way without a loss.
//
// An XDP program on the hub's end of each pair drops them. Unlike a [Middle] it takes
// no thread that would compete for CPUs with the programs, which may be many.
func NewLossyStar(n, mtu int, loss float64) (*Star, error) {
	if !(loss >= 0 && loss <= 1) {
		return nil, fmt.Errorf("a loss of %v: want a share, 0 to 1", loss)
	}
	s, err := newStar(n, mtu, true)
	if err != nil {
		return nil, err
	}
	if err := s.lose(loss); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Counts of a hub that loses frames: their places in its map.
const (
	starTaken = iota
	starLost
	starCounts
)

// sieve is the XDP program of a hub, attached to all its interfaces.
type sieve struct {
	counts  *ebpf.Map
	program *ebpf.Program
	links   []link.Link
}

func (s *sieve) close() {
	for _, l := range s.links {
		l.Close()
	}
	if s.program != nil {
		s.program.Close()
	}
	if s.counts != nil {
		s.counts.Close()
	}
}

// lose has the hub lose a share of the frames.
func (s *Star) lose(share float64) (err error) {
	for i, e := range s.Ends {
		if err := thread.In(int(s.spaces[i]), func() error { return plainFrames(e.Name) }); err != nil {
			return err
		}
	}
	if s.sieve.counts, err = ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: starCounts}); err != nil {
		return explain(err, "map of the hub's counts")
	}
	s.sieve.program, err = ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "via_sieve", Type: ebpf.XDP, License: "Dual BSD/GPL",
		Instructions: sieveOf(s.sieve.counts, share), Flags: unix.BPF_F_XDP_HAS_FRAGS,
	})
	if err != nil {
		return explain(err, "XDP program of the hub")
	}
	hub := s.spaces[len(s.Ends)]
	nl, err := netlink.NewHandleAt(hub, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer nl.Close()
	return thread.In(int(hub), func() error {
		for i := range s.Ends {
			spoke, err := nl.LinkByName(spokeName(i))
			if err != nil {
				return err
			}
			l, err := link.AttachXDP(link.XDPOptions{Program: s.sieve.program, Interface: spoke.Attrs().Index, Flags: link.XDPGenericMode})
			if err != nil {
				return explain(err, "XDP program on the hub's "+spokeName(i))
			}
			s.sieve.links = append(s.sieve.links, l)
		}
		return nil
	})
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
	if s.sieve.counts == nil {
		return 0, 0, errors.New("the namespaces are not joined by a hub that loses frames")
	}
	err = errors.Join(s.sieve.counts.Lookup(uint32(starTaken), &taken), s.sieve.counts.Lookup(uint32(starLost), &lost))
	return taken, lost, err
}
