package agentd

import (
	"fmt"
	"log/slog"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"time"

	"viaxdp/internal/agent/agentproto"
	"viaxdp/internal/agent/fdstore"
	"viaxdp/xdpnic"
)

// Config configures a Server. The zero value serves only root: every interface but the loopback.
type Config struct {
	// Access is the users besides root that may use the agent.
	Access Grant
	// Interfaces are the served interfaces by name. nil: for root all but the loopback, for others none.
	Interfaces map[string]Interface
	// Linger is how long the program stays on an interface after its last queue has been given back,
	// so that a user cannot have it attached and detached in a loop; 0: DefaultLinger, negative: not at all.
	Linger time.Duration
	// Quota applies to each user but root; Users sets the quota of certain users, also root's.
	Quota Quota
	Users map[uint32]Quota
	// MaxConnections bounds connections of all users; 0: DefaultConnections.
	MaxConnections int
	// FDStore, unless nil, keeps what must survive the agent.
	FDStore fdstore.Store
	Log     *slog.Logger // nil: nothing is logged
}

// DefaultConnections is the largest number of connections to an agent.
const DefaultConnections = 1024

// Interface is the configuration of one interface. It applies to every program that opens it.
type Interface struct {
	Port   uint16      // UDP port; 0: the default
	MaxVIs int         // size of the VI table; 0: the default
	Mode   xdpnic.Mode // the best mode that programs may have
	// Processes is how many processes of a user the queues have room for, see device.Config; 0:
	// DefaultProcesses, 1: each process has a queue of its own.
	Processes int
	Users     []uint32 // users besides root that may open it
	Groups    []uint32 // groups whose members may open it; if both are nil, all users of the agent may
	// ZeroCopy is the users besides root that may have zero-copy queues. The NIC writes every
	// frame of such a queue, of any protocol, to memory that the program has mapped.
	ZeroCopy Grant
}

// Grant is a set of users. The zero value is the empty set.
type Grant struct {
	Everyone bool
	Users    []uint32
	Groups   []uint32 // and their members
}

// includes reports whether a user is of the set.
func (g Grant) includes(p *peer) bool {
	return g.Everyone || slices.Contains(g.Users, p.Uid) ||
		slices.ContainsFunc(g.Groups, func(gid uint32) bool { return p.Gid == gid || slices.Contains(p.groups, gid) })
}

func (g Grant) isZero() bool { return !g.Everyone && len(g.Users) == 0 && len(g.Groups) == 0 }

// String returns the names of the users and groups, for messages.
func (g Grant) String() string {
	if g.Everyone {
		return "every user"
	}
	var names []string
	for _, uid := range g.Users {
		names = append(names, fmt.Sprintf("user %d", uid))
	}
	for _, gid := range g.Groups {
		names = append(names, "members of the group "+groupName(gid))
	}
	return strings.Join(names, ", ")
}

// DefaultGroup is the group whose members may use the agent by default.
const DefaultGroup = "via"

// DefaultProcesses is Interface.Processes' default, and MaxProcesses the greatest value.
const (
	DefaultProcesses = 16
	MaxProcesses     = 1 + xdpnic.MaxGuests
)

// DefaultLinger is Config.Linger's default.
const DefaultLinger = 10 * time.Second

func groupName(gid uint32) string {
	number := strconv.FormatUint(uint64(gid), 10)
	if g, err := user.LookupGroupId(number); err == nil {
		return g.Name
	}
	return number
}

// loopback is served only if named: its frames are between programs of this host.
const loopback = "lo"

// Quota limits what a user may have at a time. A zero field is no limit.
type Quota struct {
	Connections int // to the agent
	Processes   int // NIC handles of programs: those with a queue of their own, and those that share one
	Queues      int // that are open, whatever the number of processes on each
	VIs         int
	PinnedBytes int // registered memory, the rings of queues, shared-memory links
}

// DefaultQuota is a user's quota if the configuration sets none.
var DefaultQuota = Quota{Connections: 64, Processes: 64, Queues: 8, VIs: 16384, PinnedBytes: 1 << 30}

// quota returns the user's quota.
func (c *Config) quota(uid uint32) Quota {
	if q, ok := c.Users[uid]; ok {
		return q
	}
	if uid == 0 {
		return Quota{}
	}
	return c.Quota
}

// admission describes which users the agent serves, and how to admit another one.
func (c *Config) admission() string {
	const settings = "its settings (group, mode) may name another group"
	switch groups := c.Access.Groups; {
	case c.Access.Users == nil && groups == nil:
		return fmt.Sprintf("it serves root alone: sudo groupadd --system %s, restart the agent, sudo usermod -aG %[1]s USER, "+
			"and log in again; %s", DefaultGroup, settings)
	case groups == nil:
		return fmt.Sprintf("it serves root and %v", c.Access)
	default:
		return fmt.Sprintf("it serves root and %v: sudo usermod -aG %s USER, and log in again; %s", c.Access, groupName(groups[0]), settings)
	}
}

// errNotServed is the error for a program that may not open an interface.
func (c *Config) errNotServed(name string, p *peer) error {
	if c.Interfaces == nil {
		return fmt.Errorf("%w to user %d: %s; it serves root alone the interfaces that it does not name: start it with -i %[3]s, "+
			"or name it in its settings ([interface.%[3]s])", agentproto.ErrNotServed, p.Uid, name)
	}
	return fmt.Errorf("%w to user %d: %s; its settings list what it serves ([interface.NAME], users)",
		agentproto.ErrNotServed, p.Uid, name)
}

// zeroCopy returns nil if a user may have zero-copy queues of an interface, or else the reason.
func (c *Config) zeroCopy(name string, p *peer) error {
	if p.Uid == 0 || c.Interfaces[name].ZeroCopy.includes(p) {
		return nil
	}
	return fmt.Errorf("%w in zero-copy mode to user %d: its programs could read all that the queue receives; "+
		"where they may, name the user in the agent's settings ([interface.%s] zero_copy)", agentproto.ErrNotServed, p.Uid, name)
}

// servedTo returns the names of the interfaces that a user may open; nil: all but the loopback.
func (c *Config) servedTo(p *peer) []string {
	if c.Interfaces == nil && p.Uid == 0 {
		return nil
	}
	names := []string{}
	for name := range c.Interfaces {
		if _, ok := c.served(name, p); ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// served reports whether a user may open an interface, and with which configuration.
func (c *Config) served(name string, p *peer) (Interface, bool) {
	if c.Interfaces == nil {
		return Interface{}, p.Uid == 0 && name != loopback
	}
	i, ok := c.Interfaces[name]
	named := Grant{Everyone: i.Users == nil && i.Groups == nil, Users: i.Users, Groups: i.Groups}
	return i, ok && (p.Uid == 0 || named.includes(p))
}
