package vipltest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"viaxdp/vipl"
)

// Rules of group concurrency about objects that come and go.

// objects makes one object of each kind, connects, and destroys all.
func objects(t *T, a, b *vipl.NIC, d []byte, level vipl.ReliabilityLevel) error {
	tag, err1 := a.CreatePtag()
	cq, err2 := a.CreateCQ(1)
	r, err3 := a.AllocMem(4096, vipl.MemAttributes{Ptag: tag})
	va, err4 := a.CreateVI(vipl.VIAttributes{Level: level, Ptag: tag}, cq, nil)
	vb, err5 := b.CreateVI(at(level), nil, nil)
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		return err
	}
	accepted := serves(vb, named(d))
	if err := errors.Join(t.request(va, on(b, d)), <-accepted); err != nil {
		return err
	}
	x, err := r.Descriptor(0, 1)
	if err != nil {
		return err
	}
	x.SetSegments(r.Segment(64, 1000))
	if err := errors.Join(va.PostRecv(x, r.Handle()), vb.Disconnect()); err != nil {
		return err
	}
	if _, err := va.RecvWait(ackDelay); err != vipl.ErrDescriptor {
		return fmt.Errorf("the flushed receive: %v", err)
	}
	return errors.Join(va.Disconnect(), va.Destroy(), vb.Destroy(), r.Deregister(), cq.Destroy(), tag.Destroy())
}

// pass sends a whole buffer from one VI to another.
func pass(va *vipl.VI, a *block, i int, vb *vipl.VI, b *block, j int) error {
	if err := errors.Join(vb.PostRecv(b.prepare(j, b.size), b.Handle()), va.PostSend(a.prepare(i, a.size), a.Handle())); err != nil {
		return err
	}
	return errors.Join(errOf(vb.RecvWait(ackDelay)), errOf(va.SendWait(ackDelay)))
}

// background keeps messages going between A and B until the function that it
// returns is called, and checks each.
func (t *T) background() (stop func()) {
	t.Helper()
	const size = 3000
	va, vb, x, y := t.ends(vipl.ReliableDelivery, 1, 1, size)
	var over atomic.Bool
	var group sync.WaitGroup
	group.Go(func() {
		for k := 0; !over.Load(); k++ {
			fill(x.buf(0), k)
			if err := pass(va, x, 0, vb, y, 0); err != nil {
				t.Errorf("message %d of the traffic beside: %v", k, err)
				return
			}
			t.coalesces("traffic beside", y.buf(0), k)
		}
	})
	return func() {
		over.Store(true)
		group.Wait()
	}
}

// once checks that of several calls at once exactly one succeeds, and that the
// others get the code.
func (t *T) once(what string, f func() error, others error) {
	t.Helper()
	var won atomic.Int32
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			if err := f(); err == nil {
				won.Add(1)
			} else {
				t.wantErr(what, err, others)
			}
		})
	}
	group.Wait()
	t.errorIf(won.Load() != 1, "%s: %d calls succeeded", what, won.Load())
}
