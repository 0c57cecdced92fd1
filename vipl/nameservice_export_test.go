package vipl

import (
	"net"
	"time"

	"viaxdp/internal/names"
)

// SetSystemResolver starts the name service with nothing but r, in place of
// the system's resolver, and with all the time that it wants.
func (n *Nic) SetSystemResolver(r *net.Resolver) error {
	resolver, err := names.New(names.Config{System: r, Timeout: time.Hour})
	if err == nil {
		n.names.Store(resolver)
	}
	return err
}
