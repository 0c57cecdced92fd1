package vipltest

import (
	"viaxdp/vipl"
)

// Rules of group vi-objects about the states of a VI.

func viEarlyReceives(t *T) {
	t.eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		va, vb := t.vi(t.A, vipl.ViAttributes{Level: level}), t.vi(t.B, vipl.ViAttributes{Level: level})
		x, y := t.block(t.A, 4, 64), t.block(t.B, 4, 64)
		for i := range 2 {
			y.recv(vb, i, 64)
			x.recv(va, i, 64)
		}
		t.nothingReceived(vb)
		c, result := t.askedOf(va, t.B)
		t.state(va, vipl.ConnectPending)
		x.recv(va, 2, 64)
		t.nothingReceived(va)
		t.must(c.Accept(vb))
		t.must(<-result)
		for k, way := range []struct {
			from, to    *vipl.VI
			fromX, toX  *block
			posted, buf int
		}{{va, vb, x, y, 2, 3}, {vb, va, y, x, 3, 3}} {
			for i := range way.posted {
				fill(way.fromX.buf(way.buf), 10*k+i)
				way.fromX.send(way.from, way.buf, 10+i)
				if d := t.received(way.to, 0); d != way.toX.desc[i] || d.Length != uint32(10+i) {
					t.Errorf("receive %d: not that descriptor, or length %d", i, d.Length)
				}
				t.holds("message", way.toX.buf(i)[:10+i], 10*k+i)
				t.sent(way.from, 0)
			}
		}
	})
}

func viEarlySends(t *T) {
	t.eachOf(allLevels, func(t *T, level vipl.ReliabilityLevel) {
		va, vb := t.vi(t.A, vipl.ViAttributes{Level: level}), t.vi(t.B, vipl.ViAttributes{Level: level})
		x := t.block(t.A, 1, 64)
		fails := func() {
			t.Helper()
			if s := x.send(va, 0, 64).Status(); !s.Failed() {
				t.Errorf("its status is %v when it is posted", s)
			}
			d, err := va.SendDone()
			t.completed("send", d, err, vipl.StatusFlushed)
		}
		fails()
		t.state(va, vipl.Idle)
		c, result := t.askedOf(va, t.B)
		fails()
		t.state(va, vipl.ConnectPending)
		t.must(c.Accept(vb))
		t.must(<-result)
	})
}

func viPostInError(t *T) {
	t.eachOf(allLevels, func(t *T, level vipl.ReliabilityLevel) {
		va, vb := t.pair(level)
		t.must(va.Disconnect())
		t.state(vb, vipl.Error)
		y := t.block(t.B, 4, 64)
		for i := range 2 {
			y.recv(vb, 2*i, 64)
			y.send(vb, 2*i+1, 64)
		}
		for i := range 2 {
			if t.received(vb, vipl.StatusFlushed) != y.desc[2*i] || t.sent(vb, vipl.StatusFlushed) != y.desc[2*i+1] {
				t.Error("not in the order in which they were posted")
			}
		}
	})
}

func viDisconnect(t *T) {
	t.eachOf(allLevels, func(t *T, level vipl.ReliabilityLevel) {
		va, _ := t.pair(level)
		x := t.block(t.A, 10, 64)
		for i := range x.desc {
			x.recv(va, i, 64)
		}
		t.must(va.Disconnect())
		s, err := va.Query()
		if err != nil || s.State != vipl.Idle || s.Cause != nil {
			t.Errorf("after it: %+v, %v", s, err)
		}
		for i := range x.desc {
			if d, err := va.RecvDone(); t.completed("receive", d, err, vipl.StatusFlushed|vipl.StatusOpReceive) != x.desc[i] {
				t.Errorf("receive %d: another descriptor", i)
			}
		}
		if d, err := va.RecvDone(); d != nil || err != vipl.ErrDescriptor {
			t.Errorf("the empty queue: %v, %v", d, err)
		}
	})
}

func viDisconnectSends(t *T) {
	const count, size = 30, 20_000
	t.eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		va, vb := t.pair(level)
		x, y := t.block(t.A, count, size), t.block(t.B, count, size)
		for i := range count {
			y.recv(vb, i, size)
			fill(x.buf(i), i)
		}
		for i := range count {
			x.send(va, i, size)
		}
		t.must(va.Disconnect())
		done := 0
		for i := range count {
			d, err := va.SendDone()
			if d != x.desc[i] {
				t.Fatalf("send %d: %v", i, err)
			}
			switch s := d.Status(); {
			case s == vipl.StatusDone && done == i:
				done++
			case s != vipl.StatusDone|vipl.StatusFlushed:
				t.Errorf("send %d: %v", i, s)
			}
		}
		t.state(vb, vipl.Error)
		for i := range count {
			d, err := vb.RecvDone()
			if d == nil {
				t.Fatalf("receive %d: %v", i, err)
			}
			if err == nil {
				t.holds("message", y.buf(i), i)
			} else if i < done {
				t.Errorf("send %d of %d that are done did not arrive: %v", i, done, d.Status())
			}
		}
	})
}

func viPeerDisconnect(t *T) {
	t.eachOf(allLevels, func(t *T, level vipl.ReliabilityLevel) {
		va, vb := t.pair(level)
		y := t.block(t.B, 2, 64)
		for i := range y.desc {
			y.recv(vb, i, 64)
		}
		t.must(va.Disconnect())
		if s := t.state(vb, vipl.Error); s.Cause == nil {
			t.Error("no cause is told")
		}
		for range y.desc {
			t.received(vb, vipl.StatusFlushed)
		}
		e := t.asyncErrors(vb, vipl.ErrorConnLost)
		if len(e) == 1 && (e[0].Nic != t.B || e[0].Resource != vipl.ResourceVI) {
			t.Errorf("the error is of %v, resource %v", e[0].Nic, e[0].Resource)
		}
		t.must(vb.Disconnect())
		t.asyncErrors(va)
	})
}

func viDisconnectTwice(t *T) {
	v := t.vi(t.A, vipl.ViAttributes{Level: vipl.ReliableDelivery})
	t.wantErr("never connected", v.Disconnect(), nil)
	va, vb := t.pair(vipl.ReliableDelivery)
	for range 3 {
		t.wantErr("disconnect", va.Disconnect(), nil)
	}
	t.state(vb, vipl.Error)
	for range 3 {
		t.wantErr("disconnect of the peer", vb.Disconnect(), nil)
		t.state(vb, vipl.Idle)
	}
}

func viDisconnectPending(t *T) {
	va, vb := t.vi(t.A, vipl.ViAttributes{Level: vipl.ReliableDelivery}), t.vi(t.B, vipl.ViAttributes{Level: vipl.ReliableDelivery})
	c, result := t.askedOf(va, t.B)
	t.wantErr("disconnect", va.Disconnect(), vipl.ErrInvalidState)
	t.state(va, vipl.ConnectPending)
	t.must(c.Accept(vb))
	t.must(<-result)
	t.state(va, vipl.Connected)
}

func viReconnect(t *T) {
	t.eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		va, vb := t.pair(level)
		x, y := t.block(t.A, 1, 64), t.block(t.B, 1, 64)
		for round := range 4 {
			y.recv(vb, 0, 64)
			fill(x.buf(0), round)
			x.send(va, 0, 64)
			t.received(vb, 0)
			t.holds("message", y.buf(0), round)
			t.sent(va, 0)
			first, second := va, vb
			if round%2 == 1 {
				first, second = vb, va
			}
			t.must(first.Disconnect())
			t.state(first, vipl.Idle)
			t.state(second, vipl.Error)
			t.must(second.Disconnect())
			if s := t.state(second, vipl.Idle); s.Cause != nil {
				t.Errorf("cause in Idle: %v", s.Cause)
			}
			t.join(second, first)
		}
	})
}

func viBothDisconnect(t *T) {
	t.eachOf(allLevels, func(t *T, level vipl.ReliabilityLevel) {
		va, vb := t.pair(level)
		for range 3 {
			done := make(chan error)
			for _, v := range []*vipl.VI{va, vb} {
				go func() { done <- v.Disconnect() }()
			}
			for range 2 {
				t.wantErr("disconnect", <-done, nil)
			}
			t.state(va, vipl.Idle)
			t.state(vb, vipl.Idle)
			t.join(va, vb)
		}
	})
}

func viDestroyState(t *T) {
	a := vipl.ViAttributes{Level: vipl.ReliableDelivery}
	va, vb := t.vi(t.A, a), t.vi(t.B, a)
	c, result := t.askedOf(va, t.B)
	t.wantErr("Connect Pending", va.Destroy(), vipl.ErrResource)
	t.must(c.Accept(vb))
	t.must(<-result)
	t.wantErr("Connected", va.Destroy(), vipl.ErrResource)
	t.must(va.Disconnect())
	t.state(vb, vipl.Error)
	t.wantErr("Error", vb.Destroy(), vipl.ErrResource)
	t.must(vb.Disconnect())
	t.wantErr("Idle", vb.Destroy(), nil)
	t.wantErr("Idle", va.Destroy(), nil)
}

func viDestroyEmpty(t *T) {
	va, _ := t.pair(vipl.ReliableDelivery)
	t.must(va.Disconnect())
	x := t.block(t.A, 1, 64)
	x.recv(va, 0, 64)
	t.wantErr("receive posted", va.Destroy(), vipl.ErrResource)
	peer := t.vi(t.B, vipl.ViAttributes{Level: vipl.ReliableDelivery})
	t.join(va, peer)
	t.must(va.Disconnect())
	t.wantErr("flushed receive", va.Destroy(), vipl.ErrResource)
	t.received(va, vipl.StatusFlushed)
	x.send(va, 0, 64)
	t.wantErr("flushed send", va.Destroy(), vipl.ErrResource)
	t.sent(va, vipl.StatusFlushed)
	t.wantErr("empty", va.Destroy(), nil)
}

func viDestroyed(t *T) {
	a := vipl.ViAttributes{Level: vipl.ReliableDelivery}
	v := t.vi(t.A, a)
	x := t.block(t.A, 1, 64)
	t.must(v.Destroy())
	refused := func(what string, err error) {
		t.Helper()
		t.wantErr(what, err, vipl.ErrInvalidParameter)
	}
	refused("DestroyVi", v.Destroy())
	refused("Disconnect", v.Disconnect())
	refused("SetViAttributes", v.SetAttributes(a))
	_, err := v.Query()
	refused("QueryVi", err)
	x.prepare(0, 64)
	refused("PostSend", v.PostSend(x.desc[0], x.Handle()))
	refused("PostRecv", v.PostRecv(x.desc[0], x.Handle()))
	_, err = v.SendWait(moment)
	refused("SendWait", err)
	_, err = v.RecvWait(moment)
	refused("RecvWait", err)
	refused("SendNotify", v.SendNotify(func(*vipl.VI, *vipl.Descriptor) {}))
	refused("RecvNotify", v.RecvNotify(func(*vipl.VI, *vipl.Descriptor) {}))
	to := vipl.NetAddress{Host: t.B.Query().Address, Discriminator: disc()}
	_, err = v.ConnectRequest(vipl.NetAddress{}, to, patience)
	refused("ConnectRequest", err)
	refused("ConnectPeerRequest", v.ConnectPeerRequest(vipl.NetAddress{Discriminator: disc()}, to, patience))
	_, err = v.ConnectPeerDone()
	refused("ConnectPeerDone", err)
	_, err = v.ConnectPeerWait()
	refused("ConnectPeerWait", err)
	c := t.asked(t.vi(t.B, a), t.A)
	refused("ConnectAccept", c.Accept(v))
	t.must(c.Reject())
}
