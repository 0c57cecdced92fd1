package vipltest

import (
	"errors"

	"viaxdp/vipl"
)

var viRules = []Rule{
	{
		ID:   "vi-objects/created-idle-and-empty",
		Text: "VipCreateVi makes a VI in state Idle with both work queues empty.",
		run:  viCreated,
	},
	{
		ID:   "vi-objects/query-tells-the-attributes",
		Text: "VipQueryVi tells the attributes that the VI was made with.",
		run:  viAttributes,
	},
	{
		ID:   "vi-objects/any-transfer-size-up-to-the-maximum",
		Text: "MaxTransferSize may be any value up to the NIC's maximum; a larger one is INVALID_MTU.",
		run:  viTransferSize,
	},
	{
		ID:     "vi-objects/transfer-size-default",
		Text:   "What a MaxTransferSize of 0 means is the provider's.",
		Choice: "the NIC's maximum",
		run: func(t *T) {
			v := t.vi(t.A, vipl.ViAttributes{Level: vipl.ReliableDelivery})
			if s := t.state(v, vipl.Idle); s.Attributes.MaxTransferSize != t.A.Query().MaxTransferSize {
				t.Errorf("%d bytes", s.Attributes.MaxTransferSize)
			}
		},
	},
	{
		ID:   "vi-objects/one-level-exactly",
		Text: "A reliability level that is none, or several in one, is INVALID_RELIABILITY_LEVEL.",
		run: func(t *T) {
			for _, level := range []vipl.ReliabilityLevel{0, 3, 5, 6, 7, 8, 0xffff} {
				t.refusedAttributes(vipl.ViAttributes{Level: level}, vipl.ErrInvalidReliabilityLevel)
			}
		},
	},
	{
		ID:     "vi-objects/qos-is-undefined",
		Text:   "VIPL does not define quality of service.",
		Choice: "anything but 0 is INVALID_QOS",
		run: func(t *T) {
			t.refusedAttributes(vipl.ViAttributes{Level: vipl.ReliableDelivery, QoS: 1}, vipl.ErrInvalidQoS)
		},
	},
	{
		ID:   "vi-objects/rdma-read-needs-a-reliable-level",
		Text: "EnableRdmaRead at a level without RDMA read is INVALID_RDMAREAD.",
		run: func(t *T) {
			t.refusedAttributes(vipl.ViAttributes{Level: vipl.UnreliableDelivery, EnableRdmaRead: true}, vipl.ErrInvalidRDMARead)
			t.vi(t.A, vipl.ViAttributes{Level: vipl.UnreliableDelivery, EnableRdmaWrite: true})
		},
	},
	{
		ID:   "vi-objects/set-attributes-changes-an-idle-vi",
		Text: "VipSetViAttributes changes the attributes of an Idle VI; it lets go of the old tag and holds the new one.",
		run:  viSet,
	},
	{
		ID:   "vi-objects/set-attributes-decides-the-next-connection",
		Text: "Attributes that were set while Idle are those that the next connection has.",
		run:  viSetConnect,
	},
	{
		ID:   "vi-objects/set-attributes-only-while-idle",
		Text: "VipSetViAttributes returns INVALID_STATE in Connect Pending, Connected and Error, and changes nothing.",
		run:  viSetState,
	},
	{
		ID:   "vi-objects/emptiness-until-dequeued",
		Text: "A work queue is empty for VipQueryVi when its last descriptor was dequeued, not when it completed.",
		run:  viEmptiness,
	},
	{
		ID:   "vi-objects/receives-wait-for-the-connection",
		Text: "Receives posted in Idle and in Connect Pending stay posted and serve the connection, in order.",
		run:  viEarlyReceives,
	},
	{
		ID:   "vi-objects/sends-before-the-connection-fail",
		Text: "A send that is posted in Idle or Connect Pending completes in error at once.",
		run:  viEarlySends,
	},
	{
		ID:   "vi-objects/all-posted-in-error-is-flushed",
		Text: "In Error everything that is posted completes with DESC_FLUSHED.",
		run:  viPostInError,
	},
	{
		ID:   "vi-objects/disconnect-flushes-in-order",
		Text: "VipDisconnect completes what is posted with DESC_FLUSHED, in order, and the VI is Idle.",
		run:  viDisconnect,
	},
	{
		ID:     "vi-objects/disconnect-with-sends-under-way",
		Text:   "VipDisconnect completes every send: those that were not done are flushed, behind those that were.",
		Choice: "on reliable VIs what completed sends handed over is delivered before the disconnect",
		run:    viDisconnectSends,
	},
	{
		ID:   "vi-objects/disconnect-is-noticed-by-the-peer",
		Text: "The VI whose peer disconnects goes to Error, flushed, with an asynchronous CONN_LOST; the one that disconnects gets none.",
		run:  viPeerDisconnect,
	},
	{
		ID:     "vi-objects/disconnect-twice",
		Text:   "VipDisconnect of a VI that is not connected returns.",
		Choice: "it does nothing and succeeds",
		run:    viDisconnectTwice,
	},
	{
		ID:     "vi-objects/disconnect-while-connecting",
		Text:   "VipDisconnect while a ConnectRequest is under way returns.",
		Choice: "INVALID_STATE, and the request goes on",
		run:    viDisconnectPending,
	},
	{
		ID:   "vi-objects/disconnect-leads-from-error-to-idle",
		Text: "VipDisconnect takes a VI from Error to Idle; it can be connected again, by either side.",
		run:  viReconnect,
	},
	{
		ID:   "vi-objects/both-disconnect-at-once",
		Text: "When both sides disconnect at once, both succeed and both VIs are Idle.",
		run:  viBothDisconnect,
	},
	{
		ID:   "vi-objects/destroy-only-when-idle",
		Text: "VipDestroyVi returns ERROR_RESOURCE in Connect Pending, Connected and Error.",
		run:  viDestroyState,
	},
	{
		ID:   "vi-objects/destroy-only-when-empty",
		Text: "VipDestroyVi returns ERROR_RESOURCE while descriptors are on its work queues, complete or not.",
		run:  viDestroyEmpty,
	},
	{
		ID:   "vi-objects/nothing-works-after-destroy",
		Text: "Every operation on a destroyed VI returns INVALID_PARAMETER, a second VipDestroyVi as well.",
		run:  viDestroyed,
	},
	{
		ID:   "vi-objects/done-on-a-destroyed-vi",
		Text: "VipSendDone and VipRecvDone of a destroyed VI return an error and no descriptor.",
		run: func(t *T) {
			v := t.vi(t.A, vipl.ViAttributes{Level: vipl.ReliableDelivery})
			t.must(v.Destroy())
			for _, done := range []func() (*vipl.Descriptor, error){v.SendDone, v.RecvDone} {
				if d, err := done(); d != nil || err == nil || errors.Is(err, vipl.ErrNotDone) {
					t.Errorf("%v, %v", d, err)
				}
			}
		},
	},
	{
		ID:   "vi-objects/belongs-to-its-nic",
		Text: "A VI names the NIC that it was made on.",
		run: func(t *T) {
			va, vb := t.pair(vipl.UnreliableDelivery)
			if va.Nic() != t.A || vb.Nic() != t.B {
				t.Error("another NIC")
			}
		},
	},
}

// refusedAttributes checks that neither CreateVi nor SetViAttributes takes a.
func (t *T) refusedAttributes(a vipl.ViAttributes, want error) {
	t.Helper()
	_, err := t.A.CreateVi(a, nil, nil)
	t.wantErr("CreateVi", err, want)
	v := t.vi(t.A, vipl.ViAttributes{Level: vipl.ReliableReception, MaxTransferSize: 5000, EnableRdmaRead: true})
	before := t.state(v, vipl.Idle).Attributes
	t.wantErr("SetViAttributes", v.SetAttributes(a), want)
	if after := t.state(v, vipl.Idle).Attributes; after != before {
		t.Errorf("a refused SetViAttributes left %+v, before %+v", after, before)
	}
}

func viCreated(t *T) {
	for _, level := range allLevels {
		v := t.vi(t.A, vipl.ViAttributes{Level: level})
		s, err := v.Query()
		if err != nil || s.State != vipl.Idle || !s.SendEmpty || !s.RecvEmpty || s.Cause != nil {
			t.Errorf("%+v, %v", s, err)
		}
		for name, done := range map[string]func() (*vipl.Descriptor, error){"send": v.SendDone, "receive": v.RecvDone} {
			if d, err := done(); d != nil || err != vipl.ErrDescriptor {
				t.Errorf("%s queue: %v, %v", name, d, err)
			}
		}
	}
}

func viAttributes(t *T) {
	tag := t.tag(t.A)
	for _, want := range []vipl.ViAttributes{
		{Level: vipl.UnreliableDelivery, MaxTransferSize: 32768},
		{Level: vipl.UnreliableDelivery, MaxTransferSize: 1, EnableRdmaWrite: true},
		{Level: vipl.ReliableDelivery, MaxTransferSize: 32000, Ptag: tag, EnableRdmaRead: true},
		{Level: vipl.ReliableReception, MaxTransferSize: 1 << 20, EnableRdmaWrite: true, EnableRdmaRead: true},
	} {
		if s := t.state(t.vi(t.A, want), vipl.Idle); s.Attributes != want {
			t.Errorf("%+v, want %+v", s.Attributes, want)
		}
	}
}

func viTransferSize(t *T) {
	most := t.A.Query().MaxTransferSize
	for _, n := range []int{1, 1000, 32000, 32767, 32768, most - 1, most} {
		t.vi(t.A, vipl.ViAttributes{Level: vipl.ReliableDelivery, MaxTransferSize: n})
	}
	for _, n := range []int{-1, most + 1, 1 << 40} {
		t.refusedAttributes(vipl.ViAttributes{Level: vipl.ReliableDelivery, MaxTransferSize: n}, vipl.ErrInvalidMTU)
	}
}

func viSet(t *T) {
	one, two := t.tag(t.A), t.tag(t.A)
	v := t.vi(t.A, vipl.ViAttributes{Level: vipl.UnreliableDelivery, Ptag: one})
	want := vipl.ViAttributes{
		Level: vipl.ReliableReception, MaxTransferSize: 777, EnableRdmaWrite: true, EnableRdmaRead: true, Ptag: two,
	}
	t.must(v.SetAttributes(want))
	if s := t.state(v, vipl.Idle); s.Attributes != want {
		t.Errorf("%+v, want %+v", s.Attributes, want)
	}
	t.wantErr("the old tag", one.Destroy(), nil)
	t.wantErr("the new tag", two.Destroy(), vipl.ErrResource)

	gone := t.tag(t.A)
	t.must(gone.Destroy())
	for _, tag := range []*vipl.Ptag{gone, t.tag(t.B)} {
		t.refusedAttributes(vipl.ViAttributes{Level: vipl.ReliableDelivery, Ptag: tag}, vipl.ErrInvalidPtag)
	}
}

func viSetConnect(t *T) {
	va, vb := t.pair(vipl.UnreliableDelivery)
	t.must(va.Disconnect())
	t.state(vb, vipl.Error)
	t.must(vb.Disconnect())
	a := vipl.ViAttributes{Level: vipl.ReliableReception, MaxTransferSize: 100}
	t.must(va.SetAttributes(a))
	t.must(vb.SetAttributes(a))
	t.join(va, vb)
	x, y := t.block(t.A, 1, 101), t.block(t.B, 1, 101)
	y.recv(vb, 0, 101)
	x.send(va, 0, 100)
	t.sent(va, 0)
	t.received(vb, 0)
	x.send(va, 0, 101) // past the new maximum
	t.sent(va, vipl.StatusLengthError)
}

func viSetState(t *T) {
	a := vipl.ViAttributes{Level: vipl.ReliableDelivery, MaxTransferSize: 1000}
	other := vipl.ViAttributes{Level: vipl.ReliableReception}
	va, vb := t.vi(t.A, a), t.vi(t.B, a)
	refused := func(v *vipl.VI, in vipl.State) {
		t.Helper()
		t.state(v, in)
		t.wantErr(in.String(), v.SetAttributes(other), vipl.ErrInvalidState)
		if s := t.state(v, in); s.Attributes != a {
			t.Errorf("%v: it changed them: %+v", in, s.Attributes)
		}
	}
	c, result := t.askedOf(va, t.B)
	refused(va, vipl.ConnectPending)
	t.must(c.Accept(vb))
	t.must(<-result)
	refused(va, vipl.Connected)
	refused(vb, vipl.Connected)
	t.must(va.Disconnect())
	refused(vb, vipl.Error)
	t.must(vb.Disconnect())
	t.must(vb.SetAttributes(other))
}

func viEmptiness(t *T) {
	va, vb := t.pair(vipl.ReliableReception)
	x, y := t.block(t.A, 1, 64), t.block(t.B, 1, 64)
	is := func(v *vipl.VI, send, recv bool) {
		t.Helper()
		if s := t.state(v, vipl.Connected); s.SendEmpty != send || s.RecvEmpty != recv {
			t.Errorf("empty: send queue %v, receive queue %v", s.SendEmpty, s.RecvEmpty)
		}
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
}
