package vipl

import (
	"fmt"
	"net/netip"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/wire"
)

// MaxDiscriminatorLen is the length of the longest discriminator in bytes.
const MaxDiscriminatorLen = 64

var _ [wire.CMMaxDisc]struct{} = [MaxDiscriminatorLen]struct{}{}

// NetAddress names one end of a connection: a host, and a discriminator that distinguishes services of that host.
// In a local address a zero Host stands for the NIC's own.
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

// RemoteAttributes are the attributes of the peer's VI.
type RemoteAttributes struct {
	Level           ReliabilityLevel
	MaxTransferSize int
	QoS             int
	EnableRDMAWrite bool // the VI accepts RDMA writes
	EnableRDMARead  bool // the VI serves RDMA reads
}

func remoteAttributes(o kagent.Offer) RemoteAttributes {
	return RemoteAttributes{
		Level: ReliabilityLevel(o.Level), MaxTransferSize: int(o.MaxTransfer), QoS: int(o.QoS),
		EnableRDMAWrite: o.RDMAWrite, EnableRDMARead: o.RDMARead,
	}
}
