package vipl

import (
	"net"

	"viaxdp/internal/names"
)

// SetSystemResolver starts the name service with nothing but r, in place of
// the system's resolver.
func (n *Nic) SetSystemResolver(r *net.Resolver) error {
	resolver, err := names.New(names.Config{System: r})
	if err == nil {
		n.names.Store(resolver)
	}
	return err
}
