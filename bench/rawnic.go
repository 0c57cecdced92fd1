package bench

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/vishvananda/netlink"

	"viaxdp/bpf"
	"viaxdp/xdpnic"
)

// ringWindow is how many frames a side with rings of ringChunks takes at once:
// less than its chunks by a batch in its hands and room for other frames.
const (
	ringChunks = 512
	ringLease  = 64
	ringWindow = ringChunks - 2*ringLease
)

// rawNic is the interface of an AF_XDP transport and the program on it that gives
// all frames of one UDP port to one socket.
type rawNic struct {
	params   Params
	ifi      *net.Interface
	port     int
	mode     xdpnic.Mode
	features []string
	program  *bpf.Redirect
}

// openRawNic finds the interface and attaches the program by the best mode with
// which open succeeds; open gives the socket to register.
func openRawNic(p Params, open func(ifi *net.Interface, m xdpnic.Mode) (fd int, err error), undo func()) (_ *rawNic, err error) {
	n := &rawNic{params: p, port: p.Port}
	if n.port == 0 {
		n.port = rawPort
	}
	if n.ifi, err = p.netInterface(); err != nil {
		return nil, err
	}
	want, err := xdpnic.ParseMode(p.Mode)
	if err != nil {
		return nil, err
	}
	if l, err := netlink.LinkByIndex(n.ifi.Index); want == xdpnic.ModeAuto && err == nil && l.Type() == "veth" {
		want = xdpnic.ModeGeneric // the faster one there, which VIs take as well
	}
	try := func(m xdpnic.Mode) error {
		cfg := bpf.RedirectConfig{
			Port: uint16(n.port), MaxQueues: p.Queue + 1,
			Frags: !m.Generic() && n.ifi.MTU > bpf.PageMTU,
		}
		program, err := bpf.NewRedirect(cfg)
		if err != nil {
			return err
		}
		if err := n.attach(program, m, open); err != nil {
			undo()
			return errors.Join(err, program.Close())
		}
		n.program = program
		return nil
	}
	if n.mode, _, err = xdpnic.Climb(want, want != xdpnic.ModeAuto, try); err != nil {
		return nil, err
	}
	if f, err := xdpnic.QueryFeatures(n.ifi.Index); err == nil {
		n.features = featureNames(f)
	}
	return n, nil
}

// linkTime is how long a link may take to come back after an attach.
const linkTime = 4 * time.Second

func (n *rawNic) attach(program *bpf.Redirect, m xdpnic.Mode, open func(*net.Interface, xdpnic.Mode) (int, error)) error {
	where := bpf.Native
	if m.Generic() {
		where = bpf.Generic
	}
	if err := program.Attach(n.ifi.Index, where); err != nil {
		return err
	}
	fd, err := open(n.ifi, m)
	if err != nil {
		return err
	}
	return program.Register(n.params.Queue, fd)
}

// awaitLink waits until the link is back: what is sent before is lost, and
// nobody sends it again.
func (n *rawNic) awaitLink() error {
	if !xdpnic.AwaitRunning(n.ifi.Index, linkTime) {
		return fmt.Errorf("interface %s has no link after %v", n.ifi.Name, linkTime)
	}
	return nil
}

// hello describes this side, for frames that are at most frameBytes long.
func (n *rawNic) hello(frameBytes int, memory string) Hello {
	frame := min(n.ifi.MTU+ethernetHeader, frameBytes)
	return Hello{
		Addr: n.params.Local, MAC: n.ifi.HardwareAddr, Port: n.port,
		Payload: frame - headersLen(n.params.Local), Window: ringWindow,
		Facts: Facts{
			Interface: n.ifi.Name, Mode: n.mode.String(), Features: n.features,
			MTU: n.ifi.MTU, FrameBytes: frame, Memory: memory,
		},
	}
}

func (n *rawNic) close() error { return n.program.Close() }
