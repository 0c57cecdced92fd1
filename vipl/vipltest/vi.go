package vipltest

import (
	"errors"

	"viaxdp/vipl"
)

var viRules = []Rule{
	rule("vi-objects/created-idle-and-empty", "VipCreateVi makes a VI in state Idle with both work queues empty.", func(t *T) {
		for _, level := range allLevels {
			v := t.vi(t.A, at(level))
			s, err := v.Query()
			t.errorIf(err != nil || s.State != vipl.Idle || !s.SendEmpty || !s.RecvEmpty || s.Cause != nil, "%+v, %v", s, err)
			t.nothingDone(v.SendDone, vipl.ErrDescriptor)
			t.nothingDone(v.RecvDone, vipl.ErrDescriptor)
		}
	}),
	rule("vi-objects/query-tells-the-attributes", "VipQueryVi tells the attributes that the VI was made with.", func(t *T) {
		tag := t.tag(t.A)
		for _, want := range []vipl.VIAttributes{
			{Level: vipl.UnreliableDelivery, MaxTransferSize: 32768},
			{Level: vipl.UnreliableDelivery, MaxTransferSize: 1, EnableRDMAWrite: true},
			{Level: vipl.ReliableDelivery, MaxTransferSize: 32000, Ptag: tag, EnableRDMARead: true},
			{Level: vipl.ReliableReception, MaxTransferSize: 1 << 20, EnableRDMAWrite: true, EnableRDMARead: true},
		} {
			equal(t, "attributes", t.state(t.vi(t.A, want), vipl.Idle).Attributes, want)
		}
	}),
	rule("vi-objects/any-transfer-size-up-to-the-maximum", "MaxTransferSize may be any value up to the NIC's maximum; a larger one is INVALID_MTU.", func(t *T) {
		most := t.A.Query().MaxTransferSize
		for _, n := range []int{1, 1000, 32000, 32767, 32768, most - 1, most} {
			t.vi(t.A, vipl.VIAttributes{Level: vipl.ReliableDelivery, MaxTransferSize: n})
		}
		for _, n := range []int{-1, most + 1, 1 << 40} {
			t.refusedAttributes(vipl.VIAttributes{Level: vipl.ReliableDelivery, MaxTransferSize: n}, vipl.ErrInvalidMTU)
		}
	}),
	choice("vi-objects/transfer-size-default", "What a MaxTransferSize of 0 means is the provider's.", "the NIC's maximum", func(t *T) {
		v := t.vi(t.A, at(vipl.ReliableDelivery))
		equal(t, "MaxTransferSize", t.state(v, vipl.Idle).Attributes.MaxTransferSize, t.A.Query().MaxTransferSize)
	}),
	rule("vi-objects/one-level-exactly", "A reliability level that is none, or several in one, is INVALID_RELIABILITY_LEVEL.", func(t *T) {
		for _, level := range []vipl.ReliabilityLevel{0, 3, 5, 6, 7, 8, 0xffff} {
			t.refusedAttributes(at(level), vipl.ErrInvalidReliabilityLevel)
		}
	}),
	choice("vi-objects/qos-is-undefined", "VIPL does not define quality of service.", "anything but 0 is INVALID_QOS", func(t *T) {
		t.refusedAttributes(vipl.VIAttributes{Level: vipl.ReliableDelivery, QoS: 1}, vipl.ErrInvalidQoS)
	}),
	rule("vi-objects/rdma-read-needs-a-reliable-level", "EnableRDMARead at a level without RDMA read is INVALID_RDMAREAD.", func(t *T) {
		t.refusedAttributes(vipl.VIAttributes{Level: vipl.UnreliableDelivery, EnableRDMARead: true}, vipl.ErrInvalidRDMARead)
		t.vi(t.A, vipl.VIAttributes{Level: vipl.UnreliableDelivery, EnableRDMAWrite: true})
	}),
	rule("vi-objects/set-attributes-changes-an-idle-vi", "VipSetViAttributes changes the attributes of an Idle VI; it lets go of the old tag and holds the new one.", func(t *T) {
		one, two := t.tag(t.A), t.tag(t.A)
		v := t.vi(t.A, vipl.VIAttributes{Level: vipl.UnreliableDelivery, Ptag: one})
		want := vipl.VIAttributes{
			Level: vipl.ReliableReception, MaxTransferSize: 777, EnableRDMAWrite: true, EnableRDMARead: true, Ptag: two,
		}
		t.must(v.SetAttributes(want))
		equal(t, "attributes", t.state(v, vipl.Idle).Attributes, want)
		t.wantErr("the old tag", one.Destroy(), nil)
		t.wantErr("the new tag", two.Destroy(), vipl.ErrResource)

		gone := t.tag(t.A)
		t.must(gone.Destroy())
		for _, tag := range []*vipl.Ptag{gone, t.tag(t.B)} {
			t.refusedAttributes(vipl.VIAttributes{Level: vipl.ReliableDelivery, Ptag: tag}, vipl.ErrInvalidPtag)
		}
	}),
	rule("vi-objects/set-attributes-decides-the-next-connection", "Attributes that were set while Idle are those that the next connection has.", func(t *T) {
		va, vb := t.pair(vipl.UnreliableDelivery)
		t.must(va.Disconnect())
		t.state(vb, vipl.Error)
		t.must(vb.Disconnect())
		a := vipl.VIAttributes{Level: vipl.ReliableReception, MaxTransferSize: 100}
		t.must(va.SetAttributes(a))
		t.must(vb.SetAttributes(a))
		t.join(va, vb)
		x, y := t.block(t.A, 1, 101), t.block(t.B, 1, 101)
		y.recv(vb, 0, 101)
		x.sendDone(va, 0, 100)
		t.received(vb, 0)
		x.send(va, 0, 101) // past the new maximum
		t.sent(va, vipl.StatusLengthError)
	}),
	rule("vi-objects/set-attributes-only-while-idle", "VipSetViAttributes returns INVALID_STATE in Connect Pending, Connected and Error, and changes nothing.", func(t *T) {
		a := vipl.VIAttributes{Level: vipl.ReliableDelivery, MaxTransferSize: 1000}
		other := at(vipl.ReliableReception)
		va, vb := t.vi(t.A, a), t.vi(t.B, a)
		refused := func(v *vipl.VI, in vipl.State) {
			t.Helper()
			t.state(v, in)
			t.wantErr(in.String(), v.SetAttributes(other), vipl.ErrInvalidState)
			equal(t, "attributes", t.state(v, in).Attributes, a)
		}
		c, result := t.askedOf(va, t.B)
		refused(va, vipl.ConnectPending)
		t.accept(c, vb, result)
		refused(va, vipl.Connected)
		refused(vb, vipl.Connected)
		t.must(va.Disconnect())
		refused(vb, vipl.Error)
		t.must(vb.Disconnect())
		t.must(vb.SetAttributes(other))
	}),
	rule("vi-objects/emptiness-until-dequeued", "A work queue is empty for VipQueryVi when its last descriptor was dequeued, not when it completed.", func(t *T) {
		va, vb, x, y := t.ends(vipl.ReliableReception, 1, 1, 64)
		is := func(v *vipl.VI, send, recv bool) {
			t.Helper()
			s := t.state(v, vipl.Connected)
			t.errorIf(s.SendEmpty != send || s.RecvEmpty != recv, "empty: send queue %v, receive queue %v", s.SendEmpty, s.RecvEmpty)
		}
		is(va, true, true)
		y.recv(vb, 0, 64)
		is(vb, true, false)
		d := x.send(va, 0, 64)
		t.until("the send completes", func() bool { t.A.Poll(); return d.Status()&vipl.StatusDone != 0 })
		is(va, false, true)
		is(vb, true, false)
		t.sent(va, 0)
		t.received(vb, 0)
		is(va, true, true)
		is(vb, true, true)
	}),
	rule("vi-objects/receives-wait-for-the-connection", "Receives posted in Idle and in Connect Pending stay posted and serve the connection, in order.", eachLevel(earlyReceives)),
	rule("vi-objects/sends-before-the-connection-fail", "A send that is posted in Idle or Connect Pending completes in error at once.", everyLevel(func(t *T, level vipl.ReliabilityLevel) {
		va, vb := t.idle(level)
		x := t.block(t.A, 1, 64)
		fails := func() {
			t.Helper()
			s := x.send(va, 0, 64).Status()
			t.errorIf(!s.Failed(), "its status is %v when it is posted", s)
			t.sendDone(va, vipl.StatusFlushed)
		}
		fails()
		t.state(va, vipl.Idle)
		c, result := t.askedOf(va, t.B)
		fails()
		t.state(va, vipl.ConnectPending)
		t.accept(c, vb, result)
	})),
	rule("vi-objects/all-posted-in-error-is-flushed", "In Error everything that is posted completes with DESC_FLUSHED.", everyLevel(func(t *T, level vipl.ReliabilityLevel) {
		va, vb := t.pair(level)
		t.must(va.Disconnect())
		t.state(vb, vipl.Error)
		y := t.block(t.B, 4, 64)
		for i := range 2 {
			y.recv(vb, 2*i, 64)
			y.send(vb, 2*i+1, 64)
		}
		for i := range 2 {
			t.errorIf(t.received(vb, vipl.StatusFlushed) != y.desc[2*i] || t.sent(vb, vipl.StatusFlushed) != y.desc[2*i+1], "not in the order in which they were posted")
		}
	})),
	rule("vi-objects/disconnect-flushes-in-order", "VipDisconnect completes what is posted with DESC_FLUSHED, in order, and the VI is Idle.", everyLevel(disconnectFlushes)),
	choice("vi-objects/disconnect-with-sends-under-way", "VipDisconnect completes every send: those that were not done are flushed, behind those that were.", "on reliable VIs what completed sends handed over is delivered before the disconnect", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		const count, size = 30, 20_000
		va, vb, x, y := t.ends(level, count, count, size)
		for i := range count {
			y.recv(vb, i, size)
			fill(x.buf(i), i)
		}
		x.sends(va, count, size)
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
				t.coalesces("message", y.buf(i), i)
			} else if i < done {
				t.Errorf("send %d of %d that are done did not arrive: %v", i, done, d.Status())
			}
		}
	})),
	rule("vi-objects/disconnect-is-noticed-by-the-peer", "The VI whose peer disconnects goes to Error, flushed, with an asynchronous CONN_LOST; the one that disconnects gets none.", everyLevel(peerDisconnect)),
	choice("vi-objects/disconnect-twice", "VipDisconnect of a VI that is not connected returns.", "it does nothing and succeeds", func(t *T) {
		v := t.vi(t.A, at(vipl.ReliableDelivery))
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
	}),
	choice("vi-objects/disconnect-while-connecting", "VipDisconnect while a ConnectRequest is under way returns.", "INVALID_STATE, and the request goes on", func(t *T) {
		va, vb := t.idle(vipl.ReliableDelivery)
		c, result := t.askedOf(va, t.B)
		t.wantErr("disconnect", va.Disconnect(), vipl.ErrInvalidState)
		t.state(va, vipl.ConnectPending)
		t.accept(c, vb, result)
		t.state(va, vipl.Connected)
	}),
	rule("vi-objects/disconnect-leads-from-error-to-idle", "VipDisconnect takes a VI from Error to Idle; it can be connected again, by either side.", eachLevel(reconnect)),
	rule("vi-objects/both-disconnect-at-once", "When both sides disconnect at once, both succeed and both VIs are Idle.", everyLevel(func(t *T, level vipl.ReliabilityLevel) {
		va, vb := t.pair(level)
		for range 3 {
			done := make(chan error)
			for _, v := range []*vipl.VI{va, vb} {
				go func() { done <- v.Disconnect() }()
			}
			for range 2 {
				t.wantErr("disconnect", <-done, nil)
			}
			t.states(vipl.Idle, va, vb)
			t.join(va, vb)
		}
	})),
	rule("vi-objects/destroy-only-when-idle", "VipDestroyVi returns ERROR_RESOURCE in Connect Pending, Connected and Error.", func(t *T) {
		va, vb := t.idle(vipl.ReliableDelivery)
		c, result := t.askedOf(va, t.B)
		t.wantErr("Connect Pending", va.Destroy(), vipl.ErrResource)
		t.accept(c, vb, result)
		t.wantErr("Connected", va.Destroy(), vipl.ErrResource)
		t.must(va.Disconnect())
		t.state(vb, vipl.Error)
		t.wantErr("Error", vb.Destroy(), vipl.ErrResource)
		t.must(vb.Disconnect())
		t.wantErr("Idle", vb.Destroy(), nil)
		t.wantErr("Idle", va.Destroy(), nil)
	}),
	rule("vi-objects/destroy-only-when-empty", "VipDestroyVi returns ERROR_RESOURCE while descriptors are on its work queues, complete or not.", func(t *T) {
		va, _ := t.pair(vipl.ReliableDelivery)
		t.must(va.Disconnect())
		x := t.block(t.A, 1, 64)
		x.recv(va, 0, 64)
		t.wantErr("receive posted", va.Destroy(), vipl.ErrResource)
		peer := t.vi(t.B, at(vipl.ReliableDelivery))
		t.join(va, peer)
		t.must(va.Disconnect())
		t.wantErr("flushed receive", va.Destroy(), vipl.ErrResource)
		t.received(va, vipl.StatusFlushed)
		x.send(va, 0, 64)
		t.wantErr("flushed send", va.Destroy(), vipl.ErrResource)
		t.sent(va, vipl.StatusFlushed)
		t.wantErr("empty", va.Destroy(), nil)
	}),
	rule("vi-objects/nothing-works-after-destroy", "Every operation on a destroyed VI returns INVALID_PARAMETER, a second VipDestroyVi as well.", func(t *T) {
		a := at(vipl.ReliableDelivery)
		v := t.vi(t.A, a)
		x := t.block(t.A, 1, 64)
		t.must(v.Destroy())
		x.prepare(0, 64)
		t.wantErr("PostSend", v.PostSend(x.desc[0], x.Handle()), vipl.ErrInvalidParameter)
		t.wantErr("PostRecv", v.PostRecv(x.desc[0], x.Handle()), vipl.ErrInvalidParameter)
		t.isGone(v, x.Handle(), on(t.B, disc()))
		c := t.asked(t.vi(t.B, a), t.A)
		t.wantErr("ConnectAccept", c.Accept(v), vipl.ErrInvalidParameter)
		t.must(c.Reject())
	}),
	rule("vi-objects/done-on-a-destroyed-vi", "VipSendDone and VipRecvDone of a destroyed VI return an error and no descriptor.", func(t *T) {
		v := t.vi(t.A, at(vipl.ReliableDelivery))
		t.must(v.Destroy())
		for _, done := range []func() (*vipl.Descriptor, error){v.SendDone, v.RecvDone} {
			d, err := done()
			t.errorIf(d != nil || err == nil || errors.Is(err, vipl.ErrNotDone), "%v, %v", d, err)
		}
	}),
	rule("vi-objects/belongs-to-its-nic", "A VI names the NIC that it was made on.", func(t *T) {
		va, vb := t.pair(vipl.UnreliableDelivery)
		t.errorIf(va.NIC() != t.A || vb.NIC() != t.B, "another NIC")
	}),
}

// refusedAttributes checks that neither CreateVI nor SetVIAttributes takes a.
func (t *T) refusedAttributes(a vipl.VIAttributes, want error) {
	t.Helper()
	t.wantErr("CreateVI", errOf(t.A.CreateVI(a, nil, nil)), want)
	v := t.vi(t.A, vipl.VIAttributes{Level: vipl.ReliableReception, MaxTransferSize: 5000, EnableRDMARead: true})
	before := t.state(v, vipl.Idle).Attributes
	t.wantErr("SetVIAttributes", v.SetAttributes(a), want)
	equal(t, "a refused SetVIAttributes left", t.state(v, vipl.Idle).Attributes, before)
}

func peerDisconnect(t *T, level vipl.ReliabilityLevel) {
	va, vb := t.pair(level)
	y := t.block(t.B, 2, 64)
	y.recvs(vb, len(y.desc), 64)
	t.must(va.Disconnect())
	t.errorIf(t.state(vb, vipl.Error).Cause == nil, "no cause is told")
	for range y.desc {
		t.received(vb, vipl.StatusFlushed)
	}
	t.tells(t.asyncErrors(vb, vipl.ErrorConnLost)[0], vipl.ErrorDescriptor{NIC: t.B, VI: vb, Resource: vipl.ResourceVI})
	t.must(vb.Disconnect())
	t.asyncErrors(va)
}

func reconnect(t *T, level vipl.ReliabilityLevel) {
	va, vb, x, y := t.ends(level, 1, 1, 64)
	for round := range 4 {
		t.message(va, x, vb, y, 64, round)
		first, second := va, vb
		if round%2 == 1 {
			first, second = vb, va
		}
		t.must(first.Disconnect())
		t.state(first, vipl.Idle)
		t.state(second, vipl.Error)
		t.must(second.Disconnect())
		s := t.state(second, vipl.Idle)
		t.errorIf(s.Cause != nil, "cause in Idle: %v", s.Cause)
		t.join(second, first)
	}
}

// disconnectFlushes has receives posted when their VI is disconnected.
func disconnectFlushes(t *T, level vipl.ReliabilityLevel) {
	va, _ := t.pair(level)
	x := t.block(t.A, 10, 64)
	x.recvs(va, len(x.desc), 64)
	t.must(va.Disconnect())
	s, err := va.Query()
	t.errorIf(err != nil || s.State != vipl.Idle || s.Cause != nil, "after it: %+v, %v", s, err)
	for i := range x.desc {
		d, err := va.RecvDone()
		t.errorIf(t.completed("receive", d, err, vipl.StatusFlushed|vipl.StatusOpReceive) != x.desc[i], "receive %d: another descriptor", i)
	}
	t.nothingDone(va.RecvDone, vipl.ErrDescriptor)
}

// earlyReceives posts receives before the VIs are connected.
func earlyReceives(t *T, level vipl.ReliabilityLevel) {
	va, vb := t.idle(level)
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
	t.accept(c, vb, result)
	for k, way := range []struct {
		from, to    *vipl.VI
		fromX, toX  *block
		posted, buf int
	}{{va, vb, x, y, 2, 3}, {vb, va, y, x, 3, 3}} {
		for i := range way.posted {
			way.fromX.sendMessage(way.from, way.buf, 10+i, 10*k+i)
			t.same(t.receivedMessage(way.to, way.toX.buf(i)[:10+i], 10*k+i), way.toX.desc[i])
			t.sent(way.from, 0)
		}
	}
}
