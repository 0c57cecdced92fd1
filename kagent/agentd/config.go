package agentd

import (
	"log/slog"
	"slices"

	"viaxdp/kagent"
	"viaxdp/xdpnic"
)

// Config of a Server. The zero value serves every interface to every user who can
// open the socket, within the default quota.
type Config struct {
	// Interfaces that are served, by name; nil: all.
	Interfaces map[string]Interface
	// Quota of each user but root, and of certain users, root among them.
	Quota Quota
	Users map[uint32]Quota
	// MaxConnections bounds connections of all users; 0: DefaultConnections.
	MaxConnections int
	// Vault, unless nil, keeps what must survive the agent.
	Vault kagent.Vault
	Log   *slog.Logger // nil: nothing is logged
}

// DefaultConnections is the largest number of connections to an agent.
const DefaultConnections = 1024

// Interface is what is to be so on one interface, whoever opens it.
type Interface struct {
	Port   uint16      // UDP port; 0: the default
	MaxVIs int         // size of the VI table; 0: the default
	Mode   xdpnic.Mode // the best mode that programs may have
	Users  []uint32    // who may open it, beside root; nil: everybody
}

// Quota is what a user may have at a time. A zero field is no limit.
type Quota struct {
	Connections int // to the agent
	Queues      int
	VIs         int
	PinnedBytes int // registered memory
}

// DefaultQuota is a user's, unless the configuration says otherwise.
var DefaultQuota = Quota{Connections: 64, Queues: 8, VIs: 4096, PinnedBytes: 1 << 30}

// quota is the user's.
func (c *Config) quota(uid uint32) Quota {
	if q, ok := c.Users[uid]; ok {
		return q
	}
	if uid == 0 {
		return Quota{}
	}
	return c.Quota
}

// servedTo are the interfaces that a user may open, by name; nil: all.
func (c *Config) servedTo(uid uint32) []string {
	if c.Interfaces == nil {
		return nil
	}
	names := []string{}
	for name := range c.Interfaces {
		if _, ok := c.served(name, uid); ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// served tells whether a user may open an interface, and how.
func (c *Config) served(name string, uid uint32) (Interface, bool) {
	if c.Interfaces == nil {
		return Interface{}, true
	}
	i, ok := c.Interfaces[name]
	return i, ok && (uid == 0 || i.Users == nil || slices.Contains(i.Users, uid))
}
