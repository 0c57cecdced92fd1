package vipl

import (
	"fmt"
	"net/netip"

	"viaxdp/kagent"
	"viaxdp/wire"
)

// MaxDiscriminatorLen is the length of the longest discriminator in bytes.
const MaxDiscriminatorLen = wire.CMMaxDisc

// NetAddress names an end of a connection: a host and a discriminator, which
// tells apart the ends of one host. As a local address, a zero Host stands for
// the NIC's own.
type NetAddress struct {
	Host          netip.Addr
	Discriminator []byte // at most MaxDiscriminatorLen bytes
}

func (a NetAddress) agent() kagent.Address {
	return kagent.Address{Host: a.Host, Disc: a.Discriminator}
}

func (a NetAddress) check(op string, v *VI) error {
	if len(a.Discriminator) > MaxDiscriminatorLen {
		return opError(op, v, ErrInvalidParameter,
			fmt.Errorf("discriminator of %d bytes, at most %d", len(a.Discriminator), MaxDiscriminatorLen))
	}
	return nil
}

// RemoteAttributes is what the other side tells of its VI.
type RemoteAttributes struct {
	Level           ReliabilityLevel
	MaxTransferSize int
	QoS             int
	EnableRdmaWrite bool // it takes RDMA writes
	EnableRdmaRead  bool // it serves RDMA reads
}

func remoteAttributes(o kagent.Offer) RemoteAttributes {
	return RemoteAttributes{
		Level: ReliabilityLevel(o.Level), MaxTransferSize: int(o.MaxTransfer), QoS: int(o.QoS),
		EnableRdmaWrite: o.RDMAWrite, EnableRdmaRead: o.RDMARead,
	}
}
