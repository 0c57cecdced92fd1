package xdpnictest

import (
	"sync"
	"time"

	"viaxdp/internal/base/wire"
	"viaxdp/xdpnic"
)

// kernelReceive is the kernel's side of an arrival: demux, a chunk of the fill ring for
// each segment, the RX ring. Locked.
func (q *Queue) kernelReceive(frame []byte) {
	n := &q.n
	n.Arrived++
	switch {
	case q.closed || q.cut:
		n.RxCut++
		return
	case q.cfg.Admit != nil && !q.demux(frame):
		return
	}
	room := int(q.size) - headroom
	fit := room
	segs := (len(frame) + room - 1) / room
	var liar *randomSource
	if q.lying {
		liar = &q.liars[lieRx]
		liar.next()
		wild, where := liar.hit(q.lies.WildRx), liar.rng.IntN(4)
		if split := liar.hit(q.lies.Split); split && segs == 1 && len(frame) > 1 {
			n.LiedSplit++
			room = (len(frame) + 1) / 2
			segs = 2
		}
		if wild && q.rx.room() > segs {
			n.LiedWildRx++
			q.deliver(q.wildArrival(where))
		}
	}
	switch {
	case len(frame) > fit && !q.cfg.MultiBuffer:
		n.RxTooLong++
		return
	case q.rx.room() < segs:
		n.RxRingFull++
		return
	case q.fill.n < segs:
		n.RxNoFill++
		return
	}
	for k := range segs {
		i := *q.fill.peek(0)
		q.fill.pop(1)
		q.thaw(i)
		q.move(i, arrived, "arrival")
		b := q.bytes(i)[headroom:]
		part := frame[k*room : min((k+1)*room, len(frame))]
		copy(b, part)
		a := arrival{q.addr(i) + headroom, uint64(len(part)), k < segs-1}
		if liar != nil && k == segs-1 && liar.hit(q.lies.RxLength) {
			n.LiedLength++
			a.n = uint64(liar.rng.IntN(len(b) + 1))
		}
		q.deliver(a)
	}
	n.RxQueued++
}

func (q *Queue) deliver(a arrival) {
	q.rx.put(a)
	q.avail.Add(1)
	q.wait.arrived()
}

// wildArrival returns an RX entry that names memory which the kernel was not given.
func (q *Queue) wildArrival(where int) arrival {
	switch where {
	case 0: // beyond the memory
		return arrival{addr: uint64(len(q.mem)) + 4096, n: 64}
	case 1: // no address at all
		return arrival{addr: ^uint64(0) - 100, n: 200}
	case 2: // a TX chunk
		return arrival{addr: q.addr(len(q.chunks)) - 2*minFrame, n: minFrame}
	default: // longer than the chunk
		return arrival{addr: q.addr(0) + headroom, n: q.size}
	}
}

// demux acts in place of the XDP program.
func (q *Queue) demux(frame []byte) bool {
	p := &q.pkt
	if err := p.Decode(frame); err != nil && err != wire.ErrLength { // the program does not read that field
		q.n.RxNotOurs++
		return false
	}
	if !q.cfg.Admit(p.VI, p.Key, p.Src.Addr()) {
		q.n.RxRefused++
		return false
	}
	return true
}

// Ready reports whether the RX ring holds an entry.
func (q *Queue) Ready() bool { return q.avail.Load() > 0 }

// Receive takes segments off the RX ring, whole frames only. The chunk of each
// is the caller's until Recycle.
func (q *Queue) Receive(frames []xdpnic.Frame) int {
	q.wire.mu.Lock()
	defer q.wire.mu.Unlock()
	n := 0
	for q.rx.n > 0 && !q.closed {
		if !q.sound(q.rx.peek(0)) {
			q.n.RxBadEntries++
			q.drop(1)
			continue
		}
		segs := 1
		for q.rx.peek(segs - 1).more {
			segs++
		}
		if segs > len(frames) {
			q.n.RxTooManySegs++
			q.discard(segs)
			continue
		}
		if n+segs > len(frames) {
			break
		}
		for k := range segs {
			a := q.rx.peek(k)
			q.move(q.number(a.addr), leased, "Receive")
			frames[n] = xdpnic.Frame{Addr: a.addr, Data: q.mem[a.addr : a.addr+a.n : a.addr+a.n], More: a.more}
			n++
		}
		q.drop(segs)
		q.n.RxFrames++
	}
	return n
}

// sound reports whether an entry names a chunk that the kernel was given.
func (q *Queue) sound(a *arrival) bool {
	i := q.number(a.addr)
	return i >= 0 && !q.isTx(i) && q.chunks[i].state == arrived && a.n <= q.addr(i)+q.size-a.addr
}

// drop takes entries off the RX ring.
func (q *Queue) drop(n int) {
	q.rx.pop(n)
	q.avail.Add(int64(-n))
}

// discard recycles the first frame of the RX ring.
func (q *Queue) discard(segs int) {
	for k := range segs {
		q.putBack(q.number(q.rx.peek(k).addr), "Receive")
	}
	q.drop(segs)
}

// Recycle ends the lease of a received segment. The kernel gets the chunk with
// the next Refill.
func (q *Queue) Recycle(addr uint64) {
	q.wire.mu.Lock()
	defer q.wire.mu.Unlock()
	if q.closed {
		return
	}
	i := q.number(addr)
	if i < 0 || q.chunks[i].state != leased {
		q.wrongChunk("Recycle", addr)
		return
	}
	q.putBack(i, "Recycle")
}

func (q *Queue) putBack(i int, op string) {
	q.move(i, recycled, op)
	q.spoil(i)
	q.recycled = append(q.recycled, i)
}

// Refill puts recycled chunks on the fill ring.
func (q *Queue) Refill() {
	q.wire.mu.Lock()
	defer q.wire.mu.Unlock()
	for _, i := range q.recycled {
		q.move(i, filled, "Refill")
		q.fill.put(i)
	}
	q.recycled = q.recycled[:0]
}

// waiter has the goroutines that sleep for a queue.
type waiter struct {
	mu     sync.Mutex
	cond   sync.Cond // of mu
	rouses uint64    // number of times the sleepers were woken
	asleep int
	woken  bool // a Wake without a sleeper, which ends the next Wait
	closed bool
	timers []*time.Timer // stopped ones, for reuse; a timer makes each sleeper check its time limit
}

// Wait sleeps until the RX ring holds an entry, until Wake, or until the timeout (negative: none; 0: it does
// not sleep). It returns nil in all of these cases, and xdpnic.ErrClosed when the queue is closed. Several
// goroutines may wait.
func (q *Queue) Wait(timeout time.Duration) error {
	w := &q.wait
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return xdpnic.ErrClosed
	}
	woken := w.woken
	w.woken = false
	// An arrival is counted before it wakes sleepers. Here the order is the reverse, under the same lock.
	if woken || q.Ready() || timeout == 0 {
		return nil
	}
	var end time.Time
	if timeout > 0 {
		end = time.Now().Add(timeout)
		timer := w.timer(timeout)
		defer func() {
			timer.Stop()
			w.timers = append(w.timers, timer)
		}()
	}
	w.asleep++
	before := w.rouses
	for w.rouses == before && (timeout < 0 || time.Now().Before(end)) {
		w.cond.Wait()
	}
	if w.rouses == before { // the time is over
		w.asleep--
	}
	if w.closed {
		return xdpnic.ErrClosed
	}
	return nil
}

// timer returns a running timer.
func (w *waiter) timer(d time.Duration) *time.Timer {
	n := len(w.timers)
	if n == 0 {
		return time.AfterFunc(d, func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.cond.Broadcast()
		})
	}
	timer := w.timers[n-1]
	w.timers = w.timers[:n-1]
	timer.Reset(d)
	return timer
}

// Wake ends the Waits under way, or makes the next one return at once. Several Wakes before a Wait count as
// one.
func (q *Queue) Wake() {
	w := &q.wait
	w.mu.Lock()
	defer w.mu.Unlock()
	w.woken = w.asleep == 0
	w.rouse()
}

// arrived ends the Waits under way because a frame has come.
func (w *waiter) arrived() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rouse()
}

func (w *waiter) rouse() {
	w.rouses++
	w.asleep = 0
	w.cond.Broadcast()
}

func (w *waiter) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.rouse()
}
