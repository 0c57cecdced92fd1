package bench

import (
	"encoding/binary"
	"fmt"
	"time"

	"viaxdp/vipl"
)

// rdmaWrite is a VI of which the messages are RDMA writes into memory of the
// peer, whose program hears nothing of them.
//
// In a ping-pong it looks at the last word of the message, which has another
// value each time: a write lands in ascending order, so that everything is there
// when the last byte is. In a stream each quarter window ends with a write that
// carries immediate data, which takes a receive and comes back as a credit.
type rdmaWrite struct{ vi }

func openRDMAWrite(o opening) (Endpoint, error) {
	w := &rdmaWrite{vi{params: o.Params, options: o.VI, level: vipl.ReliableDelivery, write: true, watch: watchdog{stop: o.stop}}}
	return endpointOr(w, w.open())
}

// Ping, see Endpoint.
func (w *rdmaWrite) Ping(r Round, rtt []int64) (Span, error) {
	if err := w.enterPolling(r); err != nil {
		return Span{}, err
	}
	clock := startStopwatch()
	last := time.Since(clock.wall)
	for i := range r.Lead + r.Messages {
		if err := w.writeNumbered(i); err != nil {
			return Span{}, err
		}
		if err := w.poll(i); err != nil {
			return Span{}, err
		}
		now := time.Since(clock.wall)
		if i >= r.Lead {
			rtt[i-r.Lead] = int64(now - last)
		}
		last = now
	}
	return clock.span(), w.drain()
}

// Echo, see Endpoint.
func (w *rdmaWrite) Echo(r Round) error {
	if err := w.enterPolling(r); err != nil {
		return err
	}
	for i := range r.Lead + r.Messages {
		if err := w.poll(i); err != nil {
			return err
		}
		if err := w.writeNumbered(i); err != nil {
			return err
		}
	}
	return w.drain()
}

// wordBytes is the longest word that ends a message of a ping-pong: the number
// of the message from 1 on, big-endian, so that its last byte always changes.
// A shorter message is a shorter word.
const wordBytes = 8

// enterPolling begins a ping-pong. A message ends where its place ends, so that
// its last word is aligned.
func (w *rdmaWrite) enterPolling(r Round) error {
	if err := w.admit(r); err != nil {
		return err
	}
	end := slot(r.Bytes)
	clear(w.in.Bytes()[end-wordBytes : end]) // before the peer hears that it may write
	return w.enter(r, 0, 0, 0)
}

// writeNumbered writes message i of a ping-pong. The last one has been sent:
// its answer is here.
func (w *rdmaWrite) writeNumbered(i int) error {
	n := w.round.Bytes
	end := slot(n)
	if w.round.Check {
		copy(w.out.Bytes()[end-n:], content(i, 0, n))
	}
	binary.BigEndian.PutUint64(w.out.Bytes()[end-wordBytes:], uint64(i+1))
	return w.writeTo(end-n, end-n, 0)
}

// poll looks at memory until message i of a ping-pong is there.
func (w *rdmaWrite) poll(i int) error {
	n := w.round.Bytes
	place := w.in.Bytes()[:slot(n)]
	mask := ^uint64(0) >> (64 - 8*min(n, wordBytes))
	for want := uint64(i+1) & mask; lastWord(place)&mask != want; {
		w.nic.Poll()
		if err := w.watch.idle(); err != nil {
			return w.fail("await an RDMA write", nil, err)
		}
	}
	w.watch.progress()
	if w.round.Check && n > wordBytes {
		return verify(i, 0, place[len(place)-n:len(place)-wordBytes])
	}
	return nil
}

// Send, see Endpoint.
func (w *rdmaWrite) Send(r Round) (Span, error) {
	window, quarter := w.window(r.Bytes)
	if err := w.enter(r, 0, 0, (r.Messages+quarter-1)/quarter); err != nil {
		return Span{}, err
	}
	w.credited = window
	w.lists = w.list(quarter)
	clock := startStopwatch()
	for i := range r.Messages {
		if err := w.await(i, window); err != nil {
			return Span{}, err
		}
		from, err := w.source(i, r)
		if err != nil {
			return Span{}, err
		}
		word := 0
		if n := i + 1; n%quarter == 0 || n == r.Messages {
			word = wordDone | n
		}
		if err := w.writeTo(r.place(i), from, word); err != nil {
			return Span{}, err
		}
	}
	if err := w.pushSends(); err != nil {
		return Span{}, err
	}
	for w.credited < r.Messages+window {
		if err := w.credit(window); err != nil {
			return Span{}, err
		}
	}
	return clock.span(), w.drain()
}

// Receive, see Endpoint.
func (w *rdmaWrite) Receive(r Round) (Span, error) {
	_, quarter := w.window(r.Bytes)
	if err := w.enter(r, 0, 0, (r.Messages+quarter-1)/quarter); err != nil {
		return Span{}, err
	}
	clock := startStopwatch()
	for done := 0; done < r.Messages; {
		n, err := w.told(wordDone)
		if err != nil {
			return Span{}, err
		}
		if n <= done {
			return Span{}, fmt.Errorf("%d messages were written, and before that %d", n, done)
		}
		for ; done < n; done++ {
			if !r.Check {
				continue
			}
			at := r.place(done)
			if err := verify(done, 0, w.in.Bytes()[at:at+r.Bytes]); err != nil {
				return Span{}, err
			}
		}
		if err := w.word(wordCredit | n); err != nil {
			return Span{}, err
		}
	}
	return clock.span(), w.drain()
}

// writeTo posts a write of the round's size from offset from of w.out to offset
// to of the peer's memory; a word other than 0 goes with it.
func (w *rdmaWrite) writeTo(to, from, word int) error {
	d, err := w.free()
	if err != nil {
		return err
	}
	if w.pieces == nil {
		d.SetRDMAWrite(w.remoteAt(to), w.out.Segment(from, w.round.Bytes))
	} else {
		d.SetRDMAWrite(w.remoteAt(to), w.cut(w.out, from, w.round.Bytes)...)
	}
	if word != 0 {
		d.SetImmediate(uint32(word))
	}
	return w.post()
}

// remoteAt is the peer's memory from an offset on.
func (v *vi) remoteAt(off int) vipl.AddressSegment {
	a := v.remote
	a.Data += uint64(off)
	return a
}
