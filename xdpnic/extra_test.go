package xdpnic

import (
	"sync/atomic"
	"testing"
	"time"

	"viaxdp/internal/lab/nstest"
)

var allFour = Config{QueueID: 1, ExtraQueues: []int{0, 2, 3}, ChunkSize: 2048, RxChunks: 32, TxChunks: 16}

// A Queue receives what comes in on any of its queues, more frames than there are chunks.
func TestExtraQueues(t *testing.T) {
	na, nb := nstest.Pair(t, nstest.Options{Queues: 4})
	senders := openSenders(t, na, 4)
	b := openEnd(t, nb, pairOptions{cfg: allFour})
	for i := range 300 {
		for k, s := range senders {
			s.pass(t, b, 64+10*k, byte(i+k))
		}
		b.pass(t, senders[1], 100, byte(i)) // it sends on its own queue
	}
	if s := stats(t, b.q); s.RxFrames != 1200 || s.TxFrames != 300 || s.ChunkErrors != 0 || s.RxBadEntries != 0 {
		t.Errorf("%+v", s)
	}
	audit(t, b.q)

	// Frames wait on all queues: none is served twice before each other one was.
	for _, s := range senders {
		for range 20 {
			s.mustSend(t, b, 64, 0)
		}
	}
	eventually(t, "all frames", func() bool {
		for _, q := range append(b.q.extra, b.q) {
			if q.rx.peek(20) < 20 {
				return false
			}
		}
		return true
	})
	var frames [1]Frame
	seen := make(map[*pool]int)
	for i := range 80 {
		nstest.FatalIf(t, b.q.Receive(frames[:]) != 1, "frame %d did not come", i)
		seen[b.q.poolOf(frames[0].Addr)]++
		if b.q.Recycle(frames[0].Addr); i%4 == 3 && (len(seen) != 4 || seen[b.q.pool] != i/4+1) {
			t.Fatalf("after %d frames: %v", i+1, seen)
		}
	}
	b.q.Refill()
	audit(t, b.q)
	if b.q.Recycle(frames[0].Addr); b.q.Audit() == nil {
		t.Error("Audit does not note a chunk that is recycled twice")
	}
}

// A frame on any of the queues ends a Wait.
func TestExtraQueuesWait(t *testing.T) {
	na, nb := nstest.Pair(t, nstest.Options{Queues: 4})
	senders := openSenders(t, na, 4)
	b := openEnd(t, nb, pairOptions{cfg: allFour})
	for i := range 40 {
		done := make(chan error, 1)
		go func() { done <- b.q.Wait(waitLimit) }()
		eventually(t, "a waiter", func() bool { return b.q.wait.waiters.Load() == 1 })
		if time.Sleep(time.Millisecond); b.q.Ready() {
			t.Fatal("ready without a frame")
		}
		senders[i%4].mustSend(t, b, 64, byte(i))
		if err := <-done; err != nil || !b.q.Ready() {
			t.Fatalf("Wait: %v, ready: %v", err, b.q.Ready())
		}
		data, _ := receive(t, b.q)
		wantPattern(t, data, 64, byte(i))
	}
	if n := testing.AllocsPerRun(100, func() {
		senders[2].mustSend(t, b, 64, 1)
		b.q.Wait(time.Second)
		var frames [4]Frame
		for b.q.Receive(frames[:]) != 1 {
		}
		b.q.Recycle(frames[0].Addr)
		b.q.Refill()
	}); n != 0 {
		t.Errorf("%v allocations a frame", n)
	}
	go func() { time.Sleep(time.Millisecond); b.q.Wake() }()
	nstest.Check(t, b.q.Wait(waitLimit))
}

// A program that polls by the indices misses a frame on none of the queues.
func TestExtraQueuesIndices(t *testing.T) {
	na, nb := nstest.Pair(t, nstest.Options{Queues: 4})
	senders := openSenders(t, na, 4)
	b := openEnd(t, nb, pairOptions{cfg: allFour})
	produced, consumed := b.q.RxIndices()
	for i, s := range senders {
		s.mustSend(t, b, 64, 0)
		eventually(t, "a frame", b.q.Ready)
		if atomic.LoadUint32(produced) == atomic.LoadUint32(consumed) {
			t.Errorf("a frame on queue %d, and the indices do not differ", i)
		}
		receive(t, b.q)
	}
}

// Three processes share four queues. One ends with frames of all queues in its hands; everything comes back.
func TestExtraQueuesSharing(t *testing.T) {
	na, nb := nstest.Pair(t, nstest.Options{Queues: 4})
	senders := openSenders(t, na, 4)
	cfg := sharing
	cfg.QueueID, cfg.ExtraQueues, cfg.Mode = allFour.QueueID, allFour.ExtraQueues, ModeNative
	s := openShared(t, nb, cfg)
	s.join(t, 1)
	s.join(t, 2)
	// In the order of their slots, which attachBySlot adds the number of the queue to: 1, 0, 2, 3 here, 0 to 3 there.
	for part := range 3 {
		fds := s.fds[part]
		for queue, fd := range []int{fds[1], fds[0], fds[2], fds[3]} {
			nstest.Must(t, s.prog.xsks.Put(uint32(s.slot(part)+queue), uint32(fd)))
		}
	}
	stay := s.adopt(t, 2)
	for part := range 2 {
		e := s.adopt(t, part)
		for i := range 100 {
			for _, from := range senders {
				from.toSlot(t, stay, s.slot(2), 64, byte(i))
				data, _ := receive(t, stay.q)
				data[14] = byte(i)
				wantPattern(t, data, 64, byte(i))
				from.toSlot(t, e, s.slot(part), 64, byte(i))
				receive(t, e.q)
			}
			e.pass(t, senders[1], 64, byte(i))
		}
		frames := make([]Frame, 32)
		for _, from := range senders {
			for range 6 {
				from.toSlot(t, e, s.slot(part), 64, 0)
			}
		}
		eventually(t, "frames", func() bool { return e.q.extra[2].rx.peek(6) == 6 })
		for range 5 {
			e.q.Receive(frames[:4]) // some are leased, and some are on the rings
		}
		e.q.Close()
		nstest.Equal(t, "chunks of the process that came back", s.reclaim(t, part), 24)
		eventually(t, "completions", func() bool { stay.q.Reap(); return stay.q.pool.shared.tx[0] == txFree })
		for _, q := range append(stay.q.extra, stay.q) {
			inPlace(t, q)
		}
	}
	audit(t, stay.q)
}

func TestExtraQueuesRefused(t *testing.T) {
	na, nb := nstest.Pair(t, nstest.Options{Queues: 2})
	for name, cfg := range map[string]Config{
		"itself":         {ExtraQueues: []int{0}},
		"twice":          {ExtraQueues: []int{1, 1}},
		"below 0":        {ExtraQueues: []int{-1}},
		"too many":       {ExtraQueues: []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}},
		"no such queue":  {ExtraQueues: []int{2}, BusyTimeout: -1},
		"zero-copy only": {ExtraQueues: []int{1}, Mode: ModeZeroCopy, Require: true},
	} {
		if q, err := openIn(na, cfg); err == nil {
			q.Close()
			t.Errorf("%s: no error", name)
		}
	}
	// A queue that another socket has is busy, and nothing is left behind.
	other, err := openIn(nb, Config{QueueID: 1})
	nstest.Must(t, err)
	if q, err := openIn(nb, Config{ExtraQueues: []int{1}, BusyTimeout: -1}); err == nil {
		q.Close()
		t.Error("a queue that another socket has: no error")
	}
	nstest.Must(t, other.Close())
	q, err := openIn(nb, Config{ExtraQueues: []int{1}})
	nstest.Must(t, err)
	nstest.ErrorIf(t, nstest.Err(q.Share()) == nil, "Share: no error")
	nstest.Must(t, q.Close())
	nstest.ErrorIf(t, q.Ready() || q.Receive(make([]Frame, 4)) != 0 || q.Wait(0) == nil, "a closed queue receives")
}
