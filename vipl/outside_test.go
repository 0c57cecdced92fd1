package vipl_test

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"viaxdp/vipl"
)

// Some take completed descriptors by the words, others by RecvDone and RecvWait, from
// a queue that grows meanwhile: each is taken once, with its own status and data.
func TestTakenOutside(t *testing.T) {
	n, va, vb := connected(t, memoryConfig{}, vipl.ReliableDelivery)
	send, _ := va.Watch()
	_, recv := vb.Watch()
	const count = 600
	out, in := newBox(t, n.a.Nic, count, 64), newBox(t, n.b.Nic, count, 64)
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
				if time.Since(start) > patience {
					t.Errorf("%d of %d were received", got.Load(), count)
					return
				}
				var address uint64
				var status vipl.Status
				switch w {
				case 0, 1:
					if address, status = takeOutside(vipl.PortWatch{}, recv); address == 0 {
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
		for start := time.Now(); done.Load() < count && time.Since(start) < patience; {
			address, _ := takeOutside(vipl.PortWatch{}, send)
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
	if done.Load() != count {
		t.Errorf("%d of %d sends were taken", done.Load(), count)
	}
}

// Who dequeues under the lock takes nothing that is not complete, when others have
// taken the head between two looks of his.
func TestPopBeside(t *testing.T) {
	const rounds = 300_000
	if taken, early := vipl.PopBeside(rounds); early || taken != rounds {
		t.Errorf("%d of %d were taken, one before it was complete: %v", taken, rounds, early)
	}
}

// What waits on a queue when the words are asked for is there, too, and failures say so.
func TestOutsideFailures(t *testing.T) {
	n, va, vb := connected(t, memoryConfig{}, vipl.ReliableDelivery)
	in := newBox(t, n.b.Nic, 20, 64)
	_, before := vb.Watch()
	for i := range 20 {
		postRecv(t, vb, in, i, 64)
	}
	if address, _ := takeOutside(vipl.PortWatch{}, before); address != 0 {
		t.Error("a receive that is not complete can be taken")
	}
	if err := vb.Disconnect(); err != nil {
		t.Fatal(err)
	}
	port := vipl.PortWatch{Taken: new(uint32)}
	for i := range 20 {
		address, s := takeOutside(port, before)
		if address != in.desc[i].Addr() || s&vipl.StatusFlushed == 0 {
			t.Fatalf("receive %d: %#x, %v", i, address, s)
		}
	}
	if d, err := vb.RecvDone(); d != nil || err != vipl.ErrDescriptor {
		t.Errorf("after the last one: %v, %v", d, err)
	}
	xa := newBox(t, n.a.Nic, 1, 64)
	if err := va.Disconnect(); err != nil {
		t.Fatal(err)
	}
	postSend(t, va, xa, 0, 64) // not connected: completes at once
	late, _ := va.Watch()
	if address, s := takeOutside(port, late); address != xa.desc[0].Addr() || !s.Failed() {
		t.Errorf("what was complete before: %#x, %v", address, s)
	}
}

// A handler gets the next completion whoever takes others by the words meanwhile.
func TestOutsideHandlers(t *testing.T) {
	n, va, vb := connected(t, memoryConfig{}, vipl.ReliableDelivery)
	_, recv := vb.Watch()
	out, in := newBox(t, n.a.Nic, 1, 64), newBox(t, n.b.Nic, 1, 64)
	var stop atomic.Bool
	var group sync.WaitGroup
	for range 2 {
		group.Go(func() {
			for !stop.Load() {
				if address, _ := takeOutside(vipl.PortWatch{}, recv); address != 0 {
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
		if err := vb.RecvNotify(func(_ *vipl.VI, d *vipl.Descriptor) { handled <- d }); err != nil {
			t.Fatal(err)
		}
		postSend(t, va, out, 0, 64)
		select {
		case d := <-handled:
			if d != in.desc[0] {
				t.Fatalf("message %d: the handler got %v", i, d)
			}
		case <-time.After(patience):
			t.Fatalf("message %d: no handler was called", i)
		}
		if _, err := va.SendWait(patience); err != nil {
			t.Fatal(err)
		}
	}
}
