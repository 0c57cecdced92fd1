package mvich

import (
	"errors"
	"slices"
	"time"

	"viaxdp/vipl"
)

// A call makes progress for all: all work on messages happens in calls of the program, under the mutex of the world.
// Only assist runs beside. One turn:
//
//  1. take completions off the completion queue (progress), or wait for one (sleep);
//  2. handle each: a packet goes to receive (recv.go), a piece of RDMA to moved (rendezvous.go), its vbuf to the
//     pool;
//  3. post the vbufs again that were read (repost), if nothing has come, or many are due;
//  4. send what became possible (pushDirty).
//
// A call that waits polls first, and then sleeps in the completion queue: one goroutine at a time; the others wait
// for changed.

const (
	turn     = 64              // completions that are handled in a row
	yieldAt  = 64              // polls after which others get the mutex
	longWait = 1 * time.Second // after which a call that sleeps looks at the time: Finalize has bounds

	assistTurn = time.Millisecond

	// bulkSpin is by how much longer a call polls while the data of a long message is on the way: its next piece
	// takes longer than any packet.
	bulkSpin = 16
)

// progress handles what has completed and sends what became possible. It reports whether there was anything.
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
		w.lose(p, causeOf(l))
		return
	case d.Status()&vipl.StatusOpMask == vipl.StatusOpRemoteRDMAWrite:
		err = w.receiveWritten(p, d.ImmediateData) // nothing was placed in the vbuf
	default:
		err = w.receive(p, v.data[:d.Length])
	}
	if err != nil && p.link == l {
		w.lose(p, err)
	}
	w.read = append(w.read, readVbuf{l, v})
}

func (w *World) handleSend(l *link) {
	d, err := l.vi.SendDone()
	if d == nil {
		return
	}
	v := l.sends.pop()
	op := v.op
	w.pool.put(v)
	switch {
	case l.peer.link != l:
	case err != nil:
		w.lose(l.peer, causeOf(l))
	case op.request != nil:
		w.moved(l.peer, op)
	}
}

// readVbuf is a vbuf whose packet was taken, and the link on which it is to be posted again: when there is nothing
// else to do, so that the packet's content does not wait for it. After a turn, fewer vbufs than the reserve of
// credits wait here.
type readVbuf struct {
	link *link
	vbuf *vbuf
}

// repost posts the vbufs that were read, and counts them as credits due.
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

// touch records that there may be something to send to p before the turn ends.
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

// await makes progress until done returns true. The caller has the world's mutex, as done has whenever it is called.
func (w *World) await(done func() bool) {
	for polls := 0; !done(); {
		if w.progress() {
			polls = 0
			continue
		}
		most := w.spin
		if len(w.numbered) > 0 {
			most *= bulkSpin
		}
		if polls++; polls > most {
			w.sleep()
			polls = 0
		} else if polls%yieldAt == 0 {
			w.mu.Unlock()
			w.mu.Lock()
		}
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

// announce wakes the calls that wait: something has changed.
func (w *World) announce() {
	if w.others > 0 {
		w.changed.Broadcast()
	}
	if w.asleep {
		w.cq.Wake()
	}
}

// Polling pays if the message comes soon. If the other rank computes, or ranks share a processor, it takes the
// processor from ranks with work to do. So after polling in vain a call polls half as often the next time. After a
// short sleep it polls twice as often, up to the setting. Now and then it tries the full number: if both ranks sleep,
// each waits for the other's wake-up, and no sleep is short.
const (
	shortSleep = 100 * time.Microsecond
	leastSpin  = 16
	spinRetry  = 64 // sleeps between two full tries
)

// learn adapts to the length of a sleep that followed polling in vain.
func (w *World) learn(slept time.Duration) {
	w.sleeps++
	switch w.spin /= 2; {
	case w.sleeps%spinRetry == 0:
		w.spin = w.set.spin
	case slept < shortSleep:
		w.spin = min(max(4*w.spin, leastSpin), w.set.spin)
	}
}

// assist makes progress beside the program until no control packet waits for credits any more. Such a packet belongs
// to an operation that is complete on this side only, and the program may not call again for long.
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
			waits = slices.ContainsFunc(w.peers, func(p *peer) bool { return p.control.len() > 0 })
			w.assisted = waits
			w.mu.Unlock()
		}
	})
}
