package bench

import (
	"cmp"

	"viaxdp/internal/lab/fail"
	"viaxdp/vipl"
)

// Words are messages without data; the immediate data says what.
const (
	wordReady  = 1 << 30 // the receives of the round are posted; the rest is the round
	wordCredit = 2 << 30 // the rest is the number of messages received
	wordDone   = 3 << 30 // the rest is the number of messages moved by RDMA
	wordMask   = 3 << 30
)

func (v *vi) Ping(r Round, rtt []int64) Span {
	v.admit(r)
	v.enter(r.reply(), viPingDepth, r.Lead+r.Messages, 0)
	span := timed(r, rtt, func(i int) {
		v.send(i, r)
		// While the message travels, the last receive is posted again.
		if i > 0 {
			v.refill(i - 1 + viPingDepth)
		}
		v.receive(i)
	})
	v.drain()
	return span
}

func (v *vi) Echo(r Round) {
	v.answer(r, func(i int) { v.send(i, r.reply()) })
}

// answer receives the messages of a round. reply answers each of them.
func (v *vi) answer(r Round, reply func(i int)) {
	v.admit(r.reply())
	total := r.Lead + r.Messages
	v.enter(r, viPingDepth, total, 0)
	for i := range total {
		v.receive(i)
		reply(i)
		v.refill(i + viPingDepth)
	}
	v.drain()
}

func (v *vi) Send(r Round) Span {
	return v.stream(r, func(i, _ int) {
		v.send(i, r)
		if v.options.OneByOne {
			v.drain()
		}
	})
}

// stream posts the messages of a round by post, each when the peer has room for it. The peer gives credit after a quarter
// of the window.
func (v *vi) stream(r Round, post func(i, quarter int)) Span {
	window, quarter := v.window(r.Bytes)
	v.enter(r, 0, 0, (r.Messages+quarter-1)/quarter)
	v.credited = window
	v.lists = v.list(quarter)
	clock := startStopwatch()
	for i := range r.Messages {
		for i == v.credited {
			v.pushSends() // it may be what the peer waits for
			v.credit(window)
		}
		post(i, quarter)
	}
	v.pushSends()
	for v.credited < r.Messages+window {
		v.credit(window)
	}
	span := clock.span()
	v.drain()
	return span
}

func (v *vi) Receive(r Round) Span {
	window, quarter := v.window(r.Bytes)
	v.enter(r, window, r.Messages, 0)
	v.lists = v.list(quarter)
	clock := startStopwatch()
	for i := range r.Messages {
		v.receive(i)
		v.refill(i + window)
		if n := i + 1; n%quarter == 0 || n == r.Messages {
			v.word(wordCredit | n)
		}
	}
	span := clock.span()
	v.drain()
	return span
}

// window is the number of messages of a stream under way, and after how many
// the receiver gives credit. An unreliable VI has no window of its own: there
// the frames under way must fit in the rings of the receiver.
func (v *vi) window(bytes int) (window, quarter int) {
	window = max(4, min(viRing/2, viStream/slot(bytes)))
	if v.level == vipl.UnreliableDelivery && v.payload > 0 {
		window = max(1, min(window, v.chunks/2/(1+(bytes-1)/v.payload)))
	}
	return window, max(1, window/4)
}

// enter posts the first receives of a round, at most depth for data and words for
// words. It sends a word to the peer, and waits for the peer's.
func (v *vi) enter(r Round, depth, data, words int) {
	v.admit(r)
	v.round, v.data, v.left, v.lists = r, data, data+words, 1
	v.watch.progress()
	for i := range min(depth, data) {
		v.refill(i)
	}
	for range min(viWords, words) {
		v.postNext()
	}
	if data+words == 0 {
		// Nothing comes in this round; the word of the next one may be early.
		v.postRecv()
	}
	v.word(wordReady | int(r.ID))
	v.begun(r.ID)
}

// begun awaits the peer's word that the receives of a round are posted.
func (v *vi) begun(round uint16) {
	d := v.recv()
	if got, ok := d.Immediate(); !ok || got != uint32(wordReady|int(round)) {
		fail.With("the peer began with %d bytes and %#x, not with round %d", d.Length, got, round)
	}
}

// admit refuses a round for which there is no room.
func (v *vi) admit(r Round) {
	fail.If(r.check())
	if r.Bytes > v.params.MaxBytes || r.Messages >= wordReady {
		fail.With("round larger than announced")
	}
}

// drain takes the sends off that are left.
func (v *vi) drain() {
	for v.sends.used() > 0 {
		v.sent()
	}
}

// send posts message i.
func (v *vi) send(i int, r Round) {
	at := v.source(i, r)
	d := v.free()
	d.Control, d.ImmediateData = vipl.ControlSendRecv, 0
	d.SetSegments(v.cut(v.out, at, r.Bytes)...)
	v.post()
}

// word sends immediate data without data. It may say that receives are posted:
// those that are staged are before.
func (v *vi) word(w int) {
	v.pushRecvs()
	d := v.free()
	d.Control = vipl.ControlSendRecv
	d.SetImmediate(uint32(w))
	d.SetSegments()
	v.sends.staged++
	v.pushSends()
}

// receive takes message i.
func (v *vi) receive(i int) {
	d := v.recv()
	if int(d.Length) != v.round.Bytes {
		fail.With("message %d has %d bytes, not %d", i, d.Length, v.round.Bytes)
	}
	if v.round.Check {
		at := int(d.Segment(0).Data - v.in.Addr())
		fail.If(verify(i, 0, v.in.Bytes()[at:at+v.round.Bytes]))
	}
}

// refill posts the receive for message i, if the round has that many.
func (v *vi) refill(i int) {
	if i < v.data {
		v.postNext(v.cut(v.in, v.sink(i), v.round.Bytes)...)
	}
}

// postNext posts one of the round's receives, or has it wait for others of its
// list. Behind the last one goes the receive for the word of the next round, with
// which the peer may be early.
func (v *vi) postNext(segs ...vipl.DataSegment) {
	v.recvs.stage(segs...)
	if v.left--; v.left == 0 {
		v.recvs.stage()
	} else if v.recvs.staged < v.lists {
		return
	}
	v.pushRecvs()
}

// list is how many descriptors of a stream are posted and taken off together; the peer
// gets a word after each quarter of the window. Completions that are not found by Done
// are taken one by one.
func (v *vi) list(quarter int) int {
	if v.via != nil || v.options.OneByOne {
		return 1
	}
	return min(cmp.Or(v.options.List, viList), viList, quarter)
}

// credit takes a word of the receiver of a stream.
func (v *vi) credit(window int) {
	v.credited = v.told(wordCredit) + window
}

// told takes a word of the given kind from the peer: how many messages of the round are
// over.
func (v *vi) told(kind uint32) int {
	d := v.recv()
	w, ok := d.Immediate()
	n := int(w &^ wordMask)
	if !ok || w&wordMask != kind || n > v.round.Messages {
		fail.With("a message of %d bytes and %#x came, not a word %#x", d.Length, w, kind)
	}
	if v.left > 0 {
		v.postNext()
	}
	v.pushRecvs()
	return n
}
