package route

import (
	"errors"
	"sync"

	"viaxdp/internal/agent/kagent"

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

// subscribe opens the socket in the namespace of the calling thread.
func (n *notices) subscribe(groups ...uint) (err error) {
	n.fd, err = subscribe(groups...)
	n.open = err == nil
	return err
}

func (n *notices) close() {
	if n.open {
		_ = unix.Close(n.fd)
	}
	n.open = false
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

// linkCache caches the interface until something changes in its namespace. Reading it takes
// several messages of rtnetlink, and each connect needs it three times on each side.
type linkCache struct {
	mu      sync.Mutex
	notices notices // of links and addresses
	valid   bool
	link    kagent.Link
}

// subscribe begins caching, in the namespace of the calling thread. Without it each get reads.
func (c *linkCache) subscribe() error { return c.notices.subscribe(linkGroups...) }

func (c *linkCache) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.notices.close()
	c.valid = false
}

// get returns the interface as read has found it, or finds it now. The slices of the result are shared.
func (c *linkCache) get(read func() (kagent.Link, error)) (kagent.Link, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.notices.changed() {
		c.valid = false
	}
	if c.valid {
		return c.link, nil
	}
	// A change during the read leaves a notice for the next get.
	l, err := read()
	c.link, c.valid = l, err == nil && c.notices.open
	return l, err
}
