package vipltest

import (
	"errors"
	"sync"
	"time"

	"viaxdp/vipl"
)

// Rules of group concurrency about the end of what others wait for.

func concurrentClose(t *T) {
	a, b := t.openPair()
	cq := t.cq(a, 1)
	at := vipl.ViAttributes{Level: vipl.ReliableDelivery}
	v, idle, peer := t.vi(a, at), t.vi(a, at), t.vi(a, at)
	t.join(v, t.vi(b, at))
	t.block(a, 1, 64).recv(idle, 0, 64)
	here := a.Query().Address
	t.must(peer.ConnectPeerRequest(vipl.NetAddress{Discriminator: disc()}, vipl.NetAddress{Host: here, Discriminator: disc()}, -1))
	waits := map[string]<-chan error{
		"RecvWait, connected":    starts(func() error { _, err := v.RecvWait(-1); return err }),
		"SendWait":               starts(func() error { _, err := v.SendWait(-1); return err }),
		"SendWait, a second one": starts(func() error { _, err := v.SendWait(patience); return err }),
		"RecvWait, idle":         starts(func() error { _, err := idle.RecvWait(-1); return err }),
		"CQWait":                 starts(func() error { _, _, err := cq.Wait(-1); return err }),
		"ConnectPeerWait":        starts(func() error { _, err := peer.ConnectPeerWait(); return err }),
		"ConnectWait":            starts(func() error { _, err := a.ConnectWait(vipl.NetAddress{Discriminator: disc()}, -1); return err }),
	}
	time.Sleep(moment)
	t.promptly("CloseNic", func() { t.wantErr("close", a.Close(), nil) })
	for what, result := range waits {
		t.promptly(what, func() {
			err := <-result
			flushed := what == "RecvWait, idle" && errors.Is(err, vipl.ErrDescriptor)
			if !flushed && !errors.Is(err, vipl.ErrInvalidParameter) {
				t.Errorf("%s: %v", what, err)
			}
		})
	}
}

// concurrentCloseRequest closes a NIC with a request of its own and one of its
// peer under way.
func concurrentCloseRequest(t *T) {
	a, b := t.openPair()
	at := vipl.ViAttributes{Level: vipl.ReliableDelivery}
	v, w := t.vi(a, at), t.vi(b, at)
	c, own := t.askedOf(v, b)
	_, others := t.askedOf(w, a)
	t.promptly("CloseNic", func() { t.wantErr("close", a.Close(), nil) })
	t.promptly("its own request", func() { t.wantErr("request", <-own, vipl.ErrInvalidParameter) })
	if err := c.Accept(t.vi(b, at)); err == nil {
		t.Error("a request whose NIC was closed can be accepted")
	}
	t.promptly("the peer's request", func() {
		if err := <-others; err == nil {
			t.Error("a request to a closed NIC succeeded")
		}
	})
	t.state(w, vipl.Idle)
}

func concurrentCloseTraffic(t *T) {
	a, b := t.openPair()
	at := vipl.ViAttributes{Level: vipl.ReliableDelivery}
	va, vb := t.vi(a, at), t.vi(b, at)
	t.join(va, vb)
	// The program's own memory: it outlives the NIC.
	buf := make([]byte, 4096)
	r := t.register(a, buf, vipl.MemAttributes{})
	start := int(-r.Addr() % vipl.DescriptorAlignment)
	sends, err := r.Descriptor(start, 1)
	t.must(err)
	recvs, err := r.Descriptor(start+64, 1)
	t.must(err)
	h := r.Handle()
	var group sync.WaitGroup
	until := func(f func() error) {
		group.Go(func() {
			for end := time.Now().Add(patience); !errors.Is(f(), vipl.ErrInvalidParameter); {
				if time.Now().After(end) {
					t.Error("no INVALID_PARAMETER after the close")
					return
				}
			}
		})
	}
	until(func() error { return va.PostSend(sends, h) })
	until(func() error { return va.PostRecv(recvs, h) })
	until(func() error { _, err := va.SendWait(time.Millisecond); return err })
	until(func() error { _, err := va.RecvWait(-1); return err })
	until(func() error { _, err := va.Query(); return err })
	until(func() error { _, err := a.CreateCQ(1); return err })
	until(func() error {
		v, err := a.CreateVi(at, nil, nil)
		if err == nil {
			v.Destroy()
		}
		return err
	})
	time.Sleep(moment)
	t.promptly("CloseNic", func() { t.wantErr("close", a.Close(), nil) })
	t.promptly("the others", group.Wait)
	t.state(vb, vipl.Error)
}

func concurrentDisconnect(t *T) {
	t.eachOf(allLevels, func(t *T, level vipl.ReliabilityLevel) {
		va, vb := t.pair(level)
		x, y := t.block(t.A, 2, 64), t.block(t.B, 2, 64)
		var waits []<-chan error
		for i := range 2 {
			x.recv(va, i, 64)
			y.recv(vb, i, 64)
			for _, v := range []*vipl.VI{va, vb} {
				waits = append(waits, starts(func() error {
					d, err := v.RecvWait(patience)
					if d != nil && d.Status()&vipl.StatusFlushed == 0 {
						t.Errorf("status %v", d.Status())
					}
					return err
				}))
			}
		}
		time.Sleep(moment)
		t.must(va.Disconnect())
		for _, w := range waits {
			t.wantErr("wait", <-w, vipl.ErrDescriptor)
		}
	})
}
