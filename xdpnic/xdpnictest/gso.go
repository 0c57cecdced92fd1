package xdpnictest

import (
	"errors"
	"net/netip"
	"slices"

	"viaxdp/internal/base/gso"
	"viaxdp/internal/base/wire"
)

// ErrGSO is what GSO.Send returns for a packet that breaks a rule of the kernel.
var ErrGSO = errors.New("xdpnictest: not a GSO packet that the kernel takes")

// GSO sends GSO packets on the wire, as a UDP socket with UDP_SEGMENT would from the queue's interface.
type GSO struct {
	Queue *Queue
	// Path returns the lower headers of packets from src to dst.
	Path func(src netip.Addr, dst netip.AddrPort) (wire.Link, error)
	// Divide has each packet divided into its frames on the way, as a NIC does. Otherwise it arrives whole.
	Divide bool
	// Fail returns the error of a Send; nil: none fails.
	Fail func() error
}

// Send sends a packet. Faults of the queue apply to what is on the wire: the packet, or each of its frames. The lower headers are
// of Path.
func (g *GSO) Send(path *gso.Path, _ []byte, pieces [][]byte) error {
	if g.Fail != nil {
		if err := g.Fail(); err != nil {
			return err
		}
	}
	all := slices.Concat(pieces...)
	size := path.Size
	if size < 1 || len(all) > wire.MaxDatagram || len(all) > 64*size {
		return ErrGSO
	}
	link, err := g.Path(path.Src, path.Dst)
	if err != nil {
		return err
	}
	template, err := wire.NewTemplate(link)
	if err != nil {
		return err
	}
	q := g.Queue
	q.wire.mu.Lock()
	defer q.wire.mu.Unlock()
	if !g.Divide {
		size = len(all)
	}
	for len(all) > 0 {
		n := min(size, len(all))
		frame := make([]byte, template.Len()+n)
		copy(template.Put(frame, n), all)
		q.wire.carry(q, frame)
		all = all[n:]
	}
	return nil
}

// NoHeadroom returns nothing: no receiver copies a packet.
func (g *GSO) NoHeadroom() string { return "" }

// Release does nothing: no path has anything of its own.
func (g *GSO) Release(*gso.Path) {}

// Close does nothing.
func (g *GSO) Close() error { return nil }
