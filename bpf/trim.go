package bpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"viaxdp/internal/base/fds"
)

// Trim is a program on the egress of an interface (TCX). It removes some bytes behind the Ethernet header of each packet that
// has a mark. They become free room in front of the packet. Generic XDP of the receiver on a veth pair needs such room, and
// copies a packet that has none. Close may be called once, by any goroutine.
type Trim struct {
	program *ebpf.Program
	link    link.Link
}

// AttachTrim attaches the program to an interface of the calling thread's network namespace, before the programs that are
// there. It removes n bytes, at most 4095, and the mark from an IPv4 or IPv6 packet with the mark. If that fails, the packet
// is dropped. Packets without the mark pass unchanged. Of several such programs for one mark only the first has an effect.
//
// It needs CAP_BPF, CAP_NET_ADMIN and Linux 6.6. Errors of the kernel are of type [*Error].
func AttachTrim(ifindex int, mark uint32, n int) (*Trim, error) {
	const op = "load the trim program"
	if err := fds.Need(loadDescriptors); err != nil {
		return nil, &Error{Op: op, Err: err}
	}
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "via_trim", Type: ebpf.SchedCLS, AttachType: ebpf.AttachTCXEgress, License: "Dual BSD/GPL",
		Instructions: trimProgram(mark, n),
	})
	if err != nil {
		return nil, loadError(op, err)
	}
	l, err := link.AttachTCX(link.TCXOptions{Interface: ifindex, Program: p, Attach: ebpf.AttachTCXEgress, Anchor: link.Head()})
	if err != nil {
		e := &Error{Op: fmt.Sprintf("attach to what leaves interface %d", ifindex), Err: err}
		if errors.Is(err, ebpf.ErrNotSupported) {
			e.Hint = "Linux 6.6 or newer with CONFIG_NET_CLS_ACT is needed"
		}
		return nil, errors.Join(e, p.Close())
	}
	return &Trim{program: p, link: l}, nil
}

// Close detaches the program.
func (t *Trim) Close() error { return errors.Join(t.link.Close(), t.program.Close()) }

// Of struct __sk_buff and of programs on TCX (linux/bpf.h).
const (
	skbMark        = 8
	adjustMAC      = 1  // BPF_ADJ_ROOM_MAC: behind the Ethernet header
	adjustFixedGSO = 1  // BPF_F_ADJ_ROOM_FIXED_GSO: frames stay as long as they are
	tcxNext        = -1 // TCX_NEXT
	tcxDrop        = 2  // TCX_DROP
)

// trimProgram assembles this program:
//
//	if skb->mark != mark:
//		return TCX_NEXT
//	skb->mark = 0
//	return bpf_skb_adjust_room(skb, -n, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO) == 0 ? TCX_NEXT : TCX_DROP
func trimProgram(mark uint32, n int) asm.Instructions {
	return asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, skbMark, asm.Word),
		asm.LoadImm(asm.R3, int64(mark), asm.DWord),
		asm.JNE.Reg(asm.R2, asm.R3, "next"),
		asm.Mov.Imm(asm.R2, 0),
		asm.StoreMem(asm.R1, skbMark, asm.R2, asm.Word),
		asm.Mov.Imm(asm.R2, int32(-n)),
		asm.Mov.Imm(asm.R3, adjustMAC),
		asm.Mov.Imm(asm.R4, adjustFixedGSO),
		asm.FnSkbAdjustRoom.Call(),
		asm.JEq.Imm(asm.R0, 0, "next"),
		asm.Mov.Imm(asm.R0, tcxDrop),
		asm.Return(),
		asm.Mov.Imm(asm.R0, tcxNext).WithSymbol("next"),
		asm.Return(),
	}
}
