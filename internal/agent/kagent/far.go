package kagent

import (
	"context"
	"net/netip"

	"viaxdp/internal/base/wire"
)

// IncomingEnd is what stands behind an Incoming whose exchange is another
// process' matter. Its methods are those of Incoming.
type IncomingEnd interface {
	Done() <-chan struct{}
	Err() error
	Accept(ctx context.Context, o Offer) error
	Established()
	Reject(reason wire.CMReason) error
}

// NewIncoming makes an Incoming over an end.
func NewIncoming(local, remote Address, o Offer, end IncomingEnd) *Incoming {
	return &Incoming{
		far: end, local: local.Host, disc: local.Disc, remote: remote.Disc, offer: o,
		key: exchange{peer: netip.AddrPortFrom(remote.Host, 0)},
	}
}

// AnswerEnd is likewise what stands behind an Answer.
type AnswerEnd interface {
	ConfirmWith(proof []byte) error
	Decline(reason wire.CMReason)
}

// NewAnswer makes an Answer over an end.
func NewAnswer(local, remote Address, o Offer, end AnswerEnd) *Answer {
	return &Answer{Offer: o, Local: local, Remote: remote, far: end}
}

// ListenerEnd is likewise what stands behind a Listener.
type ListenerEnd interface {
	Wait(ctx context.Context) (*Incoming, error)
	Close() error
}

// NewListener makes a Listener over an end.
func NewListener(end ListenerEnd) *Listener { return &Listener{far: end} }
