package xdpnic

import (
	"golang.org/x/sys/unix"
)

// Handout is a queue on its way to another process: what Adopt needs there
// beside the memory. It can be encoded.
type Handout struct {
	Config Config // without Memory and Share
	Info   Info
}

// Handout describes an open queue for another process. The socket's descriptor
// goes there beside it, and this process then closes the Queue: the socket lives
// as long as one descriptor of it does. Neither may use the queue before that.
// Queues that share their UMEM or pool cannot be handed out.
func (q *Queue) Handout() (Handout, error) {
	switch {
	case q.fd < 0:
		return Handout{}, ErrClosed
	case q.cfg.Share != nil || q.pool.users > 1:
		return Handout{}, q.fail("hand out", errConfig)
	}
	h := Handout{Config: q.cfg, Info: q.info}
	h.Config.Memory = nil
	return h, nil
}

// Adopt makes a Queue of a socket that another process has opened and described
// by Handout. mem is the same memory, mapped here. The socket is the Queue's from
// now on, also after an error. It needs no privilege.
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
	var err error
	if q.wait.event, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		q.wait.event = -1
		return fail(q.fail("eventfd", err))
	}
	q.wait.fd = fd
	u, err := newUmem(mem, len(mem))
	if err != nil {
		return fail(q.fail("memory", err))
	}
	q.pool = newPool(newGeometry(mem, cfg.PoolOffset, cfg.ChunkSize, cfg.RxChunks, cfg.TxChunks))
	q.pool.umem = u.get()
	if err := q.mapPoolRings(); err != nil {
		return fail(err)
	}
	if err := q.mapSocketRings(); err != nil {
		return fail(err)
	}
	q.pool.filled = uint64(cfg.RxChunks) // by Open, in the other process
	q.info = h.Info
	q.zc, q.sg, q.maxSegs = h.Info.ZeroCopy, h.Info.MultiBuffer, h.Info.MaxSegs
	return q, nil
}
