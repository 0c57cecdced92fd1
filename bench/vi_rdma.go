package bench

import (
	"encoding/binary"

	"viaxdp/internal/lab/fail"
	"viaxdp/vipl"
)

// rdmaWrite is a VI whose messages are RDMA writes into memory of the peer. The peer's
// program gets no completions.
//
// In a ping-pong the peer polls the last word of the message, which has a new value
// each time. A write lands in ascending order, so the whole message is there when the
// last byte is. In a stream each quarter window ends with a write that carries
// immediate data, which takes a receive and comes back as a credit.
type rdmaWrite struct{ vi }

func openRDMAWrite(o opening) endpoint {
	w := &rdmaWrite{vi{write: true}}
	w.open(o, vipl.ReliableDelivery)
	return w
}

// Ping, see endpoint. A request of a transaction is sent, and its reply is written.
func (w *rdmaWrite) Ping(r Round, rtt []int64) Span {
	w.admit(r)
	w.enterPolling(r.reply())
	span := timed(r, rtt, func(i int) {
		if r.Reply != 0 {
			w.send(i, r)
		} else {
			w.writeNumbered(i, r.Bytes)
		}
		w.poll(i)
	})
	w.drain()
	return span
}

func (w *rdmaWrite) Echo(r Round) {
	if r.Reply != 0 {
		w.answer(r, func(i int) { w.writeNumbered(i, r.Reply) })
		return
	}
	w.enterPolling(r)
	for i := range r.Lead + r.Messages {
		w.poll(i)
		w.writeNumbered(i, r.Bytes)
	}
	w.drain()
}

// wordBytes is the longest word that ends a message of a ping-pong: the number
// of the message from 1 on, big-endian, so that its last byte always changes.
// A shorter message is a shorter word.
const wordBytes = 8

// enterPolling begins a ping-pong. A message ends where its place ends, so that
// its last word is aligned.
func (w *rdmaWrite) enterPolling(r Round) {
	w.admit(r)
	end := slot(r.Bytes)
	clear(w.in.Bytes()[end-wordBytes : end]) // before the peer hears that it may write
	w.enter(r, 0, 0, 0)
}

// writeNumbered writes message i of a ping-pong. The last one has been sent:
// its answer is here.
func (w *rdmaWrite) writeNumbered(i, n int) {
	end := slot(n)
	if w.round.Check {
		copy(w.out.Bytes()[end-n:], content(i, 0, n))
	}
	binary.BigEndian.PutUint64(w.out.Bytes()[end-wordBytes:], uint64(i+1))
	w.writeTo(end-n, end-n, n, 0)
}

// poll looks at memory until message i of a ping-pong is there.
func (w *rdmaWrite) poll(i int) {
	n := w.round.Bytes
	place := w.in.Bytes()[:slot(n)]
	mask := ^uint64(0) >> (64 - 8*min(n, wordBytes))
	for want := uint64(i+1) & mask; lastWord(place)&mask != want; {
		w.nic.Poll()
		if err := w.watch.idle(); err != nil {
			w.fail("await an RDMA write", nil, err)
		}
	}
	w.watch.progress()
	if w.round.Check && n > wordBytes {
		fail.If(verify(i, 0, place[len(place)-n:len(place)-wordBytes]))
	}
}

func (w *rdmaWrite) Send(r Round) Span {
	return w.stream(r, func(i, quarter int) {
		from := w.source(i, r)
		word := 0
		if n := i + 1; n%quarter == 0 || n == r.Messages {
			word = wordDone | n
		}
		w.writeTo(r.place(i), from, r.Bytes, word)
	})
}

func (w *rdmaWrite) Receive(r Round) Span {
	_, quarter := w.window(r.Bytes)
	w.enter(r, 0, 0, (r.Messages+quarter-1)/quarter)
	clock := startStopwatch()
	for done := 0; done < r.Messages; {
		n := w.told(wordDone)
		if n <= done {
			fail.With("%d messages were written, and before that %d", n, done)
		}
		for ; done < n; done++ {
			if !r.Check {
				continue
			}
			at := r.place(done)
			fail.If(verify(done, 0, w.in.Bytes()[at:at+r.Bytes]))
		}
		w.word(wordCredit | n)
	}
	span := clock.span()
	w.drain()
	return span
}

// writeTo posts a write of bytes from offset from of w.out to offset
// to of the peer's memory; a word other than 0 goes with it.
func (w *rdmaWrite) writeTo(to, from, bytes, word int) {
	d := w.free()
	d.SetRDMAWrite(w.remoteAt(to), w.cut(w.out, from, bytes)...)
	if word != 0 {
		d.SetImmediate(uint32(word))
	}
	w.post()
}

// remoteAt is the peer's memory from an offset on.
func (v *vi) remoteAt(off int) vipl.AddressSegment {
	a := v.remote
	a.Data += uint64(off)
	return a
}

// rdmaRead is a VI that reads messages from memory of the peer. The peer's program
// takes no part; it polls, so that its provider serves the reads without being woken,
// until a word says that the round is over.
//
// A round trip is one read: a request and the data. In a stream data still moves from
// the sender to the receiver, but the receiver requests it, with up to readDepth reads
// under way.
type rdmaRead struct{ vi }

// readDepth is the number of reads that a connection has under way at most.
const readDepth = 16

func openRDMARead(o opening) endpoint {
	v := &rdmaRead{vi{read: true}}
	v.open(o, vipl.ReliableDelivery)
	return v
}

func (v *rdmaRead) Ping(r Round, rtt []int64) Span {
	v.enter(r, 0, 0, 0)
	span := timed(r, rtt, func(i int) {
		v.readNext(i)
		v.drain()
	})
	v.finish()
	return span
}

func (v *rdmaRead) Echo(r Round) {
	v.Send(r)
}

func (v *rdmaRead) Receive(r Round) Span {
	v.enter(r, 0, 0, 0)
	depth := min(readDepth, r.places())
	clock := startStopwatch()
	for i := range r.Messages {
		for v.sends.out() >= depth {
			v.sent()
		}
		v.readNext(i)
	}
	v.drain()
	span := clock.span()
	v.finish()
	return span
}

// Send, see endpoint: the side that is read says that its messages are there, and polls until the peer has read them.
func (v *rdmaRead) Send(r Round) Span {
	v.admit(r)
	if r.Check {
		for i := range r.places() {
			copy(v.out.Bytes()[r.place(i):], content(i, 0, r.Bytes))
		}
	}
	v.enter(r, 0, 0, 1)
	clock := startStopwatch()
	v.told(wordDone)
	span := clock.span()
	v.drain()
	return span
}

// readNext posts the read of message i, from its place at the peer to the same
// place here, which no read under way uses.
func (v *rdmaRead) readNext(i int) {
	d := v.free()
	at := v.round.place(i)
	if v.round.Check {
		clear(v.in.Bytes()[at : at+v.round.Bytes])
	}
	d.SetRDMARead(v.remoteAt(at), v.cut(v.in, at, v.round.Bytes)...)
	v.post()
}

// finish sends the peer the word that everything is read.
func (v *rdmaRead) finish() {
	v.word(wordDone | v.round.Messages)
	v.drain()
}

// verifyRead checks what a read has brought: the message that belongs there.
func (v *vi) verifyRead(d *vipl.Descriptor) {
	at := int(d.Segment(1).Data - v.in.Addr())
	fail.If(verify(at/slot(v.round.Bytes), 0, v.in.Bytes()[at:at+v.round.Bytes]))
}
