package vipltest

import (
	"time"

	"viaxdp/vipl"
)

var cqRules = []Rule{
	rule("cq/tells-vi-and-queue", "A completion on a work queue that is bound to a CQ puts one entry there: which VI, and whether its receive queue.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		cq := t.cq(t.A, 4)
		va, vb := t.pairOn(level, cq, cq)
		x, y := t.block(t.A, 2, 64), t.block(t.B, 2, 64)
		x.recv(va, 0, 64)
		y.recv(vb, 0, 64)
		t.noEntry(cq)
		x.send(va, 1, 64)
		t.next(cq, va, false)
		t.noEntry(cq)
		y.send(vb, 1, 64)
		t.next(cq, va, true)
		t.noEntry(cq)
	})),
	rule("cq/descriptor-is-taken-with-done", "After a CQ entry SendDone or RecvDone of the VI gives the descriptor.", func(t *T) {
		cq := t.cq(t.A, 4)
		va, vb := t.pairOn(vipl.ReliableDelivery, cq, cq)
		x, y := t.block(t.A, 2, 64), t.block(t.B, 1, 64)
		x.recv(va, 0, 64)
		y.recv(vb, 0, 64)
		x.send(va, 1, 64)
		t.next(cq, va, false)
		d, err := va.SendDone()
		t.same(t.completed("send", d, err, 0), x.desc[1])
		fill(y.buf(0), 3)
		t.received(vb, 0)
		y.send(vb, 0, 64)
		t.next(cq, va, true)
		d, err = va.RecvDone()
		t.same(t.completed("receive", d, err, vipl.StatusOpReceive), x.desc[0])
	}),
	rule("cq/shared-by-many-vis-and-both-queues", "A CQ may be shared by many VIs and by queues of both kinds: there is one entry for each completion.", func(t *T) {
		const vis, each = 5, 4
		cq := t.cq(t.A, 1)
		var as, bs []*vipl.VI
		for i := range vis {
			va, vb := t.pairOn(reliableLevels[i%2], cq, cq)
			as, bs = append(as, va), append(bs, vb)
		}
		x, y := t.block(t.A, 2*vis*each, 64), t.block(t.B, 2*vis*each, 64)
		for i := range vis * each {
			x.recv(as[i%vis], 2*i, 64)
			y.recv(bs[i%vis], 2*i, 64)
		}
		for i := range vis * each {
			x.send(as[i%vis], 2*i+1, 64)
			y.send(bs[i%vis], 2*i+1, 64)
		}
		seen := t.entries(cq, 2*vis*each)
		for _, v := range as {
			equal(t, "sends of a VI", seen[entry{v, false}], each)
			equal(t, "receives of a VI", seen[entry{v, true}], each)
		}
	}),
	rule("cq/binds-each-queue-by-itself", "Each work queue is bound to a CQ of its own, or to none.", func(t *T) {
		one, two := t.cq(t.A, 4), t.cq(t.A, 4)
		for _, c := range []struct{ send, recv *vipl.CQ }{{one, two}, {one, nil}, {nil, two}} {
			va, vb := t.pairOn(vipl.ReliableDelivery, c.send, c.recv)
			x, y := t.block(t.A, 2, 64), t.block(t.B, 2, 64)
			x.recv(va, 0, 64)
			y.recv(vb, 0, 64)
			x.send(va, 1, 64)
			if c.send != nil {
				t.next(one, va, false)
			} else {
				t.sent(va, 0)
			}
			t.noEntry(one)
			y.send(vb, 1, 64)
			if c.recv != nil {
				t.next(two, va, true)
			} else {
				t.received(va, 0)
			}
			t.noEntry(two)
		}
	}),
	rule("cq/entries-of-one-queue-in-order", "Entries come in the order of the completions.", func(t *T) {
		cq := t.cq(t.A, 1)
		v1, w1 := t.pairOn(vipl.ReliableReception, cq, nil)
		v2, w2 := t.pairOn(vipl.ReliableReception, cq, nil)
		x, y := t.block(t.A, 6, 64), t.block(t.B, 6, 64)
		var want []*vipl.VI
		for i := range 6 {
			v, w := v1, w1
			if i == 1 || i == 2 || i == 5 {
				v, w = v2, w2
			}
			y.recv(w, i, 64)
			d := x.send(v, i, 64)
			t.until("the send completes", func() bool { t.A.Poll(); return d.Status()&vipl.StatusDone != 0 })
			want = append(want, v)
		}
		for _, v := range want {
			t.next(cq, v, false)
		}
	}),
	rule("cq/empty-is-not-done", "VipCQDone on an empty CQ returns NOT_DONE; VipCQWait returns TIMEOUT when its time is over, at once with 0.", func(t *T) {
		cq := t.cq(t.A, 1)
		t.pairOn(vipl.ReliableDelivery, cq, cq)
		t.noEntry(cq)
		for _, d := range []time.Duration{0, time.Millisecond, moment} {
			v, _, err := cq.Wait(d)
			t.errorIf(v != nil || err != vipl.ErrTimeout, "wait of %v: %v", d, err)
		}
	}),
	rule("cq/wait-wakes", "VipCQWait returns when an entry comes.", func(t *T) {
		cq := t.cq(t.A, 1)
		va, vb := t.pairOn(vipl.ReliableDelivery, nil, cq)
		x, y := t.block(t.A, 1, 64), t.block(t.B, 1, 64)
		x.recv(va, 0, 64)
		type entry struct {
			v    *vipl.VI
			recv bool
			err  error
		}
		got := make(chan entry, 1)
		go func() {
			v, recv, err := cq.Wait(-1)
			got <- entry{v, recv, err}
		}()
		time.Sleep(moment) // it is asleep by now
		y.send(vb, 0, 64)
		equal(t, "entry", <-got, (entry{va, true, nil}))
	}),
	rule("cq/vi-wait-is-refused", "SendWait and RecvWait on a queue that is bound to a CQ return INVALID_PARAMETER; the other queue has them.", waitOnCQ),
	rule("cq/one-entry-takes-many", "A CQ made with 1 entry loses nothing when many completions queue.", func(t *T) {
		const count = 500
		cq := t.cq(t.A, 1)
		va, vb := t.pairOn(vipl.ReliableDelivery, cq, cq)
		x, y := t.block(t.A, 2*count, 8), t.block(t.B, 2*count, 8)
		for i := range count {
			x.recv(va, 2*i, 8)
			y.recv(vb, 2*i, 8)
		}
		for i := range count {
			x.send(va, 2*i+1, 8)
			y.send(vb, 2*i+1, 8)
		}
		for range count {
			t.received(vb, 0)
			t.sent(vb, 0)
		}
		seen := t.entries(cq, 2*count)
		equal(t, "sends", seen[entry{va, false}], count)
		equal(t, "receives", seen[entry{va, true}], count)
	}),
	choice("cq/holds-at-least-the-entries", "VipCreateCQ makes room for at least as many entries as asked for.", "rounded up; a full CQ grows", func(t *T) {
		for _, n := range []int{1, 2, 3, 100, 1024, 1025} {
			got := t.cq(t.A, n).Entries()
			t.errorIf(got < n, "%d entries, asked for %d", got, n)
		}
	}),
	rule("cq/entries-are-positive", "VipCreateCQ and VipResizeCQ with no entries, or more than MaxCQEntries, return INVALID_PARAMETER.", func(t *T) {
		cq := t.cq(t.A, 4)
		for _, n := range []int{0, -1, t.A.Query().MaxCQEntries + 1} {
			t.wantErr("CreateCQ", errOf(t.A.CreateCQ(n)), vipl.ErrInvalidParameter)
			t.wantErr("ResizeCQ", cq.Resize(n), vipl.ErrInvalidParameter)
		}
		t.errorIf(cq.Entries() < 4, "%d entries", cq.Entries())
	}),
	rule("cq/resize-keeps-entries", "VipResizeCQ keeps the entries that wait, and their order.", func(t *T) {
		for _, n := range []int{5, 6, 64, 1000} {
			cq, vis := t.queued(5)
			t.must(cq.Resize(n))
			t.errorIf(cq.Entries() < n, "%d entries after a resize to %d", cq.Entries(), n)
			for _, v := range vis {
				t.next(cq, v, false)
			}
			t.noEntry(cq)
		}
	}),
	rule("cq/resize-below-the-entries-fails", "VipResizeCQ to less than the entries that wait returns ERROR_RESOURCE and changes nothing.", func(t *T) {
		cq, vis := t.queued(5)
		t.wantErr("resize to 4", cq.Resize(4), vipl.ErrResource)
		t.wantErr("resize to 1", cq.Resize(1), vipl.ErrResource)
		t.next(cq, vis[0], false)
		t.wantErr("resize to 4 when 4 wait", cq.Resize(4), nil)
		for _, v := range vis[1:] {
			t.next(cq, v, false)
		}
		t.wantErr("resize to 1 when none waits", cq.Resize(1), nil)
	}),
	rule("cq/flushed-descriptors-have-entries", "Descriptors that complete in error have entries like all others.", func(t *T) {
		cq := t.cq(t.A, 4)
		va, _ := t.pairOn(vipl.ReliableDelivery, cq, cq)
		x := t.block(t.A, 3, 64)
		x.recv(va, 0, 64)
		x.recv(va, 1, 64)
		t.must(va.Disconnect())
		x.send(va, 2, 64)
		t.next(cq, va, true)
		t.next(cq, va, true)
		t.next(cq, va, false)
		t.noEntry(cq)
		for range 2 {
			t.recvDone(va, vipl.StatusFlushed|vipl.StatusOpReceive)
		}
	}),
	rule("cq/receives-by-rdma-write-have-entries", "The receive that an RDMA write with immediate data consumes has an entry; an RDMA write without has none at the target.", func(t *T) {
		cq := t.cq(t.A, 4)
		va, vb := t.pairOn(vipl.ReliableReception, nil, cq)
		x, y := t.block(t.A, 1, 64), t.block(t.B, 2, 64)
		x.recv(va, 0, 64)
		y.writeDone(vb, 0, 64, x.remote(0))
		t.noEntry(cq)
		y.writeImmediate(vb, 1, 64, x.remote(0), 7)
		t.next(cq, va, true)
		t.noEntry(cq)
		t.sent(vb, vipl.StatusOpRDMAWrite)
		t.recvDone(va, vipl.StatusOpRemoteRDMAWrite|vipl.StatusImmediate)
	}),
	rule("cq/destroy-fails-while-bound", "VipDestroyCQ returns ERROR_RESOURCE while a work queue is bound.", func(t *T) {
		for _, kind := range []string{"send", "receive"} {
			cq := t.cq(t.A, 1)
			send, recv := cq, (*vipl.CQ)(nil)
			if kind == "receive" {
				send, recv = recv, send
			}
			v := t.viOn(t.A, at(vipl.ReliableDelivery), send, recv)
			t.wantErr(kind+" queue bound", cq.Destroy(), vipl.ErrResource)
			t.must(v.Destroy())
			t.wantErr("nothing bound", cq.Destroy(), nil)
		}
	}),
	choice("cq/entries-end-with-their-vi", "What becomes of entries whose VI is destroyed is the provider's: the program may have dequeued by SendDone alone.", "they go with the VI", func(t *T) {
		cq, vis := t.queued(3)
		d, err := vis[1].SendDone() // without asking the CQ
		t.completed("send", d, err, vipl.StatusFlushed)
		t.must(vis[1].Destroy())
		t.next(cq, vis[0], false)
		t.next(cq, vis[2], false)
		t.noEntry(cq)
	}),
	rule("cq/nothing-works-after-destroy", "Every operation on a destroyed CQ returns INVALID_PARAMETER, VipCreateVi with it as well.", func(t *T) {
		cq := t.cq(t.A, 1)
		t.must(cq.Destroy())
		t.isGoneCQ(cq)
		a := at(vipl.ReliableDelivery)
		t.wantErr("CreateVI with it for sends", errOf(t.A.CreateVI(a, cq, nil)), vipl.ErrInvalidParameter)
		t.wantErr("CreateVI with it for receives", errOf(t.A.CreateVI(a, nil, cq)), vipl.ErrInvalidParameter)
	}),
}

// next checks that the next entry of c is of that queue.
func (t *T) next(c *vipl.CQ, v *vipl.VI, recv bool) {
	t.Helper()
	got, r, err := c.Wait(ackDelay)
	if err != nil {
		t.Fatal(err)
	}
	t.errorIf(got != v || r != recv, "another entry: VI %p, receive %v; want VI %p, receive %v", got, r, v, recv)
}

// entries takes count entries and the descriptors that they are of, after which none waits.
func (t *T) entries(c *vipl.CQ, count int) map[entry]int {
	t.Helper()
	seen := make(map[entry]int)
	for range count {
		v, recv, err := c.Wait(ackDelay)
		t.must(err)
		done := v.SendDone
		if recv {
			done = v.RecvDone
		}
		t.must(errOf(done()))
		seen[entry{v, recv}]++
	}
	t.noEntry(c)
	return seen
}

// noEntry checks that none waits.
func (t *T) noEntry(c *vipl.CQ) {
	t.Helper()
	v, _, err := c.Done()
	t.errorIf(v != nil || err != vipl.ErrNotDone, "an entry of VI %p, %v", v, err)
}

// pairOn makes a connected pair of VIs of a level, the one of A with its queues
// bound to CQs.
func (t *T) pairOn(level vipl.ReliabilityLevel, send, recv *vipl.CQ) (va, vb *vipl.VI) {
	t.Helper()
	a := vipl.VIAttributes{Level: level, EnableRDMAWrite: true}
	va, vb = t.viOn(t.A, a, send, recv), t.vi(t.B, a)
	t.join(va, vb)
	return va, vb
}

// queued makes a CQ in which an entry of each of a few VIs waits, in that order.
func (t *T) queued(n int) (cq *vipl.CQ, vis []*vipl.VI) {
	t.Helper()
	cq = t.cq(t.A, n)
	x := t.block(t.A, n, 64)
	for i := range n {
		v := t.viOn(t.A, at(vipl.ReliableDelivery), cq, nil)
		x.send(v, i, 64) // completes at once, in error
		vis = append(vis, v)
	}
	return cq, vis
}

// waitOnCQ waits on queues that are bound to a CQ, and on those that are not.
func waitOnCQ(t *T) {
	cq := t.cq(t.A, 1)
	a := at(vipl.ReliableDelivery)
	v := t.viOn(t.A, a, cq, nil)
	t.wantErr("SendWait", errOf(v.SendWait(ackDelay)), vipl.ErrInvalidParameter)
	t.wantErr("RecvWait of the other queue", errOf(v.RecvWait(time.Millisecond)), vipl.ErrTimeout)
	v = t.viOn(t.A, a, nil, cq)
	t.wantErr("RecvWait", errOf(v.RecvWait(ackDelay)), vipl.ErrInvalidParameter)
	t.wantErr("SendWait of the other queue", errOf(v.SendWait(time.Millisecond)), vipl.ErrTimeout)
}
