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
		"SendWait":    func() error { return errOf(vb.SendWait(-1)) },
		"RecvWait":    func() error { return errOf(vb.RecvWait(-1)) },
		"long":        func() error { return errOf(vb.RecvWait(time.Hour)) },
		"CQWait":      func() error { return errOf2(cq.Wait(-1)) },
		"ConnectWait": func() error { return errOf(n.b.ConnectWait(vipl.NetAddress{}, -1)) },
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

// listed returns what checks the results of a call with a list.
func listed(t testing.TB, what string, want int, wantErr error) func(int, error) {
	return func(k int, err error) {
		t.Helper()
		fatalIf(t, k != want || !errors.Is(err, wantErr), "%s: %d, %v, want %d, %v", what, k, err, want, wantErr)
	}
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
		listed(t, "receives", count, nil)(vb.PostRecvs(xb.desc, xb.region.Handle()))
		for i := 0; i < count; i += 20 {
			listed(t, "sends", 20, nil)(va.PostSends(xa.desc[i:i+20], xa.region.Handle()))
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
			listed(t, name+", no room", 0, nil)(done(nil))
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
	listed(t, "misaligned receive", 2, vipl.ErrInvalidParameter)(vb.PostRecvs(bad, xb.region.Handle()))
	n.b.errs.are(t, vipl.ErrorPostDesc)
	bad = slices.Clone(xa.desc)
	bad[2] = nil
	listed(t, "nil send", 2, vipl.ErrInvalidParameter)(va.PostSends(bad, xa.region.Handle()))
	n.a.errs.are(t, vipl.ErrorPostDesc)
	for i := range 2 {
		errorIf(t, received(t, vb, 0) != xb.desc[i] || sent(t, va, 0) != xa.desc[i], "message %d: another descriptor", i)
	}
	listed(t, "empty list", 0, nil)(va.PostSends(nil, xa.region.Handle()))
	st := stateIs(t, va, vipl.Connected)
	errorIf(t, !st.SendEmpty, "more was posted")
	must(t, errors.Join(va.Disconnect(), va.Destroy()))
	for name, post := range map[string]func([]*vipl.Descriptor, vipl.MemHandle) (int, error){"send": va.PostSends, "receive": va.PostRecvs} {
		listed(t, name+" on a VI that is destroyed", 0, vipl.ErrInvalidParameter)(post(xa.desc, xa.region.Handle()))
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
	listed(t, "sends", 5, nil)(va.PostSends(xa.desc, xa.region.Handle()))
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
	listed(t, "receives", most, vipl.ErrResource)(v.PostRecvs(x.desc, x.region.Handle()))
	n.a.errs.are(t, vipl.ErrorVIOverrun)
	listed(t, "sends in Idle", 3, nil)(v.PostSends(x.desc[most:], x.region.Handle()))
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
	listed(t, "sends", 4, nil)(v.PostSends(x.desc[:4], x.region.Handle()))
	listed(t, "receives", 1, nil)(v.PostRecvs(x.desc[4:], x.region.Handle()))
	listed(t, "no room", 0, nil)(cq.Dones(nil))
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
	listed(t, "destroyed", 0, vipl.ErrInvalidParameter)(cq.Dones(into))
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
