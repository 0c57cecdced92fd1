package bench

import (
	"encoding/binary"
	"time"

	"viaxdp/internal/lab/fail"
)

// frames sends and receives frames of bounded size, the common ground of UDP sockets and raw AF_XDP rings. One
// goroutine drives it. What fails, but close, does so by package fail.
type frames interface {
	hello() Hello
	connect(peer Hello)

	// next is the room for the content of the next frame; nil: none is free
	// until flush has been called.
	next() []byte
	// commit queues the frame that next gave with its first n bytes.
	commit(n int)
	// flush hands queued frames to the kernel.
	flush()
	// poll is the content of the next frame received, valid until the next
	// call; nil: there is none.
	poll() []byte
	// wait returns when poll may have a frame, at the latest after maxSleep.
	wait()

	close() error
}

// chained is what frames have, too, whose long ones arrive in several pieces.
type chained interface {
	// units is how much of the peer's window a frame with n bytes of content
	// takes; others take one.
	units(n int) int
	// rest are the pieces behind the one that poll gave, valid as long.
	rest() [][]byte
}

// maxSleep bounds one sleep of a waiting transport, so that it notices the end
// of its control connection.
const maxSleep = 250 * time.Millisecond

// Frame header of the benchmark, 8 bytes before the content:
//
//	0 kind   1 zero   2 round (16 bits)   4 sequence or credit (32 bits)
const frameHeader = 8

// Kinds of frames.
const (
	kindData   = 1 // sequence: number of this data frame in the round
	kindCredit = 2 // sequence: data frames of the round received so far
	kindReady  = 3 // the receiver of a stream has entered the round
)

// frameBatch is the number of frames handed to the kernel at once: what copy
// mode sends in one kick (TX_BATCH_SIZE, net/xdp/xsk.c).
const frameBatch = 32

// otherFrames is how many frames besides a window of data may be under way in
// one direction: credits for the other one, which are read when their reader
// needs them, and a word that a round begins.
const otherFrames = 9

// framed makes messages of frames. A message takes as many frames as it needs;
// a window keeps the peer's rings from overflowing: the receiver answers every
// quarter window with a credit. A ping-pong whose message fits in the window
// needs no credits, its echo is one.
type framed struct {
	io      frames
	sleeps  bool // wait instead of polling
	payload int  // message bytes in a frame
	most    int  // units that the peer takes
	chain   chained
	watch   watchdog
	into    []byte // where messages are copied to, unless they stay where they arrived

	// The current round.
	round    Round
	window   uint32 // frames
	per      uint32 // frames of a message
	sent     uint32 // data frames
	queued   int    // frames since the last flush
	credited uint32 // data frames that the peer has confirmed
	received uint32 // data frames
	ready    bool   // the peer has entered the round
}

func (f *framed) Hello() Hello { return f.io.hello() }

func (f *framed) Connect(peer Hello) {
	f.io.connect(peer)
	own := f.io.hello()
	f.payload = min(own.Payload, peer.Payload) - frameHeader
	f.most = min(own.Window, peer.Window)
	f.chain, _ = f.io.(chained)
	if f.payload < 1 || f.most < 4 {
		fail.With("the sides offer frames of %d and %d bytes, windows of %d and %d: too small", own.Payload, peer.Payload, own.Window, peer.Window)
	}
}

func (f *framed) Close() error { return f.io.close() }

func (f *framed) enter(r Round) {
	fail.If(r.check())
	f.round = r
	f.per = uint32((r.Bytes + f.payload - 1) / f.payload)
	f.window = uint32(f.most)
	if f.chain != nil {
		f.window = uint32(max(4, f.most/f.chain.units(frameHeader+min(f.payload, r.Bytes))))
	}
	f.sent, f.credited, f.received, f.queued, f.ready = 0, 0, 0, 0, false
	f.watch.progress()
}

func (f *framed) Ping(r Round, rtt []int64) Span {
	f.enter(r)
	if f.short() {
		return timed(r, rtt, func(int) {
			f.sendShort()
			f.receiveShort()
		})
	}
	return timed(r, rtt, func(i int) {
		f.send(i)
		f.receive(i)
		f.credited = f.sent // the echo confirms
	})
}

func (f *framed) Echo(r Round) {
	f.enter(r)
	for i := range r.Lead + r.Messages {
		if f.short() {
			f.receiveShort()
			f.sendShort()
			continue
		}
		f.receive(i)
		f.credited = f.sent // the next message confirms the last echo
		f.send(i)
	}
}

func (f *framed) Send(r Round) Span {
	f.enter(r)
	for !f.ready {
		f.await()
	}
	clock := startStopwatch()
	for i := range r.Messages {
		f.put(i)
	}
	f.flush()
	for f.credited != f.sent {
		f.await()
	}
	return clock.span()
}

func (f *framed) Receive(r Round) Span {
	f.enter(r)
	f.tell(kindReady, 0)
	clock := startStopwatch()
	for i := range r.Messages {
		f.take(i, true)
	}
	if f.received%(f.window/4) != 0 {
		f.tell(kindCredit, f.received)
	}
	return clock.span()
}

func (f *framed) send(i int) {
	f.put(i)
	f.flush()
}

func (f *framed) receive(i int) {
	f.take(i, f.per > f.window)
}

// put queues the frames of message i, and hands them on in batches.
func (f *framed) put(i int) {
	for off := 0; off < f.round.Bytes; off += f.payload {
		for f.sent-f.credited >= f.window {
			f.flush()
			f.await()
		}
		buf := f.room()
		n := min(f.payload, f.round.Bytes-off)
		f.header(buf, kindData, f.sent)
		if f.round.Check {
			copy(buf[frameHeader:], content(i, off, n))
		}
		f.io.commit(frameHeader + n)
		f.sent++
		if f.queued++; f.queued == frameBatch {
			f.flush()
		}
	}
}

// take receives the frames of message i.
func (f *framed) take(i int, credits bool) {
	for off := 0; off < f.round.Bytes; off += f.payload {
		var body []byte
		for body == nil {
			body = f.await()
		}
		got := f.keep(i, off, body)
		if f.chain != nil {
			for _, b := range f.chain.rest() {
				got += f.keep(i, off+got, b)
			}
		}
		if n := min(f.payload, f.round.Bytes-off); got != n {
			fail.With("message %d: a frame of %d bytes, not %d", i, got, n)
		}
		if credits && f.received%(f.window/4) == 0 {
			f.tell(kindCredit, f.received)
		}
	}
}

// keep does with a piece of message i, from offset off on, what is done with
// content, and returns its length.
func (f *framed) keep(i, off int, b []byte) int {
	if f.into != nil && off+len(b) <= len(f.into) {
		copy(f.into[off:], b)
		b = f.into[off : off+len(b)]
	}
	if f.round.Check {
		fail.If(verify(i, off, b))
	}
	return len(b)
}

// await polls or waits once: it returns the content of a data frame, the first
// piece of it where it is chained, or nil when something else came or nothing.
func (f *framed) await() []byte {
	p := f.io.poll()
	if p == nil {
		if !f.sleeps {
			fail.If(f.watch.idle())
			return nil
		}
		f.io.wait()
		fail.If(f.watch.blocked())
		return nil
	}
	if len(p) < frameHeader || binary.LittleEndian.Uint16(p[2:]) != f.round.ID {
		return nil // a stray frame
	}
	f.watch.progress()
	seq := binary.LittleEndian.Uint32(p[4:])
	switch p[0] {
	case kindData:
		if seq != f.received {
			fail.With("data frame %d came, not %d: frames were lost or changed order", seq, f.received)
		}
		f.received++
		return p[frameHeader:]
	case kindCredit:
		// Credits of a ping-pong may come after the echo that confirmed more.
		if int32(seq-f.credited) > 0 && int32(f.sent-seq) >= 0 {
			f.credited = seq
		}
	case kindReady:
		f.ready = true
	}
	return nil
}

// room is next, waiting for the kernel to give frames back.
func (f *framed) room() []byte {
	buf := f.io.next()
	for buf == nil {
		f.flush()
		fail.If(f.watch.idle())
		buf = f.io.next()
	}
	return buf
}

func (f *framed) flush() {
	f.queued = 0
	f.io.flush()
}

// tell sends a frame without content at once.
func (f *framed) tell(kind byte, seq uint32) {
	buf := f.room()
	f.header(buf, kind, seq)
	f.io.commit(frameHeader)
	f.flush()
}

func (f *framed) header(buf []byte, kind byte, seq uint32) {
	buf[0], buf[1] = kind, 0
	binary.LittleEndian.PutUint16(buf[2:], f.round.ID)
	binary.LittleEndian.PutUint32(buf[4:], seq)
}

// Ping-pong of messages of one frame each, whose content is not checked: the case in
// which latency is measured. It does what send and receive do in fewer functions, as
// each system call evicts their code from the L1 cache, which must be refilled line by
// line.

// short reports whether the round is of this kind.
func (f *framed) short() bool {
	return f.per == 1 && !f.round.Check && !f.sleeps && (f.chain == nil || f.chain.units(frameHeader+f.round.Bytes) == 1)
}

func (f *framed) sendShort() {
	buf := f.io.next()
	if buf == nil {
		buf = f.room()
	}
	binary.LittleEndian.PutUint64(buf, f.word(f.sent))
	f.io.commit(frameHeader + f.round.Bytes)
	f.sent++
	f.io.flush()
}

func (f *framed) receiveShort() {
	want, n := f.word(f.received), frameHeader+f.round.Bytes
	for {
		p := f.io.poll()
		switch {
		case p == nil:
			fail.If(f.watch.idle())
		case len(p) == n && binary.LittleEndian.Uint64(p) == want:
			if f.into != nil {
				copy(f.into, p[frameHeader:])
			}
			f.received++
			f.watch.progress()
			return
		case len(p) >= frameHeader && p[0] == kindData && binary.LittleEndian.Uint16(p[2:]) == f.round.ID:
			fail.With("data frame %d of %d bytes came, not %d of %d: frames were lost or changed order",
				binary.LittleEndian.Uint32(p[4:]), len(p), f.received, n)
		} // others are stray
	}
}

// word is the frame header of a data frame.
func (f *framed) word(seq uint32) uint64 {
	return kindData | uint64(f.round.ID)<<16 | uint64(seq)<<32
}
