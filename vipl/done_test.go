package vipl_test

import (
	"errors"
	"io/fs"
	"slices"
	"sync"
	"testing"
	"time"

	"viaxdp/vipl"
)

// Every waiter is woken when the NIC is closed.
func TestCloseWakesWaiters(t *testing.T) {
	n, _, vb := connected(t, memoryConfig{}, vipl.ReliableDelivery)
	cq := createCQ(t, n.b.NIC, 1)
	idle := newVI(t, n.b.NIC, vipl.UnreliableDelivery)
	x := newBox(t, n.b.NIC, 1, 64)
	postRecv(t, idle, x, 0, 64) // of an Idle VI: not completed, but flushed by Close
	waits := map[string]func() error{
		"SendWait":    func() error { _, err := vb.SendWait(-1); return err },
		"RecvWait":    func() error { _, err := vb.RecvWait(-1); return err },
		"long":        func() error { _, err := vb.RecvWait(time.Hour); return err },
		"CQWait":      func() error { _, _, err := cq.Wait(-1); return err },
		"ConnectWait": func() error { _, err := n.b.ConnectWait(vipl.NetAddress{}, -1); return err },
	}
	var group sync.WaitGroup
	for name, wait := range waits {
		group.Go(func() {
			if err := wait(); !errors.Is(err, vipl.ErrInvalidParameter) {
				t.Errorf("%s: %v", name, err)
			} else if name != "ConnectWait" && !errors.Is(err, fs.ErrClosed) {
				t.Errorf("%s: %v does not say why", name, err)
			}
		})
	}
	time.Sleep(20 * time.Millisecond) // they sleep
	must(t, n.b.Close())
	group.Wait()
}

// all takes n descriptors off a queue by lists of at most most.
func all(t testing.TB, done func([]*vipl.Descriptor) (int, error), other func(), n, most int) (got []*vipl.Descriptor) {
	t.Helper()
	room := make([]*vipl.Descriptor, most)
	for len(got) < n {
		k, err := done(room)
		fatalIf(t, err != nil && (err != vipl.ErrNotDone || k != 0), "after %d of %d descriptors: %d, %v", len(got), n, k, err)
		fatalIf(t, err == nil && k == 0, "nothing, and no error")
		got = append(got, room[:k]...)
		other()
	}
	return got
}

// Messages posted by lists arrive whole and in order, whatever fits in a frame.
func TestLists(t *testing.T) {
	eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		const count, room = 60, 3000
		n, va, vb, xa, xb := connectedBoxes(t, memoryConfig{}, level, count, count, room)
		size := func(k int) int { return []int{0, 64, 64, 8, 700, 64, 3000}[k%7] }
		for i := range count {
			xa.prepare(i, size(i))
			fillPattern(xa.buf[i][:size(i)], i)
			xb.prepare(i, room)
		}
		if k, err := vb.PostRecvs(xb.desc, xb.region.Handle()); k != count || err != nil {
			t.Fatalf("receives: %d, %v", k, err)
		}
		for i := 0; i < count; i += 20 {
			k, err := va.PostSends(xa.desc[i:i+20], xa.region.Handle())
			fatalIf(t, k != 20 || err != nil, "sends: %d, %v", k, err)
		}
		if got := all(t, vb.RecvDones, n.a.Poll, count, 7); !slices.Equal(got, xb.desc) {
			t.Error("receives in another order")
		}
		for i := range count {
			if got := int(xb.desc[i].Length); got != size(i) {
				t.Fatalf("message %d has %d bytes, want %d", i, got, size(i))
			}
			checkPattern(t, xb.buf[i][:size(i)], i)
		}
		if got := all(t, va.SendDones, n.b.Poll, count, count); !slices.Equal(got, xa.desc) {
			t.Error("sends in another order")
		}
		for name, done := range map[string]func([]*vipl.Descriptor) (int, error){"send": va.SendDones, "receive": vb.RecvDones} {
			if k, err := done(make([]*vipl.Descriptor, 3)); k != 0 || err != vipl.ErrDescriptor {
				t.Errorf("%s, empty queue: %d, %v", name, k, err)
			}
			if k, err := done(nil); k != 0 || err != nil {
				t.Errorf("%s, no room: %d, %v", name, k, err)
			}
		}
	})
}

// A list stops at the descriptor that is refused: those before it are posted, and none after it. A destroyed VI takes none.
func TestListRefused(t *testing.T) {
	n, va, vb, xa, xb := connectedBoxes(t, memoryConfig{}, vipl.ReliableDelivery, 4, 4, 64)
	for i := range 4 {
		xa.prepare(i, 64)
		xb.prepare(i, 64)
	}
	bad := slices.Clone(xb.desc)
	bad[2] = misaligned(xb.region)
	if k, err := vb.PostRecvs(bad, xb.region.Handle()); k != 2 || !errors.Is(err, vipl.ErrInvalidParameter) {
		t.Errorf("misaligned receive: %d, %v", k, err)
	}
	n.b.errs.are(t, vipl.ErrorPostDesc)
	bad = slices.Clone(xa.desc)
	bad[2] = nil
	if k, err := va.PostSends(bad, xa.region.Handle()); k != 2 || !errors.Is(err, vipl.ErrInvalidParameter) {
		t.Errorf("nil send: %d, %v", k, err)
	}
	n.a.errs.are(t, vipl.ErrorPostDesc)
	for i := range 2 {
		errorIf(t, received(t, vb, 0) != xb.desc[i] || sent(t, va, 0) != xa.desc[i], "message %d: another descriptor", i)
	}
	if k, err := va.PostSends(nil, xa.region.Handle()); k != 0 || err != nil {
		t.Errorf("empty list: %d, %v", k, err)
	}
	st := stateIs(t, va, vipl.Connected)
	errorIf(t, !st.SendEmpty, "more was posted")
	must(t, errors.Join(va.Disconnect(), va.Destroy()))
	for name, post := range map[string]func([]*vipl.Descriptor, vipl.MemHandle) (int, error){"send": va.PostSends, "receive": va.PostRecvs} {
		k, err := post(xa.desc, xa.region.Handle())
		errorIf(t, k != 0 || !errors.Is(err, vipl.ErrInvalidParameter), "%s on a VI that is destroyed: %d, %v", name, k, err)
	}
}

// Wrong contents in the middle of a list end the connection there, as with single posts: what was before arrives,
// and what is after is flushed.
func TestListWrongContents(t *testing.T) {
	n, va, vb, xa, xb := connectedBoxes(t, memoryConfig{}, vipl.ReliableReception, 5, 5, 64)
	for i := range 5 {
		xa.prepare(i, 64)
		fillPattern(xa.buf[i], i)
		postRecv(t, vb, xb, i, 64)
	}
	xa.desc[2].Reserved = 1
	if k, err := va.PostSends(xa.desc, xa.region.Handle()); k != 5 || err != nil {
		t.Fatalf("%d, %v", k, err)
	}
	for i := range 2 {
		receivedMessage(t, vb, xb.buf[i], i)
	}
	room := make([]*vipl.Descriptor, 5)
	var got []*vipl.Descriptor
	for len(got) < 5 {
		k, err := va.SendDones(room)
		fatalIf(t, err != nil && err != vipl.ErrNotDone && err != vipl.ErrDescriptor, "%v", err)
		for i, d := range room[:k] {
			failed := d.Status().Failed()
			errorIf(t, failed != (err == vipl.ErrDescriptor && i == k-1), "descriptor %d of %d: %v, with %v", i, k, d.Status(), err)
		}
		got = append(got, room[:k]...)
		n.b.Poll()
	}
	errorIf(t, !slices.Equal(got, xa.desc), "another order")
	for i, want := range []vipl.Status{0, 0, vipl.StatusFormatError, vipl.StatusFlushed, vipl.StatusFlushed} {
		equal(t, "send", xa.desc[i].Status()&vipl.StatusErrorMask, want)
	}
	stateIs(t, va, vipl.Error)
}

// A queue accepts as many descriptors of a list as it has room for.
func TestListOverrun(t *testing.T) {
	const most = vipl.MaxDescriptorsPerQueue
	n := newMemoryNet(t, memoryConfig{})
	v := newVI(t, n.a.NIC, vipl.ReliableDelivery)
	x := newBox(t, n.a.NIC, most+3, 64)
	for i := range x.desc {
		x.prepare(i, 64)
	}
	if k, err := v.PostRecvs(x.desc, x.region.Handle()); k != most || !errors.Is(err, vipl.ErrResource) {
		t.Errorf("receives: %d, %v", k, err)
	}
	n.a.errs.are(t, vipl.ErrorVIOverrun)
	if k, err := v.PostSends(x.desc[most:], x.region.Handle()); k != 3 || err != nil {
		t.Errorf("sends in Idle: %d, %v", k, err)
	}
	room := make([]*vipl.Descriptor, 3)
	for i := range 3 {
		k, err := v.SendDones(room)
		errorIf(t, k != 1 || err != vipl.ErrDescriptor || room[0] != x.desc[most+i], "flushed send %d: %d, %v", i, k, err)
	}
	must(t, v.Disconnect())
}

// Dones returns the entries of a completion queue in order, as many as there is room for.
func TestCQDones(t *testing.T) {
	n := newMemoryNet(t, memoryConfig{})
	cq := createCQ(t, n.b.NIC, 8)
	v := createVI(t, n.b.NIC, vipl.VIAttributes{Level: vipl.ReliableDelivery}, cq, cq)
	x := newBox(t, n.b.NIC, 5, 64)
	for i := range 5 {
		x.prepare(i, 64)
	}
	into := make([]vipl.Completion, 3)
	if k, err := cq.Dones(into); k != 0 || err != vipl.ErrNotDone {
		t.Errorf("empty: %d, %v", k, err)
	}
	x.desc[4].Reserved = 1 // completes in error at once
	if k, err := v.PostSends(x.desc[:4], x.region.Handle()); k != 4 || err != nil {
		t.Fatalf("%d, %v", k, err)
	}
	if k, err := v.PostRecvs(x.desc[4:], x.region.Handle()); k != 1 || err != nil {
		t.Fatalf("%d, %v", k, err)
	}
	if k, err := cq.Dones(nil); k != 0 || err != nil {
		t.Errorf("no room: %d, %v", k, err)
	}
	var got []vipl.Completion
	for len(got) < 5 {
		k, err := cq.Dones(into)
		fatalIf(t, err != nil || k == 0, "%d, %v", k, err)
		got = append(got, into[:k]...)
	}
	send, recv := vipl.Completion{VI: v}, vipl.Completion{VI: v, Recv: true}
	want := []vipl.Completion{send, send, send, send, recv}
	errorIf(t, !slices.Equal(got, want), "%v, want %v", got, want)
	if k, err := cq.Dones(into); k != 0 || err != vipl.ErrNotDone {
		t.Errorf("empty again: %d, %v", k, err)
	}
	for range 4 {
		v.SendDone()
	}
	v.RecvDone()
	must(t, errors.Join(v.Destroy(), cq.Destroy()))
	if k, err := cq.Dones(into); k != 0 || !errors.Is(err, vipl.ErrInvalidParameter) {
		t.Errorf("destroyed: %d, %v", k, err)
	}
}

// Lists allocate nothing.
func TestListNoAllocation(t *testing.T) {
	const count = 16
	n, va, vb, xa, xb := connectedBoxes(t, memoryConfig{}, vipl.ReliableDelivery, count, count, 64)
	for i := range count {
		xa.prepare(i, 64)
		xb.prepare(i, 64)
	}
	room := make([]*vipl.Descriptor, count)
	take := func(done func([]*vipl.Descriptor) (int, error), other *vipl.NIC) {
		for left := count; left > 0; {
			k, err := done(room)
			if err != nil && err != vipl.ErrNotDone { // fatalIf would allocate
				t.Fatal(err)
			}
			left -= k
			other.Poll()
		}
	}
	if allocs := testing.AllocsPerRun(200, func() {
		vb.PostRecvs(xb.desc, xb.region.Handle())
		va.PostSends(xa.desc, xa.region.Handle())
		take(vb.RecvDones, n.a.NIC)
		take(va.SendDones, n.b.NIC)
	}); allocs != 0 {
		t.Errorf("%v allocations for a list of %d messages", allocs, count)
	}
}
