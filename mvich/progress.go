package mvich

import (
	"errors"
	"slices"
	"time"

	"viaxdp/vipl"
)

// Progress is made by whoever calls: but for what assist does, everything that
// has to do with messages happens in calls of the program, under the world's
// mutex. A call that waits polls the completion queue, and after a while waits in
// it: one goroutine at a time, the others until that one has something done, or
// leaves.

const (
	turn      = 64                     // completions that are handled in a row
	yieldAt   = 64                     // polls after which others get the mutex
	longWait  = 1 * time.Second        // after which a call that sleeps looks at the time: Finalize has bounds
	callAfter = 500 * time.Millisecond // after which a rank that is waited for is called

	assistTurn = time.Millisecond
)

// progress handles what has completed and sends what became possible. It says
// whether there was anything.
func (w *World) progress() bool {
	n, _ := w.cq.Dones(w.completions[:])
	for _, c := range w.completions[:n] {
		w.handle(c.VI, c.Recv)
	}
	w.endTurn(n == 0)
	return n > 0
}

// endTurn does what the completions of a turn have left to do; idle: there were none.
func (w *World) endTurn(idle bool) {
	if idle || len(w.read) >= w.set.reserve() {
		w.repost()
	}
	w.pushDirty()
}

// handle takes one completed descriptor.
func (w *World) handle(vi *vipl.VI, recv bool) {
	if l := vi.Value().(*link); recv {
		w.handleRecv(l)
	} else {
		w.handleSend(l)
	}
}

func (w *World) handleRecv(l *link) {
	d, err := l.vi.RecvDone()
	if d == nil {
		return // the link was dismantled meanwhile
	}
	v := l.recvs.pop()
	p := l.peer
	switch {
	case p.link != l:
		w.pool.put(v)
		return
	case err != nil:
		w.pool.put(v)
		w.broken(l)
		return
	}
	if d.Status()&vipl.StatusOpMask == vipl.StatusOpRemoteRDMAWrite {
		err = errImmediate // its length is not that of a packet, and the vbuf has an old one
	} else {
		err = w.receive(p, v.data[:d.Length])
	}
	if err != nil && p.link == l {
		w.lose(p, err)
	}
	w.read = append(w.read, readVbuf{l, v})
}

// readVbuf is a vbuf whose packet was taken, and the link on which it is to be posted
// again: when nothing else is to be done, so that nobody waits for it who waits for
// what the packet brought. Fewer than the reserve of credits lie here after a turn.
type readVbuf struct {
	link *link
	vbuf *vbuf
}

// repost posts what was read, and owes the credits.
func (w *World) repost() {
	for i, r := range w.read {
		w.read[i] = readVbuf{}
		p := r.link.peer
		if p.link != r.link { // it is gone
			w.pool.put(r.vbuf)
			continue
		}
		if err := w.postRecv(r.link, r.vbuf); err != nil {
			w.pool.put(r.vbuf)
			w.lose(p, err)
			continue
		}
		p.acksDue++
		w.touch(p)
	}
	w.read = w.read[:0]
}

func (w *World) handleSend(l *link) {
	d, err := l.vi.SendDone()
	if d == nil {
		return
	}
	v := l.sends.pop()
	op := v.op
	w.pool.put(v)
	if l.peer.link != l {
		return
	}
	if err != nil {
		w.broken(l)
		return
	}
	if op.request != nil {
		w.moved(l.peer, op)
	}
}

// broken notes that the VI of a peer's link is in Error.
func (w *World) broken(l *link) { w.lose(l.peer, causeOf(l)) }

// touch notes that there may be something to send to p, which happens before
// the turn ends.
func (w *World) touch(p *peer) {
	if !p.dirty {
		p.dirty = true
		w.dirty = append(w.dirty, p)
	}
}

func (w *World) pushDirty() {
	for len(w.dirty) > 0 {
		p := w.dirty[len(w.dirty)-1]
		w.dirty = w.dirty[:len(w.dirty)-1]
		p.dirty = false
		w.push(p)
	}
}

// await makes progress until done says so. The caller has the world's mutex, as
// done has whenever it is called.
func (w *World) await(done func() bool) {
	for polls := 0; !done(); {
		if w.progress() {
			polls = 0
			continue
		}
		if polls++; polls > w.pollsNow() {
			w.sleep()
			polls = 0
		} else if polls%yieldAt == 0 {
			w.mu.Unlock()
			w.mu.Lock()
		}
	}
}

// bulkSpin is by how much longer a call polls while the data of a long message is
// on the way: the piece that comes next takes longer than any packet.
const bulkSpin = 16

// pollsNow is how often a call polls in vain before it sleeps.
func (w *World) pollsNow() int {
	if len(w.numbered) > 0 {
		return bulkSpin * w.spin
	}
	return w.spin
}

// Polling pays where what is waited for comes soon. Where it does not, because the
// other rank computes, or because programs are more than processors, it takes the
// processor from who has work to do, and the scheduler's favour from this rank, which
// then is not there when something comes. So each time that a call has polled in
// vain it polls half as often the next time, and where the sleep was short twice as
// often, up to what the settings say. So often it tries now and then in any case: two
// ranks that both sleep wait for each other's waking, and no sleep is short.
const (
	shortSleep = 100 * time.Microsecond
	leastSpin  = 16
	spinRetry  = 64 // sleeps between two full tries
)

// learn takes the length of a sleep, before which polling was in vain.
func (w *World) learn(slept time.Duration) {
	w.sleeps++
	switch w.spin /= 2; {
	case w.sleeps%spinRetry == 0:
		w.spin = w.set.spin
	case slept < shortSleep:
		w.spin = min(max(4*w.spin, leastSpin), w.set.spin)
	}
}

// sleep waits until something has happened, without the mutex.
func (w *World) sleep() {
	if w.asleep {
		w.others++
		w.changed.Wait()
		w.others--
		return
	}
	w.asleep = true
	w.mu.Unlock()
	began := time.Now()
	vi, recv, err := w.cq.Wait(longWait)
	slept := time.Since(began)
	w.mu.Lock()
	w.asleep = false
	if !errors.Is(err, vipl.ErrNotDone) { // woken: polling would have found nothing
		w.learn(slept)
	}
	switch {
	case err == nil:
		w.handle(vi, recv)
		w.endTurn(false)
	case errors.Is(err, vipl.ErrNotDone), errors.Is(err, vipl.ErrTimeout):
	default: // the NIC was closed under the world
		w.collapse(err)
	}
	w.announce()
}

// announce tells those who wait that something has changed.
func (w *World) announce() {
	if w.others > 0 {
		w.changed.Broadcast()
	}
	if w.asleep {
		w.cq.Wake()
	}
}

// assist makes progress beside the program until no control packet waits for
// credits any more. Such a packet belongs to an operation that is complete here
// and not for the other side, and the program may have left for long.
func (w *World) assist() {
	if w.assisted || w.stopping() {
		return
	}
	w.assisted = true
	w.tasks.Go(func() {
		for waits := true; waits && !w.stopping(); {
			w.pause(assistTurn)
			w.mu.Lock()
			w.progress()
			waits = w.starved()
			w.assisted = waits
			w.mu.Unlock()
		}
	})
}

// starved says whether a control packet waits.
func (w *World) starved() bool {
	for _, p := range w.peers {
		if p.control.len() > 0 {
			return true
		}
	}
	return false
}

// expect has p called, from which somebody waits for a message, if it has not called
// by then and somebody still waits: so its death is noticed, however that somebody
// waits.
func (w *World) expect(p *peer) {
	if p.state != apart || p.expected || p.rank == w.rank || w.finalized || w.stopping() {
		return
	}
	p.expected = true
	time.AfterFunc(callAfter, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.callExpected(p)
	})
}

// callExpected calls p if somebody waits for it: a connection costs memory, and where
// there is none left a rank that lives would be taken for dead.
func (w *World) callExpected(p *peer) {
	p.expected = false
	if !w.finalized && w.awaited(p) {
		p.iprobes = 0
		w.call(p)
	}
}

// awaited says whether a receive or Probe waits for p, or Iprobe asks again and again.
func (w *World) awaited(p *peer) bool {
	return p.probes > 0 || p.iprobes > 1 || slices.ContainsFunc(w.posted, func(r *Request) bool { return r.peer == p.rank })
}
