package route

import (
	"net/netip"
	"sync"
	"time"

	"viaxdp/internal/agent/kagent"

	"golang.org/x/sys/unix"
)

// pathCache caches paths until something changes in the interface's namespace that the kernel's
// choice depends on: an interface, an address, a route, a rule, a next hop or a neighbour. Finding
// a path takes three messages of rtnetlink, and a connect needs it twice on the requester's side.
type pathCache struct {
	mu      sync.Mutex
	notices notices
	changes uint64 // how often paths was cleared
	paths   map[pathEnds]knownPath
}

type pathEnds struct{ local, peer netip.Addr }

type knownPath struct {
	kagent.Path
	found time.Time
}

const (
	// pathAge bounds the use of a cached path, since the kernel gives no notice of some changes:
	// a path MTU that it has learned, or a setting in /proc/sys.
	pathAge  = time.Second
	maxPaths = 1024
)

// pathGroups are the groups of notices about what a path depends on.
var pathGroups = append([]uint{
	unix.RTNLGRP_NEIGH, unix.RTNLGRP_NEXTHOP, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV4_RULE,
	unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV6_RULE,
}, linkGroups...)

// subscribe begins caching, in the namespace of the calling thread. Without it each get finds.
func (c *pathCache) subscribe() error { return c.notices.subscribe(pathGroups...) }

func (c *pathCache) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.notices.close()
	c.paths = nil
}

// get returns the path between ends as find has found it, or finds it now. Errors are not cached.
func (c *pathCache) get(ends pathEnds, find func() (kagent.Path, error)) (kagent.Path, error) {
	now := time.Now()
	c.mu.Lock()
	if c.notices.changed() || len(c.paths) >= maxPaths {
		clear(c.paths)
		c.changes++
	}
	known, ok := c.paths[ends]
	changes := c.changes
	c.mu.Unlock()
	if ok && now.Sub(known.found) < pathAge {
		return known.Path, nil
	}
	p, err := find()
	if err != nil {
		return p, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// A change since then has either cleared paths or left a notice for the next get.
	if c.changes == changes && c.notices.open {
		if c.paths == nil {
			c.paths = make(map[pathEnds]knownPath)
		}
		c.paths[ends] = knownPath{p, now}
	}
	return p, nil
}
