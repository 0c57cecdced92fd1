package vipl_test

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/internal/lab/nstest"
	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

// Some take completed descriptors by the words, others by RecvDone and RecvWait, from
// a queue that grows meanwhile: each is taken once, with its own status and data.
func TestDequeuedByUser(t *testing.T) {
	n, va, vb := connected(t, memoryConfig{}, vipl.ReliableDelivery)
	send, _ := va.Watch()
	_, recv := vb.Watch()
	const count = 600
	out, in := newBox(t, n.a.NIC, count, 64), newBox(t, n.b.NIC, count, 64)
	var group sync.WaitGroup
	group.Go(func() {
		for i := range count {
			in.prepare(i, 64)
			if err := vb.PostRecv(in.desc[i], in.region.Handle()); err != nil {
				t.Error(err)
				return
			}
			binary.BigEndian.PutUint32(out.buf[i], uint32(i))
			out.prepare(i, 4+i%60)
			if err := va.PostSend(out.desc[i], out.region.Handle()); err != nil {
				t.Error(err)
				return
			}
		}
	})
	var seen, sent [count]atomic.Bool
	var got, done atomic.Int32
	took := func(x *box, seen []atomic.Bool, address uint64) (k uint64, ok bool) {
		k = (address - x.region.Addr()) / 64
		if k >= count || seen[k].Swap(true) {
			t.Errorf("descriptor %d was taken twice", k)
			return 0, false
		}
		return k, true
	}
	for w := range 4 {
		group.Go(func() {
			for start := time.Now(); got.Load() < count; {
				if time.Since(start) > ackDelay {
					t.Errorf("%d of %d were received", got.Load(), count)
					return
				}
				var address uint64
				var status vipl.Status
				switch w {
				case 0, 1:
					if address, status = dequeueUser(vipl.PortWatch{}, recv); address == 0 {
						n.b.Poll()
					}
				case 2:
					if d, err := vb.RecvDone(); d != nil {
						address, status = d.Addr(), d.Status()
					} else if err == nil {
						t.Error("neither a descriptor nor an error")
						return
					}
				case 3:
					if d, _ := vb.RecvWait(time.Millisecond); d != nil {
						address, status = d.Addr(), d.Status()
					}
				}
				if address == 0 {
					continue
				}
				k, ok := took(in, seen[:], address)
				if !ok {
					return
				}
				i := binary.BigEndian.Uint32(in.buf[k])
				if d := in.desc[k]; i != uint32(k) || d.Length != 4+i%60 || status != vipl.StatusDone|vipl.StatusOpReceive || d.Status() != status {
					t.Errorf("descriptor %d has message %d of %d bytes, status %v", k, i, d.Length, status)
					return
				}
				got.Add(1)
			}
		})
	}
	group.Go(func() {
		for start := time.Now(); done.Load() < count && time.Since(start) < ackDelay; {
			address, _ := dequeueUser(vipl.PortWatch{}, send)
			if address == 0 {
				if d, _ := va.SendDone(); d == nil {
					continue
				} else {
					address = d.Addr()
				}
			}
			if _, ok := took(out, sent[:], address); !ok {
				return
			}
			done.Add(1)
		}
	})
	group.Wait()
	errorIf(t, done.Load() != count, "%d of %d sends were taken", done.Load(), count)
}

// A goroutine that dequeues under the lock takes nothing that is not complete, if others take the head between
// two of its reads.
func TestPopBeside(t *testing.T) {
	const rounds = 300_000
	taken, early := vipl.PopBeside(rounds)
	errorIf(t, early || taken != rounds, "%d of %d were taken, one before it was complete: %v", taken, rounds, early)
}

// Descriptors that are complete when Watch is called are in the ring, too, with the status of failures.
func TestUserRingFailures(t *testing.T) {
	n, va, vb := connected(t, memoryConfig{}, vipl.ReliableDelivery)
	in := newBox(t, n.b.NIC, 20, 64)
	_, before := vb.Watch()
	postRecvs(t, vb, in, 20, 64)
	if address, _ := dequeueUser(vipl.PortWatch{}, before); address != 0 {
		t.Error("a receive that is not complete can be taken")
	}
	must(t, vb.Disconnect())
	port := vipl.PortWatch{Taken: new(uint32)}
	for i := range 20 {
		address, s := dequeueUser(port, before)
		fatalIf(t, address != in.desc[i].Addr() || s&vipl.StatusFlushed == 0, "receive %d: %#x, %v", i, address, s)
	}
	nothingDone(t, vb.RecvDone, vipl.ErrDescriptor)
	xa := newBox(t, n.a.NIC, 1, 64)
	must(t, va.Disconnect())
	postSend(t, va, xa, 0, 64) // not connected: completes at once
	late, _ := va.Watch()
	if address, s := dequeueUser(port, late); address != xa.desc[0].Addr() || !s.Failed() {
		t.Errorf("what was complete before: %#x, %v", address, s)
	}
}

// A handler gets the next completion while other threads dequeue by the words.
func TestUserRingHandlers(t *testing.T) {
	n, va, vb := connected(t, memoryConfig{}, vipl.ReliableDelivery)
	_, recv := vb.Watch()
	out, in := newBox(t, n.a.NIC, 1, 64), newBox(t, n.b.NIC, 1, 64)
	var stop atomic.Bool
	var group sync.WaitGroup
	for range 2 {
		group.Go(func() {
			for !stop.Load() {
				if address, _ := dequeueUser(vipl.PortWatch{}, recv); address != 0 {
					t.Error("what a handler waits for was taken")
					return
				}
				n.b.Poll()
			}
		})
	}
	defer group.Wait()
	defer stop.Store(true)
	for i := range 300 {
		postRecv(t, vb, in, 0, 64)
		handled := make(chan *vipl.Descriptor, 1)
		must(t, vb.RecvNotify(func(_ *vipl.VI, d *vipl.Descriptor) { handled <- d }))
		postSend(t, va, out, 0, 64)
		select {
		case d := <-handled:
			fatalIf(t, d != in.desc[0], "message %d: the handler got %v", i, d)
		case <-time.After(ackDelay):
			t.Fatalf("message %d: no handler was called", i)
		}
		must(t, errOf(va.SendWait(ackDelay)))
	}
}

// The words have the state that Done would return, before, while and after a message waits.
func TestWatch(t *testing.T) {
	t.Parallel()
	x, y := ends(t, nstest.Options{})
	_, ok := x.Watch()
	fatalIf(t, !ok, "a NIC over AF_XDP has no indices to look at")
	va, vb := connect(t, x, y, vipl.ReliableDelivery)
	xa, xb := newBox(t, x, 1, 64), newBox(t, y, 1, 64)
	send, _ := va.Watch()
	_, recv := vb.Watch()
	port, _ := y.Watch()
	type state struct{ posted, completed uint64 }
	look := func(q vipl.QueueWatch) state {
		d := atomic.LoadUint64(q.Dequeued)
		return state{atomic.LoadUint64(q.Posted) - d, atomic.LoadUint64(q.Completed) - d}
	}
	postRecv(t, vb, xb, 0, 64)
	equal(t, "with a receive posted", look(recv), state{posted: 1})
	postSend(t, va, xa, 0, 64)
	equal(t, "a send that is on its way", look(send), state{1, 1})
	// Either the frame is still on the ring, or the background goroutine has taken it.
	for start := time.Now(); ; {
		arrived := atomic.LoadUint32(port.Produced) != atomic.LoadUint32(port.Consumed)
		if look(recv).completed == 1 {
			break
		} else if !arrived && time.Since(start) > ackDelay {
			t.Fatal("the message is neither on the ring nor complete")
		}
		y.Poll()
	}
	equal(t, "receive", recvDone(t, vb, vipl.StatusOpReceive), xb.desc[0])
	equal(t, "after it was taken", look(recv), state{})
	x.Close()
	y.Close()
	errorIf(t, atomic.LoadUint32(port.Produced) != atomic.LoadUint32(port.Consumed), "after Close there is something on the ring")
}

// While there are connections between queues, the words require that every poll calls.
func TestWatchShmLinks(t *testing.T) {
	t.Parallel()
	nics := openQueues(t)
	var words [2]vipl.PortWatch
	for i := range nics {
		words[i], _ = nics[i].Watch()
		equal(t, "without a connection", atomic.LoadUint64(words[i].ShmLinks), 0)
	}
	va, vb := openPair(t, nics[0], nics[1], vipl.ReliableDelivery)
	for i, w := range words {
		errorIf(t, atomic.LoadUint64(w.ShmLinks) == 0, "handle %d: the connection goes by no lane", i)
	}
	disconnect(t, va, vb)
	for i, w := range words {
		equal(t, fmt.Sprintf("lanes of handle %d", i), atomic.LoadUint64(w.ShmLinks), 0)
	}
}

// Farewell delivers what was sent and notifies the peer. The program's own side notices nothing.
func TestFarewell(t *testing.T) {
	t.Parallel()
	x, y := ends(t, nstest.Options{})
	va, vb := connect(t, x, y, vipl.ReliableDelivery)
	xa, xb := newBox(t, x, 2, 64), newBox(t, y, 2, 64)
	postRecvs(t, vb, xb, 2, 64)
	postRecv(t, va, xa, 0, 64)
	postMessage(t, va, xa, 1, 64, 1)
	x.Farewell()
	receivedMessage(t, vb, xb.buf[0], 1) // what was sent before
	received(t, vb, vipl.StatusFlushed)
	nothingDone(t, va.RecvDone, vipl.ErrNotDone)
	stateIs(t, va, vipl.Connected)
}

// A farewell whose answers are lost is repeated with what was sent before it. The repetition is answered, too,
// and nothing completes on this side.
func TestFarewellUnheard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, va, vb, xa, xb := connectedBoxes(t, memoryConfig{bubble: true}, vipl.ReliableDelivery, 2, 1, 64)
		postRecv(t, va, xa, 0, 64)
		postRecv(t, vb, xb, 0, 64)
		n.b.queue.SetFaults(xdpnictest.Faults{Loss: 1})
		postSend(t, va, xa, 1, 64)
		time.AfterFunc(20*time.Millisecond, func() { n.b.queue.SetFaults(xdpnictest.Faults{}) })
		n.a.Farewell()
		received(t, vb, 0)
		stateIs(t, vb, vipl.Error)
		errorIf(t, n.a.Counters().Resent < 2, "nothing was repeated: %+v", n.a.Counters())
		nothingDone(t, va.RecvDone, vipl.ErrNotDone)
		stateIs(t, va, vipl.Connected)
	})
}
