package vipltest

import (
	"sync/atomic"
	"time"

	"viaxdp/vipl"
)

var nicRules = []Rule{
	rule("nic/query-meets-the-limits-of-every-provider", "A NIC takes messages of 32,768 bytes, 252 segments a descriptor, 1024 descriptors a queue and discriminators of 16 bytes, or more.", func(t *T) {
		for _, n := range []*vipl.NIC{t.A, t.B} {
			for _, x := range limitsOf(n) {
				t.errorIf(x.got < x.least, "%s is %d, less than %d", x.name, x.got, x.least)
			}
		}
	}),
	choice("nic/query-advertises-the-limits", "VipQueryNic tells the limits that the provider has.", "1 MiB a message, 252 segments, 4096 descriptors a queue, 16384 VIs, 1024 CQs, discriminators of 64 bytes", func(t *T) {
		for _, x := range limitsOf(t.A) {
			equal(t, x.name, x.got, x.want)
		}
		equal(t, "MaxTransferSize", vipl.MaxTransferSize, 1<<20)
		equal(t, "MaxSegments", vipl.MaxSegments, 252)
		equal(t, "MaxDescriptorsPerQueue", vipl.MaxDescriptorsPerQueue, 4096)
		equal(t, "MaxDiscriminatorLen", vipl.MaxDiscriminatorLen, 64)
	}),
	rule("nic/query-names-the-nic-and-its-address", "VipQueryNic tells a name of at most 63 bytes and the address that peers connect to.", func(t *T) {
		a, b := t.A.Query(), t.B.Query()
		for _, q := range []vipl.NICAttributes{a, b} {
			t.errorIf(q.Name == "" || len(q.Name) > 63, "name %q", q.Name)
			t.errorIf(!q.Address.IsValid() || q.Address.IsUnspecified(), "address %v", q.Address)
		}
		t.errorIf(a.Address == b.Address, "both have address %v", a.Address)
	}),
	rule("nic/query-tells-facts-about-memory", "VipQueryNic tells how much memory, how many regions and how many protection tags there may be.", func(t *T) {
		a := t.A.Query()
		t.errorIf(a.MaxRegisterRegions < 1 || a.MaxPtags < 1, "%d regions, %d tags", a.MaxRegisterRegions, a.MaxPtags)
		t.errorIf(a.MaxRegisterBlockBytes < uint64(a.MaxTransferSize) || a.MaxRegisterBytes < a.MaxRegisterBlockBytes, "%d bytes of memory, %d a region", a.MaxRegisterBytes, a.MaxRegisterBlockBytes)
	}),
	choice("nic/query-tells-the-reliability-levels", "ReliabilityLevelSupport has Unreliable Delivery, and is Reliable Reception or more where that is offered.", "all three levels", func(t *T) {
		l := t.A.Query().ReliabilityLevels
		t.errorIf(l&vipl.UnreliableDelivery == 0, "levels %#x lack Unreliable Delivery", uint16(l))
		want := vipl.UnreliableDelivery | vipl.ReliableDelivery | vipl.ReliableReception
		t.errorIf(l != want, "levels %#x, want %#x", uint16(l), uint16(want))
		t.errorIf(l < vipl.ReliableReception, "levels %#x are less than Reliable Reception to a program that compares", uint16(l))
	}),
	choice("nic/query-tells-the-levels-of-rdma-read", "RDMAReadSupport tells the levels that have RDMA read, never Unreliable Delivery.", "RDMA read at both reliable levels", func(t *T) {
		l := t.A.Query().RDMAReadLevels
		want := vipl.ReliableDelivery | vipl.ReliableReception
		t.errorIf(l != want, "levels %#x, want %#x", uint16(l), uint16(want))
	}),
	rule("nic/query-is-static", "What VipQueryNic tells does not change while objects come and go.", func(t *T) {
		before := t.A.Query()
		t.viOn(t.A, at(vipl.ReliableDelivery), t.cq(t.A, 8), nil)
		t.block(t.A, 4, 4096)
		t.pair(vipl.ReliableReception)
		equal(t, "the attributes", t.A.Query(), before)
	}),
	rule("nic/is-thread-safe", "The provider is thread-safe and says so.", func(t *T) {
		t.errorIf(!t.A.Query().ThreadSafe, "ThreadSafe is false")
	}),
	rule("nic/native-mtu-goes-in-one-frame", "NativeMTU is more than nothing and at most MaxTransferSize.", func(t *T) {
		a := t.A.Query()
		t.errorIf(a.NativeMTU <= 0 || a.NativeMTU > a.MaxTransferSize, "NativeMTU %d", a.NativeMTU)
	}),
	rule("nic/objects-of-another-handle-are-refused", "Protection tags, CQs and VIs of one NIC handle are not valid on another one.", func(t *T) {
		tag, cq := t.tag(t.B), t.cq(t.B, 1)
		level := at(vipl.ReliableDelivery)

		t.wantErr("memory with a tag of another handle", errOf(t.A.RegisterMem(make([]byte, 64), vipl.MemAttributes{Ptag: tag})), vipl.ErrInvalidPtag)
		t.wantErr("VI with a tag of another handle", errOf(t.A.CreateVI(vipl.VIAttributes{Level: level.Level, Ptag: tag}, nil, nil)), vipl.ErrInvalidPtag)
		t.wantErr("VI with a send CQ of another handle", errOf(t.A.CreateVI(level, cq, nil)), vipl.ErrInvalidParameter)
		t.wantErr("VI with a receive CQ of another handle", errOf(t.A.CreateVI(level, nil, cq)), vipl.ErrInvalidParameter)

		// Memory handles are another handle's, too.
		v, x := t.vi(t.A, level), t.block(t.B, 1, 64)
		t.wantErr("descriptor in memory of another handle", v.PostRecv(x.prepare(0, 64), x.Handle()), vipl.ErrInvalidParameter)

		// A request is accepted by a VI of the handle that waited.
		c, result := t.asked(t.vi(t.A, level), t.B)
		t.wantErr("accept by a VI of another handle", c.Accept(t.vi(t.A, level)), vipl.ErrInvalidParameter)
		t.reject(c, result)
	}),
	rule("nic/handles-do-not-disturb-each-other", "A process may have several NIC handles: while a thread waits for ever on one of them the others work.", func(t *T) {
		a, b := t.ends(vipl.ReliableReception, 1, 1, 64)
		t.openPair()
		cq := t.cq(t.A, 1)
		other, _ := t.endsOn(vipl.ReliableDelivery, cq, cq, 1, 1, 64)
		waits := starts(func() error { return errOf2(cq.Wait(-1)) })
		for k := range 20 {
			a.message(b, 64, k)
		}
		t.must(a.v.Disconnect())
		t.state(other.v, vipl.Connected)
		t.errorIf(len(waits) > 0, "the wait on the other handle returned")
		t.must(t.A.Close())
		t.wantErr("the wait after its handle was closed", <-waits, vipl.ErrInvalidParameter)
	}),
	rule("nic/close-releases-everything", "VipCloseNic releases what is still open under it: connected VIs, posted descriptors, CQs, memory and tags.", func(t *T) {
		t.openPair()
		cq, tag := t.cq(t.A, 1), t.tag(t.A)
		for _, level := range allLevels {
			v := t.viOn(t.A, vipl.VIAttributes{Level: level, Ptag: tag}, cq, nil)
			t.blockOf(t.A, tag, 1, 2, 100).on(v).recv(0, 100)
			if level != vipl.ReliableDelivery { // that one stays Idle
				t.join(v, t.vi(t.B, at(level)))
			}
		}
		t.wantErr("Close", t.A.Close(), nil)
	}),
	rule("nic/close-disconnects", "The peers of a NIC that is closed go to Error, flushed, with CONN_LOST.", closeDisconnects),
	rule("nic/close-after-ignored-errors", "A program that ignores what VipDisconnect, VipDestroyVi, VipDestroyCQ and the others return may close the NIC all the same.", func(t *T) {
		t.openPair()
		cq := t.cq(t.A, 1)
		a, _ := t.endsOn(vipl.ReliableDelivery, cq, cq, 1, 1, 64)
		a.recv(0, 0)
		for range 2 {
			cq.Destroy()
			a.v.Destroy()
			a.Deregister()
			t.tags[0].Destroy()
			a.v.Disconnect()
		}
		t.wantErr("close", t.A.Close(), nil)
	}),
	choice("nic/close-twice", "The second VipCloseNic of a handle returns.", "it does nothing and succeeds", func(t *T) {
		t.openPair()
		t.must(t.A.Close())
		t.wantErr("Close", t.A.Close(), nil)
	}),
	rule("nic/nothing-works-after-close", "Every operation on a closed NIC handle and on its objects returns INVALID_PARAMETER.", func(t *T) {
		t.openPair()
		a, to, attrs := t.A, on(t.B, disc()), at(vipl.ReliableDelivery)
		tag, cq, bound := t.tag(a), t.cq(a, 1), t.cq(a, 1)
		v, onCQ := t.vi(a, attrs), t.viOn(a, attrs, bound, bound)
		r := t.register(a, make([]byte, 128), vipl.MemAttributes{Ptag: tag})
		t.must(a.Close())

		t.isGone(v, r.Handle(), to)
		t.isGoneCQ(cq)
		for what, err := range map[string]error{
			"CreatePtag":               errOf(a.CreatePtag()),
			"RegisterMem":              errOf(a.RegisterMem(make([]byte, 64), vipl.MemAttributes{Ptag: tag})),
			"AllocMem":                 errOf(a.AllocMem(64, vipl.MemAttributes{Ptag: tag})),
			"CreateVI":                 errOf(a.CreateVI(attrs, nil, nil)),
			"CreateCQ":                 errOf(a.CreateCQ(1)),
			"ConnectWait":              errOf(a.ConnectWait(named(disc()), 0)),
			"DestroyVI of one on a CQ": onCQ.Destroy(),
			"CQDone of one with a VI":  errOf2(bound.Done()),
			"QueryMem":                 errOf(r.Query()),
			"SetMemAttributes":         r.SetAttributes(vipl.MemAttributes{Ptag: tag}),
			"DeregisterMem":            r.Deregister(),
			"DestroyPtag":              tag.Destroy(),
		} {
			t.wantErr(what, err, vipl.ErrInvalidParameter)
		}
		a.Poll() // has nothing to return
	}),
	rule("nic/no-handler-after-close", "When VipCloseNic has returned, a handler that is being called may still run, and none is called any more: what waits behind it is not told.", func(t *T) {
		const each = 3
		t.openPair()
		cq := t.cq(t.A, each)
		v, bound := t.vi(t.A, at(vipl.ReliableDelivery)), t.boundTo(cq, false)
		x := t.block(t.A, 2*each, 64)
		var closed atomic.Bool
		begun, leave := make(chan error, 3*each), make(chan struct{})
		handler := func(of string) {
			t.errorIf(closed.Load(), "a handler of %s begins after VipCloseNic", of)
			begun <- nil
			<-leave
		}
		t.A.ErrorCallback(func(vipl.ErrorDescriptor) { handler("errors") })
		for i := range each {
			t.wantErr("PostRecv", v.PostRecv(nil, 0), vipl.ErrInvalidParameter)
			t.must(v.SendNotify(func(*vipl.VI, *vipl.Descriptor) { handler("a work queue") }))
			t.must(cq.Notify(func(*vipl.VI, bool) { handler("a CQ") }))
			x.on(v).send(i, 64) // in Idle they complete at once
			x.on(bound).send(each+i, 64)
		}
		for range 3 { // the first of each kind
			t.must(t.handled(begun))
		}
		t.must(t.A.Close())
		closed.Store(true)
		close(leave)
		time.Sleep(moment) // others could begin now
	}),
	rule("nic/poll-never-waits", "A program that watches memory instead of a queue polls the NIC; with nothing to do, that returns.", func(t *T) {
		for range 1000 {
			t.A.Poll()
		}
	}),
}

// limitOf is a limit that a NIC tells, what every provider has at least, and what this one has.
type limitOf struct {
	name             string
	got, least, want int
}

func limitsOf(n *vipl.NIC) []limitOf {
	a := n.Query()
	return []limitOf{
		{"MaxTransferSize", a.MaxTransferSize, 32768, vipl.MaxTransferSize},
		{"MaxSegmentsPerDesc", a.MaxSegmentsPerDesc, 252, vipl.MaxSegments},
		{"MaxDescriptorsPerQueue", a.MaxDescriptorsPerQueue, 1024, vipl.MaxDescriptorsPerQueue},
		{"MaxDiscriminatorLen", a.MaxDiscriminatorLen, 16, vipl.MaxDiscriminatorLen},
		{"MaxVI", a.MaxVI, 1, 16384},
		{"MaxCQ", a.MaxCQ, 1, 1024},
		{"MaxCQEntries", a.MaxCQEntries, 1024, vipl.MaxCQEntries},
	}
}

// isGone checks that every call fails on a VI that is destroyed, or whose NIC is closed.
func (t *T) isGone(v *vipl.VI, h vipl.MemHandle, to vipl.NetAddress) {
	handler := func(*vipl.VI, *vipl.Descriptor) {}
	for what, err := range map[string]error{
		"QueryVI": errOf(v.Query()), "SetVIAttributes": v.SetAttributes(at(vipl.ReliableDelivery)),
		"PostSend": v.PostSend(new(vipl.Descriptor), h), "PostRecv": v.PostRecv(new(vipl.Descriptor), h),
		"SendWait": errOf(v.SendWait(limit)), "RecvWait": errOf(v.RecvWait(limit)),
		"SendNotify": v.SendNotify(handler), "RecvNotify": v.RecvNotify(handler),
		"ConnectRequest":     errOf(v.ConnectRequest(vipl.NetAddress{}, to, limit)),
		"ConnectPeerRequest": v.ConnectPeerRequest(named(disc()), to, limit),
		"ConnectPeerDone":    errOf(v.ConnectPeerDone()), "ConnectPeerWait": errOf(v.ConnectPeerWait()),
		"Disconnect": v.Disconnect(), "DestroyVI": v.Destroy(),
	} {
		t.wantErr(what, err, vipl.ErrInvalidParameter)
	}
}

// isGoneCQ checks that every call fails on a CQ that is destroyed, or whose NIC is closed.
func (t *T) isGoneCQ(c *vipl.CQ) {
	for what, err := range map[string]error{
		"CQWait": errOf2(c.Wait(limit)), "CQDone": errOf2(c.Done()), "CQ.Dones": errOf(c.Dones(make([]vipl.Completion, 1))),
		"CQNotify": c.Notify(func(*vipl.VI, bool) {}), "ResizeCQ": c.Resize(2), "DestroyCQ": c.Destroy(),
	} {
		t.wantErr(what, err, vipl.ErrInvalidParameter)
	}
}

// closeDisconnects closes a NIC with a connection at each level.
func closeDisconnects(t *T) {
	t.openPair()
	var ends []*end
	for _, level := range allLevels {
		_, b := t.ends(level, 1, 1, 64)
		b.recv(0, 64)
		ends = append(ends, b)
	}
	t.must(t.A.Close())
	for _, b := range ends {
		t.state(b.v, vipl.Error)
		b.received(vipl.StatusFlushed)
		t.asyncErrors(b.v, vipl.ErrorConnLost)
	}
}
