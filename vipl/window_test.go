package vipl_test

import (
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

const (
	windowChunks = 128
	windowAlone  = windowChunks * 3 / 4 // of one connection
)

// windowNet is a net in which b has few chunks and can be stopped.
func windowNet(t *testing.T) (n *memoryNet, b *stoppedPort) {
	b = &stoppedPort{}
	return newMemoryNet(t, memoryConfig{
		queue: xdpnictest.Config{RxChunks: windowChunks}, silence: time.Minute, noPacking: true, bubble: true, port: over(b, &b.Queue),
	}), b
}

// ahead posts all of x to v, while the peer takes nothing, and returns how many frames are sent.
func ahead(t *testing.T, v *vipl.VI, x *box) uint32 {
	t.Helper()
	before := v.NextFrame()
	for i := range x.desc {
		postSend(t, v, x, i, overloadBytes)
	}
	for range vipl.CoalescePolls { // what is on the ring does not wait for company
		v.NIC().Poll()
	}
	return v.NextFrame() - before
}

// What a connection may have under way is what its peer has room for at the time, not
// what it had when the two connected.
func TestWindowFollowsTheConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, b := windowNet(t)
		var others []*vipl.VI
		connectOthers := func() {
			for range 24 {
				v, _ := connect(t, n.a.NIC, n.b.NIC, vipl.ReliableDelivery)
				others = append(others, v)
			}
		}
		connectOthers()
		va, vb := connect(t, n.a.NIC, n.b.NIC, vipl.ReliableDelivery)
		xa, xb := newBox(t, n.a.NIC, 2*windowAlone, overloadBytes), newBox(t, n.b.NIC, 2*windowAlone, overloadBytes)
		window := func(rounds int) (frames uint32) {
			t.Helper()
			for range rounds {
				for i := range xb.desc {
					postRecv(t, vb, xb, i, overloadBytes)
				}
				b.stopped.Store(true)
				frames = ahead(t, va, xa)
				b.stopped.Store(false)
				for left := len(xa.desc) + len(xb.desc); left > 0; {
					before := left
					if d, _ := va.SendDone(); d != nil {
						left--
					}
					if d, _ := vb.RecvDone(); d != nil {
						left--
					}
					if left == before {
						n.a.Poll()
						time.Sleep(10 * time.Microsecond)
					}
				}
			}
			return frames
		}
		equal(t, "window", window(10), vipl.LeastWindow)
		for _, v := range others {
			v.Disconnect()
		}
		if got := window(10); got != windowAlone { // the network has to show that it carries as much
			t.Errorf("%d frames when the others are gone, want %d", got, windowAlone)
		}
		connectOthers()
		time.Sleep(5 * time.Millisecond) // they have got their windows
		equal(t, "window", window(1), vipl.LeastWindow)
		statesAre(t, vipl.Connected, va, vb)
		s := n.b.queue.Stats()
		errorIf(t, s.RxNoFill+s.RxRingFull > 0, "frames found no room: %+v", s)
	})
}

// Connections that were granted more room than is left by now, and are idle until all send at once, find room
// for all that they send: whether they were made one after the other, or together, before any knew of the
// others.
func TestIdleConnectionsLearnOfLessRoom(t *testing.T) {
	for name, join := range map[string]func(t *testing.T, n *memoryNet, from, to []*vipl.VI){
		"in turn": func(t *testing.T, n *memoryNet, from, to []*vipl.VI) {
			for i := range from {
				join(t, n.a.NIC, from[i], n.b.NIC, to[i])
			}
		},
		"together": joinTogether,
	} {
		inBubble(t, name, func(t *testing.T) { idleConnections(t, join) })
	}
}

// joinTogether connects all of to with from. All request before the first one is answered.
func joinTogether(t *testing.T, n *memoryNet, from, to []*vipl.VI) {
	l, err := n.a.Listen(vipl.NetAddress{Discriminator: []byte("all")})
	must(t, err)
	defer l.Close()
	var over []<-chan error
	for i, v := range to {
		over = append(over, starts(func() error {
			return errOf(v.ConnectRequest(vipl.NetAddress{Discriminator: []byte{byte(i)}}, address(n.a, "all"), ackDelay))
		}))
	}
	synctest.Wait()
	for range from {
		c, err := l.Wait(t.Context())
		if err == nil {
			err = c.Accept(from[c.Remote().Discriminator[0]])
		}
		must(t, err)
	}
	for _, o := range over {
		must(t, <-o)
	}
}

func idleConnections(t *testing.T, join func(t *testing.T, n *memoryNet, from, to []*vipl.VI)) {
	n, b := windowNet(t)
	const conns = 6
	var from, to []*vipl.VI
	var out, in [conns]*box
	for range conns {
		from = append(from, newVI(t, n.a.NIC, vipl.ReliableDelivery))
		to = append(to, newVI(t, n.b.NIC, vipl.ReliableDelivery))
	}
	join(t, n, from, to)
	for i := range conns {
		out[i], in[i] = newBox(t, n.a.NIC, windowAlone, overloadBytes), newBox(t, n.b.NIC, windowAlone, overloadBytes)
		for k := range in[i].desc {
			postRecv(t, to[i], in[i], k, overloadBytes)
		}
	}
	time.Sleep(5 * time.Millisecond) // connections with a smaller window have got it
	b.stopped.Store(true)
	frames := uint32(0)
	for i := range conns {
		frames += ahead(t, from[i], out[i])
	}
	s := n.b.queue.Stats()
	errorIf(t, s.RxNoFill+s.RxRingFull > 0, "%d frames for %d chunks: %+v", frames, windowChunks, s)
	errorIf(t, frames < windowAlone*7/8, "%d frames for %d chunks", frames, windowChunks)
	b.stopped.Store(false)
	for i := range conns {
		for k := range in[i].desc {
			d := received(t, to[i], 0)
			fatalIf(t, d != in[i].desc[k], "connection %d: message %d is in another's descriptor", i, k)
			sent(t, from[i], 0)
		}
	}
}

// A program that has seen in a descriptor's status that it is complete gets it by Done, and its entry by
// CQDone, however much time the engine takes between the two.
func TestDoneAfterStatus(t *testing.T) {
	n := newMemoryNet(t, memoryConfig{})
	cq := createCQ(t, n.b.NIC, 4)
	for name, bound := range map[string]*vipl.CQ{"alone": nil, "with a queue": cq} {
		vi := createVI(t, n.b.NIC, vipl.VIAttributes{Level: vipl.ReliableDelivery}, nil, bound)
		_, recv := vi.Watch()
		var pending *uint64
		if bound != nil {
			_, pending = bound.Watch()
		}
		one := func() (*vipl.Descriptor, error) {
			if bound != nil {
				if _, _, err := cq.Done(); err != nil {
					return nil, err
				}
			}
			return vi.RecvDone()
		}
		list := func() (*vipl.Descriptor, error) {
			if bound != nil {
				if _, err := cq.Dones(make([]vipl.Completion, 2)); err != nil {
					return nil, err
				}
			}
			var d [2]*vipl.Descriptor
			_, err := vi.RecvDones(d[:])
			return d[0], err
		}
		x := newBox(t, n.b.NIC, 2, 64)
		for i, take := range []func() (*vipl.Descriptor, error){one, list} {
			postRecv(t, vi, x, i, 64)
			got, seen := make(chan error, 1), make(chan struct{})
			words := func(ahead, entry uint64) {
				t.Helper()
				settling, completed := atomic.LoadUint64(recv.Settling), atomic.LoadUint64(recv.Completed)
				errorIf(t, settling != completed+ahead, "%s, %d: %d complete, %d as it will be, want %d more", name, i, completed, settling, ahead)
				errorIf(t, bound != nil && atomic.LoadUint64(pending) != entry, "%s, %d: the queue's word is not %d", name, i, entry)
			}
			vi.Settle(func() {
				words(1, 1)
				go func() {
					for x.desc[i].Status()&vipl.StatusDone == 0 {
					}
					close(seen)
					d, err := take()
					errorIf(t, err == nil && d != x.desc[i], "%s, %d: another descriptor", name, i)
					got <- err
				}()
				<-seen
				for range 100 {
					runtime.Gosched() // it looks now
				}
			})
			words(0, 0)
			err := <-got
			errorIf(t, err != nil, "%s, %d: %v", name, i, err)
		}
	}
}

// What the kernel leaves on the ring at the doorbell, because its send buffer or the NIC's
// queue is full, goes as soon as there is room: while the program sleeps, while it looks
// in now and then, and while it polls. veth, which delivers within the doorbell, always has room.
func TestWhatTheKernelLeavesOnTheRing(t *testing.T) {
	for _, c := range []struct {
		name  string
		while func(n *memoryNet)
	}{
		{"asleep", func(*memoryNet) {}},
		{"looks in", func(n *memoryNet) { n.a.Poll() }},
		{"polls", func(n *memoryNet) {
			for range 1000 {
				n.a.Poll()
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
				for _, count := range []int{1, 3} { // alone, and as a list
					synctest.Test(t, func(t *testing.T) {
						n, va, vb, xa, xb := connectedBoxes(t, memoryConfig{bubble: true, noPacking: true}, level, count, count, 64)
						polling(t, n, va, vb)
						for i := range count {
							postRecv(t, vb, xb, i, 64)
							xa.prepare(i, 64)
						}
						n.a.queue.SetLies(xdpnictest.Lies{Stall: 1})
						start := time.Now()
						must(t, errOf(va.PostSends(xa.desc[:count], xa.region.Handle())))
						time.Sleep(20 * time.Microsecond) // the NIC is at others' frames
						stalls := n.a.queue.Stats().Stalled
						fatalIf(t, stalls == 0, "the kernel has taken the frames")
						n.a.queue.SetLies(xdpnictest.Lies{})
						for got := 0; got < count; {
							if d, _ := vb.RecvDone(); d != nil {
								got++
								continue
							}
							fatalIf(t, time.Since(start) > 2*time.Millisecond, "%d of %d messages have come after %v", got, count, time.Since(start))
							time.Sleep(100 * time.Microsecond)
							c.while(n)
						}
					})
				}
			})
		})
	}
}

// driver is a queue whose driver still has entries to take, and that counts sleeps.
type driver struct {
	*xdpnictest.Queue
	left  atomic.Int32
	waits atomic.Int32
}

func (d *driver) Pending() int { return d.Queue.Pending() + int(d.left.Load()) }

func (d *driver) Wait(timeout time.Duration) error {
	d.waits.Add(1)
	return d.Queue.Wait(timeout)
}

// A PostSendLater that puts nothing on the ring, while a driver has not taken earlier entries, leaves nothing
// to ring for: the background goroutine does not run every half millisecond from then on.
func TestPostSendLaterOfNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &driver{}
		n, va, vb := connected(t, memoryConfig{bubble: true, zeroCopy: true, port: over(d, &d.Queue)}, vipl.UnreliableDelivery)
		_ = va
		x := newBox(t, n.b.NIC, 1, 64)
		d.left.Store(1)
		x.prepare(0, 64)
		x.desc[0].Length = 63 // wrong
		must(t, vb.PostSendLater(x.desc[0], x.region.Handle()))
		sent(t, vb, vipl.StatusLengthError)
		d.left.Store(0)
		n.b.Ring()
		time.Sleep(10 * time.Millisecond)
		d.waits.Store(0)
		time.Sleep(time.Second)
		waits := d.waits.Load()
		errorIf(t, waits > 100, "%d sleeps in a second with nothing to do", waits)
	})
}

// unmapped is a queue whose rings are unmapped at some time.
type unmapped struct {
	*xdpnictest.Queue
	gone bool
	t    *testing.T
}

func (u *unmapped) used(what string) {
	errorIf(u.t, u.gone, "%s behind Close", what)
}

func (u *unmapped) Pending() int { u.used("Pending"); return u.Queue.Pending() }
func (u *unmapped) Flush() error { u.used("Flush"); return u.Queue.Flush() }
func (u *unmapped) Refill()      { u.used("Refill"); u.Queue.Refill() }

// A goroutine that continues to poll while another one closes the NIC, as in a program that is asked to exit,
// does not touch the rings afterwards: they are unmapped.
func TestPollsBehindClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rings := &unmapped{t: t}
		n := newMemoryNet(t, memoryConfig{bubble: true, port: over(rings, &rings.Queue)})
		_, vb := connect(t, n.a.NIC, n.b.NIC, vipl.ReliableDelivery)
		n.a.queue.SetFaults(xdpnictest.Faults{Loss: 1}) // no acknowledgement comes
		xb := newBox(t, n.b.NIC, 8, 8)
		for k := range 8 {
			postSend(t, vb, xb, k, 8)
		}
		must(t, n.b.NIC.Close())
		rings.gone = true
		for range 3 {
			for range 1000 {
				n.b.Poll()
				n.b.Ring()
			}
			time.Sleep(time.Second)
		}
	})
}
