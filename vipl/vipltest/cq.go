package vipltest

import (
	"time"

	"viaxdp/vipl"
)

var cqRules = []Rule{
	rule("cq/tells-vi-and-queue", "A completion on a work queue that is bound to a CQ puts one entry there: which VI, and whether its receive queue.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		cq := t.cq(t.A, 4)
		a, b := t.endsOn(level, cq, cq, 2, 2, 64)
		a.recv(0, 64)
		b.recv(0, 64)
		t.noEntry(cq)
		a.send(1, 64)
		t.next(cq, a.v, false)
		t.noEntry(cq)
		b.send(1, 64)
		t.next(cq, a.v, true)
		t.noEntry(cq)
	})),
	rule("cq/descriptor-is-taken-with-done", "After a CQ entry SendDone or RecvDone of the VI gives the descriptor.", func(t *T) {
		cq := t.cq(t.A, 4)
		a, b := t.endsOn(vipl.ReliableDelivery, cq, cq, 2, 1, 64)
		a.recv(0, 64)
		b.recv(0, 64)
		a.send(1, 64)
		t.next(cq, a.v, false)
		t.same(t.sendDone(a.v, 0), a.desc[1])
		b.received()
		b.send(0, 64)
		t.next(cq, a.v, true)
		t.same(t.recvDone(a.v, 0), a.desc[0])
	}),
	rule("cq/shared-by-many-vis-and-both-queues", "A CQ may be shared by many VIs and by queues of both kinds: there is one entry for each completion.", func(t *T) {
		const vis, each = 5, 4
		cq := t.cq(t.A, 1)
		var as, bs []*end
		for i := range vis {
			a, b := t.endsOn(reliableLevels[i%2], cq, cq, 2*each, 2*each, 64)
			a.recvs(each, 64)
			b.recvs(each, 64)
			as, bs = append(as, a), append(bs, b)
		}
		for i := range vis * each {
			as[i%vis].send(each+i/vis, 64)
			bs[i%vis].send(each+i/vis, 64)
		}
		seen := t.entries(cq, 2*vis*each)
		for _, a := range as {
			equal(t, "sends of a VI", seen[entry{a.v, false}], each)
			equal(t, "receives of a VI", seen[entry{a.v, true}], each)
		}
	}),
	rule("cq/binds-each-queue-by-itself", "Each work queue is bound to a CQ of its own, or to none.", func(t *T) {
		one, two := t.cq(t.A, 4), t.cq(t.A, 4)
		for _, c := range []struct{ send, recv *vipl.CQ }{{one, two}, {one, nil}, {nil, two}} {
			a, b := t.endsOn(vipl.ReliableDelivery, c.send, c.recv, 2, 2, 64)
			a.recv(0, 64)
			b.recv(0, 64)
			a.send(1, 64)
			if c.send == nil {
				a.sent()
			} else {
				t.next(one, a.v, false)
			}
			b.send(1, 64)
			if c.recv == nil {
				a.received()
			} else {
				t.next(two, a.v, true)
			}
			t.noEntry(one)
			t.noEntry(two)
		}
	}),
	rule("cq/entries-of-one-queue-in-order", "Entries come in the order of the completions.", func(t *T) {
		cq := t.cq(t.A, 1)
		var as, bs [2]*end
		for i := range as {
			as[i], bs[i] = t.endsOn(vipl.ReliableReception, cq, nil, 6, 6, 64)
		}
		order := []int{0, 1, 1, 0, 0, 1}
		for i, k := range order {
			bs[k].recv(i, 64)
			t.untilDone(as[k].send(i, 64))
		}
		for _, k := range order {
			t.next(cq, as[k].v, false)
		}
	}),
	rule("cq/empty-is-not-done", "VipCQDone on an empty CQ returns NOT_DONE; VipCQWait returns TIMEOUT when its time is over, at once with 0.", func(t *T) {
		cq := t.cq(t.A, 1)
		t.endsOn(vipl.ReliableDelivery, cq, cq, 1, 1, 64)
		t.noEntry(cq)
		for _, d := range []time.Duration{0, time.Millisecond, moment} {
			v, _, err := cq.Wait(d)
			t.errorIf(v != nil || err != vipl.ErrTimeout, "wait of %v: %v", d, err)
		}
	}),
	rule("cq/wait-wakes", "VipCQWait returns when an entry comes.", func(t *T) {
		cq := t.cq(t.A, 1)
		a, b := t.endsOn(vipl.ReliableDelivery, nil, cq, 1, 1, 64)
		a.recv(0, 64)
		got := starts(func() error {
			v, recv, err := cq.Wait(-1)
			t.errorIf(v != a.v || !recv, "another entry: VI %p, receive %v", v, recv)
			return err
		})
		time.Sleep(moment) // it is asleep by now
		b.send(0, 64)
		t.must(<-got)
	}),
	rule("cq/vi-wait-is-refused", "SendWait and RecvWait on a queue that is bound to a CQ return INVALID_PARAMETER; the other queue has them.", waitOnCQ),
	rule("cq/one-entry-takes-many", "A CQ made with 1 entry loses nothing when many completions queue.", func(t *T) {
		const count = 500
		cq := t.cq(t.A, 1)
		a, b := t.endsOn(vipl.ReliableDelivery, cq, cq, 2*count, 2*count, 8)
		a.recvs(count, 8)
		b.recvs(count, 8)
		for i := range count {
			a.send(count+i, 8)
			b.send(count+i, 8)
		}
		for range count {
			b.received()
			b.sent()
		}
		seen := t.entries(cq, 2*count)
		equal(t, "sends", seen[entry{a.v, false}], count)
		equal(t, "receives", seen[entry{a.v, true}], count)
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
		a, _ := t.endsOn(vipl.ReliableDelivery, cq, cq, 3, 1, 64)
		a.recvs(2, 64)
		t.must(a.v.Disconnect())
		a.send(2, 64)
		t.next(cq, a.v, true)
		t.next(cq, a.v, true)
		t.next(cq, a.v, false)
		t.noEntry(cq)
		t.recvDone(a.v, vipl.StatusFlushed)
		t.recvDone(a.v, vipl.StatusFlushed)
	}),
	rule("cq/receives-by-rdma-write-have-entries", "The receive that an RDMA write with immediate data consumes has an entry; an RDMA write without has none at the target.", func(t *T) {
		cq := t.cq(t.A, 4)
		a, b := t.endsOn(vipl.ReliableReception, nil, cq, 1, 2, 64)
		a.recv(0, 64)
		b.writeWait(0, 64, a.remote(0))
		t.noEntry(cq)
		b.writeImmediate(1, 64, a.remote(0), 7)
		t.next(cq, a.v, true)
		t.noEntry(cq)
		b.sent(vipl.StatusOpRDMAWrite)
		t.recvDone(a.v, remoteWrite)
	}),
	rule("cq/destroy-fails-while-bound", "VipDestroyCQ returns ERROR_RESOURCE while a work queue is bound.", func(t *T) {
		for _, recv := range []bool{false, true} {
			cq := t.cq(t.A, 1)
			v := t.boundTo(cq, recv)
			t.wantErr("a queue is bound", cq.Destroy(), vipl.ErrResource)
			t.must(v.Destroy())
			t.wantErr("nothing bound", cq.Destroy(), nil)
		}
	}),
	choice("cq/entries-end-with-their-vi", "What becomes of entries whose VI is destroyed is the provider's: the program may have dequeued by SendDone alone.", "they go with the VI", func(t *T) {
		cq, vis := t.queued(3)
		t.sendDone(vis[1], vipl.StatusFlushed) // without asking the CQ
		t.must(vis[1].Destroy())
		t.next(cq, vis[0], false)
		t.next(cq, vis[2], false)
		t.noEntry(cq)
	}),
	rule("cq/nothing-works-after-destroy", "Every operation on a destroyed CQ returns INVALID_PARAMETER, VipCreateVi with it as well.", func(t *T) {
		cq := t.cq(t.A, 1)
		t.must(cq.Destroy())
		t.isGoneCQ(cq)
		t.wantErr("CreateVI with it for sends", errOf(t.A.CreateVI(at(vipl.ReliableDelivery), cq, nil)), vipl.ErrInvalidParameter)
		t.wantErr("CreateVI with it for receives", errOf(t.A.CreateVI(at(vipl.ReliableDelivery), nil, cq)), vipl.ErrInvalidParameter)
	}),
}

// entry is an entry of a CQ.
type entry struct {
	vi   *vipl.VI
	recv bool
}

// next checks that the next entry of c is for that queue.
func (t *T) next(c *vipl.CQ, v *vipl.VI, recv bool) {
	got, r, err := c.Wait(limit)
	t.must(err)
	equal(t, "entry", entry{got, r}, entry{v, recv})
}

// entries takes count entries and their descriptors, and checks that no more follow.
func (t *T) entries(c *vipl.CQ, count int) map[entry]int {
	seen := make(map[entry]int)
	for range count {
		v, recv, err := c.Wait(limit)
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

// noEntry checks that there is no entry.
func (t *T) noEntry(c *vipl.CQ) {
	v, _, err := c.Done()
	t.errorIf(v != nil || err != vipl.ErrNotDone, "an entry of VI %p, %v", v, err)
}

// boundTo makes a VI of A one of whose queues is bound to a CQ.
func (t *T) boundTo(cq *vipl.CQ, recv bool) *vipl.VI {
	if recv {
		return t.viOn(t.A, at(vipl.ReliableDelivery), nil, cq)
	}
	return t.viOn(t.A, at(vipl.ReliableDelivery), cq, nil)
}

// queued makes a CQ with one entry of each of several VIs, in that order.
func (t *T) queued(n int) (cq *vipl.CQ, vis []*vipl.VI) {
	cq = t.cq(t.A, n)
	x := t.block(t.A, n, 64)
	for i := range n {
		v := t.boundTo(cq, false)
		x.on(v).send(i, 64) // completes at once, in error
		vis = append(vis, v)
	}
	return cq, vis
}

// waitOnCQ waits on queues that are bound to a CQ, and on those that are not.
func waitOnCQ(t *T) {
	cq := t.cq(t.A, 1)
	v := t.boundTo(cq, false)
	t.wantErr("SendWait", errOf(v.SendWait(limit)), vipl.ErrInvalidParameter)
	t.wantErr("RecvWait of the other queue", errOf(v.RecvWait(time.Millisecond)), vipl.ErrTimeout)
	v = t.boundTo(cq, true)
	t.wantErr("RecvWait", errOf(v.RecvWait(limit)), vipl.ErrInvalidParameter)
	t.wantErr("SendWait of the other queue", errOf(v.SendWait(time.Millisecond)), vipl.ErrTimeout)
}
