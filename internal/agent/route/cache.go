package route

import (
	"errors"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// notices is a netlink socket that tells whether something has changed in its namespace.
//
// The kernel queues the notice of a change at the socket before the system call that makes the
// change returns. So the socket's queue has a notice of every change that a process can have
// observed. The zero value always reports a change.
type notices struct {
	open bool
	fd   int
}

// changed reports whether notices have come, and takes them. An error counts as one: notices were lost.
func (n *notices) changed() (changed bool) {
	if !n.open {
		return true
	}
	var b [16]byte // what has changed does not matter; the kernel cuts the message
	for {
		switch _, _, err := unix.Recvfrom(n.fd, b[:], unix.MSG_DONTWAIT); {
		case errors.Is(err, unix.EAGAIN):
			return changed
		case errors.Is(err, unix.EINTR):
		case err != nil && !errors.Is(err, unix.ENOBUFS):
			return true
		default:
			changed = true
		}
	}
}

// cache keeps what was found until something changes in the interface's namespace that it depends on: the
// interface takes several messages of rtnetlink, and each connect needs it three times on each side, a path takes
// three, and a connect needs it twice on the requester's side. Without subscribe each get finds.
type cache[K comparable, V any] struct {
	age time.Duration // the longest use; 0: no bound

	mu      sync.Mutex
	notices notices
	changes uint64 // how often known was cleared
	known   map[K]found[V]
}

type found[V any] struct {
	value V
	at    time.Time
}

// pathEnds identifies a path in the Router's cache.
type pathEnds struct{ local, peer netip.Addr }

const (
	// pathAge bounds the use of a cached path, since the kernel gives no notice of some changes:
	// a path MTU that it has learned, or a setting in /proc/sys.
	pathAge  = time.Second
	maxKnown = 1024
)

// pathGroups are the groups of notices about what a path depends on: an interface, an address, a route, a rule, a
// next hop or a neighbour.
var pathGroups = append([]uint{
	unix.RTNLGRP_NEIGH, unix.RTNLGRP_NEXTHOP, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV4_RULE,
	unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV6_RULE,
}, linkGroups...)

// subscribe begins caching, in the namespace of the calling thread, until a notice of one of the groups.
func (c *cache[K, V]) subscribe(groups []uint) (err error) {
	c.known = make(map[K]found[V])
	c.notices.fd, err = subscribe(groups...)
	c.notices.open = err == nil
	return err
}

func (c *cache[K, V]) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.notices.open {
		_ = unix.Close(c.notices.fd)
	}
	c.notices.open = false
	clear(c.known)
}

// get returns what find has found for a key, or finds it now. Errors are not cached. What the result refers to
// is shared.
func (c *cache[K, V]) get(key K, find func() (V, error)) (V, error) {
	now := time.Now()
	c.mu.Lock()
	if c.notices.changed() || len(c.known) >= maxKnown {
		clear(c.known)
		c.changes++
	}
	known, ok := c.known[key]
	changes := c.changes
	c.mu.Unlock()
	if ok && (c.age == 0 || now.Sub(known.at) < c.age) {
		return known.value, nil
	}
	v, err := find()
	if err != nil {
		return v, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// A change since then has either cleared known or left a notice for the next get.
	if c.changes == changes && c.notices.open {
		c.known[key] = found[V]{v, now}
	}
	return v, nil
}
