package vipltest

import (
	"errors"
	"sync/atomic"
	"time"

	"viaxdp/vipl"
)

var nicRules = []Rule{
	{
		ID:   "nic/query-meets-the-limits-of-every-provider",
		Text: "A NIC takes messages of 32,768 bytes, 252 segments a descriptor, 1024 descriptors a queue and discriminators of 16 bytes, or more.",
		run:  nicLimits,
	},
	{
		ID:     "nic/query-advertises-the-limits",
		Text:   "VipQueryNic tells the limits that the provider has.",
		Choice: "1 MiB a message, 252 segments, 4096 descriptors a queue, 4096 VIs, 1024 CQs, discriminators of 64 bytes",
		run:    nicAdvertised,
	},
	{
		ID:   "nic/query-names-the-nic-and-its-address",
		Text: "VipQueryNic tells a name of at most 63 bytes and the address that peers connect to.",
		run:  nicNamed,
	},
	{
		ID:   "nic/query-tells-facts-about-memory",
		Text: "VipQueryNic tells how much memory, how many regions and how many protection tags there may be.",
		run:  nicMemory,
	},
	{
		ID:     "nic/query-tells-the-reliability-levels",
		Text:   "ReliabilityLevelSupport has Unreliable Delivery, and is Reliable Reception or more where that is offered.",
		Choice: "all three levels",
		run:    nicLevels,
	},
	{
		ID:     "nic/query-tells-the-levels-of-rdma-read",
		Text:   "RDMAReadSupport tells the levels that have RDMA read, never Unreliable Delivery.",
		Choice: "RDMA read at both reliable levels",
		run:    nicReadLevels,
	},
	{
		ID:   "nic/query-is-static",
		Text: "What VipQueryNic tells does not change while objects come and go.",
		run:  nicStatic,
	},
	{
		ID:   "nic/is-thread-safe",
		Text: "The provider is thread-safe and says so.",
		run: func(t *T) {
			if !t.A.Query().ThreadSafe {
				t.Error("ThreadSafe is false")
			}
		},
	},
	{
		ID:   "nic/native-mtu-goes-in-one-frame",
		Text: "NativeMTU is more than nothing and at most MaxTransferSize.",
		run: func(t *T) {
			if a := t.A.Query(); a.NativeMTU <= 0 || a.NativeMTU > a.MaxTransferSize {
				t.Errorf("NativeMTU %d", a.NativeMTU)
			}
		},
	},
	{
		ID:   "nic/objects-of-another-handle-are-refused",
		Text: "Protection tags, CQs and VIs of one NIC handle are not valid on another one.",
		run:  nicForeign,
	},
	{
		ID:   "nic/handles-do-not-disturb-each-other",
		Text: "A process may have several NIC handles: while a thread waits for ever on one of them the others work.",
		run:  nicHandles,
	},
	{
		ID:   "nic/close-releases-everything",
		Text: "VipCloseNic releases what is still open under it: connected VIs, posted descriptors, CQs, memory and tags.",
		run:  nicCloseReleases,
	},
	{
		ID:   "nic/close-disconnects",
		Text: "The peers of a NIC that is closed go to Error, flushed, with CONN_LOST.",
		run:  nicCloseDisconnects,
	},
	{
		ID:   "nic/close-after-ignored-errors",
		Text: "A program that ignores what VipDisconnect, VipDestroyVi, VipDestroyCQ and the others return may close the NIC all the same.",
		run:  nicCloseIgnored,
	},
	{
		ID:     "nic/close-twice",
		Text:   "The second VipCloseNic of a handle returns.",
		Choice: "it does nothing and succeeds",
		run:    nicCloseTwice,
	},
	{
		ID:   "nic/nothing-works-after-close",
		Text: "Every operation on a closed NIC handle and on its objects returns INVALID_PARAMETER.",
		run:  nicClosed,
	},
	{
		ID:   "nic/no-handler-after-close",
		Text: "When VipCloseNic has returned, a handler that is being called may still run, and none is called any more: what waits behind it is not told.",
		run:  nicNoHandlerAfterClose,
	},
	{
		ID:   "nic/poll-never-waits",
		Text: "A program that watches memory instead of a queue polls the NIC; with nothing to do, that returns.",
		run: func(t *T) {
			for range 1000 {
				t.A.Poll()
			}
		},
	},
}

func nicLimits(t *T) {
	for _, n := range []*vipl.Nic{t.A, t.B} {
		a := n.Query()
		for _, x := range []struct {
			name       string
			got, least int
		}{
			{"MaxTransferSize", a.MaxTransferSize, 32768},
			{"MaxSegmentsPerDesc", a.MaxSegmentsPerDesc, 252},
			{"MaxDescriptorsPerQueue", a.MaxDescriptorsPerQueue, 1024},
			{"MaxDiscriminatorLen", a.MaxDiscriminatorLen, 16},
			{"MaxVI", a.MaxVI, 1},
			{"MaxCQ", a.MaxCQ, 1},
			{"MaxCQEntries", a.MaxCQEntries, 1024},
		} {
			if x.got < x.least {
				t.Errorf("%s is %d, less than %d", x.name, x.got, x.least)
			}
		}
	}
}

func nicAdvertised(t *T) {
	a := t.A.Query()
	for _, x := range []struct {
		name      string
		got, want int
	}{
		{"MaxTransferSize", a.MaxTransferSize, vipl.MaxTransferSize},
		{"MaxTransferSize", a.MaxTransferSize, 1 << 20},
		{"MaxSegmentsPerDesc", a.MaxSegmentsPerDesc, vipl.MaxSegments},
		{"MaxDescriptorsPerQueue", a.MaxDescriptorsPerQueue, vipl.MaxDescriptorsPerQueue},
		{"MaxDescriptorsPerQueue", a.MaxDescriptorsPerQueue, 4096},
		{"MaxVI", a.MaxVI, 4096},
		{"MaxCQ", a.MaxCQ, 1024},
		{"MaxCQEntries", a.MaxCQEntries, vipl.MaxCQEntries},
		{"MaxDiscriminatorLen", a.MaxDiscriminatorLen, vipl.MaxDiscriminatorLen},
		{"MaxDiscriminatorLen", a.MaxDiscriminatorLen, 64},
	} {
		if x.got != x.want {
			t.Errorf("%s is %d, want %d", x.name, x.got, x.want)
		}
	}
}

func nicNamed(t *T) {
	a, b := t.A.Query(), t.B.Query()
	for _, q := range []vipl.NicAttributes{a, b} {
		if q.Name == "" || len(q.Name) > 63 {
			t.Errorf("name %q", q.Name)
		}
		if !q.Address.IsValid() || q.Address.IsUnspecified() {
			t.Errorf("address %v", q.Address)
		}
	}
	if a.Address == b.Address {
		t.Errorf("both have address %v", a.Address)
	}
}

func nicMemory(t *T) {
	a := t.A.Query()
	if a.MaxRegisterRegions < 1 || a.MaxPtags < 1 {
		t.Errorf("%d regions, %d tags", a.MaxRegisterRegions, a.MaxPtags)
	}
	if a.MaxRegisterBlockBytes < uint64(a.MaxTransferSize) || a.MaxRegisterBytes < a.MaxRegisterBlockBytes {
		t.Errorf("%d bytes of memory, %d a region", a.MaxRegisterBytes, a.MaxRegisterBlockBytes)
	}
}

func nicLevels(t *T) {
	l := t.A.Query().ReliabilityLevels
	if l&vipl.UnreliableDelivery == 0 {
		t.Errorf("levels %#x lack Unreliable Delivery", uint16(l))
	}
	if want := vipl.UnreliableDelivery | vipl.ReliableDelivery | vipl.ReliableReception; l != want {
		t.Errorf("levels %#x, want %#x", uint16(l), uint16(want))
	}
	if l < vipl.ReliableReception {
		t.Errorf("levels %#x are less than Reliable Reception to a program that compares", uint16(l))
	}
}

func nicReadLevels(t *T) {
	l := t.A.Query().RDMAReadLevels
	if want := vipl.ReliableDelivery | vipl.ReliableReception; l != want {
		t.Errorf("levels %#x, want %#x", uint16(l), uint16(want))
	}
}

func nicStatic(t *T) {
	before := t.A.Query()
	t.viOn(t.A, vipl.ViAttributes{Level: vipl.ReliableDelivery}, t.cq(t.A, 8), nil)
	t.block(t.A, 4, 4096)
	t.pair(vipl.ReliableReception)
	if after := t.A.Query(); after != before {
		t.Errorf("%+v, before %+v", after, before)
	}
}

func nicForeign(t *T) {
	tag, cq := t.tag(t.B), t.cq(t.B, 1)
	level := vipl.ViAttributes{Level: vipl.ReliableDelivery}

	_, err := t.A.RegisterMem(make([]byte, 64), vipl.MemAttributes{Ptag: tag})
	t.wantErr("memory with a tag of another handle", err, vipl.ErrInvalidPtag)
	_, err = t.A.CreateVi(vipl.ViAttributes{Level: level.Level, Ptag: tag}, nil, nil)
	t.wantErr("VI with a tag of another handle", err, vipl.ErrInvalidPtag)
	_, err = t.A.CreateVi(level, cq, nil)
	t.wantErr("VI with a send CQ of another handle", err, vipl.ErrInvalidParameter)
	_, err = t.A.CreateVi(level, nil, cq)
	t.wantErr("VI with a receive CQ of another handle", err, vipl.ErrInvalidParameter)

	// Memory handles are another handle's, too.
	v, x := t.vi(t.A, level), t.block(t.B, 1, 64)
	t.wantErr("descriptor in memory of another handle", v.PostRecv(x.prepare(0, 64), x.Handle()), vipl.ErrInvalidParameter)

	// A request is accepted by a VI of the handle that waited.
	c := t.asked(t.vi(t.A, level), t.B)
	t.wantErr("accept by a VI of another handle", c.Accept(t.vi(t.A, level)), vipl.ErrInvalidParameter)
	t.must(c.Reject())
}

func nicHandles(t *T) {
	a, b := t.openPair()
	at := vipl.ViAttributes{Level: vipl.ReliableDelivery}
	cq := t.cq(a, 1)
	other := t.viOn(a, at, cq, cq)
	t.join(other, t.vi(b, at))
	waits := starts(func() error { _, _, err := cq.Wait(-1); return err })

	va, vb := t.pair(vipl.ReliableReception)
	x, y := t.block(t.A, 1, 64), t.block(t.B, 1, 64)
	for k := range 20 {
		y.recv(vb, 0, 64)
		fill(x.buf(0), k)
		x.send(va, 0, 64)
		t.received(vb, 0)
		t.holds("message", y.buf(0), k)
		t.sent(va, 0)
	}
	t.must(va.Disconnect())
	t.state(other, vipl.Connected)
	select {
	case err := <-waits:
		t.Errorf("the wait on the other handle returned: %v", err)
	default:
	}
	t.must(a.Close())
	t.wantErr("the wait after its handle was closed", <-waits, vipl.ErrInvalidParameter)
}

func nicCloseReleases(t *T) {
	a, b := t.openPair()
	tag, err := a.CreatePtag()
	t.must(err)
	cq, err := a.CreateCQ(1)
	t.must(err)
	mem, err := a.AllocMem(1<<16, vipl.MemAttributes{Ptag: tag})
	t.must(err)
	for _, level := range allLevels {
		v, err := a.CreateVi(vipl.ViAttributes{Level: level, Ptag: tag}, cq, nil)
		t.must(err)
		d, err := mem.Descriptor(int(level)*64, 1)
		t.must(err)
		d.SetSegments(mem.Segment(1024, 100))
		t.must(v.PostRecv(d, mem.Handle()))
		if level != vipl.ReliableDelivery { // that one stays Idle
			t.join(v, t.vi(b, vipl.ViAttributes{Level: level}))
		}
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}

func nicCloseIgnored(t *T) {
	a, b := t.openPair()
	tag, err := a.CreatePtag()
	t.must(err)
	cq, err := a.CreateCQ(1)
	t.must(err)
	mem, err := a.AllocMem(1<<12, vipl.MemAttributes{Ptag: tag})
	t.must(err)
	at := vipl.ViAttributes{Level: vipl.ReliableDelivery}
	v, err := a.CreateVi(at, cq, cq)
	t.must(err)
	t.join(v, t.vi(b, at))
	d, err := mem.Descriptor(0, 0)
	t.must(err)
	t.must(v.PostRecv(d, mem.Handle()))
	for range 2 {
		cq.Destroy()
		v.Destroy()
		mem.Deregister()
		tag.Destroy()
		v.Disconnect()
	}
	t.wantErr("close", a.Close(), nil)
}

func nicCloseDisconnects(t *T) {
	a, b := t.openPair()
	var vbs []*vipl.VI
	for _, level := range allLevels {
		va, vb := t.vi(a, vipl.ViAttributes{Level: level}), t.vi(b, vipl.ViAttributes{Level: level})
		t.join(va, vb)
		vbs = append(vbs, vb)
	}
	x := t.block(b, len(vbs), 64)
	for i, v := range vbs {
		x.recv(v, i, 64)
	}
	t.must(a.Close())
	for _, v := range vbs {
		t.state(v, vipl.Error)
		t.received(v, vipl.StatusFlushed)
		t.asyncErrors(v, vipl.ErrorConnLost)
	}
}

func nicCloseTwice(t *T) {
	a, _ := t.openPair()
	t.must(a.Close())
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}

func nicClosed(t *T) {
	a, b := t.openPair()
	host := b.Query().Address
	attrs := vipl.ViAttributes{Level: vipl.ReliableDelivery}
	tag, cq, bound := t.tag(a), t.cq(a, 1), t.cq(a, 1)
	v, onCQ := t.vi(a, attrs), t.viOn(a, attrs, bound, bound)
	r := t.register(a, make([]byte, 128), vipl.MemAttributes{Ptag: tag})
	t.must(a.Close())

	refused := func(what string, err error) {
		t.Helper()
		t.wantErr(what, err, vipl.ErrInvalidParameter)
	}
	_, err := a.CreatePtag()
	refused("CreatePtag", err)
	_, err = a.RegisterMem(make([]byte, 64), vipl.MemAttributes{Ptag: tag})
	refused("RegisterMem", err)
	_, err = a.AllocMem(64, vipl.MemAttributes{Ptag: tag})
	refused("AllocMem", err)
	_, err = a.CreateVi(attrs, nil, nil)
	refused("CreateVi", err)
	_, err = a.CreateCQ(1)
	refused("CreateCQ", err)
	_, err = a.ConnectWait(vipl.NetAddress{Discriminator: disc()}, 0)
	refused("ConnectWait", err)

	_, err = v.Query()
	refused("QueryVi", err)
	refused("SetViAttributes", v.SetAttributes(attrs))
	_, err = v.ConnectRequest(vipl.NetAddress{}, vipl.NetAddress{Host: host, Discriminator: disc()}, patience)
	refused("ConnectRequest", err)
	d := new(vipl.Descriptor)
	refused("ConnectPeerRequest", v.ConnectPeerRequest(vipl.NetAddress{}, vipl.NetAddress{Host: host, Discriminator: disc()}, patience))
	_, err = v.ConnectPeerDone()
	refused("ConnectPeerDone", err)
	_, err = v.ConnectPeerWait()
	refused("ConnectPeerWait", err)
	refused("PostSend", v.PostSend(d, r.Handle()))
	refused("PostRecv", v.PostRecv(d, r.Handle()))
	_, err = v.RecvWait(patience)
	refused("RecvWait", err)
	_, err = v.SendWait(patience)
	refused("SendWait", err)
	refused("SendNotify", v.SendNotify(func(*vipl.VI, *vipl.Descriptor) {}))
	refused("RecvNotify", v.RecvNotify(func(*vipl.VI, *vipl.Descriptor) {}))
	refused("Disconnect", v.Disconnect())
	refused("DestroyVi", v.Destroy())
	refused("DestroyVi of one on a CQ", onCQ.Destroy())
	refused("DestroyPtag", tag.Destroy())

	_, _, err = cq.Wait(patience)
	refused("CQWait", err)
	_, _, err = cq.Done()
	refused("CQDone", err)
	_, err = cq.Dones(make([]vipl.Completion, 1))
	refused("CQ.Dones", err)
	_, _, err = bound.Done()
	refused("CQDone of one with a VI", err)
	refused("CQNotify", cq.Notify(func(*vipl.VI, bool) {}))
	refused("ResizeCQ", cq.Resize(2))
	refused("DestroyCQ", cq.Destroy())

	_, err = r.Query()
	refused("QueryMem", err)
	refused("SetMemAttributes", r.SetAttributes(vipl.MemAttributes{Ptag: tag}))
	refused("DeregisterMem", r.Deregister())
	a.Poll() // has nothing to return
}

// asked has va ask for a connection, and gives the request as n's ConnectWait
// returns it. The rule ends when the request has ended.
func (t *T) asked(va *vipl.VI, n *vipl.Nic) *vipl.Conn {
	t.Helper()
	c, _ := t.askedOf(va, n)
	return c
}

// askedOf is asked, and gives what becomes of the request, too.
func (t *T) askedOf(va *vipl.VI, n *vipl.Nic) (*vipl.Conn, <-chan error) {
	t.Helper()
	d := disc()
	result, came, ended := make(chan error, 1), make(chan struct{}), make(chan struct{})
	to := vipl.NetAddress{Host: n.Query().Address, Discriminator: d}
	go func() {
		defer close(ended)
		for {
			_, err := va.ConnectRequest(vipl.NetAddress{}, to, patience)
			if !errors.Is(err, vipl.ErrNoMatch) {
				result <- err
				return
			}
			select {
			case <-came: // it was there, and is not any more
				result <- err
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	t.Cleanup(func() { <-ended })
	c, err := n.ConnectWait(vipl.NetAddress{Discriminator: d}, patience)
	close(came)
	t.must(err)
	return c, result
}

func nicNoHandlerAfterClose(t *T) {
	a, _ := t.openPair()
	const each = 3
	at := vipl.ViAttributes{Level: vipl.ReliableDelivery}
	cq := t.cq(a, each)
	v, bound := t.vi(a, at), t.viOn(a, at, cq, nil)
	x := t.block(a, 2*each, 64)
	var closed atomic.Bool
	begun, leave := make(chan error, 3*each), make(chan struct{})
	handler := func(of string) {
		if closed.Load() {
			t.Errorf("a handler of %s begins after VipCloseNic", of)
			return
		}
		begun <- nil
		<-leave
	}
	a.ErrorCallback(func(vipl.ErrorDescriptor) { handler("errors") })
	for i := range each {
		t.wantErr("PostRecv", v.PostRecv(nil, 0), vipl.ErrInvalidParameter)
		t.must(v.SendNotify(func(*vipl.VI, *vipl.Descriptor) { handler("a work queue") }))
		t.must(cq.Notify(func(*vipl.VI, bool) { handler("a CQ") }))
		x.send(v, i, 64) // in Idle they complete at once
		x.send(bound, each+i, 64)
	}
	for range 3 { // the first of each kind
		t.must(t.handled(begun))
	}
	t.must(a.Close())
	closed.Store(true)
	close(leave)
	time.Sleep(moment) // others would begin now
}
