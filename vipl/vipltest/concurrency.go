package vipltest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"viaxdp/vipl"
)

var concurrencyRules = []Rule{
	rule("concurrency/done-never-waits-behind-wait", "SendDone, RecvDone and VipCQDone return at once while another thread is in the Wait form of the same queue.", doneBesideWait),
	rule("concurrency/waiters-share-a-queue", "Several threads may wait for one queue: each completion goes to one of them.", func(t *T) {
		va, vb, x, y := t.ends(vipl.ReliableDelivery, sharedCount, sharedCount, 64)
		y.recvs(vb, sharedCount, 64)
		t.shared(func() (*vipl.Descriptor, error) { return vb.RecvWait(ackDelay) }, func(i int) { x.send(va, i, 64) })
	}),
	rule("concurrency/waiters-share-a-cq", "Several threads may wait for one CQ: each entry goes to one of them.", func(t *T) {
		cq := t.cq(t.A, 1)
		v1, w1 := t.pairOn(vipl.ReliableDelivery, nil, cq)
		v2, w2 := t.pairOn(vipl.ReliableReception, nil, cq)
		x, y := t.block(t.A, sharedCount, 64), t.block(t.B, sharedCount, 64)
		for i := range sharedCount {
			x.recv([]*vipl.VI{v1, v2}[i%2], i, 64)
		}
		t.shared(func() (*vipl.Descriptor, error) {
			v, _, err := cq.Wait(ackDelay)
			if err != nil {
				return nil, err
			}
			return v.RecvDone()
		}, func(i int) { y.send([]*vipl.VI{w1, w2}[i%2], i, 64) })
		t.noEntry(cq)
	}),
	rule("concurrency/every-queue-wakes-its-own-waiter", "While threads wait for many queues of a NIC, each is woken by the completion of its own one.", func(t *T) {
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
				d, err := v.RecvWait(ackDelay)
				arrivals <- arrival{i, d, err}
			}()
		}
		time.Sleep(moment)
		for k := range count {
			i := (k*7 + 2) % count
			x.send(as[i], i, 64)
			equal(t, "the arrival", <-arrivals, (arrival{i, y.desc[i], nil}))
		}
	}),
	rule("concurrency/posting-beside-waiting", "Threads post on a VI while others wait for it and poll it; every message arrives once.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
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
						t.wantErr("post", way.from.PostSend(way.out.desc[p*each+k], way.out.Handle()), nil)
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
	})),
	rule("concurrency/close-ends-waits", "VipCloseNic returns while others wait on queues, CQs and for requests, and they return with an error.", func(t *T) {
		a, b := t.openPair()
		cq := t.cq(a, 1)
		at := at(vipl.ReliableDelivery)
		v, idle, peer := t.vi(a, at), t.vi(a, at), t.vi(a, at)
		t.join(v, t.vi(b, at))
		t.block(a, 1, 64).recv(idle, 0, 64)
		here := a.Query().Address
		t.must(peer.ConnectPeerRequest(named(disc()), vipl.NetAddress{Host: here, Discriminator: disc()}, -1))
		waits := map[string]<-chan error{
			"RecvWait, connected":    starts(func() error { return errOf(v.RecvWait(-1)) }),
			"SendWait":               starts(func() error { return errOf(v.SendWait(-1)) }),
			"SendWait, a second one": starts(func() error { return errOf(v.SendWait(ackDelay)) }),
			"RecvWait, idle":         starts(func() error { return errOf(idle.RecvWait(-1)) }),
			"CQWait":                 starts(func() error { return errOf2(cq.Wait(-1)) }),
			"ConnectPeerWait":        starts(func() error { return errOf(peer.ConnectPeerWait()) }),
			"ConnectWait":            starts(func() error { return errOf(a.ConnectWait(named(disc()), -1)) }),
		}
		time.Sleep(moment)
		t.promptly("CloseNIC", func() { t.wantErr("close", a.Close(), nil) })
		for what, result := range waits {
			t.promptly(what, func() {
				err := <-result
				flushed := what == "RecvWait, idle" && errors.Is(err, vipl.ErrDescriptor)
				t.errorIf(!flushed && !errors.Is(err, vipl.ErrInvalidParameter), "%s: %v", what, err)
			})
		}
	}),
	// A NIC is closed with a request of its own and one of its peer under way.
	rule("concurrency/close-ends-requests", "VipCloseNic returns while a VipConnectRequest is under way, which returns with an error.", func(t *T) {
		a, b := t.openPair()
		at := at(vipl.ReliableDelivery)
		v, w := t.vi(a, at), t.vi(b, at)
		c, own := t.askedOf(v, b)
		_, others := t.askedOf(w, a)
		t.promptly("CloseNIC", func() { t.wantErr("close", a.Close(), nil) })
		t.promptly("its own request", func() { t.wantErr("request", <-own, vipl.ErrInvalidParameter) })
		t.errorIf(c.Accept(t.vi(b, at)) == nil, "a request whose NIC was closed can be accepted")
		t.promptly("the peer's request", func() {
			t.errorIf(<-others == nil, "a request to a closed NIC succeeded")
		})
		t.state(w, vipl.Idle)
	}),
	rule("concurrency/close-beside-traffic", "VipCloseNic returns while others post, poll and wait, and all of them get errors from then on.", func(t *T) {
		a, b := t.openPair()
		at := at(vipl.ReliableDelivery)
		va, vb := t.vi(a, at), t.vi(b, at)
		t.join(va, vb)
		// The program's own memory: it outlives the NIC.
		buf := make([]byte, 4096)
		r := t.register(a, buf, vipl.MemAttributes{})
		start := int(-r.Addr() % vipl.DescriptorAlignment)
		sends, err := r.Descriptor(start, 1)
		t.must(err)
		recvs, err := r.Descriptor(start+64, 1)
		t.must(err)
		h := r.Handle()
		var group sync.WaitGroup
		until := func(f func() error) {
			group.Go(func() {
				for end := time.Now().Add(ackDelay); !errors.Is(f(), vipl.ErrInvalidParameter); {
					if time.Now().After(end) {
						t.Error("no INVALID_PARAMETER after the close")
						return
					}
				}
			})
		}
		until(func() error { return va.PostSend(sends, h) })
		until(func() error { return va.PostRecv(recvs, h) })
		until(func() error { _, err := va.SendWait(time.Millisecond); return err })
		until(func() error { _, err := va.RecvWait(-1); return err })
		until(func() error { _, err := va.Query(); return err })
		until(func() error { _, err := a.CreateCQ(1); return err })
		until(func() error {
			v, err := a.CreateVI(at, nil, nil)
			if err == nil {
				v.Destroy()
			}
			return err
		})
		time.Sleep(moment)
		t.promptly("CloseNIC", func() { t.wantErr("close", a.Close(), nil) })
		t.promptly("the others", group.Wait)
		t.state(vb, vipl.Error)
	}),
	rule("concurrency/close-by-several", "Several threads may close a NIC at once.", func(t *T) {
		a, _ := t.openPair()
		var group sync.WaitGroup
		for range 4 {
			group.Go(func() { t.wantErr("close", a.Close(), nil) })
		}
		t.promptly("CloseNIC", group.Wait)
	}),
	rule("concurrency/disconnect-wakes-waiters", "VipDisconnect while others wait on the VI's queues gives them the flushed descriptors.", everyLevel(func(t *T, level vipl.ReliabilityLevel) {
		va, vb, x, y := t.ends(level, 2, 2, 64)
		var waits []<-chan error
		for i := range 2 {
			x.recv(va, i, 64)
			y.recv(vb, i, 64)
			for _, v := range []*vipl.VI{va, vb} {
				waits = append(waits, starts(func() error {
					d, err := v.RecvWait(ackDelay)
					if d != nil && d.Status()&vipl.StatusFlushed == 0 {
						t.Errorf("status %v", d.Status())
					}
					return err
				}))
			}
		}
		time.Sleep(moment)
		t.must(va.Disconnect())
		for _, w := range waits {
			t.wantErr("wait", <-w, vipl.ErrDescriptor)
		}
	})),
	rule("concurrency/objects-come-and-go", "VIs, CQs, tags, memory and connections are made and destroyed by many threads at once, beside traffic.", func(t *T) {
		const threads, rounds = 4, 8
		stop := t.background()
		var group sync.WaitGroup
		for k := range threads {
			group.Go(func() {
				for i := range rounds {
					if err := objects(t, t.A, t.B, disc(), allLevels[(k+i)%3]); err != nil {
						t.Errorf("thread %d, round %d: %v", k, i, err)
						return
					}
				}
			})
		}
		group.Wait()
		stop()
	}),
	rule("concurrency/one-connect-a-vi", "Of several threads that connect one VI at once one succeeds, and the others get INVALID_STATE.", func(t *T) {
		const threads = 4
		v := t.vi(t.A, at(vipl.ReliableDelivery))
		to := on(t.B, disc())
		l, err := t.B.Listen(vipl.NetAddress{Discriminator: to.Discriminator})
		t.must(err)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		var peers []<-chan error
		for range threads {
			w := t.vi(t.B, at(vipl.ReliableDelivery))
			peers = append(peers, starts(func() error {
				c, err := l.Wait(ctx)
				if err != nil {
					return err
				}
				return c.Accept(w)
			}))
		}
		var won atomic.Int32
		var group sync.WaitGroup
		for range threads {
			group.Go(func() {
				_, err := v.ConnectRequest(vipl.NetAddress{}, to, ackDelay)
				if err == nil {
					won.Add(1)
					return
				}
				t.wantErr("the others", err, vipl.ErrInvalidState)
			})
		}
		group.Wait()
		cancel() // nobody asks any more
		accepted := 0
		for _, p := range peers {
			if err := <-p; err == nil {
				accepted++
			}
		}
		t.errorIf(won.Load() != 1 || accepted != 1, "%d requests and %d accepts succeeded", won.Load(), accepted)
		t.state(v, vipl.Connected)
		t.must(l.Close())
	}),
	rule("concurrency/one-destroy-a-vi", "Of several threads that destroy one object at once one succeeds.", func(t *T) {
		for range 10 {
			t.once("DestroyVI", t.vi(t.A, at(vipl.ReliableDelivery)).Destroy, vipl.ErrInvalidParameter)
			t.once("DestroyCQ", t.cq(t.A, 1).Destroy, vipl.ErrInvalidParameter)
			t.once("DeregisterMem", t.alloc(t.A, 64, vipl.MemAttributes{}).Deregister, vipl.ErrInvalidParameter)
		}
	}),
	rule("concurrency/one-answer-a-request", "Of several threads that answer one request at once one succeeds.", func(t *T) {
		for range 5 {
			a := at(vipl.ReliableDelivery)
			va := t.vi(t.A, a)
			var vis [4]*vipl.VI
			for i := range vis {
				vis[i] = t.vi(t.B, a)
			}
			c, result := t.askedOf(va, t.B)
			var next atomic.Int32
			t.once("ConnectAccept", func() error { return c.Accept(vis[next.Add(1)-1]) }, vipl.ErrInvalidParameter)
			t.must(<-result)
			connected := 0
			for _, v := range vis {
				if s, err := v.Query(); err == nil && s.State == vipl.Connected {
					connected++
				}
			}
			equal(t, "connected VIs", connected, 1)
		}
	}),
	rule("concurrency/memory-in-use-stays", "Threads deregister memory while others post descriptors in it: it goes when nothing uses it, and posts are refused from then on.", func(t *T) {
		const rounds = 100
		va, vb := t.pair(vipl.ReliableReception)
		y := t.block(t.B, 1, 64)
		for range rounds {
			x := t.block(t.A, 1, 64)
			d := x.prepare(0, 64)
			y.recv(vb, 0, 64)
			posted := starts(func() error { return va.PostSend(d, x.Handle()) })
			err := x.Deregister()
			switch post := <-posted; {
			case err == nil && post == nil: // the send was complete by then
				t.sent(va, 0)
				t.received(vb, 0)
			case err == nil:
				t.wantErr("post in deregistered memory", post, vipl.ErrInvalidParameter)
				z := t.block(t.A, 1, 64)
				z.sendDone(va, 0, 64)
				t.received(vb, 0)
			default:
				t.wantErr("deregister", err, vipl.ErrResource)
				t.must(post)
				t.sent(va, 0)
				t.received(vb, 0)
			}
		}
	}),
	rule("concurrency/queries-beside-traffic", "Queries of NIC, VIs and memory go on beside traffic.", func(t *T) {
		stop := t.background()
		va, vb := t.pair(vipl.ReliableDelivery)
		x := t.block(t.A, 1, 64)
		var group sync.WaitGroup
		for range 3 {
			group.Go(func() {
				for range 300 {
					t.isIn(va, vipl.Connected)
					t.isIn(vb, vipl.Connected)
					_, err := x.Query()
					t.errorIf(err != nil, "memory: %v", err)
					a := t.A.Query()
					t.errorIf(a.MaxVI == 0, "no NIC attributes")
					t.A.Poll()
					t.B.Poll()
				}
			})
		}
		group.Wait()
		stop()
	}),
}

// promptly checks that f returns, however long others wait.
func (t *T) promptly(what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	within(t, "the return of "+what, done)
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

const (
	sharedWaiters = 4
	sharedCount   = 25 * sharedWaiters
)

// shared has several threads wait for what feed causes: each gets its share, and none
// what another one got.
func (t *T) shared(next func() (*vipl.Descriptor, error), feed func(i int)) {
	t.Helper()
	var group sync.WaitGroup
	var seen sync.Map
	for range sharedWaiters {
		group.Go(func() {
			for range sharedCount / sharedWaiters {
				d, err := next()
				if err != nil {
					t.Errorf("wait: %v", err)
					return
				}
				_, again := seen.Swap(d, true)
				t.errorIf(again, "a descriptor came twice")
			}
		})
	}
	for i := range sharedCount {
		feed(i)
		if i%20 == 0 {
			time.Sleep(time.Millisecond) // some of them fall asleep
		}
	}
	group.Wait()
}

// take takes count completions off a queue, by one thread that polls and one that
// waits.
func take(t *T, count int32, done func() (*vipl.Descriptor, error),
	wait func(time.Duration) (*vipl.Descriptor, error), f func(*vipl.Descriptor),
) {
	var taken atomic.Int32
	end := time.Now().Add(ackDelay)
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

// doneBesideWait asks queues and a CQ that others wait for.
func doneBesideWait(t *T) {
	cq := t.cq(t.A, 1)
	va, vb := t.pair(vipl.ReliableReception)
	vc, _ := t.pairOn(vipl.ReliableReception, cq, cq)
	x, y := t.block(t.A, 2, 64), t.block(t.B, 2, 64)
	x.recv(va, 0, 64)
	y.recv(vb, 1, 64)
	waits := []<-chan error{
		starts(func() error { return errOf(va.RecvWait(-1)) }),
		starts(func() error { return errOf(va.SendWait(ackDelay)) }),
		starts(func() error { return errOf2(cq.Wait(100 * time.Millisecond)) }),
	}
	time.Sleep(moment) // they are asleep by now
	t.promptly("Done", func() {
		for range 100 {
			t.nothingDone(va.RecvDone, vipl.ErrNotDone)
			t.nothingDone(va.SendDone, vipl.ErrDescriptor)
			t.nothingDone(vc.RecvDone, vipl.ErrDescriptor)
			t.noEntry(cq)
		}
	})
	y.send(vb, 0, 64)
	t.wantErr("RecvWait", <-waits[0], nil)
	x.send(va, 1, 64)
	t.wantErr("SendWait", <-waits[1], nil)
	t.wantErr("CQWait", <-waits[2], vipl.ErrTimeout)
}
