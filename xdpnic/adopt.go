package xdpnic

import (
	"golang.org/x/sys/unix"
)

// Handout describes a queue that is handed to another process: what Adopt needs
// there besides the memory. It can be encoded.
type Handout struct {
	Config Config // without Memory and Share
	Info   Info
}

// Handout describes an open queue for another process. The caller sends it
// together with the socket's descriptor, and then closes the Queue: the socket
// lives as long as one of its descriptors is open. Neither process may use the
// queue until this one has closed it. Queues that share their UMEM or pool
// with another of this process cannot be handed out.
func (q *Queue) Handout() (Handout, error) {
	switch {
	case q.fd < 0:
		return Handout{}, ErrClosed
	case q.cfg.Share != nil || q.pool.users > 1 || q.pool.umem.shared():
		return Handout{}, q.fail("hand out", errConfig)
	}
	h := Handout{Config: q.cfg, Info: q.info}
	h.Config.Memory = nil
	return h, nil
}

// mostSegs is more entries than a frame of any driver has. Senders reserve room for that many.
const mostSegs = 1 << 12

// Adopt makes a Queue of a socket that another process has opened and described
// by Handout. mem is the same memory, mapped in this process. Adopt takes
// ownership of the socket, also if it fails. It needs no privilege.
func Adopt(fd int, h Handout, mem []byte) (*Queue, error) {
	cfg := h.Config
	cfg.Memory, cfg.Share = mem, nil
	q := newQueue(cfg)
	q.fd = fd
	fail := func(err error) (*Queue, error) {
		q.Close()
		return nil, err
	}
	if mem == nil {
		return fail(q.fail("adopt", errConfig))
	}
	if err := cfg.check(); err != nil {
		return fail(err)
	}
	if h.Info.MaxSegs < 1 || h.Info.MaxSegs > mostSegs {
		return fail(cfg.bad("frames of at most %d entries: must be 1 to %d", h.Info.MaxSegs, mostSegs))
	}
	var err error
	if q.wait.event, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		q.wait.event = -1
		return fail(q.fail("eventfd", err))
	}
	q.wait.fd = fd
	u, err := newUMEM(mem, len(mem))
	if err != nil {
		return fail(q.fail("memory", err))
	}
	q.pool = newPool(cfg.geometry())
	if err := u.get(q.pool); err != nil {
		return fail(q.fail("memory", err))
	}
	if err := q.mapPoolRings(); err != nil {
		return fail(err)
	}
	if err := q.mapSocketRings(); err != nil {
		return fail(err)
	}
	q.pool.filled = q.pool.rx // Open in the other process filled the ring
	if cfg.shared() {
		q.pool.takePartition()
	}
	q.info = h.Info
	q.zc, q.sg, q.maxSegs = h.Info.ZeroCopy, h.Info.MultiBuffer, h.Info.MaxSegs
	q.copied = h.Info.TxCopied
	return q, nil
}
