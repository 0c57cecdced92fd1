package bench

import (
	"time"

	"viaxdp/vipl"
)

// A completer finds completed descriptors otherwise than by SendDone, SendWait,
// RecvDone and RecvWait. Its methods answer as those do, with ErrNotDone or
// ErrTimeout when there is none; only with wait may they sleep.
type completer interface {
	send(wait bool) (*vipl.Descriptor, error)
	recv(wait bool) (*vipl.Descriptor, error)
}

// byCQ looks at the completion queue of both work queues.
type byCQ struct {
	cq     *vipl.CQ
	vi     *vipl.VI
	sleeps bool

	sends, recvs int // entries that were taken, of descriptors that were not
}

func (c *byCQ) send(wait bool) (*vipl.Descriptor, error) {
	for c.sends == 0 {
		if err := c.take(wait); err != nil {
			return nil, err
		}
	}
	c.sends--
	return c.vi.SendDone()
}

func (c *byCQ) recv(wait bool) (*vipl.Descriptor, error) {
	for c.recvs == 0 {
		if err := c.take(wait); err != nil {
			return nil, err
		}
	}
	c.recvs--
	return c.vi.RecvDone()
}

// take takes the next entry.
func (c *byCQ) take(wait bool) (err error) {
	var recv bool
	if wait && c.sleeps {
		_, recv, err = c.cq.Wait(maxSleep)
	} else {
		_, recv, err = c.cq.Done()
	}
	switch {
	case err != nil:
		return err
	case recv:
		c.recvs++
	default:
		c.sends++
	}
	return nil
}

// byHandler has handlers that hand descriptors over to the goroutine that
// waits for them. There is one at a time for each work queue, which sets itself
// again.
type byHandler struct {
	sends, recvs chan *vipl.Descriptor // room for all that are posted: a handler never waits
	timer        *time.Timer
}

func newByHandler(vi *vipl.VI) (*byHandler, error) {
	h := &byHandler{
		sends: make(chan *vipl.Descriptor, viRing), recvs: make(chan *vipl.Descriptor, viRing),
		timer: time.NewTimer(maxSleep),
	}
	var sent, received func(*vipl.VI, *vipl.Descriptor)
	// Setting a handler fails once the VI is closed, and then none is needed.
	sent = func(vi *vipl.VI, d *vipl.Descriptor) { h.sends <- d; _ = vi.SendNotify(sent) }
	received = func(vi *vipl.VI, d *vipl.Descriptor) { h.recvs <- d; _ = vi.RecvNotify(received) }
	if err := vi.SendNotify(sent); err != nil {
		return nil, err
	}
	return h, vi.RecvNotify(received)
}

func (h *byHandler) send(wait bool) (*vipl.Descriptor, error) { return h.next(h.sends, wait) }
func (h *byHandler) recv(wait bool) (*vipl.Descriptor, error) { return h.next(h.recvs, wait) }

func (h *byHandler) next(from chan *vipl.Descriptor, wait bool) (*vipl.Descriptor, error) {
	select {
	case d := <-from:
		return whole(d)
	default:
	}
	if !wait {
		return nil, vipl.ErrNotDone
	}
	h.timer.Reset(maxSleep)
	select {
	case d := <-from:
		return whole(d)
	case <-h.timer.C:
		return nil, vipl.ErrTimeout
	}
}

// whole gives a completed descriptor with the error that Done would give.
func whole(d *vipl.Descriptor) (*vipl.Descriptor, error) {
	if d.Status().Failed() {
		return d, vipl.ErrDescriptor
	}
	return d, nil
}
