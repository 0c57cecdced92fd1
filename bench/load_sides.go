package bench

import (
	"errors"
	"io"
	"math"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/fail"
	"viaxdp/vipl"
)

// loadBatch is how many messages are sent, or taken, before it is the other's turn.
const loadBatch = 32

// loader is the sending side of a load. Echoes come in the order of their messages.
type loader struct {
	round loadRound
	port  loadPort
	clock func() time.Duration
	watch watchdog

	plan  *schedule // nil: a closed loop
	limit uint32    // messages under way at most

	zero   time.Duration // of clock: the start
	due    time.Duration // when the next message is due, from the start
	sent   uint32
	echoed uint32
	times  Histogram
}

func newLoader(r loadRound, port loadPort, clock func() time.Duration, w watchdog) *loader {
	l := &loader{round: r, port: port, clock: clock, watch: w, limit: uint32(port.window()), times: Histogram{newHistogram()}}
	if r.Rate == 0 {
		l.limit = min(l.limit, LoadWindow)
	} else {
		l.plan = newSchedule(r.Load)
		l.due = l.plan.next()
	}
	return l
}

// sendLoad is a task: the sending side of a load.
func sendLoad(j *job, r loadRound) (_ loadOutcome, err error) {
	port := beginLoad(j, r)
	start := time.Now()
	clock := func() time.Duration { return time.Since(start) }
	return newLoader(r, port, clock, watchdog{ctx: j.ctx}).run()
}

// beginLoad makes the endpoint of a task ready.
func beginLoad(j *job, r loadRound) loadPort {
	fail.If(r.validate())
	port := fail.Must(loadPortOf(j.endpoint))
	port.begin(r)
	return port
}

// now is the time since the start.
func (l *loader) now() time.Duration { return l.clock() - l.zero }

// run sends for as long as the round lasts, and then awaits what is under way.
func (l *loader) run() (out loadOutcome, err error) {
	defer fail.Catch(&err)
	fail.During("begin", func() { l.call(loadBegin, leadMessages) })
	clock := startStopwatch()
	l.zero = l.clock()
	now := l.now()
	for ; now < l.round.Duration; now = l.now() {
		l.turn(now)
	}
	out.InTime = int64(l.echoed)
	// What became due while the last turn went on is not late yet.
	l.sendDue(now)
	out.Outstanding = int64(l.sent - l.echoed)
	fail.During("messages that have no echo", l.drain)
	out.Span = clock.span()
	fail.During("end", func() { l.call(loadEnd, 1) })
	out.Unsent = l.leave(now)
	out.Outstanding += out.Unsent
	out.Sent, out.Due = int64(l.sent), int64(l.sent)+out.Unsent
	out.RoundTrips = l.times
	return out, nil
}

// turn sends what is due and takes what has arrived.
func (l *loader) turn(now time.Duration) {
	fail.If(l.watch.after(l.sendDue(now) + l.take()))
}

// sendDue sends what is due, one batch at most, and returns how many it sent.
func (l *loader) sendDue(now time.Duration) (n int) {
	for ; n < loadBatch; n++ {
		if l.plan == nil {
			l.due = now
		}
		if l.due > now || l.due >= l.round.Duration || l.sent-l.echoed >= l.limit {
			break
		}
		buf := l.port.next()
		if buf == nil {
			break
		}
		l.port.commit(l.round.put(buf, loadMessage, l.sent, l.due))
		l.sent++
		if l.plan != nil {
			l.due = l.plan.next()
		}
	}
	l.port.flush()
	return n
}

// take takes the echoes that have arrived, one batch at most, and returns how many.
func (l *loader) take() (n int) {
	for ; n < loadBatch; n++ {
		p := l.port.poll()
		if p == nil {
			break
		}
		l.echo(p)
	}
	return n
}

// echo notes an echo.
func (l *loader) echo(p []byte) {
	number, took := loadNumber(p), l.now()-loadDue(p)
	switch {
	case !l.round.is(p) || loadKind(p) != loadMessage:
		fail.With("%d bytes came that are no echo", len(p))
	case number >= l.sent || took < 0:
		fail.With("the echo of message %d came, which was not sent yet", number)
	case number != l.echoed:
		fail.With("the echo of message %d came, not that of %d", number, l.echoed)
	}
	l.echoed++
	fail.If(l.times.note(took))
}

// drain awaits the echo of what was sent.
func (l *loader) drain() {
	for l.echoed != l.sent {
		l.port.flush()
		fail.If(l.watch.after(l.take()))
	}
}

// leave gives up messages that were due and not sent, and returns their number. They
// count with their waiting time until the end, a lower bound of what they would have
// taken.
func (l *loader) leave(end time.Duration) (unsent int64) {
	if l.plan == nil {
		return 0
	}
	for ; l.due < l.round.Duration; l.due = l.plan.next() {
		l.times.note(end - l.due)
		unsent++
	}
	return unsent
}

// call sends words and awaits the echo of each.
func (l *loader) call(kind byte, words int) {
	for n := range uint32(words) {
		buf := roomFor(l.port, &l.watch)
		l.port.commit(l.round.put(buf, kind, n, 0))
		for echoed := false; !echoed; {
			l.port.flush()
			p := l.port.poll()
			switch {
			case p == nil:
				fail.If(l.watch.idle())
				continue
			case !l.round.is(p) || loadKind(p) != kind || loadNumber(p) != n:
				fail.With("%d bytes came that are no echo of a word", len(p))
			}
			echoed = true
			l.watch.progress()
		}
	}
}

// echoer is the echoing side of a load.
type echoer struct {
	round loadRound
	port  loadPort
	watch watchdog
	ended bool
}

// echoLoad is a task: it echoes a load until its end, and says what that took.
func echoLoad(j *job, r loadRound) (_ Span, err error) {
	e := &echoer{round: r, port: beginLoad(j, r), watch: watchdog{ctx: j.ctx}}
	return e.run()
}

func (e *echoer) run() (_ Span, err error) {
	defer fail.Catch(&err)
	clock := startStopwatch()
	for {
		n, all := e.turn()
		if e.ended && all {
			return clock.span(), nil
		}
		fail.If(e.watch.after(n))
	}
}

// turn echoes what has arrived, one batch at most. It returns how many messages
// that were, and whether all echoes are on their way.
func (e *echoer) turn() (n int, all bool) {
	for ; n < loadBatch && !e.ended; n++ {
		p := e.port.poll()
		if p == nil {
			break
		}
		if !e.round.is(p) {
			fail.With("%d bytes came that are no message of this load", len(p))
		}
		e.ended = loadKind(p) == loadEnd
		buf := roomFor(e.port, &e.watch)
		e.port.commit(copy(buf, p))
	}
	return n, e.port.flush()
}

// roomFor is the room for the next message, as soon as there is some.
func roomFor(port loadPort, w *watchdog) []byte {
	for {
		if buf := port.next(); buf != nil {
			return buf
		}
		port.flush()
		fail.If(w.idle())
	}
}

// tcpLoad is a TCP connection under load. One system call sends all messages that are
// due, and one receives all that have come.
type tcpLoad struct {
	t        *tcp
	bytes    int // of a message
	out      []byte
	from, to int // out[from:to] is not written yet
	in       []byte
	at, got  int // in[at:got] was read and not given yet
}

func (l *tcpLoad) begin(r loadRound) {
	l.bytes = r.Bytes
	l.out, l.in = make([]byte, readBuffer), make([]byte, readBuffer)
}

func (l *tcpLoad) next() []byte {
	if l.to+l.bytes > len(l.out) {
		return nil
	}
	return l.out[l.to:]
}

func (l *tcpLoad) commit(n int) { l.to += n }

func (l *tcpLoad) flush() bool {
	for l.from < l.to {
		n, err := l.t.writeOnce(l.out[l.from:l.to])
		switch {
		case err == nil:
			l.from += n
		case err == errAgain:
			return false
		case !errors.Is(err, unix.EINTR):
			fail.With("send: %w", err)
		}
	}
	l.from, l.to = 0, 0
	return true
}

func (l *tcpLoad) poll() []byte {
	if l.got-l.at < l.bytes {
		l.got = copy(l.in, l.in[l.at:l.got])
		l.at = 0
		n, err := l.t.readOnce(l.in[l.got:])
		switch {
		case err == errAgain || errors.Is(err, unix.EINTR):
			return nil
		case err != nil:
			fail.With("receive: %w", err)
		case n == 0:
			fail.With("receive: %w", io.ErrUnexpectedEOF) // the peer has closed
		}
		if l.got += n; l.got < l.bytes {
			return nil
		}
	}
	p := l.in[l.at : l.at+l.bytes]
	l.at += l.bytes
	return p
}

func (l *tcpLoad) window() int { return math.MaxInt32 }

// viLoad is a VI under load. Every descriptor has a place of its own for its message.
// Messages that are due together are posted, and taken off, in lists of up to viList
// with a doorbell each; TCP sends them with one system call. No more messages are under
// way than there are receives posted at the peer.
//
// Receives stay posted from one round to the next: a VI that has carried a load carries
// nothing else afterwards.
type viLoad struct{ vi *vi }

// loadPlaces is how many places for messages there are in each direction.
const loadPlaces = 256

// loadReceives is how many receives are posted: some are for the words of a
// round.
const loadReceives = loadPlaces - 8

// The places of all descriptors fit in the region, and a window in the receives.
const (
	_ = uint(viData - loadPlaces*MaxLoadBytes)
	_ = uint(loadReceives - viList - LoadWindow)
)

// begin, see loadPort. A word in both directions says that the receives are
// posted; it takes the oldest of them.
func (l *viLoad) begin(r loadRound) {
	v := l.vi
	if v.params.MaxBytes < MaxLoadBytes {
		fail.With("opened for messages of %d bytes: a load needs %d", v.params.MaxBytes, MaxLoadBytes)
	}
	v.round = Round{ID: r.ID, Bytes: r.Bytes}
	v.lists = 1
	v.watch.progress()
	for v.recvs.out() < loadReceives+1 {
		l.postRecv()
	}
	v.word(wordReady | int(r.ID))
	v.begun(r.ID)
	v.lists = v.list(viList)
}

// placeOf is where the message of a ring's next descriptor lies.
func placeOf(r *ring) int { return (r.posted + r.staged) % loadPlaces * MaxLoadBytes }

func (l *viLoad) stageRecv() { l.vi.recvs.stage(l.vi.in.Segment(placeOf(&l.vi.recvs), MaxLoadBytes)) }

func (l *viLoad) postRecv() {
	l.stageRecv()
	l.vi.pushRecvs()
}

func (l *viLoad) next() []byte {
	v := l.vi
	if v.sends.used() == loadPlaces {
		return nil
	}
	at := placeOf(&v.sends)
	return v.out.Bytes()[at : at+MaxLoadBytes]
}

func (l *viLoad) commit(n int) {
	d := l.vi.sends.next()
	d.Control, d.ImmediateData = vipl.ControlSendRecv, 0
	d.SetSegments(l.vi.out.Segment(placeOf(&l.vi.sends), n))
	l.vi.post()
}

// flush, see loadPort: what is posted is on its way when it is complete.
func (l *viLoad) flush() bool {
	l.vi.pushSends()
	l.vi.reap()
	return l.vi.sends.used() == 0
}

// poll, see loadPort. The receive that takes the place of the one that is done
// has another place for its message, and is posted with others: with a list's worth
// missing there are still more receives posted than a window.
func (l *viLoad) poll() []byte {
	v := l.vi
	if len(v.taken) == 0 {
		v.pushRecvs()
	}
	d, err := v.recvListed()
	if err == vipl.ErrNotDone {
		return nil
	}
	if err != nil {
		v.fail("receive", d, err)
	}
	v.recvs.done++
	if d.SegCount != 1 {
		fail.With("receive: a descriptor without a place for data came back")
	}
	at := int(d.Segment(0).Data - v.in.Addr())
	l.stageRecv()
	return v.in.Bytes()[at : at+int(d.Length)]
}

func (l *viLoad) window() int { return LoadWindow }
