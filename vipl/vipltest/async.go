package vipltest

import (
	"errors"
	"slices"
	"sync"
	"time"

	"viaxdp/vipl"
)

var asyncRules = []Rule{
	{
		ID: "async-errors/values", Text: "The eleven error codes and the four resource codes have the VIPL's values.",
		run: asyncValues,
	},
	{
		ID: "async-errors/post-desc", Text: "A refused descriptor is told as POST_DESC, about a descriptor of that VI.",
		run: asyncPostDesc,
	},
	{
		ID: "async-errors/post-desc-altered", Text: "A send that the program changed while it was posted is told as POST_DESC.",
		Choice: "when it completes, and once",
		run:    asyncAltered,
	},
	{
		ID: "async-errors/conn-lost-by-disconnect", Text: "A disconnect is told to the other side as CONN_LOST, about the VI, and not to the caller.",
		run: eachLevel(asyncDisconnect),
	},
	{
		ID: "async-errors/conn-lost-by-error", Text: "A connection that breaks by an error is told as CONN_LOST on both sides, once.",
		run: eachReliable(asyncBroken),
	},
	{
		ID: "async-errors/recvq-empty", Text: "A message that finds no receive is told as RECVQ_EMPTY at the receiver, not at the sender.",
		run: eachLevel(asyncRecvQueueEmpty),
	},
	{
		ID: "async-errors/vi-overrun", Text: "A descriptor posted past MaxDescriptorsPerQueue is refused with ERROR_RESOURCE and told as VI_OVERRUN; the queue is as it was.",
		Choice: "completed descriptors count until they are taken off the queue",
		run:    asyncOverrun,
	},
	{
		ID: "async-errors/rdmaw-prot", Text: "A refused RDMA write is told as RDMAW_PROT at the target, with operation RDMA_WRITE, before the CONN_LOST of a reliable VI.",
		run: eachLevel(asyncWriteProtection),
	},
	{
		ID: "async-errors/rdmar-prot", Text: "A refused RDMA read is told as RDMAR_PROT at the target, with operation RDMA_READ, before the CONN_LOST.",
		run: eachReliable(asyncReadProtection),
	},
	{
		ID: "async-errors/comp-prot", Text: "A descriptor that completes when its memory no longer has its VI's tag has PROTECTION_ERROR and is told as COMP_PROT.",
		run: asyncCompletionProtection,
	},
	{
		ID: "async-errors/rdma-transport", Text: "An RDMA operation of the VI's own that a silent peer did not answer is told as RDMA_TRANSPORT, about its descriptor.",
		run: silentTransport,
	},
	{
		ID: "async-errors/one-after-the-other", Text: "A handler gets the errors one after the other, in the order in which they came up.",
		run: asyncOneByOne,
	},
	{
		ID: "async-errors/handler-may-call-anything", Text: "An error handler may call the library, on the VI that the error is about, too.",
		run: asyncHandlerCalls,
	},
	{
		ID: "async-errors/handler-may-close", Text: "An error handler may close the NIC.",
		run: asyncHandlerCloses,
	},
	{
		ID: "async-errors/handler-blocks-nobody", Text: "While an error handler runs, everything else goes on.",
		run: asyncHandlerBlocks,
	},
	{
		ID: "async-errors/replaced-handler", Text: "A new handler takes the place of the old one, and none restores the default, which only logs.",
		run: asyncReplaced,
	},
}

func asyncValues(t *T) {
	for i, code := range []vipl.ErrorCode{
		vipl.ErrorPostDesc, vipl.ErrorConnLost, vipl.ErrorRecvQueueEmpty, vipl.ErrorVIOverrun, vipl.ErrorRDMAWriteProtection,
		vipl.ErrorRDMAWriteData, vipl.ErrorRDMAWriteAbort, vipl.ErrorRDMAReadProtection, vipl.ErrorCompletionProtection,
		vipl.ErrorRDMATransport, vipl.ErrorCatastrophic,
	} {
		if int(code) != i {
			t.Errorf("%v is %d, want %d", code, int(code), i)
		}
	}
	for i, code := range []vipl.ResourceCode{vipl.ResourceNic, vipl.ResourceVI, vipl.ResourceCQ, vipl.ResourceDescriptor} {
		if int(code) != i {
			t.Errorf("resource %d, want %d", int(code), i)
		}
	}
}

func asyncPostDesc(t *T) {
	v := t.vi(t.A, vipl.ViAttributes{Level: vipl.UnreliableDelivery})
	x := t.block(t.A, 1, 256)
	unaligned := descriptorAt(x.buf(0)[4:])
	outside := make([]byte, 128)
	stray := descriptorAt(outside[-addressOf(outside)&(vipl.DescriptorAlignment-1):])
	posts := []*vipl.Descriptor{nil, unaligned, stray}
	for _, d := range posts {
		t.wantErr("PostSend", v.PostSend(d, x.Handle()), vipl.ErrInvalidParameter)
		t.wantErr("PostRecv", v.PostRecv(d, x.Handle()), vipl.ErrInvalidParameter)
	}
	list := t.asyncErrors(v, slices.Repeat([]vipl.ErrorCode{vipl.ErrorPostDesc}, 2*len(posts))...)
	for i, e := range list {
		if e.Nic != t.A || e.VI != v || e.CQ != nil || e.Resource != vipl.ResourceDescriptor || e.Descriptor != posts[i/2] || e.Err == nil {
			t.Errorf("error %d: %+v", i, e)
		}
	}
}

func asyncAltered(t *T) {
	va, vb := t.pair(vipl.ReliableReception)
	a, b := t.block(t.A, 2, 300_000), t.block(t.B, 2, 300_000)
	// Behind a long read, the send does not complete before it is changed: but where
	// the rule was kept from its work just now.
	var d *vipl.Descriptor
	for end := time.Now().Add(patience); ; {
		a.read(va, 0, 300_000, b.remote(0))
		b.recv(vb, 1, 64)
		d = a.prepare(1, 64)
		d.Control |= vipl.ControlQFence
		a.post(va, d)
		if d.Status()&vipl.StatusDone == 0 {
			d.Length = 63
			break
		}
		if time.Now().After(end) {
			t.Fatal("the send is always complete before it can be changed")
		}
		t.sent(va, vipl.StatusOpRDMARead)
		t.sent(va, 0)
		t.received(vb, 0)
	}
	t.sent(va, vipl.StatusOpRDMARead)
	if got, err := va.SendWait(patience); got != d {
		t.Fatalf("%v %v", got, err)
	}
	if e := t.asyncErrors(va, vipl.ErrorPostDesc)[0]; e.Descriptor != d || e.Resource != vipl.ResourceDescriptor {
		t.Errorf("%+v", e)
	}
	t.received(vb, 0)
}

func asyncDisconnect(t *T, level vipl.ReliabilityLevel) {
	va, vb := t.pair(level)
	t.must(va.Disconnect())
	e := t.asyncErrors(vb, vipl.ErrorConnLost)[0]
	if e.Nic != t.B || e.VI != vb || e.CQ != nil || e.Descriptor != nil || e.Resource != vipl.ResourceVI {
		t.Errorf("%+v", e)
	}
	t.asyncErrors(va)
}

func asyncBroken(t *T, level vipl.ReliabilityLevel) {
	va, vb := t.pair(level)
	t.breakOf(va, vb)
	t.asyncErrors(va, vipl.ErrorConnLost)
	t.asyncErrors(vb, vipl.ErrorConnLost)
	t.must(va.Disconnect())
	t.must(vb.Disconnect())
	t.asyncErrors(va, vipl.ErrorConnLost)
	t.asyncErrors(vb, vipl.ErrorConnLost)
}

func asyncRecvQueueEmpty(t *T, level vipl.ReliabilityLevel) {
	va, vb := t.pair(level)
	a := t.block(t.A, 1, 64)
	a.send(va, 0, 64)
	e := t.asyncError(vb, vipl.ErrorRecvQueueEmpty)
	if e.Nic != t.B || e.VI != vb || e.Resource != vipl.ResourceVI {
		t.Errorf("%+v", e)
	}
	for _, e := range t.errors.of(va) {
		if e.Code != vipl.ErrorConnLost {
			t.Errorf("at the sender: %+v", e)
		}
	}
}

func asyncOverrun(t *T) {
	most := t.A.Query().MaxDescriptorsPerQueue
	v, _ := t.pair(vipl.ReliableDelivery)
	x := t.block(t.A, most+1, 0)
	for i := range most {
		x.recv(v, i, 0)
	}
	t.wantErr("one receive more", v.PostRecv(x.prepare(most, 0), x.Handle()), vipl.ErrResource)
	e := t.asyncErrors(v, vipl.ErrorVIOverrun)[0]
	if e.VI != v || e.Resource != vipl.ResourceDescriptor || e.Descriptor != x.desc[most] {
		t.Errorf("%+v", e)
	}

	idle := t.vi(t.A, vipl.ViAttributes{Level: vipl.ReliableDelivery})
	y := t.block(t.A, most+1, 0)
	for i := range most { // in Idle they complete at once, and stay on the queue
		y.send(idle, i, 0)
	}
	t.wantErr("one send more", idle.PostSend(y.prepare(most, 0), y.Handle()), vipl.ErrResource)
	t.asyncErrors(idle, vipl.ErrorVIOverrun)
	for i := range most {
		if d, err := idle.SendDone(); d != y.desc[i] {
			t.Fatalf("send %d: another descriptor: %v", i, err)
		}
	}
	if d, err := idle.SendDone(); d != nil || !errors.Is(err, vipl.ErrDescriptor) {
		t.Errorf("a descriptor too many: %v %v", d, err)
	}
	y.send(idle, most, 0) // there is room again
}

func asyncWriteProtection(t *T, level vipl.ReliabilityLevel) {
	va, vb := t.pairOf(vipl.ViAttributes{Level: level}, vipl.ViAttributes{Level: level})
	a, b := t.block(t.A, 1, 64), t.block(t.B, 1, 64)
	a.write(va, 0, 64, b.remote(0))
	want := []vipl.ErrorCode{vipl.ErrorRDMAWriteProtection}
	if level != vipl.UnreliableDelivery {
		want = append(want, vipl.ErrorConnLost)
	}
	e := t.asyncErrors(vb, want...)[0]
	if e.Nic != t.B || e.Resource != vipl.ResourceVI || e.Op != vipl.StatusOpRDMAWrite {
		t.Errorf("%+v", e)
	}
}

func asyncReadProtection(t *T, level vipl.ReliabilityLevel) {
	va, vb := t.pairOf(vipl.ViAttributes{Level: level, EnableRdmaRead: true}, vipl.ViAttributes{Level: level})
	a, b := t.block(t.A, 1, 64), t.block(t.B, 1, 64)
	a.read(va, 0, 64, b.remote(0))
	e := t.asyncErrors(vb, vipl.ErrorRDMAReadProtection, vipl.ErrorConnLost)[0]
	if e.Nic != t.B || e.Resource != vipl.ResourceVI || e.Op != vipl.StatusOpRDMARead {
		t.Errorf("%+v", e)
	}
}

func asyncCompletionProtection(t *T) {
	t.eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		tag := t.tag(t.B)
		va, vb := t.pairOf(vipl.ViAttributes{Level: level}, vipl.ViAttributes{Level: level, Ptag: tag})
		a, b := t.block(t.A, 1, 64), t.blockOf(t.B, tag, 1, 2, 64)
		d := b.recv(vb, 0, 64)
		t.must(b.SetAttributes(vipl.MemAttributes{Ptag: t.tag(t.B)}))
		a.send(va, 0, 64)
		t.received(vb, vipl.StatusProtectionError)
		if e := t.asyncError(vb, vipl.ErrorCompletionProtection); e.Descriptor != d || e.Resource != vipl.ResourceDescriptor {
			t.Errorf("%+v", e)
		}
	})
}

func asyncOneByOne(t *T) {
	const count = 50
	v := t.vi(t.A, vipl.ViAttributes{Level: vipl.UnreliableDelivery})
	x := t.block(t.A, count, 64)
	var (
		mu      sync.Mutex
		running bool
		got     []*vipl.Descriptor
	)
	t.A.ErrorCallback(func(e vipl.ErrorDescriptor) {
		mu.Lock()
		if running {
			t.Error("two handlers at a time")
		}
		running = true
		mu.Unlock()
		time.Sleep(10 * time.Microsecond) // the next one has time to come too early
		mu.Lock()
		running = false
		got = append(got, e.Descriptor)
		mu.Unlock()
	})
	defer t.watch(t.A)
	for i := range count {
		t.wantErr("PostRecv", v.PostRecv(x.desc[i], 0), vipl.ErrInvalidParameter)
	}
	t.until("all errors", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(got) == count
	})
	if !slices.Equal(got, x.desc) {
		t.Error("in another order")
	}
}

func asyncHandlerCalls(t *T) {
	va, vb := t.pair(vipl.ReliableDelivery)
	b := t.block(t.B, 1, 64)
	b.prepare(0, 64)
	result := make(chan error, 1)
	t.B.ErrorCallback(func(e vipl.ErrorDescriptor) {
		s, err := e.VI.Query()
		if err == nil && s.State != vipl.Error {
			err = errors.New("the VI is " + s.State.String())
		}
		cq, err2 := t.B.CreateCQ(1)
		err = errors.Join(err, err2, e.VI.PostRecv(b.desc[0], b.Handle()))
		if d, _ := e.VI.RecvWait(patience); d != b.desc[0] {
			err = errors.Join(err, errors.New("another descriptor"))
		}
		result <- errors.Join(err, cq.Destroy(), e.VI.Disconnect())
	})
	defer t.watch(t.B)
	t.must(va.Disconnect())
	t.must(t.handled(result))
	t.state(vb, vipl.Idle)
}

// handled waits for what a handler tells.
func (t *T) handled(result <-chan error) error {
	t.Helper()
	select {
	case err := <-result:
		return err
	case <-time.After(patience):
		t.Fatal("the handler never ended")
		return nil
	}
}

func asyncHandlerCloses(t *T) {
	a, b := t.openPair()
	va, vb := t.vi(a, vipl.ViAttributes{Level: vipl.ReliableDelivery}), t.vi(b, vipl.ViAttributes{Level: vipl.ReliableDelivery})
	t.join(va, vb)
	result := make(chan error, 1)
	b.ErrorCallback(func(e vipl.ErrorDescriptor) { result <- e.Nic.Close() })
	t.must(va.Disconnect())
	t.must(t.handled(result))
	if _, err := vb.Query(); !errors.Is(err, vipl.ErrInvalidParameter) {
		t.Errorf("the VI of a closed NIC: %v", err)
	}
}

func asyncHandlerBlocks(t *T) {
	va, vb := t.pair(vipl.ReliableReception)
	a, b := t.block(t.A, 1, 64), t.block(t.B, 1, 64)
	entered, leave := make(chan error, 1), make(chan struct{})
	t.B.ErrorCallback(func(vipl.ErrorDescriptor) {
		entered <- nil
		<-leave
	})
	defer t.watch(t.B)
	t.wantErr("PostRecv", vb.PostRecv(nil, 0), vipl.ErrInvalidParameter)
	t.must(t.handled(entered))
	b.recv(vb, 0, 64)
	a.send(va, 0, 64)
	t.sent(va, 0)
	t.received(vb, 0)
	close(leave)
}

func asyncReplaced(t *T) {
	v := t.vi(t.A, vipl.ViAttributes{Level: vipl.UnreliableDelivery})
	defer t.watch(t.A)
	for k := range 3 {
		got := make(chan error, 2)
		t.A.ErrorCallback(func(vipl.ErrorDescriptor) { got <- nil })
		t.wantErr("PostRecv", v.PostRecv(nil, 0), vipl.ErrInvalidParameter)
		t.must(t.handled(got))
		if k == 1 {
			t.A.ErrorCallback(nil)
			t.wantErr("PostRecv", v.PostRecv(nil, 0), vipl.ErrInvalidParameter)
			if len(got) > 0 {
				t.Error("the old handler was called")
			}
		}
	}
	t.asyncErrors(v) // the rule's ordinary handler was replaced
}
