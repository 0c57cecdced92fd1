package provider

import (
	"errors"
	"io"

	"viaxdp/bpf"
	"viaxdp/internal/base/gso"
)

// GSO sends several frames as one packet, by segmentation offload. gso.Socket is one of the kernel, xdpnictest.GSO one
// in memory. Calls come one at a time.
type GSO interface {
	// Send sends frames of path.Size bytes each, the last may be shorter. pieces are their bytes, without lower headers;
	// headers are the lower headers of one of them. The frames have left, or are given up, when it returns; it never waits.
	Send(path *gso.Path, headers []byte, pieces [][]byte) error
	// NoHeadroom is why packets leave without headroom, for people. Any goroutine may call it.
	NoHeadroom() string
	// Release ends the use of a path.
	Release(path *gso.Path)
	Close() error
}

// OpenGSO opens GSO, which sends from the interface of Info; with headroom where that spares receivers in generic mode a
// copy, from a veth. It fails with gso.ErrNamespace unless the calling thread is in the network namespace of queue, the file
// descriptor of the AF_XDP socket.
func (p *Provider) OpenGSO(queue int, headroom bool) error {
	s, err := gso.Open(p.Info.Index)
	if err != nil {
		return err
	}
	if err := s.CheckNamespace(queue); err != nil {
		return errors.Join(err, s.Close())
	}
	p.GSO = s
	switch index := p.Info.Index; {
	case !headroom:
		s.NeverTrim("switched off (WithHeadroom)")
	case p.Info.Driver != "veth":
		s.NeverTrim("the interface is not a veth")
	default:
		s.Trim(func() (io.Closer, error) { return bpf.AttachTrim(index, gso.Mark, gso.Headroom) })
	}
	return nil
}
