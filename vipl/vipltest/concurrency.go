package vipltest

import (
	"sync"
	"sync/atomic"
	"time"

	"viaxdp/vipl"
)

var concurrencyRules = []Rule{
	{
		ID:   "concurrency/done-never-waits-behind-wait",
		Text: "SendDone, RecvDone and VipCQDone return at once while another thread is in the Wait form of the same queue.",
		run:  concurrentDone,
	},
	{
		ID:   "concurrency/waiters-share-a-queue",
		Text: "Several threads may wait for one queue: each completion goes to one of them.",
		run:  concurrentWaiters,
	},
	{
		ID:   "concurrency/waiters-share-a-cq",
		Text: "Several threads may wait for one CQ: each entry goes to one of them.",
		run:  concurrentCQ,
	},
	{
		ID:   "concurrency/every-queue-wakes-its-own-waiter",
		Text: "While threads wait for many queues of a NIC, each is woken by the completion of its own one.",
		run:  concurrentQueues,
	},
	{
		ID:   "concurrency/posting-beside-waiting",
		Text: "Threads post on a VI while others wait for it and poll it; every message arrives once.",
		run:  concurrentTraffic,
	},
	{
		ID:   "concurrency/close-ends-waits",
		Text: "VipCloseNic returns while others wait on queues, CQs and for requests, and they return with an error.",
		run:  concurrentClose,
	},
	{
		ID:   "concurrency/close-ends-requests",
		Text: "VipCloseNic returns while a VipConnectRequest is under way, which returns with an error.",
		run:  concurrentCloseRequest,
	},
	{
		ID:   "concurrency/close-beside-traffic",
		Text: "VipCloseNic returns while others post, poll and wait, and all of them get errors from then on.",
		run:  concurrentCloseTraffic,
	},
	{
		ID:   "concurrency/close-by-several",
		Text: "Several threads may close a NIC at once.",
		run: func(t *T) {
			a, _ := t.openPair()
			var group sync.WaitGroup
			for range 4 {
				group.Go(func() { t.wantErr("close", a.Close(), nil) })
			}
			t.promptly("CloseNic", group.Wait)
		},
	},
	{
		ID:   "concurrency/disconnect-wakes-waiters",
		Text: "VipDisconnect while others wait on the VI's queues gives them the flushed descriptors.",
		run:  concurrentDisconnect,
	},
	{
		ID:   "concurrency/objects-come-and-go",
		Text: "VIs, CQs, tags, memory and connections are made and destroyed by many threads at once, beside traffic.",
		run:  concurrentObjects,
	},
	{
		ID:   "concurrency/one-connect-a-vi",
		Text: "Of several threads that connect one VI at once one succeeds, and the others get INVALID_STATE.",
		run:  concurrentConnect,
	},
	{
		ID:   "concurrency/one-destroy-a-vi",
		Text: "Of several threads that destroy one object at once one succeeds.",
		run:  concurrentDestroy,
	},
	{
		ID:   "concurrency/one-answer-a-request",
		Text: "Of several threads that answer one request at once one succeeds.",
		run:  concurrentAccept,
	},
	{
		ID:   "concurrency/memory-in-use-stays",
		Text: "Threads deregister memory while others post descriptors in it: it goes when nothing uses it, and posts are refused from then on.",
		run:  concurrentMemory,
	},
	{
		ID:   "concurrency/queries-beside-traffic",
		Text: "Queries of NIC, VIs and memory go on beside traffic.",
		run:  concurrentQueries,
	},
}

// promptly checks that f returns, however long others wait.
func (t *T) promptly(what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("does not return: %s", what)
	}
}

// starts starts a call that waits, and gives what becomes of it.
func starts(f func() error) <-chan error {
	result, running := make(chan error, 1), make(chan struct{})
	go func() {
		close(running)
		result <- f()
	}()
	<-running
	return result
}

func concurrentDone(t *T) {
	cq := t.cq(t.A, 1)
	va, vb := t.pair(vipl.ReliableReception)
	vc, _ := t.pairOn(vipl.ReliableReception, cq, cq)
	x, y := t.block(t.A, 1, 64), t.block(t.B, 1, 64)
	x.recv(va, 0, 64)
	waits := []<-chan error{
		starts(func() error { _, err := va.RecvWait(-1); return err }),
		starts(func() error { _, err := va.SendWait(100 * time.Millisecond); return err }),
		starts(func() error { _, _, err := cq.Wait(100 * time.Millisecond); return err }),
	}
	time.Sleep(moment) // they are asleep by now
	t.promptly("Done", func() {
		for range 100 {
			if d, err := va.RecvDone(); d != nil || err != vipl.ErrNotDone {
				t.Errorf("RecvDone: %v, %v", d, err)
			}
			if d, err := va.SendDone(); d != nil || err != vipl.ErrDescriptor {
				t.Errorf("SendDone: %v, %v", d, err)
			}
			if d, err := vc.RecvDone(); d != nil || err != vipl.ErrDescriptor {
				t.Errorf("RecvDone on a CQ: %v, %v", d, err)
			}
			t.noEntry(cq)
		}
	})
	y.send(vb, 0, 64)
	t.wantErr("RecvWait", <-waits[0], nil)
	t.wantErr("SendWait", <-waits[1], vipl.ErrTimeout)
	t.wantErr("CQWait", <-waits[2], vipl.ErrTimeout)
}

func concurrentWaiters(t *T) {
	const waiters, each = 4, 25
	va, vb := t.pair(vipl.ReliableDelivery)
	x, y := t.block(t.A, waiters*each, 64), t.block(t.B, waiters*each, 64)
	for i := range waiters * each {
		y.recv(vb, i, 64)
	}
	var group sync.WaitGroup
	var mu sync.Mutex
	seen := make(map[*vipl.Descriptor]int)
	for range waiters {
		group.Go(func() {
			for range each {
				d, err := vb.RecvWait(patience)
				if err != nil {
					t.Errorf("wait: %v", err)
					return
				}
				mu.Lock()
				seen[d]++
				mu.Unlock()
			}
		})
	}
	for i := range waiters * each {
		x.send(va, i, 64)
		if i%20 == 0 {
			time.Sleep(time.Millisecond) // some of them fall asleep
		}
	}
	group.Wait()
	if len(seen) != waiters*each {
		t.Errorf("%d descriptors of %d", len(seen), waiters*each)
	}
}

func concurrentCQ(t *T) {
	const waiters, each = 4, 25
	cq := t.cq(t.A, 1)
	v1, w1 := t.pairOn(vipl.ReliableDelivery, nil, cq)
	v2, w2 := t.pairOn(vipl.ReliableReception, nil, cq)
	x, y := t.block(t.A, waiters*each, 64), t.block(t.B, waiters*each, 64)
	for i := range waiters * each {
		x.recv([]*vipl.VI{v1, v2}[i%2], i, 64)
	}
	var group sync.WaitGroup
	var mu sync.Mutex
	seen := make(map[*vipl.Descriptor]int)
	for range waiters {
		group.Go(func() {
			for range each {
				v, _, err := cq.Wait(patience)
				if err != nil {
					t.Errorf("wait: %v", err)
					return
				}
				d, err := v.RecvDone()
				if err != nil {
					t.Errorf("an entry without a receive: %v", err)
				}
				mu.Lock()
				seen[d]++
				mu.Unlock()
			}
		})
	}
	for i := range waiters * each {
		y.send([]*vipl.VI{w1, w2}[i%2], i, 64)
		if i%20 == 0 {
			time.Sleep(time.Millisecond) // some of them fall asleep
		}
	}
	group.Wait()
	if len(seen) != waiters*each {
		t.Errorf("%d descriptors of %d", len(seen), waiters*each)
	}
	t.noEntry(cq)
}

func concurrentQueues(t *T) {
	const count = 10
	var as, bs []*vipl.VI
	for i := range count {
		va, vb := t.pair(reliableLevels[i%2])
		as, bs = append(as, va), append(bs, vb)
	}
	x, y := t.block(t.A, count, 64), t.block(t.B, count, 64)
	type arrival struct {
		i   int
		d   *vipl.Descriptor
		err error
	}
	arrivals := make(chan arrival)
	for i, v := range bs {
		y.recv(v, i, 64)
		go func() {
			d, err := v.RecvWait(patience)
			arrivals <- arrival{i, d, err}
		}()
	}
	time.Sleep(moment)
	for k := range count {
		i := (k*7 + 2) % count
		x.send(as[i], i, 64)
		if got := <-arrivals; got != (arrival{i, y.desc[i], nil}) {
			t.Errorf("a message for VI %d woke that of VI %d: %v", i, got.i, got.err)
		}
	}
}

func concurrentTraffic(t *T) {
	t.eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		const posters, each, size = 3, 40, 2000
		const count = posters * each
		va, vb := t.pair(level)
		var group sync.WaitGroup
		for _, way := range []struct {
			from, to *vipl.VI
			out, in  *block
		}{
			{va, vb, t.block(t.A, count, size), t.block(t.B, count, size)},
			{vb, va, t.block(t.B, count, size), t.block(t.A, count, size)},
		} {
			for i := range count {
				way.in.recv(way.to, i, size)
				fill(way.out.buf(i), i)
				way.out.buf(i)[0] = byte(i)
				way.out.prepare(i, size)
			}
			for p := range posters {
				group.Go(func() {
					for k := range each {
						if err := way.from.PostSend(way.out.desc[p*each+k], way.out.Handle()); err != nil {
							t.Errorf("post: %v", err)
						}
					}
				})
			}
			var seen [count]atomic.Bool
			group.Go(func() { take(t, count, way.from.SendDone, way.from.SendWait, func(*vipl.Descriptor) {}) })
			group.Go(func() {
				take(t, count, way.to.RecvDone, way.to.RecvWait, func(d *vipl.Descriptor) {
					k := int(d.Addr()-way.in.Addr()) / way.in.stride()
					i := int(way.in.buf(k)[0])
					if i >= count || seen[i].Swap(true) {
						t.Errorf("message %d came twice", i)
						return
					}
					t.holdsFrom("message", way.in.buf(k)[1:], 1, i)
				})
			})
		}
		group.Wait()
	})
}

// take takes count completions off a queue, by one thread that polls and one that
// waits.
func take(t *T, count int32, done func() (*vipl.Descriptor, error),
	wait func(time.Duration) (*vipl.Descriptor, error), f func(*vipl.Descriptor),
) {
	var taken atomic.Int32
	end := time.Now().Add(patience)
	loop := func(next func() (*vipl.Descriptor, error)) {
		for taken.Load() < count {
			d, err := next()
			switch {
			case d != nil && err == nil:
				taken.Add(1)
				f(d)
			case d != nil, time.Now().After(end):
				t.Errorf("%d of %d completed, then: %v", taken.Load(), count, err)
				return
			default: // not done, or empty
				time.Sleep(50 * time.Microsecond)
			}
		}
	}
	var group sync.WaitGroup
	group.Go(func() { loop(done) })
	group.Go(func() { loop(func() (*vipl.Descriptor, error) { return wait(time.Millisecond) }) })
	group.Wait()
}
