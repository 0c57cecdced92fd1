package vipltest

import (
	"time"

	"viaxdp/vipl"
)

var cqRules = []Rule{
	{
		ID:   "cq/tells-vi-and-queue",
		Text: "A completion on a work queue that is bound to a CQ puts one entry there: which VI, and whether its receive queue.",
		run:  cqEntries,
	},
	{
		ID:   "cq/descriptor-is-taken-with-done",
		Text: "After a CQ entry SendDone or RecvDone of the VI gives the descriptor.",
		run:  cqDone,
	},
	{
		ID:   "cq/shared-by-many-vis-and-both-queues",
		Text: "A CQ may be shared by many VIs and by queues of both kinds: there is one entry for each completion.",
		run:  cqShared,
	},
	{
		ID:   "cq/binds-each-queue-by-itself",
		Text: "Each work queue is bound to a CQ of its own, or to none.",
		run:  cqEach,
	},
	{
		ID:   "cq/entries-of-one-queue-in-order",
		Text: "Entries come in the order of the completions.",
		run:  cqOrder,
	},
	{
		ID:   "cq/empty-is-not-done",
		Text: "VipCQDone on an empty CQ returns NOT_DONE; VipCQWait returns TIMEOUT when its time is over, at once with 0.",
		run:  cqEmpty,
	},
	{
		ID:   "cq/wait-wakes",
		Text: "VipCQWait returns when an entry comes.",
		run:  cqWakes,
	},
	{
		ID:   "cq/vi-wait-is-refused",
		Text: "SendWait and RecvWait on a queue that is bound to a CQ return INVALID_PARAMETER; the other queue has them.",
		run:  cqViWait,
	},
	{
		ID:   "cq/one-entry-takes-many",
		Text: "A CQ made with 1 entry loses nothing when many completions queue.",
		run:  cqOverrun,
	},
	{
		ID:     "cq/holds-at-least-the-entries",
		Text:   "VipCreateCQ makes room for at least as many entries as asked for.",
		Choice: "rounded up; a full CQ grows",
		run:    cqAtLeast,
	},
	{
		ID:   "cq/entries-are-positive",
		Text: "VipCreateCQ and VipResizeCQ with no entries, or more than MaxCQEntries, return INVALID_PARAMETER.",
		run:  cqWrongSize,
	},
	{
		ID:   "cq/resize-keeps-entries",
		Text: "VipResizeCQ keeps the entries that wait, and their order.",
		run:  cqResize,
	},
	{
		ID:   "cq/resize-below-the-entries-fails",
		Text: "VipResizeCQ to less than the entries that wait returns ERROR_RESOURCE and changes nothing.",
		run:  cqResizeSmall,
	},
	{
		ID:   "cq/flushed-descriptors-have-entries",
		Text: "Descriptors that complete in error have entries like all others.",
		run:  cqFlushed,
	},
	{
		ID:   "cq/receives-by-rdma-write-have-entries",
		Text: "The receive that an RDMA write with immediate data consumes has an entry; an RDMA write without has none at the target.",
		run:  cqWrite,
	},
	{
		ID:   "cq/destroy-fails-while-bound",
		Text: "VipDestroyCQ returns ERROR_RESOURCE while a work queue is bound.",
		run:  cqBound,
	},
	{
		ID:     "cq/entries-end-with-their-vi",
		Text:   "What becomes of entries whose VI is destroyed is the provider's: the program may have dequeued by SendDone alone.",
		Choice: "they go with the VI",
		run:    cqForgets,
	},
	{
		ID:   "cq/nothing-works-after-destroy",
		Text: "Every operation on a destroyed CQ returns INVALID_PARAMETER, VipCreateVi with it as well.",
		run:  cqDestroyed,
	},
}

// next checks that the next entry of c is of that queue.
func (t *T) next(c *vipl.CQ, v *vipl.VI, recv bool) {
	t.Helper()
	got, r, err := c.Wait(patience)
	if err != nil {
		t.Fatal(err)
	}
	if got != v || r != recv {
		t.Errorf("another entry: VI %p, receive %v; want VI %p, receive %v", got, r, v, recv)
	}
}

// noEntry checks that none waits.
func (t *T) noEntry(c *vipl.CQ) {
	t.Helper()
	if v, _, err := c.Done(); v != nil || err != vipl.ErrNotDone {
		t.Errorf("an entry of VI %p, %v", v, err)
	}
}

// pairOn makes a connected pair of VIs of a level, the one of A with its queues
// bound to CQs.
func (t *T) pairOn(level vipl.ReliabilityLevel, send, recv *vipl.CQ) (va, vb *vipl.VI) {
	t.Helper()
	a := vipl.ViAttributes{Level: level, EnableRdmaWrite: true}
	va, vb = t.viOn(t.A, a, send, recv), t.vi(t.B, a)
	t.join(va, vb)
	return va, vb
}

func cqEntries(t *T) {
	t.eachLevel(func(t *T, level vipl.ReliabilityLevel) {
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
	})
}

func cqDone(t *T) {
	cq := t.cq(t.A, 4)
	va, vb := t.pairOn(vipl.ReliableDelivery, cq, cq)
	x, y := t.block(t.A, 2, 64), t.block(t.B, 1, 64)
	x.recv(va, 0, 64)
	y.recv(vb, 0, 64)
	x.send(va, 1, 64)
	t.next(cq, va, false)
	d, err := va.SendDone()
	if t.completed("send", d, err, 0) != x.desc[1] {
		t.Error("another descriptor")
	}
	fill(y.buf(0), 3)
	t.received(vb, 0)
	y.send(vb, 0, 64)
	t.next(cq, va, true)
	d, err = va.RecvDone()
	if t.completed("receive", d, err, vipl.StatusOpReceive) != x.desc[0] {
		t.Error("another descriptor")
	}
}

func cqShared(t *T) {
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
	type key struct {
		vi   *vipl.VI
		recv bool
	}
	seen := make(map[key]int)
	for range 2 * vis * each {
		v, recv, err := cq.Wait(patience)
		t.must(err)
		done := v.SendDone
		if recv {
			done = v.RecvDone
		}
		if d, err := done(); d == nil || err != nil {
			t.Fatalf("an entry without a descriptor: %v", err)
		}
		seen[key{v, recv}]++
	}
	for _, v := range as {
		if s, r := seen[key{v, false}], seen[key{v, true}]; s != each || r != each {
			t.Errorf("%d sends and %d receives of a VI, want %d each", s, r, each)
		}
	}
	t.noEntry(cq)
}

func cqEach(t *T) {
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
}

func cqOrder(t *T) {
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
}

func cqEmpty(t *T) {
	cq := t.cq(t.A, 1)
	t.pairOn(vipl.ReliableDelivery, cq, cq)
	t.noEntry(cq)
	for _, d := range []time.Duration{0, time.Millisecond, moment} {
		if v, _, err := cq.Wait(d); v != nil || err != vipl.ErrTimeout {
			t.Errorf("wait of %v: %v", d, err)
		}
	}
}

func cqWakes(t *T) {
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
	if e := <-got; e != (entry{va, true, nil}) {
		t.Errorf("%+v", e)
	}
}

func cqViWait(t *T) {
	cq := t.cq(t.A, 1)
	a := vipl.ViAttributes{Level: vipl.ReliableDelivery}
	v := t.viOn(t.A, a, cq, nil)
	_, err := v.SendWait(patience)
	t.wantErr("SendWait", err, vipl.ErrInvalidParameter)
	_, err = v.RecvWait(time.Millisecond)
	t.wantErr("RecvWait of the other queue", err, vipl.ErrTimeout)
	v = t.viOn(t.A, a, nil, cq)
	_, err = v.RecvWait(patience)
	t.wantErr("RecvWait", err, vipl.ErrInvalidParameter)
	_, err = v.SendWait(time.Millisecond)
	t.wantErr("SendWait of the other queue", err, vipl.ErrTimeout)
}

func cqOverrun(t *T) {
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
	sends, recvs := 0, 0
	for range 2 * count {
		v, recv, err := cq.Wait(patience)
		t.must(err)
		done, n := v.SendDone, &sends
		if recv {
			done, n = v.RecvDone, &recvs
		}
		if _, err := done(); err != nil {
			t.Fatal(err)
		}
		*n++
	}
	if sends != count || recvs != count {
		t.Errorf("%d sends and %d receives, want %d each", sends, recvs, count)
	}
	t.noEntry(cq)
}

func cqAtLeast(t *T) {
	for _, n := range []int{1, 2, 3, 100, 1024, 1025} {
		if got := t.cq(t.A, n).Entries(); got < n {
			t.Errorf("%d entries, asked for %d", got, n)
		}
	}
}

func cqWrongSize(t *T) {
	cq := t.cq(t.A, 4)
	for _, n := range []int{0, -1, t.A.Query().MaxCQEntries + 1} {
		_, err := t.A.CreateCQ(n)
		t.wantErr("CreateCQ", err, vipl.ErrInvalidParameter)
		t.wantErr("ResizeCQ", cq.Resize(n), vipl.ErrInvalidParameter)
	}
	if cq.Entries() < 4 {
		t.Errorf("%d entries", cq.Entries())
	}
}

// queued makes a CQ in which an entry of each of a few VIs waits, in that order.
func (t *T) queued(n int) (cq *vipl.CQ, vis []*vipl.VI) {
	t.Helper()
	cq = t.cq(t.A, n)
	x := t.block(t.A, n, 64)
	for i := range n {
		v := t.viOn(t.A, vipl.ViAttributes{Level: vipl.ReliableDelivery}, cq, nil)
		x.send(v, i, 64) // completes at once, in error
		vis = append(vis, v)
	}
	return cq, vis
}

func cqResize(t *T) {
	for _, n := range []int{5, 6, 64, 1000} {
		cq, vis := t.queued(5)
		t.must(cq.Resize(n))
		if cq.Entries() < n {
			t.Errorf("%d entries after a resize to %d", cq.Entries(), n)
		}
		for _, v := range vis {
			t.next(cq, v, false)
		}
		t.noEntry(cq)
	}
}

func cqResizeSmall(t *T) {
	cq, vis := t.queued(5)
	t.wantErr("resize to 4", cq.Resize(4), vipl.ErrResource)
	t.wantErr("resize to 1", cq.Resize(1), vipl.ErrResource)
	t.next(cq, vis[0], false)
	t.wantErr("resize to 4 when 4 wait", cq.Resize(4), nil)
	for _, v := range vis[1:] {
		t.next(cq, v, false)
	}
	t.wantErr("resize to 1 when none waits", cq.Resize(1), nil)
}

func cqFlushed(t *T) {
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
		d, err := va.RecvDone()
		t.completed("receive", d, err, vipl.StatusFlushed|vipl.StatusOpReceive)
	}
}

func cqWrite(t *T) {
	cq := t.cq(t.A, 4)
	va, vb := t.pairOn(vipl.ReliableReception, nil, cq)
	x, y := t.block(t.A, 1, 64), t.block(t.B, 2, 64)
	x.recv(va, 0, 64)
	y.write(vb, 0, 64, x.remote(0))
	t.sent(vb, vipl.StatusOpRDMAWrite)
	t.noEntry(cq)
	y.writeImmediate(vb, 1, 64, x.remote(0), 7)
	t.next(cq, va, true)
	t.noEntry(cq)
	t.sent(vb, vipl.StatusOpRDMAWrite)
	d, err := va.RecvDone()
	t.completed("receive", d, err, vipl.StatusOpRemoteRDMAWrite|vipl.StatusImmediate)
}

func cqBound(t *T) {
	for _, kind := range []string{"send", "receive"} {
		cq := t.cq(t.A, 1)
		send, recv := cq, (*vipl.CQ)(nil)
		if kind == "receive" {
			send, recv = recv, send
		}
		v := t.viOn(t.A, vipl.ViAttributes{Level: vipl.ReliableDelivery}, send, recv)
		t.wantErr(kind+" queue bound", cq.Destroy(), vipl.ErrResource)
		t.must(v.Destroy())
		t.wantErr("nothing bound", cq.Destroy(), nil)
	}
}

func cqForgets(t *T) {
	cq, vis := t.queued(3)
	d, err := vis[1].SendDone() // without asking the CQ
	t.completed("send", d, err, vipl.StatusFlushed)
	t.must(vis[1].Destroy())
	t.next(cq, vis[0], false)
	t.next(cq, vis[2], false)
	t.noEntry(cq)
}

func cqDestroyed(t *T) {
	cq := t.cq(t.A, 1)
	t.must(cq.Destroy())
	refused := func(what string, err error) {
		t.Helper()
		t.wantErr(what, err, vipl.ErrInvalidParameter)
	}
	refused("DestroyCQ", cq.Destroy())
	refused("ResizeCQ", cq.Resize(2))
	refused("CQNotify", cq.Notify(func(*vipl.VI, bool) {}))
	_, _, err := cq.Done()
	refused("CQDone", err)
	_, _, err = cq.Wait(moment)
	refused("CQWait", err)
	a := vipl.ViAttributes{Level: vipl.ReliableDelivery}
	_, err = t.A.CreateVi(a, cq, nil)
	refused("CreateVi with it for sends", err)
	_, err = t.A.CreateVi(a, nil, cq)
	refused("CreateVi with it for receives", err)
}
