package bench

import (
	"cmp"
	"errors"
	"fmt"

	"viaxdp/vipl"
)

// Words are messages without data; the immediate data says what.
const (
	wordReady  = 1 << 30 // the receives of the round are posted; the rest is the round
	wordCredit = 2 << 30 // the rest is the number of messages received
	wordDone   = 3 << 30 // the rest is the number of messages moved by RDMA
	wordMask   = 3 << 30
)

// Ping, see Endpoint.
func (v *vi) Ping(r Round, rtt []int64) (Span, error) {
	if err := v.admit(r); err != nil {
		return Span{}, err
	}
	if err := v.enter(r.reply(), viPingDepth, r.Lead+r.Messages, 0); err != nil {
		return Span{}, err
	}
	span, err := timed(r, rtt, func(i int) error {
		if err := v.send(i, r); err != nil {
			return err
		}
		// While the message travels, the last receive is posted again.
		if i > 0 {
			if err := v.refill(i - 1 + viPingDepth); err != nil {
				return err
			}
		}
		return v.receive(i)
	})
	if err != nil {
		return Span{}, err
	}
	return span, v.drain()
}

// Echo, see Endpoint.
func (v *vi) Echo(r Round) error {
	return v.answer(r, func(i int) error { return v.send(i, r.reply()) })
}

// answer receives the messages of a round. reply answers each of them.
func (v *vi) answer(r Round, reply func(i int) error) error {
	if err := v.admit(r.reply()); err != nil {
		return err
	}
	total := r.Lead + r.Messages
	if err := v.enter(r, viPingDepth, total, 0); err != nil {
		return err
	}
	for i := range total {
		if err := v.receive(i); err != nil {
			return err
		}
		if err := reply(i); err != nil {
			return err
		}
		if err := v.refill(i + viPingDepth); err != nil {
			return err
		}
	}
	return v.drain()
}

// Send, see Endpoint.
func (v *vi) Send(r Round) (Span, error) {
	window, quarter := v.window(r.Bytes)
	words := (r.Messages + quarter - 1) / quarter
	if err := v.enter(r, 0, 0, words); err != nil {
		return Span{}, err
	}
	v.credited = window
	v.lists = v.list(quarter)
	clock := startStopwatch()
	for i := range r.Messages {
		if err := v.await(i, window); err != nil {
			return Span{}, err
		}
		if err := v.send(i, r); err != nil {
			return Span{}, err
		}
		if v.options.OneByOne {
			if err := v.drain(); err != nil {
				return Span{}, err
			}
		}
	}
	if err := v.pushSends(); err != nil {
		return Span{}, err
	}
	for v.credited < r.Messages+window {
		if err := v.credit(window); err != nil {
			return Span{}, err
		}
	}
	return clock.span(), v.drain()
}

// await waits until the peer has room for message i. What is staged goes before
// that: it may be what the peer waits for.
func (v *vi) await(i, window int) error {
	for i == v.credited {
		if err := v.pushSends(); err != nil {
			return err
		}
		if err := v.credit(window); err != nil {
			return err
		}
	}
	return nil
}

// Receive, see Endpoint.
func (v *vi) Receive(r Round) (Span, error) {
	window, quarter := v.window(r.Bytes)
	if err := v.enter(r, window, r.Messages, 0); err != nil {
		return Span{}, err
	}
	v.lists = v.list(quarter)
	clock := startStopwatch()
	for i := range r.Messages {
		if err := v.receive(i); err != nil {
			return Span{}, err
		}
		if err := v.refill(i + window); err != nil {
			return Span{}, err
		}
		if n := i + 1; n%quarter == 0 || n == r.Messages {
			if err := v.word(wordCredit | n); err != nil {
				return Span{}, err
			}
		}
	}
	return clock.span(), v.drain()
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
func (v *vi) enter(r Round, depth, data, words int) error {
	if err := v.admit(r); err != nil {
		return err
	}
	v.round, v.data, v.left, v.lists = r, data, data+words, 1
	v.watch.progress()
	for i := range min(depth, data) {
		if err := v.refill(i); err != nil {
			return err
		}
	}
	for range min(viWords, words) {
		if err := v.postNext(); err != nil {
			return err
		}
	}
	if data+words == 0 {
		// Nothing comes in this round; the word of the next one may be early.
		if err := v.postRecv(); err != nil {
			return err
		}
	}
	if err := v.word(wordReady | int(r.ID)); err != nil {
		return err
	}
	return v.begun(r.ID)
}

// begun awaits the peer's word that the receives of a round are posted.
func (v *vi) begun(round uint16) error {
	d, err := v.recv()
	if err != nil {
		return err
	}
	if got, ok := d.Immediate(); !ok || got != uint32(wordReady|int(round)) {
		return fmt.Errorf("the peer began with %d bytes and %#x, not with round %d", d.Length, got, round)
	}
	return nil
}

// admit refuses a round for which there is no room.
func (v *vi) admit(r Round) error {
	if err := r.check(); err != nil {
		return err
	}
	if r.Bytes > v.params.MaxBytes || r.Messages >= wordReady {
		return errors.New("round larger than announced")
	}
	return nil
}

// drain takes the sends off that are left.
func (v *vi) drain() error {
	for v.sends.used() > 0 {
		if err := v.sent(); err != nil {
			return err
		}
	}
	return nil
}

// send posts message i.
func (v *vi) send(i int, r Round) error {
	at, err := v.source(i, r)
	if err != nil {
		return err
	}
	d, err := v.free()
	if err != nil {
		return err
	}
	d.Control, d.ImmediateData = vipl.ControlSendRecv, 0
	d.SetSegments(v.cut(v.out, at, r.Bytes)...)
	return v.post()
}

// word sends immediate data without data. It may say that receives are posted:
// those that are staged are before.
func (v *vi) word(w int) error {
	if err := v.pushRecvs(); err != nil {
		return err
	}
	d, err := v.free()
	if err != nil {
		return err
	}
	d.Control = vipl.ControlSendRecv
	d.SetImmediate(uint32(w))
	d.SetSegments()
	v.sends.staged++
	return v.pushSends()
}

// receive takes message i.
func (v *vi) receive(i int) error {
	d, err := v.recv()
	if err != nil {
		return err
	}
	if int(d.Length) != v.round.Bytes {
		return fmt.Errorf("message %d has %d bytes, not %d", i, d.Length, v.round.Bytes)
	}
	if v.round.Check {
		at := int(d.Segment(0).Data - v.in.Addr())
		return verify(i, 0, v.in.Bytes()[at:at+v.round.Bytes])
	}
	return nil
}

// refill posts the receive for message i, if the round has that many.
func (v *vi) refill(i int) error {
	if i >= v.data {
		return nil
	}
	return v.postNext(v.cut(v.in, v.sink(i), v.round.Bytes)...)
}

// postNext posts one of the round's receives, or has it wait for others of its
// list. Behind the last one goes the receive for the word of the next round, with
// which the peer may be early.
func (v *vi) postNext(segs ...vipl.DataSegment) error {
	v.stageRecv(segs...)
	if v.left--; v.left == 0 {
		v.stageRecv()
	} else if v.recvs.staged < v.lists {
		return nil
	}
	return v.pushRecvs()
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
func (v *vi) credit(window int) error {
	n, err := v.told(wordCredit)
	v.credited = n + window
	return err
}

// told takes a word of the given kind from the peer: how many messages of the round are
// over.
func (v *vi) told(kind uint32) (int, error) {
	d, err := v.recv()
	if err != nil {
		return 0, err
	}
	w, ok := d.Immediate()
	n := int(w &^ wordMask)
	if !ok || w&wordMask != kind || n > v.round.Messages {
		return 0, fmt.Errorf("a message of %d bytes and %#x came, not a word %#x", d.Length, w, kind)
	}
	if v.left > 0 {
		if err := v.postNext(); err != nil {
			return n, err
		}
	}
	return n, v.pushRecvs()
}
