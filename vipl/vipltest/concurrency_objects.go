package vipltest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"viaxdp/vipl"
)

// Rules of group concurrency about objects that come and go.

func concurrentObjects(t *T) {
	const threads, rounds = 4, 8
	stop := t.background()
	var group sync.WaitGroup
	for k := range threads {
		group.Go(func() {
			for i := range rounds {
				if err := objects(t, t.A, t.B, disc(), allLevels[(k+i)%3]); err != nil {
					t.Errorf("thread %d, round %d: %v", k, i, err)
					return
				}
			}
		})
	}
	group.Wait()
	stop()
}

// objects makes one object of each kind, connects, and destroys all.
func objects(t *T, a, b *vipl.Nic, d []byte, level vipl.ReliabilityLevel) error {
	tag, err := a.CreatePtag()
	if err != nil {
		return err
	}
	cq, err := a.CreateCQ(1)
	if err != nil {
		return err
	}
	r, err := a.AllocMem(4096, vipl.MemAttributes{Ptag: tag})
	if err != nil {
		return err
	}
	va, err := a.CreateVi(vipl.ViAttributes{Level: level, Ptag: tag}, cq, nil)
	if err != nil {
		return err
	}
	vb, err := b.CreateVi(vipl.ViAttributes{Level: level}, nil, nil)
	if err != nil {
		return err
	}
	accepted := starts(func() error {
		c, err := b.ConnectWait(vipl.NetAddress{Discriminator: d}, patience)
		if err != nil {
			return err
		}
		return c.Accept(vb)
	})
	err = t.request(va, vipl.NetAddress{Host: b.Query().Address, Discriminator: d})
	if err = errors.Join(err, <-accepted); err != nil {
		return err
	}
	x, err := r.Descriptor(0, 1)
	if err != nil {
		return err
	}
	x.SetSegments(r.Segment(64, 1000))
	if err := va.PostRecv(x, r.Handle()); err != nil {
		return err
	}
	if err := vb.Disconnect(); err != nil {
		return err
	}
	if _, err := va.RecvWait(patience); err != vipl.ErrDescriptor {
		return err
	}
	return errors.Join(va.Disconnect(), va.Destroy(), vb.Destroy(), r.Deregister(), cq.Destroy(), tag.Destroy())
}

// background keeps messages going between A and B until the function that it
// returns is called, and checks each.
func (t *T) background() (stop func()) {
	t.Helper()
	const size = 3000
	va, vb := t.pair(vipl.ReliableDelivery)
	x, y := t.block(t.A, 1, size), t.block(t.B, 1, size)
	var over atomic.Bool
	var group sync.WaitGroup
	group.Go(func() {
		for k := 0; !over.Load(); k++ {
			fill(x.buf(0), k)
			err := vb.PostRecv(y.prepare(0, size), y.Handle())
			if err == nil {
				err = va.PostSend(x.prepare(0, size), x.Handle())
			}
			if err == nil {
				_, err = vb.RecvWait(patience)
			}
			if err == nil {
				_, err = va.SendWait(patience)
			}
			if err != nil {
				t.Errorf("message %d of the traffic beside: %v", k, err)
				return
			}
			t.holds("traffic beside", y.buf(0), k)
		}
	})
	return func() {
		over.Store(true)
		group.Wait()
	}
}

func concurrentConnect(t *T) {
	const threads = 4
	v := t.vi(t.A, vipl.ViAttributes{Level: vipl.ReliableDelivery})
	to := vipl.NetAddress{Host: t.B.Query().Address, Discriminator: disc()}
	l, err := t.B.Listen(vipl.NetAddress{Discriminator: to.Discriminator})
	t.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var peers []<-chan error
	for range threads {
		w := t.vi(t.B, vipl.ViAttributes{Level: vipl.ReliableDelivery})
		peers = append(peers, starts(func() error {
			c, err := l.Wait(ctx)
			if err != nil {
				return err
			}
			return c.Accept(w)
		}))
	}
	var won atomic.Int32
	var group sync.WaitGroup
	for range threads {
		group.Go(func() {
			_, err := v.ConnectRequest(vipl.NetAddress{}, to, patience)
			if err == nil {
				won.Add(1)
				return
			}
			t.wantErr("the others", err, vipl.ErrInvalidState)
		})
	}
	group.Wait()
	cancel() // nobody asks any more
	accepted := 0
	for _, p := range peers {
		if err := <-p; err == nil {
			accepted++
		}
	}
	if won.Load() != 1 || accepted != 1 {
		t.Errorf("%d requests and %d accepts succeeded", won.Load(), accepted)
	}
	t.state(v, vipl.Connected)
	t.must(l.Close())
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
	if won.Load() != 1 {
		t.Errorf("%s: %d calls succeeded", what, won.Load())
	}
}

func concurrentDestroy(t *T) {
	for range 10 {
		t.once("DestroyVi", t.vi(t.A, vipl.ViAttributes{Level: vipl.ReliableDelivery}).Destroy, vipl.ErrInvalidParameter)
		t.once("DestroyCQ", t.cq(t.A, 1).Destroy, vipl.ErrInvalidParameter)
		t.once("DeregisterMem", t.alloc(t.A, 64, vipl.MemAttributes{}).Deregister, vipl.ErrInvalidParameter)
	}
}

func concurrentAccept(t *T) {
	for range 5 {
		a := vipl.ViAttributes{Level: vipl.ReliableDelivery}
		va := t.vi(t.A, a)
		var vis [4]*vipl.VI
		for i := range vis {
			vis[i] = t.vi(t.B, a)
		}
		c, result := t.askedOf(va, t.B)
		var next atomic.Int32
		t.once("ConnectAccept", func() error { return c.Accept(vis[next.Add(1)-1]) }, vipl.ErrInvalidParameter)
		t.must(<-result)
		connected := 0
		for _, v := range vis {
			if s, err := v.Query(); err == nil && s.State == vipl.Connected {
				connected++
			}
		}
		if connected != 1 {
			t.Errorf("%d VIs are connected", connected)
		}
	}
}

func concurrentMemory(t *T) {
	const rounds = 100
	va, vb := t.pair(vipl.ReliableReception)
	y := t.block(t.B, 1, 64)
	for range rounds {
		x := t.block(t.A, 1, 64)
		d := x.prepare(0, 64)
		y.recv(vb, 0, 64)
		posted := starts(func() error { return va.PostSend(d, x.Handle()) })
		err := x.Deregister()
		switch post := <-posted; {
		case err == nil && post == nil: // the send was complete by then
			t.sent(va, 0)
			t.received(vb, 0)
		case err == nil:
			t.wantErr("post in deregistered memory", post, vipl.ErrInvalidParameter)
			z := t.block(t.A, 1, 64)
			z.send(va, 0, 64)
			t.sent(va, 0)
			t.received(vb, 0)
		default:
			t.wantErr("deregister", err, vipl.ErrResource)
			t.must(post)
			t.sent(va, 0)
			t.received(vb, 0)
		}
	}
}

func concurrentQueries(t *T) {
	stop := t.background()
	va, vb := t.pair(vipl.ReliableDelivery)
	x := t.block(t.A, 1, 64)
	var group sync.WaitGroup
	for range 3 {
		group.Go(func() {
			for range 300 {
				if s, err := va.Query(); err != nil || s.State != vipl.Connected {
					t.Errorf("VI: %v, %v", s.State, err)
				}
				if s, err := vb.Query(); err != nil || s.State != vipl.Connected {
					t.Errorf("VI: %v, %v", s.State, err)
				}
				if _, err := x.Query(); err != nil {
					t.Errorf("memory: %v", err)
				}
				if a := t.A.Query(); a.MaxVI == 0 {
					t.Error("no NIC attributes")
				}
				t.A.Poll()
				t.B.Poll()
			}
		})
	}
	group.Wait()
	stop()
}
