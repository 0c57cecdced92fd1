package vipltest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"viaxdp/vipl"
)

var concurrencyRules = []Rule{
	rule("concurrency/done-never-waits-behind-wait", "SendDone, RecvDone and VipCQDone return at once while another thread is in the Wait form of the same queue.", doneBesideWait),
	rule("concurrency/waiters-share-a-queue", "Several threads may wait for one queue: each completion goes to one of them.", func(t *T) {
		a, b := t.ends(vipl.ReliableDelivery, sharedCount, sharedCount, 64)
		b.recvs(sharedCount, 64)
		t.shared(func() (*vipl.Descriptor, error) { return b.v.RecvWait(limit) }, func(i int) { a.send(i, 64) })
	}),
	rule("concurrency/waiters-share-a-cq", "Several threads may wait for one CQ: each entry goes to one of them.", func(t *T) {
		cq := t.cq(t.A, 1)
		var from [2]*end
		for i, level := range reliableLevels {
			a, b := t.endsOn(level, nil, cq, sharedCount/2, sharedCount/2, 64)
			a.recvs(sharedCount/2, 64)
			from[i] = b
		}
		t.shared(func() (*vipl.Descriptor, error) {
			v, _, err := cq.Wait(limit)
			if err != nil {
				return nil, err
			}
			return v.RecvDone()
		}, func(i int) { from[i%2].send(i/2, 64) })
		t.noEntry(cq)
	}),
	rule("concurrency/every-queue-wakes-its-own-waiter", "While threads wait for many queues of a NIC, each is woken by the completion of its own one.", func(t *T) {
		const count = 10
		var as []*end
		type arrival struct {
			i   int
			err error
		}
		arrivals := make(chan arrival)
		for i := range count {
			a, b := t.ends(reliableLevels[i%2], 1, 1, 64)
			b.recv(0, 64)
			as = append(as, a)
			go func() { arrivals <- arrival{i, errOf(b.v.RecvWait(limit))} }()
		}
		time.Sleep(moment)
		for k := range count {
			i := (k*7 + 2) % count
			as[i].send(0, 64)
			equal(t, "the arrival", <-arrivals, arrival{i, nil})
		}
	}),
	rule("concurrency/posting-beside-waiting", "Threads post on a VI while others wait for it and poll it; every message arrives once.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		const posters, each, size = 3, 40, 2000
		const count = posters * each
		a, b := t.ends(level, 2*count, 2*count, size) // sends first, then receives
		var group sync.WaitGroup
		for _, way := range [][2]*end{{a, b}, {b, a}} {
			from, to := way[0], way[1]
			for i := range count {
				to.recv(count+i, size)
				fill(from.buf(i), i)
				from.buf(i)[0] = byte(i)
				from.prepare(i, size)
			}
			for p := range posters {
				group.Go(func() {
					for k := range each {
						t.wantErr("post", from.v.PostSend(from.desc[p*each+k], from.Handle()), nil)
					}
				})
			}
			var seen [count]atomic.Bool
			group.Go(func() { take(t, count, from.v.SendDone, from.v.SendWait, func(*vipl.Descriptor) {}) })
			group.Go(func() {
				take(t, count, to.v.RecvDone, to.v.RecvWait, func(d *vipl.Descriptor) {
					buf := to.buf(int(d.Addr()-to.Addr()) / to.stride())
					i := int(buf[0])
					if i >= count || seen[i].Swap(true) {
						t.Errorf("message %d came twice", i)
						return
					}
					t.holdsFrom("message", buf[1:], 1, i)
				})
			})
		}
		group.Wait()
	})),
	rule("concurrency/close-ends-waits", "VipCloseNic returns while others wait on queues, CQs and for requests, and they return with an error.", func(t *T) {
		t.openPair()
		cq := t.cq(t.A, 1)
		v, _ := t.pair(vipl.ReliableDelivery)
		idle, peer := t.vi(t.A, at(vipl.ReliableDelivery)), t.vi(t.A, at(vipl.ReliableDelivery))
		t.block(t.A, 1, 64).on(idle).recv(0, 64)
		t.must(peer.ConnectPeerRequest(named(disc()), on(t.A, disc()), -1))
		waits := map[string]<-chan error{
			"RecvWait, connected":    starts(func() error { return errOf(v.RecvWait(-1)) }),
			"SendWait":               starts(func() error { return errOf(v.SendWait(-1)) }),
			"SendWait, a second one": starts(func() error { return errOf(v.SendWait(limit)) }),
			"RecvWait, idle":         starts(func() error { return errOf(idle.RecvWait(-1)) }),
			"CQWait":                 starts(func() error { return errOf2(cq.Wait(-1)) }),
			"ConnectPeerWait":        starts(func() error { return errOf(peer.ConnectPeerWait()) }),
			"ConnectWait":            starts(func() error { return errOf(t.A.ConnectWait(named(disc()), -1)) }),
		}
		time.Sleep(moment)
		t.closesPromptly()
		for what, result := range waits {
			err := within(t, "the return of "+what, result)
			flushed := what == "RecvWait, idle" && errors.Is(err, vipl.ErrDescriptor)
			t.errorIf(!flushed && !errors.Is(err, vipl.ErrInvalidParameter), "%s: %v", what, err)
		}
	}),
	// A NIC is closed while a request of its own and one of its peer are under way.
	rule("concurrency/close-ends-requests", "VipCloseNic returns while a VipConnectRequest is under way, which returns with an error.", func(t *T) {
		t.openPair()
		v, w := t.idle(vipl.ReliableDelivery)
		c, own := t.asked(v, t.B)
		_, others := t.asked(w, t.A)
		t.closesPromptly()
		t.wantErr("request", within(t, "the return of its own request", own), vipl.ErrInvalidParameter)
		t.errorIf(c.Accept(t.vi(t.B, at(vipl.ReliableDelivery))) == nil, "a request whose NIC was closed can be accepted")
		t.errorIf(within(t, "the return of the peer's request", others) == nil, "a request to a closed NIC succeeded")
		t.state(w, vipl.Idle)
	}),
	rule("concurrency/close-beside-traffic", "VipCloseNic returns while others post, poll and wait, and all of them get errors from then on.", func(t *T) {
		t.openPair()
		va, vb := t.pair(vipl.ReliableDelivery)
		// The program's own memory: it outlives the NIC.
		r := t.register(t.A, make([]byte, 4096), vipl.MemAttributes{})
		start := int(-r.Addr() % vipl.DescriptorAlignment)
		sends, err1 := r.Descriptor(start, 1)
		recvs, err2 := r.Descriptor(start+64, 1)
		t.must(errors.Join(err1, err2))
		a, h := t.A, r.Handle()
		var group sync.WaitGroup
		for _, f := range []func() error{
			func() error { return va.PostSend(sends, h) },
			func() error { return va.PostRecv(recvs, h) },
			func() error { return errOf(va.SendWait(time.Millisecond)) },
			func() error { return errOf(va.RecvWait(-1)) },
			func() error { return errOf(va.Query()) },
			func() error { return errOf(a.CreateCQ(1)) },
			func() error {
				v, err := a.CreateVI(at(vipl.ReliableDelivery), nil, nil)
				if err == nil {
					v.Destroy()
				}
				return err
			},
		} {
			group.Go(func() {
				for end := time.Now().Add(limit); !errors.Is(f(), vipl.ErrInvalidParameter); {
					if time.Now().After(end) {
						t.Error("no INVALID_PARAMETER after the close")
						return
					}
				}
			})
		}
		time.Sleep(moment)
		t.closesPromptly()
		t.promptly("the others", group.Wait)
		t.state(vb, vipl.Error)
	}),
	rule("concurrency/close-by-several", "Several threads may close a NIC at once.", func(t *T) {
		t.openPair()
		t.promptly("CloseNIC", func() { together(4, func(int) { t.wantErr("close", t.A.Close(), nil) }) })
	}),
	rule("concurrency/disconnect-wakes-waiters", "VipDisconnect while others wait on the VI's queues gives them the flushed descriptors.", everyLevel(func(t *T, level vipl.ReliabilityLevel) {
		a, b := t.ends(level, 2, 2, 64)
		var waits []<-chan error
		for _, e := range []*end{a, b} {
			e.recvs(2, 64)
			for range 2 {
				waits = append(waits, starts(func() error {
					d, err := e.v.RecvWait(limit)
					t.errorIf(d != nil && d.Status()&vipl.StatusFlushed == 0, "not flushed")
					return err
				}))
			}
		}
		time.Sleep(moment)
		t.must(a.v.Disconnect())
		for _, w := range waits {
			t.wantErr("wait", <-w, vipl.ErrDescriptor)
		}
	})),
	rule("concurrency/objects-come-and-go", "VIs, CQs, tags, memory and connections are made and destroyed by many threads at once, beside traffic.", func(t *T) {
		const threads, rounds = 4, 8
		stop := t.background()
		together(threads, func(k int) {
			for i := range rounds {
				if err := objects(t, allLevels[(k+i)%3]); err != nil {
					t.Errorf("thread %d, round %d: %v", k, i, err)
					return
				}
			}
		})
		stop()
	}),
	rule("concurrency/one-connect-a-vi", "Of several threads that connect one VI at once one succeeds, and the others get INVALID_STATE.", func(t *T) {
		const threads = 4
		v := t.vi(t.A, at(vipl.ReliableDelivery))
		to := on(t.B, disc())
		l, err := t.B.Listen(named(to.Discriminator))
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
		t.once("ConnectRequest", func() error { return errOf(v.ConnectRequest(vipl.NetAddress{}, to, limit)) }, vipl.ErrInvalidState)
		cancel() // all requests have ended
		accepted := 0
		for _, p := range peers {
			if <-p == nil {
				accepted++
			}
		}
		equal(t, "accepts that succeeded", accepted, 1)
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
			var vis [4]*vipl.VI
			for i := range vis {
				vis[i] = t.vi(t.B, at(vipl.ReliableDelivery))
			}
			c, result := t.asked(t.vi(t.A, at(vipl.ReliableDelivery)), t.B)
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
		b := t.block(t.B, 1, 64).on(vb)
		for range rounds {
			a := t.block(t.A, 1, 64).on(va)
			d := a.prepare(0, 64)
			b.recv(0, 64)
			posted := starts(func() error { return va.PostSend(d, a.Handle()) })
			err := a.Deregister()
			post := <-posted
			switch {
			case err != nil:
				t.wantErr("deregister", err, vipl.ErrResource)
				t.must(post)
			case post != nil: // else the send was already complete
				t.wantErr("post in deregistered memory", post, vipl.ErrInvalidParameter)
				t.block(t.A, 1, 64).on(va).send(0, 64)
			}
			t.sent(va)
			b.received()
		}
	}),
	rule("concurrency/queries-beside-traffic", "Queries of NIC, VIs and memory go on beside traffic.", func(t *T) {
		stop := t.background()
		a, b := t.ends(vipl.ReliableDelivery, 1, 1, 64)
		together(3, func(int) {
			for range 300 {
				t.isIn(a.v, vipl.Connected)
				t.isIn(b.v, vipl.Connected)
				t.wantErr("memory", errOf(a.Region.Query()), nil)
				t.errorIf(t.A.Query().MaxVI == 0, "no NIC attributes")
				t.A.Poll()
				t.B.Poll()
			}
		})
		stop()
	}),
}

// promptly checks that f returns while other calls wait.
func (t *T) promptly(what string, f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	within(t, "the return of "+what, done)
}

// closesPromptly closes A.
func (t *T) closesPromptly() {
	t.promptly("CloseNIC", func() { t.wantErr("close", t.A.Close(), nil) })
}

// together runs f for 0 to n-1 at the same time, and returns when all have returned.
func together(n int, f func(i int)) {
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() { f(i) })
	}
	group.Wait()
}

// starts runs a blocking call in a goroutine, and returns a channel for its result.
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
	sharedCount   = 26 * sharedWaiters
)

// shared has several threads wait for what feed causes. Each gets its share, and no two get the same.
func (t *T) shared(next func() (*vipl.Descriptor, error), feed func(i int)) {
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

// take dequeues count completions, by one thread that polls and one that waits.
func take(t *T, count int32, done func() (*vipl.Descriptor, error),
	wait func(time.Duration) (*vipl.Descriptor, error), f func(*vipl.Descriptor),
) {
	var taken atomic.Int32
	end := time.Now().Add(limit)
	nexts := []func() (*vipl.Descriptor, error){done, func() (*vipl.Descriptor, error) { return wait(time.Millisecond) }}
	together(len(nexts), func(i int) {
		for taken.Load() < count {
			d, err := nexts[i]()
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
	})
}

// doneBesideWait calls Done on queues and a CQ on which other threads wait.
func doneBesideWait(t *T) {
	cq := t.cq(t.A, 1)
	a, b := t.ends(vipl.ReliableReception, 2, 2, 64)
	c, _ := t.endsOn(vipl.ReliableReception, cq, cq, 1, 1, 64)
	a.recv(0, 64)
	b.recv(1, 64)
	waits := []<-chan error{
		starts(func() error { return errOf(a.v.RecvWait(-1)) }),
		starts(func() error { return errOf(a.v.SendWait(limit)) }),
		starts(func() error { return errOf2(cq.Wait(100 * time.Millisecond)) }),
	}
	time.Sleep(moment) // they are asleep by now
	t.promptly("Done", func() {
		for range 100 {
			t.nothingDone(a.v.RecvDone, vipl.ErrNotDone)
			t.nothingDone(a.v.SendDone, vipl.ErrDescriptor)
			t.nothingDone(c.v.RecvDone, vipl.ErrDescriptor)
			t.noEntry(cq)
		}
	})
	b.send(0, 64)
	t.wantErr("RecvWait", <-waits[0], nil)
	a.send(1, 64)
	t.wantErr("SendWait", <-waits[1], nil)
	t.wantErr("CQWait", <-waits[2], vipl.ErrTimeout)
}

// objects makes one object of each kind, connects, and destroys all.
func objects(t *T, level vipl.ReliabilityLevel) error {
	tag, err1 := t.A.CreatePtag()
	cq, err2 := t.A.CreateCQ(1)
	r, err3 := t.A.AllocMem(4096, vipl.MemAttributes{Ptag: tag})
	va, err4 := t.A.CreateVI(vipl.VIAttributes{Level: level, Ptag: tag}, cq, nil)
	vb, err5 := t.B.CreateVI(at(level), nil, nil)
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		return err
	}
	d := disc()
	accepted := serves(vb, named(d))
	if err := errors.Join(errOf(t.request(va, vipl.NetAddress{}, on(t.B, d))), <-accepted); err != nil {
		return err
	}
	x, err := r.Descriptor(0, 1)
	if err != nil {
		return err
	}
	x.SetSegments(r.Segment(64, 1000))
	if err := errors.Join(va.PostRecv(x, r.Handle()), vb.Disconnect()); err != nil {
		return err
	}
	if _, err := va.RecvWait(limit); err != vipl.ErrDescriptor {
		return fmt.Errorf("the flushed receive: %v", err)
	}
	return errors.Join(va.Disconnect(), va.Destroy(), vb.Destroy(), r.Deregister(), cq.Destroy(), tag.Destroy())
}

// pass sends the whole of buffer 0 from one end to the other.
func pass(a, b *end) error {
	if err := errors.Join(b.v.PostRecv(b.prepare(0, b.size), b.Handle()), a.v.PostSend(a.prepare(0, a.size), a.Handle())); err != nil {
		return err
	}
	return errors.Join(errOf(b.v.RecvWait(limit)), errOf(a.v.SendWait(limit)))
}

// background exchanges messages between A and B, and checks each, until the returned function is called.
func (t *T) background() (stop func()) {
	a, b := t.ends(vipl.ReliableDelivery, 1, 1, 3000)
	var over atomic.Bool
	ended := starts(func() error {
		for k := 0; !over.Load(); k++ {
			fill(a.buf(0), k)
			if err := pass(a, b); err != nil {
				return fmt.Errorf("message %d of the traffic beside: %w", k, err)
			}
			t.holds("traffic beside", b.buf(0), k)
		}
		return nil
	})
	return func() {
		over.Store(true)
		t.must(<-ended)
	}
}

// once makes several calls concurrently, and checks that exactly one succeeds and the others return the code.
func (t *T) once(what string, f func() error, others error) {
	var won atomic.Int32
	together(4, func(int) {
		if err := f(); err == nil {
			won.Add(1)
		} else {
			t.wantErr(what, err, others)
		}
	})
	t.errorIf(won.Load() != 1, "%s: %d calls succeeded", what, won.Load())
}
