package route

import (
	"errors"
	"sync"

	"viaxdp/internal/agent/kagent"

	"golang.org/x/sys/unix"
)

// linkCache caches the interface until something changes in its namespace. Reading it takes
// several messages of rtnetlink, and each connect needs it three times on each side.
//
// The kernel queues the notice of a change at the socket before the system call that makes the
// change returns. So the socket's queue has a notice of every change that a process can have
// observed.
type linkCache struct {
	mu    sync.Mutex
	open  bool // fd is a socket that is subscribed to links and addresses
	fd    int
	valid bool
	link  kagent.Link
}

// subscribe opens the socket in the namespace of the calling thread. Without it each get reads.
func (c *linkCache) subscribe() (err error) {
	c.fd, err = subscribe()
	c.open = err == nil
	return err
}

func (c *linkCache) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open {
		_ = unix.Close(c.fd)
	}
	c.open, c.valid = false, false
}

// get returns the interface as read has found it, or finds it now. The slices of the result are shared.
func (c *linkCache) get(read func() (kagent.Link, error)) (kagent.Link, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.changed() {
		c.valid = false
	}
	if c.valid {
		return c.link, nil
	}
	// A change during the read leaves a notice for the next get.
	l, err := read()
	c.link, c.valid = l, err == nil && c.open
	return l, err
}

// changed reports whether notices have come, and takes them. An error counts as one: notices were lost. Caller
// holds c.mu.
func (c *linkCache) changed() (changed bool) {
	if !c.open {
		return true
	}
	var b [16]byte // what has changed does not matter; the kernel cuts the message
	for {
		switch _, _, err := unix.Recvfrom(c.fd, b[:], unix.MSG_DONTWAIT); {
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
