package vipltest

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
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
	rule("async-errors/post-desc", "A refused descriptor is told as POST_DESC, about a descriptor of that VI.", refusedDescriptors),
	choice("async-errors/post-desc-altered", "A send that the program changed while it was posted is told as POST_DESC.", "when it completes, and once", func(t *T) {
		const long = 300_000
		a, b := t.ends(vipl.ReliableReception, 2, 2, long)
		// Queued behind a long read, the send does not complete before it is changed, unless this goroutine was
		// descheduled in between.
		d := a.desc[1]
		for end := time.Now().Add(limit); ; {
			a.read(0, long, b.remote(0))
			b.recv(1, 64)
			a.prepare(1, 64)
			a.fenced(1)
			if !isDone(d) {
				d.Length = 63
				break
			}
			if time.Now().After(end) {
				t.Fatal("the send is always complete before it can be changed")
			}
			a.sent(vipl.StatusOpRDMARead, 0)
			b.received()
		}
		a.sent(vipl.StatusOpRDMARead)
		if got, err := a.v.SendWait(limit); got != d {
			t.Fatalf("%v %v", got, err)
		}
		t.tells(t.asyncErrors(a.v, vipl.ErrorPostDesc)[0], vipl.ErrorDescriptor{NIC: t.A, VI: a.v, Resource: vipl.ResourceDescriptor, Descriptor: d})
		b.received()
	}),
	rule("async-errors/conn-lost-by-disconnect", "A disconnect is told to the other side as CONN_LOST, about the VI, and not to the caller.", everyLevel(peerDisconnect)),
	rule("async-errors/conn-lost-by-error", "A connection that breaks by an error is told as CONN_LOST on both sides, once.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		va, vb := t.pair(level)
		t.breakOf(va, vb)
		for _, disconnect := range []bool{false, true} {
			for _, v := range []*vipl.VI{va, vb} {
				if disconnect {
					t.must(v.Disconnect())
				}
				t.asyncErrors(v, vipl.ErrorConnLost)
			}
		}
	})),
	rule("async-errors/recvq-empty", "A message that finds no receive is told as RECVQ_EMPTY at the receiver, not at the sender.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		a, b := t.ends(level, 1, 1, 64)
		a.send(0, 64)
		t.tells(t.asyncError(b.v, vipl.ErrorRecvQueueEmpty), vipl.ErrorDescriptor{NIC: t.B, VI: b.v, Resource: vipl.ResourceVI})
		for _, e := range t.errors.of(a.v) {
			equal(t, "at the sender", e.Code, vipl.ErrorConnLost)
		}
	})),
	choice("async-errors/vi-overrun", "A descriptor posted past MaxDescriptorsPerQueue is refused with ERROR_RESOURCE and told as VI_OVERRUN; the queue is as it was.", "completed descriptors count until they are taken off the queue", overrun),
	rule("async-errors/rdmaw-prot", "A refused RDMA write is told as RDMAW_PROT at the target, with operation RDMA_WRITE, before the CONN_LOST of a reliable VI.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		a, b := t.endsOf(at(level), at(level), 1, 1, 64)
		a.write(0, 64, b.remote(0))
		want := []vipl.ErrorCode{vipl.ErrorRDMAWriteProtection, vipl.ErrorConnLost}
		if level == vipl.UnreliableDelivery {
			want = want[:1]
		}
		t.tells(t.asyncErrors(b.v, want...)[0], vipl.ErrorDescriptor{NIC: t.B, VI: b.v, Resource: vipl.ResourceVI, Op: vipl.StatusOpRDMAWrite})
	})),
	rule("async-errors/rdmar-prot", "A refused RDMA read is told as RDMAR_PROT at the target, with operation RDMA_READ, before the CONN_LOST.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		a, b := t.endsOf(open(level), at(level), 1, 1, 64)
		a.read(0, 64, b.remote(0))
		e := t.asyncErrors(b.v, vipl.ErrorRDMAReadProtection, vipl.ErrorConnLost)[0]
		t.tells(e, vipl.ErrorDescriptor{NIC: t.B, VI: b.v, Resource: vipl.ResourceVI, Op: vipl.StatusOpRDMARead})
	})),
	rule("async-errors/comp-prot", "A descriptor that completes when its memory no longer has its VI's tag has PROTECTION_ERROR and is told as COMP_PROT.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		a, b := t.endsOf(at(level), vipl.VIAttributes{Level: level, Ptag: t.tag(t.B)}, 1, 1, 64)
		d := b.recv(0, 64)
		t.must(b.SetAttributes(vipl.MemAttributes{Ptag: t.tag(t.B)}))
		a.send(0, 64)
		b.received(vipl.StatusProtectionError)
		t.tells(t.asyncError(b.v, vipl.ErrorCompletionProtection), vipl.ErrorDescriptor{NIC: t.B, VI: b.v, Resource: vipl.ResourceDescriptor, Descriptor: d})
	})),
	rule("async-errors/rdma-transport", "An RDMA operation of the VI's own that a silent peer did not answer is told as RDMA_TRANSPORT, about its descriptor.", func(t *T) {
		silence := t.openSilent()
		reader, target := t.ends(vipl.ReliableDelivery, 1, 1, 64)
		writer, _ := t.ends(vipl.ReliableReception, 1, 1, 64)
		silence()
		reader.read(0, 64, target.remote(0))
		writer.write(0, 64, target.remote(0))
		for e, op := range map[*end]vipl.Status{reader: vipl.StatusOpRDMARead, writer: vipl.StatusOpRDMAWrite} {
			told := t.asyncErrors(e.v, vipl.ErrorRDMATransport, vipl.ErrorConnLost)[0]
			t.tells(told, vipl.ErrorDescriptor{NIC: t.A, VI: e.v, Resource: vipl.ResourceDescriptor, Descriptor: e.desc[0], Op: op})
			e.sent(op | vipl.StatusTransportError)
		}
	}),
	rule("async-errors/one-after-the-other", "A handler gets the errors one after the other, in the order in which they came up.", func(t *T) {
		const count = 50
		v := t.vi(t.A, at(vipl.UnreliableDelivery))
		x := t.block(t.A, count, 64)
		var running atomic.Bool
		var mu sync.Mutex
		var got []*vipl.Descriptor
		t.onErrors(t.A, func(e vipl.ErrorDescriptor) {
			t.errorIf(running.Swap(true), "two handlers at a time")
			time.Sleep(10 * time.Microsecond) // time in which the next one could arrive too early
			mu.Lock()
			got = append(got, e.Descriptor)
			mu.Unlock()
			running.Store(false)
		})
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
		a, b := t.ends(vipl.ReliableDelivery, 1, 1, 64)
		d := b.prepare(0, 64)
		result := make(chan error, 1)
		t.onErrors(t.B, func(e vipl.ErrorDescriptor) {
			t.isIn(e.VI, vipl.Error)
			cq, err := t.B.CreateCQ(1)
			err = errors.Join(err, e.VI.PostRecv(d, b.Handle()))
			got, _ := e.VI.RecvWait(limit)
			t.same(got, d)
			result <- errors.Join(err, cq.Destroy(), e.VI.Disconnect())
		})
		t.must(a.v.Disconnect())
		t.must(t.handled(result))
		t.state(b.v, vipl.Idle)
	}),
	rule("async-errors/handler-may-close", "An error handler may close the NIC.", func(t *T) {
		t.openPair()
		va, vb := t.pair(vipl.ReliableDelivery)
		result := make(chan error, 1)
		t.B.ErrorCallback(func(e vipl.ErrorDescriptor) { result <- e.NIC.Close() })
		t.must(va.Disconnect())
		t.must(t.handled(result))
		t.wantErr("query of a VI of a closed NIC", errOf(vb.Query()), vipl.ErrInvalidParameter)
		t.wantErr("post on one", vb.PostRecv(nil, 0), vipl.ErrInvalidParameter)
	}),
	rule("async-errors/handler-blocks-nobody", "While an error handler runs, everything else goes on.", func(t *T) {
		a, b := t.ends(vipl.ReliableReception, 1, 1, 64)
		entered, leave := make(chan error, 1), make(chan struct{})
		t.onErrors(t.B, func(vipl.ErrorDescriptor) {
			entered <- nil
			<-leave
		})
		t.wantErr("PostRecv", b.v.PostRecv(nil, 0), vipl.ErrInvalidParameter)
		t.must(t.handled(entered))
		a.message(b, 64, 0)
		close(leave)
	}),
	rule("async-errors/replaced-handler", "A new handler takes the place of the old one, and none restores the default, which only logs.", func(t *T) {
		v := t.vi(t.A, at(vipl.UnreliableDelivery))
		for k := range 3 {
			got := make(chan error, 2)
			t.onErrors(t.A, func(vipl.ErrorDescriptor) { got <- nil })
			t.wantErr("PostRecv", v.PostRecv(nil, 0), vipl.ErrInvalidParameter)
			t.must(t.handled(got))
			if k == 1 {
				t.A.ErrorCallback(nil)
				t.wantErr("PostRecv", v.PostRecv(nil, 0), vipl.ErrInvalidParameter)
				t.errorIf(len(got) > 0, "the old handler was called")
			}
		}
		t.noErrors(v) // the rule's ordinary handler was replaced
	}),
}

// onErrors sets a handler of the rule for the errors of a NIC.
func (t *T) onErrors(n *vipl.NIC, f func(vipl.ErrorDescriptor)) {
	n.ErrorCallback(f)
	t.Cleanup(func() { t.watch(n) })
}

// handled waits for the result of a handler.
func (t *T) handled(result <-chan error) error {
	return within(t, "the end of a handler", result)
}

// overrun posts one descriptor more than a queue has room for.
func overrun(t *T) {
	most := t.A.Query().MaxDescriptorsPerQueue
	a, b := t.ends(vipl.ReliableDelivery, most+1, 1, 0)
	a.recvs(most, 0)
	t.wantErr("one receive more", a.v.PostRecv(a.prepare(most, 0), a.Handle()), vipl.ErrResource)
	t.tells(t.asyncErrors(a.v, vipl.ErrorVIOverrun)[0],
		vipl.ErrorDescriptor{NIC: t.A, VI: a.v, Resource: vipl.ResourceDescriptor, Descriptor: a.desc[most]})
	b.send(0, 0)
	t.same(a.received(), a.desc[0])
	t.states(vipl.Connected, a.v, b.v)

	idle := t.block(t.A, most+1, 0).on(t.vi(t.A, at(vipl.ReliableDelivery)))
	idle.sends(most, 0) // in Idle they complete at once, and stay on the queue
	t.wantErr("one send more", idle.v.PostSend(idle.prepare(most, 0), idle.Handle()), vipl.ErrResource)
	t.asyncErrors(idle.v, vipl.ErrorVIOverrun)
	for i := range most {
		t.same(t.sendDone(idle.v, vipl.StatusFlushed), idle.desc[i])
	}
	t.nothingDone(idle.v.SendDone, vipl.ErrDescriptor)
	idle.send(most, 0) // there is room again
}
