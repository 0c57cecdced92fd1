package xdpnic

import (
	"cmp"

	"golang.org/x/sys/unix"
)

// Handout describes a queue that is handed to another process: what Adopt needs
// there besides the memory. It can be encoded.
type Handout struct {
	Config Config // without Memory and Share
	Info   Info
}

// Handout describes an open queue for another process. The caller sends it
// together with the descriptors of its sockets (FDs), and then closes the Queue: the socket
// lives as long as one of its descriptors is open. Neither process may use the
// queue until this one has closed it. Queues that share their UMEM or pool
// with another of this process cannot be handed out.
func (q *Queue) Handout() (Handout, error) {
	switch {
	case q.fd < 0:
		return Handout{}, ErrClosed
	case q.cfg.Share != nil || q.pool.users > 1 || q.pool.umem.users() > 1+len(q.extra):
		return Handout{}, q.fail("hand out", errConfig)
	}
	h := Handout{Config: q.cfg, Info: q.info}
	h.Config.Memory = nil
	return h, nil
}

// mostSegs is more entries than a frame of any driver has. Senders reserve room for that many.
const mostSegs = 1 << 12

// Adopt makes a Queue of a socket that another process has opened and described
// by Handout, and of those of ExtraQueues. mem is the same memory, mapped in this process. Adopt takes
// ownership of the sockets, also if it fails. It needs no privilege.
func Adopt(fd int, h Handout, mem []byte, extra ...int) (*Queue, error) {
	cfg := h.Config
	cfg.Memory, cfg.Share = mem, nil
	q := newQueue(cfg)
	q.fd = fd
	if err := q.adopt(h, extra); err != nil {
		q.Close()
		for _, fd := range extra[min(len(q.extra), len(extra)):] {
			_ = unix.Close(fd)
		}
		return nil, err
	}
	return q, nil
}

func (q *Queue) adopt(h Handout, extra []int) error {
	cfg := &q.cfg
	if cfg.Memory == nil {
		return q.fail("adopt", errConfig)
	}
	if err := cmp.Or(cfg.check(), cfg.checkSockets(extra)); err != nil {
		return err
	}
	if h.Info.MaxSegs < 1 || h.Info.MaxSegs > mostSegs {
		return cfg.bad("frames of at most %d entries: must be 1 to %d", h.Info.MaxSegs, mostSegs)
	}
	u, err := newUMEM(cfg.Memory, len(cfg.Memory))
	if err != nil {
		return q.fail("memory", err)
	}
	if err := q.adoptRings(u); err != nil {
		return err
	}
	for i, fd := range extra {
		a := q.addExtra(cfg.extra(i))
		a.fd = fd
		if err := a.adoptRings(u); err != nil {
			return err
		}
	}
	q.info = h.Info
	q.zc = h.Info.ZeroCopy
	return nil
}

// adoptRings maps the rings of the socket, whose pool lies in u.
func (q *Queue) adoptRings(u *umem) (err error) {
	if q.wait.event, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		q.wait.event = -1
		return q.fail("eventfd", err)
	}
	q.wait.fd = q.fd
	q.pool = newPool(q.cfg.geometry())
	if err := u.get(q.pool, &q.cfg); err != nil {
		return q.fail("memory", err)
	}
	if err := q.mapPoolRings(); err != nil {
		return err
	}
	if err := q.mapSocketRings(); err != nil {
		return err
	}
	if q.cfg.shared() {
		q.pool.takePartition()
	} else {
		q.pool.filled = q.pool.rx // Open in the other process filled the ring
	}
	return nil
}
