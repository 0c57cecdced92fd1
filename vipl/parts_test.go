package vipl

import (
	"maps"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"viaxdp/internal/agent/provider"
	"viaxdp/internal/base/reliable"
	"viaxdp/internal/lab/nstest"
	"viaxdp/xdpnic"
)

// quietNIC is a queue on which only a test's actions have an effect.
type quietNIC struct {
	provider.Port
	free, pending, left int // left: entries that a Flush leaves on the ring
	flushes             int
	err                 error
}

func (q *quietNIC) TxFree() int                { return q.free }
func (q *quietNIC) RxChunks() int              { return 512 }
func (q *quietNIC) MaxSegs() int               { return 1 }
func (q *quietNIC) FrameCap() (tx, rx int)     { return 1792, 1792 }
func (q *quietNIC) Pending() int               { return q.pending }
func (q *quietNIC) Reap() int                  { return 0 }
func (q *quietNIC) Wake()                      {}
func (q *quietNIC) Release(uint64)             {}
func (q *quietNIC) Reading(uint64) bool        { return false }
func (q *quietNIC) Receive([]xdpnic.Frame) int { return 0 }

func (q *quietNIC) Flush() error {
	q.flushes++
	q.pending = q.left
	return q.err
}

// quietPort is an engine without goroutines.
func quietPort() (*port, *quietNIC) {
	q := &quietNIC{free: 512}
	now := int64(0)
	p := &port{nic: q, now: func() int64 { now++; return now }}
	p.poller.init(nil)
	p.initShares()
	return p, q
}

func (p *port) newTestConn(num uint32) *conn {
	v := &VI{port: p, num: num}
	v.conn = &conn{vi: v}
	return v.conn
}

func TestVITable(t *testing.T) {
	var table viTable
	a, b := &VI{num: 1<<16 | 5}, &VI{num: 2<<16 | 5} // a VI and a later one with the same index
	nstest.ErrorIf(t, table.find(a.num) != nil, "an empty table has a VI")
	table.put(a)
	nstest.ErrorIf(t, table.find(a.num) != a || table.find(b.num) != nil || table.find(6) != nil || table.find(1<<16|0xffff) != nil,
		"a number finds another VI than its own")
	table.drop(a)
	table.put(b)
	nstest.ErrorIf(t, table.find(a.num) != nil || table.find(b.num) != b, "an index finds its former VI")
	table.enlist(7)
	table.delist(7)
	table.enlist(8)
	nstest.ErrorIf(t, table.own[7] || !table.own[8], "numbers of the port: %v", table.own)
}

// The windows of all connections together leave a quarter of the chunks, unless each has the least.
func TestShares(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, q := quietPort()
		opened := rapid.IntRange(1, 600).Draw(t, "connections")
		ended := rapid.IntRange(0, opened).Draw(t, "ended")
		for range opened {
			p.countConn(1)
		}
		for range ended {
			p.countConn(-1)
		}
		s := &p.shares
		n := max(opened-ended, 1)
		if s.window > leastWindow && s.window*n > q.RxChunks()*3/4 || s.window < leastWindow || s.window > maxWindow {
			t.Errorf("%d connections have a window of %d units each, of %d chunks", n, s.window, q.RxChunks())
		}
		if s.tx > leastWindow && s.tx*n > q.free*3/4 || s.tx < leastWindow {
			t.Errorf("%d connections have %d chunks each, of %d", n, s.tx, q.free)
		}
		c := p.newTestConn(1)
		c.chunks = s.tx - 1
		if p.leaves(c) != s.spare {
			t.Errorf("a connection within its share must leave %d chunks, not the spare %d", p.leaves(c), s.spare)
		}
		c.chunks = s.tx
		if p.leaves(c) != max(s.spare, q.free/2) {
			t.Errorf("a connection beyond its share must leave %d chunks, not half", p.leaves(c))
		}
	})
}

// For any sequence of owed and sent acknowledgements, a connection is in the list exactly while it owes one, at the
// place that it records.
func TestAckList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, _ := quietPort()
		conns := make([]*conn, 6)
		owes := make([]bool, len(conns))
		for i := range conns {
			conns[i] = p.newTestConn(uint32(i + 1))
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			i := rapid.IntRange(0, len(conns)-1).Draw(t, "connection")
			if owes[i] = rapid.Bool().Draw(t, "owes"); owes[i] {
				due := conns[i].ack.due
				was := conns[i].ack.slot != 0
				by := int64(rapid.IntRange(1, 100).Draw(t, "by"))
				p.oweAckUntil(conns[i], by)
				want := by
				if was {
					want = min(due, by)
				}
				if got := conns[i].ack.due; got != want {
					t.Errorf("due at %d, want %d", got, want)
				}
			} else {
				p.settle(conns[i])
			}
			listed := 0
			for j, c := range conns {
				if (c.ack.slot != 0) != owes[j] || owes[j] && p.acks.due[c.ack.slot-1] != c {
					t.Fatalf("connection %d owes: %v, slot %d of %d", j, owes[j], c.ack.slot, len(p.acks.due))
				}
				if owes[j] {
					listed++
				}
			}
			if listed != len(p.acks.due) {
				t.Fatalf("%d connections owe, %d are listed", listed, len(p.acks.due))
			}
		}
	})
}

func TestReadyList(t *testing.T) {
	p, _ := quietPort()
	a, b := p.newTestConn(1), p.newTestConn(2)
	p.enqueue(a)
	p.enqueue(a)
	p.enqueue(b)
	nstest.ErrorIf(t, !slices.Equal(p.ready.conns, []*conn{a, b}), "%d connections are listed, not each once", len(p.ready.conns))
	p.doorbell.waitIf(true)
	p.pumpReady(1) // they are closed: nothing is to be sent
	nstest.ErrorIf(t, len(p.ready.conns) != 0 || a.inReady || b.inReady || p.doorbell.lazy,
		"after the turn %d are left, %v %v, the doorbell waits: %v", len(p.ready.conns), a.inReady, b.inReady, p.doorbell.lazy)
	// What is stuck alone stays for the next turn.
	p.enqueue(a)
	nstest.ErrorIf(t, !p.stuckAlone(a) || len(p.ready.conns) != 0 || !a.inReady, "it is not set aside")
	p.pumpReady(1)
	nstest.ErrorIf(t, !slices.Equal(p.ready.conns, []*conn{a}) || len(p.ready.stuck) != 0,
		"%d in the list, %d aside", len(p.ready.conns), len(p.ready.stuck))
}

// What the engine lists while a connection is open has its room from the beginning: not only the first message
// allocates nothing, but also the first delay and the first loss.
func TestListsHaveRoom(t *testing.T) {
	const runs, conns, frames = 10, 5, 512
	type engine struct {
		*port
		conns []*conn
	}
	var fresh [1 + runs]engine
	for i := range fresh {
		p, _ := quietPort()
		p.long.init(18)
		fresh[i].port = p
		for num := range uint32(conns) {
			c := p.newTestConn(num)
			c.sender, c.payload, c.inChunk = reliable.NewSender(1, 1), 8000, 1792
			p.install(c, 1)
			fresh[i].conns = append(fresh[i].conns, c)
		}
	}
	f := longFrame{segs: make([]xdpnic.Desc, 18), own: 1}
	next := 0
	if n := testing.AllocsPerRun(runs, func() {
		e := fresh[next]
		next++
		for _, c := range e.conns {
			e.enqueue(c)
		}
		for len(e.ready.conns) > 1 && e.stuckAlone(e.ready.conns[len(e.ready.conns)-1]) {
		}
		for range frames {
			e.long.kept.put(&f)
		}
		for tag := range uint64(frames) {
			e.release(e.conns[0], tag<<tagShift)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	for _, e := range fresh {
		nstest.ErrorIf(t, len(e.ready.stuck) != conns-1 || len(e.long.kept.free) != frames,
			"%d connections are stuck, %d frames are free", len(e.ready.stuck), len(e.long.kept.free))
	}
}

func TestDoorbell(t *testing.T) {
	p, q := quietPort()
	p.ringUnlessLazy()
	nstest.ErrorIf(t, q.flushes != 0, "it is rung without a frame")
	q.pending = 3
	p.doorbell.waitIf(true)
	p.ringUnlessLazy()
	nstest.ErrorIf(t, q.flushes != 0, "it is rung although it may wait")
	p.doorbell.hurry()
	p.ringUnlessLazy()
	nstest.ErrorIf(t, q.flushes != 1 || !p.doorbell.rung || p.doorbell.stalled, "%d rings, %+v", q.flushes, p.doorbell.rung)
	// Entries that remain are seen, in copy mode only: a driver takes them in its own time.
	q.pending, q.left = 3, 2
	p.ringUnlessLazy()
	nstest.ErrorIf(t, !p.doorbell.stalled, "entries remain, and are not recorded")
	q.left, q.pending = 0, 0
	p.ringUnlessLazy()
	nstest.ErrorIf(t, p.doorbell.stalled, "the ring is empty, and it is still stalled")
	p.zeroCopy = true
	q.pending, q.left = 3, 2
	p.ringUnlessLazy()
	nstest.ErrorIf(t, p.doorbell.stalled, "stalled in zero-copy mode")
	q.err = xdpnic.ErrGone
	p.ringUnlessLazy()
	nstest.ErrorIf(t, !p.iface.gone || p.stats.FlushErrors != 1,
		"the interface has gone: %v, %d errors", p.iface.gone, p.stats.FlushErrors)
	// After another error the doorbell is tried again, also if nothing else is to be done.
	p.iface.gone, q.pending, q.err = false, 3, unix.ENETDOWN
	p.finish(1000, true)
	nstest.ErrorIf(t, !p.doorbell.failed || p.poller.due.Load() != 1000+failedRetry, "the next try is at %d", p.poller.due.Load())
	q.err, q.left = nil, 0
	p.finish(2000, true)
	nstest.ErrorIf(t, p.doorbell.failed || p.poller.due.Load() != never,
		"after a success the next try is at %d", p.poller.due.Load())
	// PostSendLater's frames wait for Ring, up to a batch.
	p.zeroCopy, q.err, q.left = false, nil, 0
	for pending, want := range []bool{false, true, true, true, false} {
		q.pending = pending
		got := p.mayRingLater()
		nstest.ErrorIf(t, got != want, "%d frames may wait: %v", pending, got)
	}
	p.ring()
	nstest.ErrorIf(t, p.doorbell.unrung.Load() != 0, "frames still wait for Ring")
}

// A message rings its own doorbell only if nothing else is to be sent, and the peer's window is open.
func TestAlone(t *testing.T) {
	p, q := quietPort()
	c := p.newTestConn(1)
	c.open, c.inChunk = true, 1000
	c.sender = reliable.NewSender(1, 4)
	send := &c.vi.send
	send.ring = make([]posted, 4)
	send.at(0).length = 10
	send.tail.Store(1)
	nstest.FatalIf(t, !p.alone(c), "it is alone")
	for _, x := range []struct {
		name     string
		do, undo func()
	}{
		{"it is closed", func() { c.open = false }, func() { c.open = true }},
		{"another one waits behind it", func() { send.tail.Store(2) }, func() { send.tail.Store(1) }},
		{"it is longer than a chunk", func() { send.at(0).length = 1001 }, func() { send.at(0).length = 10 }},
		{"it is wrong", func() { send.at(0).status = StatusFormatError }, func() { send.at(0).status = 0 }},
		{"it is an RDMA read", func() { send.at(0).op = StatusOpRDMARead }, func() { send.at(0).op = 0 }},
		{"a read is outstanding", func() { c.rdma.reads = 1 }, func() { c.rdma.reads = 0 }},
		{"an answer waits", func() { c.rdma.answers = make(answers, 1) }, func() { c.rdma.answers = nil }},
		{"another connection may send", func() { p.enqueue(p.newTestConn(2)) }, func() { p.pumpReady(1) }},
		{"frames are on the ring", func() { q.pending = 1 }, func() { q.pending = 0 }},
		{"the connection ends", func() { c.ending.begun = true }, func() { c.ending.begun = false }},
		{"a frame is outstanding", func() { c.sender.Send(1, 1, 1) }, func() { c.sender.Ack(2, 2, 4) }},
		{"the window is closed", func() { c.sender.Send(3, 1, 1); c.sender.Ack(4, 3, 0) }, func() { c.sender.Ack(5, 3, 4) }},
	} {
		x.do()
		nstest.ErrorIf(t, p.alone(c), "%s, and it rings alone", x.name)
		x.undo()
		nstest.ErrorIf(t, !p.alone(c), "after %q it is alone again", x.name)
	}
}

// A connection is in the coalescer's list exactly while something of it waits.
func TestCoalescer(t *testing.T) {
	p, _ := quietPort()
	a, b := p.newTestConn(1), p.newTestConn(2)
	p.coalesce(a, 10)
	p.coalesce(b, 20)
	p.coalesce(a, 30)
	nstest.ErrorIf(t, !slices.Equal(p.coalescer.conns, []*conn{a, b}) || p.coalescer.since != 10 || p.coalescer.waiting.Load() != 1,
		"%d wait, since %d", len(p.coalescer.conns), p.coalescer.since)
	p.doorbell.waitIf(true)
	p.flushCoalesced(40)
	nstest.ErrorIf(t, len(p.coalescer.conns) != 0 || a.batch.waiting || b.batch.waiting || p.coalescer.waiting.Load() != 0 || p.doorbell.lazy || a.batch.off,
		"after the flush: %+v %+v", a.batch, b.batch)
	// A stream lasts until nothing has waited for streamIdle.
	a.endStream(30 + streamIdle)
	nstest.ErrorIf(t, !a.batch.inStream, "the stream has ended too early")
	a.endStream(31 + streamIdle)
	nstest.ErrorIf(t, a.batch.inStream, "the stream has not ended")
}

// Each long frame is in one of three states: outstanding, unread, free.
func TestKeptFrames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, _ := quietPort()
		k := &p.long.kept
		k.reserve(50, 2)

		v := &VI{port: p}
		v.send.ring = make([]posted, 4)
		outstanding := map[uint64]int{} // by tag: the address of its first segment
		unread := 0
		for step := range rapid.IntRange(1, 50).Draw(t, "steps") {
			switch rapid.IntRange(0, 2).Draw(t, "what") {
			case 0:
				tag := k.put(&longFrame{segs: []xdpnic.Desc{{Addr: uint64(step)}, {Addr: 7}}, own: 1, vi: v, at: 2})
				if _, taken := outstanding[tag]; taken || !isLong(tag) {
					t.Fatalf("tag %#x is in use, or that of a short frame", tag)
				}
				v.send.at(2).unread++
				outstanding[tag] = step
			case 1:
				for tag := range outstanding {
					k.unread = append(k.unread, uint32(tag>>tagShift))
					unread++
					delete(outstanding, tag)
					break
				}
			case 2:
				if len(k.unread) > 0 {
					p.freeUnread(rapid.IntRange(0, len(k.unread)-1).Draw(t, "index"))
					unread--
				}
			}
			if len(outstanding)+unread+len(k.free) != len(k.sent) || unread != len(k.unread) {
				t.Fatalf("%d outstanding, %d unread, %d free of %d", len(outstanding), len(k.unread), len(k.free), len(k.sent))
			}
			if got := int(v.send.at(2).unread); got != len(outstanding)+unread {
				t.Fatalf("the descriptor has %d frames, want %d", got, len(outstanding)+unread)
			}
			for tag, addr := range outstanding {
				if f := k.at(tag); f.segs[0].Addr != uint64(addr) || len(f.segs) != 2 || f.cancelledAt != never {
					t.Fatalf("frame %#x has become %+v", tag, f)
				}
			}
		}
	})
}

// The earliest connection is at the top, whatever is scheduled, postponed and removed.
func TestTimerHeap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var h timerHeap
		conns := make([]*conn, 24) // enough that a connection takes the place of one in another part of the heap
		want := map[*conn]int64{}
		for i := range conns {
			conns[i] = &conn{}
			want[conns[i]] = int64(rapid.IntRange(1, 1000).Draw(t, "at first"))
			h.schedule(conns[i], want[conns[i]])
		}
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			c := conns[rapid.IntRange(0, len(conns)-1).Draw(t, "connection")]
			at := int64(rapid.IntRange(1, 1000).Draw(t, "at"))
			old, set := want[c]
			switch rapid.IntRange(0, 2).Draw(t, "what") {
			case 0:
				h.schedule(c, at)
				if !set || at < old {
					want[c] = at
				}
			case 1:
				if set {
					h.postpone(c, old+at)
					want[c] = old + at
				}
			case 2:
				h.remove(c)
				delete(want, c)
			}
			if len(h) != len(want) {
				t.Fatalf("%d timers, want %d", len(h), len(want))
			}
			first := int64(never)
			for c, at := range want {
				if c.due != at || h[c.timer-1] != c {
					t.Fatalf("a timer is due at %d, want %d", c.due, at)
				}
				first = min(first, at)
			}
			if len(h) > 0 && h[0].due != first {
				t.Fatalf("the first is due at %d, want %d", h[0].due, first)
			}
			for i := 1; i < len(h); i++ {
				if above := h[(i-1)/2].due; h[i].due < above {
					t.Fatalf("place %d is due at %d, the one above at %d", i, h[i].due, above)
				}
			}
		}
	})
}

// Time in which the engine did not run counts neither as the peer's silence nor as a standstill.
func TestForgive(t *testing.T) {
	p, _ := quietPort()
	p.silence = int64(8 * time.Second)
	const late = int64(3 * time.Second)
	for _, c := range []struct{ opened, heard, moved, due, now, wantOpened, wantHeard, wantMoved int64 }{
		{1, 5, 7, 10, 10 + late, 1, 5 + late, 7 + late},
		{5, 5, 7, 10, 10 + late, 5 + late, 5 + late, 7 + late},          // nothing was heard yet
		{1, 5, 7, 10, 10 + int64(time.Second) - 1, 1, 5, 7},             // as late as a timer may be
		{1, 9 + late, 7 + late, 10, 10 + late, 1, 10 + late, 10 + late}, // heard meanwhile
	} {
		x := p.newTestConn(1)
		x.opened, x.heard, x.moved, x.due = c.opened, c.heard, c.moved, c.due
		p.forgive(x, c.now)
		nstest.ErrorIf(t, x.opened != c.wantOpened || x.heard != c.wantHeard || x.moved != c.wantMoved,
			"%+v: %d, %d, %d", c, x.opened, x.heard, x.moved)
	}
}

// A waiter that leaves wakes the next one: a signal that came for both has woken one.
func TestLeaveWaiters(t *testing.T) {
	p, _ := quietPort()
	var s signal
	s.init()
	for range 3 {
		p.countWaiter(&s)
	}
	for _, others := range []int{2, 1, 0} {
		p.leaveWaiters(&s)
		got := len(s.ch)
		nstest.ErrorIf(t, got != min(others, 1) || s.waiters != others,
			"%d signals and %d waiters, want %d others woken", got, s.waiters, others)
		for len(s.ch) > 0 {
			<-s.ch
		}
	}
}

// Frames of one or several chunks come out of the buffer as they went in, in any order. It leaves a quarter of the chunks,
// or enough for the largest frame but at most half, to the frames that are missing.
func TestReorderBuffer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		chunks := rapid.IntRange(1, 64).Draw(t, "chunks")
		most := rapid.IntRange(1, 2*chunks).Draw(t, "chunks of the largest frame")
		late := rapid.IntRange(0, chunks).Draw(t, "late")
		var b reorderBuffer
		b.init(chunks, most, late)
		room := 0
		for b.fits(room + 1) {
			room++
		}
		if room > 0 && chunks-late-room < max(chunks/4, min(most, chunks/2)) || room == 0 && chunks-late > chunks/2+chunks/4+1 {
			t.Fatalf("room for %d of %d chunks, %d of them late", room, chunks, late)
		}
		kept := make(map[uint64][]xdpnic.Frame)
		for range rapid.IntRange(0, 40).Draw(t, "steps") {
			if n := rapid.IntRange(1, 4).Draw(t, "chunks of a frame"); b.fits(n) && rapid.Bool().Draw(t, "put") {
				frame := make([]xdpnic.Frame, n)
				for i := range frame {
					frame[i] = xdpnic.Frame{Addr: rapid.Uint64().Draw(t, "address"), More: i < n-1}
				}
				tag := b.put(frame)
				if kept[tag] != nil {
					t.Fatalf("two frames have the tag %d", tag)
				}
				kept[tag], room = frame, room-n
			} else if len(kept) > 0 {
				tag := rapid.SampledFrom(slices.Sorted(maps.Keys(kept))).Draw(t, "tag")
				frame := b.take(tag, nil)
				if !slices.EqualFunc(frame, kept[tag], func(x, y xdpnic.Frame) bool { return x.Addr == y.Addr && x.More == y.More }) {
					t.Fatalf("%+v came back, want %+v", frame, kept[tag])
				}
				delete(kept, tag)
				room += len(frame)
			}
			if b.fits(room+1) || !b.fits(room) {
				t.Fatalf("not room for %d chunks", room)
			}
		}
	})
}

func TestConnRDMA(t *testing.T) {
	r := connRDMA{answers: answers{{seq: 1}, {seq: 2}, {seq: 3}}, replied: true, replySeq: 0xffffffff}
	r.answers.drop()
	nstest.ErrorIf(t, r.answers[0].seq != 2 || len(r.answers) != 2, "the oldest is not dropped: %+v", r.answers)
	r.acknowledged(0xffffffff)
	nstest.ErrorIf(t, !r.replied, "the last answer counts as acknowledged by the frame before it")
	r.acknowledged(0) // sequence numbers wrap
	nstest.ErrorIf(t, r.replied, "the last answer is acknowledged, and not recorded")
	r.dropAnswers()
	nstest.ErrorIf(t, r.answers.waiting(), "answers wait after they were dropped")
}

// A stored due time is never later than one that was asked for, and a sleeper that would be late is reported.
func TestWorkAt(t *testing.T) {
	for _, c := range []struct {
		name                   string
		old, sleepBy, due, now int64
		idle                   bool
		want                   int64
		late                   bool
	}{
		{"earlier", 100, 0, 50, 10, false, 50, false},
		{"later: an early time does no harm", 100, 0, 150, 10, false, 100, false},
		{"later, the old one has passed", 100, 0, 150, 100, false, 150, false},
		{"later, before a sleep", 100, 0, 150, 10, true, 150, false},
		{"a sleeper would be late", 100, 80, 50, 10, false, 50, true},
		{"a sleeper wakes in time", 100, 80, 80, 10, false, 80, false},
	} {
		var w poller
		w.due.Store(c.old)
		w.sleepBy.Store(c.sleepBy)
		if late := w.workAt(c.due, c.now, c.idle); late != c.late || w.due.Load() != c.want {
			t.Errorf("%s: due at %d, late %v", c.name, w.due.Load(), late)
		}
	}
}
