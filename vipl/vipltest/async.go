package vipltest

import (
	"errors"
	"slices"
	"sync"
	"time"

	"viaxdp/vipl"
)

var asyncRules = []Rule{
	rule("async-errors/values", "The eleven error codes and the four resource codes have the VIPL's values.", func(t *T) {
		for i, code := range []vipl.ErrorCode{
			vipl.ErrorPostDesc, vipl.ErrorConnLost, vipl.ErrorRecvQueueEmpty, vipl.ErrorVIOverrun, vipl.ErrorRDMAWriteProtection,
			vipl.ErrorRDMAWriteData, vipl.ErrorRDMAWriteAbort, vipl.ErrorRDMAReadProtection, vipl.ErrorCompletionProtection,
			vipl.ErrorRDMATransport, vipl.ErrorCatastrophic,
		} {
			equal(t, "the code of "+code.String(), int(code), i)
		}
		for i, code := range []vipl.ResourceCode{vipl.ResourceNIC, vipl.ResourceVI, vipl.ResourceCQ, vipl.ResourceDescriptor} {
			equal(t, "resource", int(code), i)
		}
	}),
	rule("async-errors/post-desc", "A refused descriptor is told as POST_DESC, about a descriptor of that VI.", func(t *T) {
		v := t.vi(t.A, at(vipl.UnreliableDelivery))
		x := t.block(t.A, 1, 256)
		unaligned := descriptorAt(x.buf(0)[4:])
		userRing := make([]byte, 128)
		stray := descriptorAt(userRing[-addressOf(userRing)&(vipl.DescriptorAlignment-1):])
		posts := []*vipl.Descriptor{nil, unaligned, stray}
		for _, d := range posts {
			t.wantErr("PostSend", v.PostSend(d, x.Handle()), vipl.ErrInvalidParameter)
			t.wantErr("PostRecv", v.PostRecv(d, x.Handle()), vipl.ErrInvalidParameter)
		}
		list := t.asyncErrors(v, slices.Repeat([]vipl.ErrorCode{vipl.ErrorPostDesc}, 2*len(posts))...)
		for i, e := range list {
			t.errorIf(e.Err == nil, "error %d says nothing", i)
			t.tells(e, vipl.ErrorDescriptor{NIC: t.A, VI: v, Resource: vipl.ResourceDescriptor, Descriptor: posts[i/2]})
		}
	}),
	choice("async-errors/post-desc-altered", "A send that the program changed while it was posted is told as POST_DESC.", "when it completes, and once", func(t *T) {
		va, vb, a, b := t.ends(vipl.ReliableReception, 2, 2, 300_000)
		// Behind a long read, the send does not complete before it is changed: but where
		// the rule was kept from its work just now.
		var d *vipl.Descriptor
		for end := time.Now().Add(ackDelay); ; {
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
		if got, err := va.SendWait(ackDelay); got != d {
			t.Fatalf("%v %v", got, err)
		}
		t.tells(t.asyncErrors(va, vipl.ErrorPostDesc)[0], vipl.ErrorDescriptor{NIC: t.A, VI: va, Resource: vipl.ResourceDescriptor, Descriptor: d})
		t.received(vb, 0)
	}),
	rule("async-errors/conn-lost-by-disconnect", "A disconnect is told to the other side as CONN_LOST, about the VI, and not to the caller.", everyLevel(peerDisconnect)),
	rule("async-errors/conn-lost-by-error", "A connection that breaks by an error is told as CONN_LOST on both sides, once.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		va, vb := t.pair(level)
		t.breakOf(va, vb)
		t.asyncErrors(va, vipl.ErrorConnLost)
		t.asyncErrors(vb, vipl.ErrorConnLost)
		t.must(va.Disconnect())
		t.must(vb.Disconnect())
		t.asyncErrors(va, vipl.ErrorConnLost)
		t.asyncErrors(vb, vipl.ErrorConnLost)
	})),
	rule("async-errors/recvq-empty", "A message that finds no receive is told as RECVQ_EMPTY at the receiver, not at the sender.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		va, vb := t.pair(level)
		a := t.block(t.A, 1, 64)
		a.send(va, 0, 64)
		e := t.asyncError(vb, vipl.ErrorRecvQueueEmpty)
		t.tells(e, vipl.ErrorDescriptor{NIC: t.B, VI: vb, Resource: vipl.ResourceVI})
		for _, e := range t.errors.of(va) {
			equal(t, "at the sender", e.Code, vipl.ErrorConnLost)
		}
	})),
	choice("async-errors/vi-overrun", "A descriptor posted past MaxDescriptorsPerQueue is refused with ERROR_RESOURCE and told as VI_OVERRUN; the queue is as it was.", "completed descriptors count until they are taken off the queue", overrun),
	rule("async-errors/rdmaw-prot", "A refused RDMA write is told as RDMAW_PROT at the target, with operation RDMA_WRITE, before the CONN_LOST of a reliable VI.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		va, vb := t.pairOf(at(level), at(level))
		a, b := t.block(t.A, 1, 64), t.block(t.B, 1, 64)
		a.write(va, 0, 64, b.remote(0))
		want := []vipl.ErrorCode{vipl.ErrorRDMAWriteProtection}
		if level != vipl.UnreliableDelivery {
			want = append(want, vipl.ErrorConnLost)
		}
		e := t.asyncErrors(vb, want...)[0]
		t.tells(e, vipl.ErrorDescriptor{NIC: t.B, VI: vb, Resource: vipl.ResourceVI, Op: vipl.StatusOpRDMAWrite})
	})),
	rule("async-errors/rdmar-prot", "A refused RDMA read is told as RDMAR_PROT at the target, with operation RDMA_READ, before the CONN_LOST.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		va, vb := t.pairOf(vipl.VIAttributes{Level: level, EnableRDMARead: true}, at(level))
		a, b := t.block(t.A, 1, 64), t.block(t.B, 1, 64)
		a.read(va, 0, 64, b.remote(0))
		e := t.asyncErrors(vb, vipl.ErrorRDMAReadProtection, vipl.ErrorConnLost)[0]
		t.tells(e, vipl.ErrorDescriptor{NIC: t.B, VI: vb, Resource: vipl.ResourceVI, Op: vipl.StatusOpRDMARead})
	})),
	rule("async-errors/comp-prot", "A descriptor that completes when its memory no longer has its VI's tag has PROTECTION_ERROR and is told as COMP_PROT.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		tag := t.tag(t.B)
		va, vb := t.pairOf(at(level), vipl.VIAttributes{Level: level, Ptag: tag})
		a, b := t.block(t.A, 1, 64), t.blockOf(t.B, tag, 1, 2, 64)
		d := b.recv(vb, 0, 64)
		t.must(b.SetAttributes(vipl.MemAttributes{Ptag: t.tag(t.B)}))
		a.send(va, 0, 64)
		t.received(vb, vipl.StatusProtectionError)
		t.tells(t.asyncError(vb, vipl.ErrorCompletionProtection), vipl.ErrorDescriptor{NIC: t.B, VI: vb, Resource: vipl.ResourceDescriptor, Descriptor: d})
	})),
	rule("async-errors/rdma-transport", "An RDMA operation of the VI's own that a silent peer did not answer is told as RDMA_TRANSPORT, about its descriptor.", func(t *T) {
		a, b, silence := t.openSilent()
		x, y := t.block(a, 2, 64), t.block(b, 1, 64)
		reader, _ := t.joined(a, b, vipl.ReliableDelivery)
		writer, _ := t.joined(a, b, vipl.ReliableReception)
		silence()
		read := x.read(reader, 0, 64, y.remote(0))
		write := x.write(writer, 1, 64, y.remote(0))
		for _, c := range []struct {
			v  *vipl.VI
			d  *vipl.Descriptor
			op vipl.Status
		}{{reader, read, vipl.StatusOpRDMARead}, {writer, write, vipl.StatusOpRDMAWrite}} {
			e := t.asyncErrors(c.v, vipl.ErrorRDMATransport, vipl.ErrorConnLost)[0]
			t.tells(e, vipl.ErrorDescriptor{NIC: a, VI: c.v, Resource: vipl.ResourceDescriptor, Descriptor: c.d, Op: c.op})
			t.sent(c.v, c.op|vipl.StatusTransportError)
		}
	}),
	rule("async-errors/one-after-the-other", "A handler gets the errors one after the other, in the order in which they came up.", func(t *T) {
		const count = 50
		v := t.vi(t.A, at(vipl.UnreliableDelivery))
		x := t.block(t.A, count, 64)
		var (
			mu      sync.Mutex
			running bool
			got     []*vipl.Descriptor
		)
		t.A.ErrorCallback(func(e vipl.ErrorDescriptor) {
			mu.Lock()
			t.errorIf(running, "two handlers at a time")
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
		t.errorIf(!slices.Equal(got, x.desc), "in another order")
	}),
	rule("async-errors/handler-may-call-anything", "An error handler may call the library, on the VI that the error is about, too.", func(t *T) {
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
			if d, _ := e.VI.RecvWait(ackDelay); d != b.desc[0] {
				err = errors.Join(err, errors.New("another descriptor"))
			}
			result <- errors.Join(err, cq.Destroy(), e.VI.Disconnect())
		})
		defer t.watch(t.B)
		t.must(va.Disconnect())
		t.must(t.handled(result))
		t.state(vb, vipl.Idle)
	}),
	rule("async-errors/handler-may-close", "An error handler may close the NIC.", func(t *T) {
		a, b := t.openPair()
		va, vb := t.vi(a, at(vipl.ReliableDelivery)), t.vi(b, at(vipl.ReliableDelivery))
		t.join(va, vb)
		result := make(chan error, 1)
		b.ErrorCallback(func(e vipl.ErrorDescriptor) { result <- e.NIC.Close() })
		t.must(va.Disconnect())
		t.must(t.handled(result))
		t.wantErr("query of a VI of a closed NIC", errOf(vb.Query()), vipl.ErrInvalidParameter)
		t.wantErr("post on one", vb.PostRecv(nil, 0), vipl.ErrInvalidParameter)
	}),
	rule("async-errors/handler-blocks-nobody", "While an error handler runs, everything else goes on.", func(t *T) {
		va, vb, a, b := t.ends(vipl.ReliableReception, 1, 1, 64)
		entered, leave := make(chan error, 1), make(chan struct{})
		t.B.ErrorCallback(func(vipl.ErrorDescriptor) {
			entered <- nil
			<-leave
		})
		defer t.watch(t.B)
		t.wantErr("PostRecv", vb.PostRecv(nil, 0), vipl.ErrInvalidParameter)
		t.must(t.handled(entered))
		t.message(va, a, vb, b, 64, 0)
		close(leave)
	}),
	rule("async-errors/replaced-handler", "A new handler takes the place of the old one, and none restores the default, which only logs.", func(t *T) {
		v := t.vi(t.A, at(vipl.UnreliableDelivery))
		defer t.watch(t.A)
		for k := range 3 {
			got := make(chan error, 2)
			t.A.ErrorCallback(func(vipl.ErrorDescriptor) { got <- nil })
			t.wantErr("PostRecv", v.PostRecv(nil, 0), vipl.ErrInvalidParameter)
			t.must(t.handled(got))
			if k == 1 {
				t.A.ErrorCallback(nil)
				t.wantErr("PostRecv", v.PostRecv(nil, 0), vipl.ErrInvalidParameter)
				t.errorIf(len(got) > 0, "the old handler was called")
			}
		}
		t.asyncErrors(v) // the rule's ordinary handler was replaced
	}),
}

// handled waits for what a handler tells.
func (t *T) handled(result <-chan error) error {
	t.Helper()
	return within(t, "the end of a handler", result)
}

// overrun posts a descriptor more than a queue has room for.
func overrun(t *T) {
	most := t.A.Query().MaxDescriptorsPerQueue
	v, w, x, z := t.ends(vipl.ReliableDelivery, most+1, 1, 0)
	x.recvs(v, most, 0)
	t.wantErr("one receive more", v.PostRecv(x.prepare(most, 0), x.Handle()), vipl.ErrResource)
	t.tells(t.asyncErrors(v, vipl.ErrorVIOverrun)[0],
		vipl.ErrorDescriptor{NIC: t.A, VI: v, Resource: vipl.ResourceDescriptor, Descriptor: x.desc[most]})
	z.send(w, 0, 0)
	t.same(t.received(v, 0), x.desc[0])
	t.states(vipl.Connected, v, w)

	idle := t.vi(t.A, at(vipl.ReliableDelivery))
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
	t.nothingDone(idle.SendDone, vipl.ErrDescriptor)
	y.send(idle, most, 0) // there is room again
}
