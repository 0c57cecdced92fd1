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
		a, b := t.ends(vipl.UnreliableDelivery, 1, 1, 101)
		t.drops(a.v, b.v)
		t.must(b.v.Disconnect())
		for _, v := range []*vipl.VI{a.v, b.v} {
			t.must(v.SetAttributes(vipl.VIAttributes{Level: vipl.ReliableReception, MaxTransferSize: 100}))
		}
		t.join(a.v, b.v)
		a.message(b, 100, 1)
		a.send(0, 101) // past the new maximum
		a.sent(vipl.StatusLengthError)
	}),
	rule("vi-objects/set-attributes-only-while-idle", "VipSetViAttributes returns INVALID_STATE in Connect Pending, Connected and Error, and changes nothing.", func(t *T) {
		t.onlyWhenIdle(func(v *vipl.VI) error { return v.SetAttributes(at(vipl.ReliableReception)) })
	}),
	rule("vi-objects/emptiness-until-dequeued", "A work queue is empty for VipQueryVi when its last descriptor was dequeued, not when it completed.", func(t *T) {
		a, b := t.ends(vipl.ReliableReception, 1, 1, 64)
		empty := func(sends, receives bool) {
			sa, sb := t.state(a.v, vipl.Connected), t.state(b.v, vipl.Connected)
			t.errorIf(sa.SendEmpty != sends || sb.RecvEmpty != receives || !sa.RecvEmpty || !sb.SendEmpty, "%+v, %+v", sa, sb)
		}
		empty(true, true)
		b.recv(0, 64)
		empty(true, false)
		t.untilDone(a.send(0, 64), b.desc[0])
		empty(false, false)
		a.sent()
		b.received()
		empty(true, true)
	}),
	rule("vi-objects/receives-wait-for-the-connection", "Receives posted in Idle and in Connect Pending stay posted and serve the connection, in order.", eachLevel(earlyReceives)),
	rule("vi-objects/sends-before-the-connection-fail", "A send that is posted in Idle or Connect Pending completes in error at once.", everyLevel(func(t *T, level vipl.ReliabilityLevel) {
		va, vb := t.idle(level)
		a := t.block(t.A, 1, 64).on(va)
		fails := func() {
			s := a.send(0, 64).Status()
			t.errorIf(!s.Failed(), "its status is %v when it is posted", s)
			t.sendDone(va, vipl.StatusFlushed)
		}
		fails()
		t.state(va, vipl.Idle)
		c, result := t.asked(va, t.B)
		fails()
		t.state(va, vipl.ConnectPending)
		t.accept(c, vb, result)
	})),
	rule("vi-objects/all-posted-in-error-is-flushed", "In Error everything that is posted completes with DESC_FLUSHED.", everyLevel(func(t *T, level vipl.ReliabilityLevel) {
		a, b := t.ends(level, 1, 4, 64)
		t.drops(a.v, b.v)
		for i := range 2 {
			b.recv(2*i, 64)
			b.send(2*i+1, 64)
		}
		for i := range 2 {
			t.same(b.received(vipl.StatusFlushed), b.desc[2*i])
			t.same(b.sent(vipl.StatusFlushed), b.desc[2*i+1])
		}
	})),
	rule("vi-objects/disconnect-flushes-in-order", "VipDisconnect completes what is posted with DESC_FLUSHED, in order, and the VI is Idle.", everyLevel(disconnectFlushes)),
	choice("vi-objects/disconnect-with-sends-under-way", "VipDisconnect completes every send: those that were not done are flushed, behind those that were.", "on reliable VIs what completed sends handed over is delivered before the disconnect", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		disconnectBehindSends(t, level, false)
	})),
	rule("vi-objects/disconnect-is-noticed-by-the-peer", "The VI whose peer disconnects goes to Error, flushed, with an asynchronous CONN_LOST; the one that disconnects gets none.", everyLevel(peerDisconnect)),
	choice("vi-objects/disconnect-twice", "VipDisconnect of a VI that is not connected returns.", "it does nothing and succeeds", func(t *T) {
		v := t.vi(t.A, at(vipl.ReliableDelivery))
		t.wantErr("never connected", v.Disconnect(), nil)
		va, vb := t.pair(vipl.ReliableDelivery)
		for i, v := range []*vipl.VI{va, vb} {
			for range 3 {
				t.wantErr("disconnect", v.Disconnect(), nil)
				t.state(v, vipl.Idle)
			}
			if i == 0 {
				t.state(vb, vipl.Error)
			}
		}
	}),
	choice("vi-objects/disconnect-while-connecting", "VipDisconnect while a ConnectRequest is under way returns.", "INVALID_STATE, and the request goes on", func(t *T) {
		va, vb := t.idle(vipl.ReliableDelivery)
		c, result := t.asked(va, t.B)
		t.wantErr("disconnect", va.Disconnect(), vipl.ErrInvalidState)
		t.state(va, vipl.ConnectPending)
		t.accept(c, vb, result)
		t.state(va, vipl.Connected)
	}),
	rule("vi-objects/disconnect-leads-from-error-to-idle", "VipDisconnect takes a VI from Error to Idle; it can be connected again, by either side.", eachLevel(reconnect)),
	rule("vi-objects/both-disconnect-at-once", "When both sides disconnect at once, both succeed and both VIs are Idle.", everyLevel(func(t *T, level vipl.ReliabilityLevel) {
		va, vb := t.pair(level)
		for range 3 {
			other := starts(va.Disconnect)
			t.wantErr("disconnect", vb.Disconnect(), nil)
			t.wantErr("disconnect", <-other, nil)
			t.states(vipl.Idle, va, vb)
			t.join(va, vb)
		}
	})),
	rule("vi-objects/destroy-only-when-idle", "VipDestroyVi returns ERROR_RESOURCE in Connect Pending, Connected and Error.", func(t *T) {
		va, vb := t.idle(vipl.ReliableDelivery)
		c, result := t.asked(va, t.B)
		t.wantErr("Connect Pending", va.Destroy(), vipl.ErrResource)
		t.accept(c, vb, result)
		t.wantErr("Connected", va.Destroy(), vipl.ErrResource)
		t.drops(va, vb)
		t.wantErr("Error", vb.Destroy(), vipl.ErrResource)
		t.must(vb.Disconnect())
		t.wantErr("Idle", vb.Destroy(), nil)
		t.wantErr("Idle", va.Destroy(), nil)
	}),
	rule("vi-objects/destroy-only-when-empty", "VipDestroyVi returns ERROR_RESOURCE while descriptors are on its work queues, complete or not.", func(t *T) {
		va, vb := t.idle(vipl.ReliableDelivery)
		a := t.block(t.A, 1, 64).on(va)
		a.recv(0, 64)
		t.wantErr("receive posted", va.Destroy(), vipl.ErrResource)
		t.join(va, vb)
		t.must(va.Disconnect())
		t.wantErr("flushed receive", va.Destroy(), vipl.ErrResource)
		a.received(vipl.StatusFlushed)
		a.send(0, 64)
		t.wantErr("flushed send", va.Destroy(), vipl.ErrResource)
		a.sent(vipl.StatusFlushed)
		t.wantErr("empty", va.Destroy(), nil)
	}),
	rule("vi-objects/nothing-works-after-destroy", "Every operation on a destroyed VI returns INVALID_PARAMETER, a second VipDestroyVi as well.", func(t *T) {
		v, peer := t.idle(vipl.ReliableDelivery)
		x := t.block(t.A, 1, 64)
		t.must(v.Destroy())
		x.prepare(0, 64)
		t.wantErr("PostSend", v.PostSend(x.desc[0], x.Handle()), vipl.ErrInvalidParameter)
		t.wantErr("PostRecv", v.PostRecv(x.desc[0], x.Handle()), vipl.ErrInvalidParameter)
		t.isGone(v, x.Handle(), on(t.B, disc()))
		c, result := t.asked(peer, t.A)
		t.wantErr("ConnectAccept", c.Accept(v), vipl.ErrInvalidParameter)
		t.reject(c, result)
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
	t.wantErr("CreateVI", errOf(t.A.CreateVI(a, nil, nil)), want)
	v := t.vi(t.A, vipl.VIAttributes{Level: vipl.ReliableReception, MaxTransferSize: 5000, EnableRDMARead: true})
	before := t.state(v, vipl.Idle).Attributes
	t.wantErr("SetVIAttributes", v.SetAttributes(a), want)
	equal(t, "a refused SetVIAttributes left", t.state(v, vipl.Idle).Attributes, before)
}

const sendsBefore = 30

// disconnectBehindSends disconnects after posting sends, complete or not, and counts those that arrive: at
// least as many as are done.
func disconnectBehindSends(t *T, level vipl.ReliabilityLevel, complete bool) (arrived int) {
	const size = 20_000
	a, b := t.ends(level, sendsBefore, sendsBefore, size)
	b.recvs(sendsBefore, size)
	a.sends(sendsBefore, size)
	done := sendsBefore
	for range sendsBefore {
		if complete {
			a.sent()
		}
	}
	t.must(a.v.Disconnect())
	if !complete {
		done = t.doneThenFlushed(a.v.SendDone, vipl.StatusOpSend, a.desc)
	}
	t.state(b.v, vipl.Error)
	arrived = t.doneThenFlushed(b.v.RecvDone, vipl.StatusOpReceive, b.desc)
	t.errorIf(arrived < done, "%d of %d sends that are done arrived", arrived, done)
	for i := range arrived {
		t.holds("message", b.buf(i), i)
	}
	return arrived
}

func peerDisconnect(t *T, level vipl.ReliabilityLevel) {
	a, b := t.ends(level, 1, 2, 64)
	b.recvs(2, 64)
	t.must(a.v.Disconnect())
	t.errorIf(t.state(b.v, vipl.Error).Cause == nil, "no cause is told")
	b.received(vipl.StatusFlushed, vipl.StatusFlushed)
	t.tells(t.asyncErrors(b.v, vipl.ErrorConnLost)[0], vipl.ErrorDescriptor{NIC: t.B, VI: b.v, Resource: vipl.ResourceVI})
	t.must(b.v.Disconnect())
	t.noErrors(a.v)
}

func reconnect(t *T, level vipl.ReliabilityLevel) {
	a, b := t.ends(level, 1, 1, 64)
	for round := range 4 {
		a.message(b, 64, round)
		t.drops(a.v, b.v)
		t.state(a.v, vipl.Idle)
		t.must(b.v.Disconnect())
		s := t.state(b.v, vipl.Idle)
		t.errorIf(s.Cause != nil, "cause in Idle: %v", s.Cause)
		a, b = b, a
		t.join(a.v, b.v)
	}
}

// disconnectFlushes has receives posted when their VI is disconnected.
func disconnectFlushes(t *T, level vipl.ReliabilityLevel) {
	a, _ := t.ends(level, 10, 1, 64)
	a.recvs(10, 64)
	t.must(a.v.Disconnect())
	s, err := a.v.Query()
	t.errorIf(err != nil || s.State != vipl.Idle || s.Cause != nil, "after it: %+v, %v", s, err)
	for _, d := range a.desc {
		t.same(t.recvDone(a.v, vipl.StatusFlushed), d)
	}
	t.nothingDone(a.v.RecvDone, vipl.ErrDescriptor)
}

// earlyReceives posts receives before the VIs are connected.
func earlyReceives(t *T, level vipl.ReliabilityLevel) {
	va, vb := t.idle(level)
	a, b := t.block(t.A, 4, 64).on(va), t.block(t.B, 4, 64).on(vb)
	a.recvs(2, 64)
	b.recvs(2, 64)
	t.nothingReceived(vb)
	c, result := t.asked(va, t.B)
	t.state(va, vipl.ConnectPending)
	a.recv(2, 64)
	t.nothingReceived(va)
	t.accept(c, vb, result)
	carry := func(from, to *end, posted, k int) {
		for i := range posted {
			from.sendMessage(3, 10+i, k+i)
			to.arrived(i, 10+i, k+i)
			from.sent()
		}
	}
	carry(a, b, 2, 0)
	carry(b, a, 3, 10)
}
