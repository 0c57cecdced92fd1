package mvich

import (
	"errors"
	"time"

	"viaxdp/vipl"
)

// Progress is made by whoever calls: but for what assist does, everything that
// has to do with messages happens in calls of the program, under the world's
// mutex. A call that waits polls the completion queue, and after a while waits in
// it: one goroutine at a time, the others until that one has something done, or
// leaves.

const (
	turn     = 64              // completions that are handled in a row
	yieldAt  = 64              // polls after which others get the mutex
	longWait = 1 * time.Second // after which ranks that are waited for are called

	assistTurn = time.Millisecond
)

// progress handles what has completed and sends what became possible. It says
// whether there was anything.
func (w *World) progress() bool {
	n := 0
	for ; n < turn; n++ {
		vi, recv, err := w.cq.Done()
		if err != nil {
			break
		}
		w.handle(vi, recv)
	}
	w.pushDirty()
	return n > 0
}

// handle takes one completed descriptor.
func (w *World) handle(vi *vipl.VI, recv bool) {
	l := w.links[vi]
	switch {
	case l == nil:
		w.bell.quiet(w, vi)
	case recv:
		w.handleRecv(l)
	default:
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
	err = w.receive(p, v.data[:d.Length])
	if p.link == l && err == nil {
		if err = w.postRecv(l, v); err == nil {
			p.owed++
			w.touch(p)
			return
		}
	}
	w.pool.put(v)
	if err != nil && p.link == l {
		w.lose(p, err)
	}
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
		if polls++; polls > w.set.spin {
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
	vi, recv, err := w.cq.Wait(longWait)
	w.mu.Lock()
	w.asleep = false
	switch {
	case err == nil:
		w.handle(vi, recv)
		w.pushDirty()
	case errors.Is(err, vipl.ErrTimeout):
		w.callAwaited()
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
		w.bell.ring()
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

// callAwaited connects with the ranks from which receives wait, so that the
// death of one is noticed that has never been connected.
func (w *World) callAwaited() {
	for _, r := range w.posted {
		if r.peer >= 0 {
			w.call(w.peers[r.peer])
		}
	}
}

// bell wakes the goroutine that waits in the completion queue when another one
// has done what it waits for: a send on a VI that is never connected, and so
// completes at once.
type bell struct {
	vi   *vipl.VI
	vbuf *vbuf
	rung bool
}

func (b *bell) open(w *World) (err error) {
	if b.vbuf, err = w.pool.get(); err != nil {
		return err
	}
	b.vi, err = w.nic.CreateVi(vipl.ViAttributes{Level: vipl.ReliableDelivery, Ptag: w.tag}, w.cq, nil)
	return err
}

func (b *bell) ring() {
	if b.rung {
		return
	}
	b.vbuf.desc.SetSegments()
	b.rung = b.vi.PostSend(b.vbuf.desc, b.vbuf.home) == nil
}

// quiet takes the bell's completion, if vi is the bell.
func (b *bell) quiet(w *World, vi *vipl.VI) {
	if vi == b.vi {
		vi.SendDone()
		b.rung = false
	}
}

func (b *bell) close(w *World) {
	if b.vi == nil {
		return
	}
	b.vi.SendDone()
	b.vi.Destroy()
}
