package bench

import (
	"time"

	"viaxdp/internal/lab/fail"
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
	return newLoader(r, port, clock, watchdog{stop: j.stop}).run()
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
	e := &echoer{round: r, port: beginLoad(j, r), watch: watchdog{stop: j.stop}}
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
