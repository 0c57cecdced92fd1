package bpf

import (
	"cmp"
	"encoding/binary"
	"errors"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"viaxdp/internal/base/fds"
)

// DefaultMaxQueues is the number of receive queues that a Redirect serves.
const DefaultMaxQueues = 64

// RedirectConfig configures a Redirect. The zero value is valid.
type RedirectConfig struct {
	Port      uint16 // UDP destination port; 0: DefaultPort
	MaxQueues int    // receive queues; 0: DefaultMaxQueues
	Frags     bool   // take multi-buffer frames (BPF_F_XDP_HAS_FRAGS, Linux 5.18)
}

// Redirect is the smallest program that serves AF_XDP and leaves other traffic
// alone. It redirects an IPv4 or IPv6 frame to the UDP port to the socket in the
// slot of its receive queue. All other frames, and frames of queues without a
// socket, go to the kernel's stack. It knows neither VIs nor keys. It is the
// baseline for measurements of the demux program and everything above it.
//
// Its slots are receive queues: Register(queue, fd).
type Redirect struct {
	socketProgram
}

// NewRedirect assembles and loads the program. Errors of the kernel are of type
// [*Error] and name what is missing.
func NewRedirect(cfg RedirectConfig) (*Redirect, error) {
	cfg.Port, cfg.MaxQueues = cmp.Or(cfg.Port, DefaultPort), cmp.Or(cfg.MaxQueues, DefaultMaxQueues)
	if err := checkSlots("MaxQueues", cfg.MaxQueues); err != nil {
		return nil, err
	}
	const op = "load the redirect program"
	if err := fds.Need(loadDescriptors); err != nil {
		return nil, &Error{Op: op, Err: err}
	}
	newMap := func(name string, t ebpf.MapType) (*ebpf.Map, error) {
		return ebpf.NewMap(&ebpf.MapSpec{
			Name: name, Type: t, KeySize: 4, ValueSize: 4, MaxEntries: uint32(cfg.MaxQueues),
		})
	}
	sockets, err := newMap("sockets", ebpf.XSKMap)
	if err != nil {
		return nil, loadError(op, err)
	}
	queues, err := newMap("queues", ebpf.Hash)
	if err != nil {
		return nil, errors.Join(loadError(op, err), sockets.Close())
	}
	spec := &ebpf.ProgramSpec{
		Name:         "via_redirect",
		Type:         ebpf.XDP,
		Instructions: redirectProgram(sockets.FD(), cfg.Port),
		License:      "Dual BSD/GPL",
	}
	if cfg.Frags {
		spec.Flags |= unix.BPF_F_XDP_HAS_FRAGS
	}
	program, err := ebpf.NewProgram(spec)
	if err != nil {
		return nil, errors.Join(loadError(op, err), queues.Close(), sockets.Close())
	}
	r := &Redirect{}
	r.Program, r.Queues, r.Sockets = program, queues, sockets
	return r, nil
}

// Offsets, in bytes, of the fields that the program reads in the frame and in
// struct xdp_md (linux/bpf.h), and an action.
const (
	mdData  = 0
	mdEnd   = 4
	mdQueue = 16

	ethProto  = 12
	ip        = 14
	ip4Frag   = ip + 6
	ip4Next   = ip + 9
	ip4Port   = ip + 20 + 2
	ip4UDPEnd = ip + 20 + 8
	ip6Next   = ip + 6
	ip6Port   = ip + 40 + 2
	ip6UDPEnd = ip + 40 + 8

	actionPass = 2 // XDP_PASS
)

// redirectProgram assembles this program, which does not handle VLAN tags, IPv4
// options and extension headers:
//
//	if frame is IPv4 or IPv6, UDP, to the port:
//		return bpf_redirect_map(sockets, ctx->rx_queue_index, XDP_PASS)
//	return XDP_PASS
func redirectProgram(sockets int, port uint16) asm.Instructions {
	const (
		ctx    = asm.R6
		data   = asm.R7
		end    = asm.R8
		field  = asm.R2
		reach  = asm.R3 // end of the next read
		accept = "udp"
		pass   = "pass"
	)
	return asm.Instructions{
		asm.Mov.Reg(ctx, asm.R1),
		asm.LoadMem(data, ctx, mdData, asm.Word),
		asm.LoadMem(end, ctx, mdEnd, asm.Word),

		// The shorter of both, UDP over IPv4, must fit in any case.
		asm.Mov.Reg(reach, data),
		asm.Add.Imm(reach, ip4UDPEnd),
		asm.JGT.Reg(reach, end, pass),
		asm.LoadMem(field, data, ethProto, asm.Half),
		asm.JEq.Imm(field, network(unix.ETH_P_IP), "ipv4"),
		asm.JNE.Imm(field, network(unix.ETH_P_IPV6), pass),

		asm.Mov.Reg(reach, data),
		asm.Add.Imm(reach, ip6UDPEnd),
		asm.JGT.Reg(reach, end, pass),
		asm.LoadMem(field, data, ip, asm.Byte),
		asm.And.Imm(field, 0xf0),
		asm.JNE.Imm(field, 0x60, pass), // another version
		asm.LoadMem(field, data, ip6Next, asm.Byte),
		asm.JNE.Imm(field, unix.IPPROTO_UDP, pass),
		asm.LoadMem(field, data, ip6Port, asm.Half),
		asm.Ja.Label(accept),

		asm.LoadMem(field, data, ip, asm.Byte).WithSymbol("ipv4"),
		asm.JNE.Imm(field, 0x45, pass), // no options
		asm.LoadMem(field, data, ip4Frag, asm.Half),
		asm.And.Imm(field, network(0x3fff)),
		asm.JNE.Imm(field, 0, pass), // a fragment
		asm.LoadMem(field, data, ip4Next, asm.Byte),
		asm.JNE.Imm(field, unix.IPPROTO_UDP, pass),
		asm.LoadMem(field, data, ip4Port, asm.Half),

		asm.JNE.Imm(field, network(port), pass).WithSymbol(accept),
		asm.LoadMapPtr(asm.R1, sockets),
		asm.LoadMem(asm.R2, ctx, mdQueue, asm.Word),
		asm.Mov.Imm(asm.R3, actionPass),
		asm.FnRedirectMap.Call(),
		asm.Return(),

		asm.Mov.Imm(asm.R0, actionPass).WithSymbol(pass),
		asm.Return(),
	}
}

// network returns the number that a load of v from the frame yields.
func network(v uint16) int32 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], v)
	return int32(binary.NativeEndian.Uint16(b[:]))
}
