package bench

import (
	"fmt"
	"time"
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
func sendLoad(j *job, r loadRound) (loadOutcome, error) {
	port, err := beginLoad(j, r)
	if err != nil {
		return loadOutcome{}, err
	}
	start := time.Now()
	clock := func() time.Duration { return time.Since(start) }
	return newLoader(r, port, clock, watchdog{stop: j.stop}).run()
}

// beginLoad makes the endpoint of a task ready.
func beginLoad(j *job, r loadRound) (loadPort, error) {
	if err := r.validate(); err != nil {
		return nil, err
	}
	port, err := loadPortOf(j.endpoint)
	if err != nil {
		return nil, err
	}
	return port, port.begin(r)
}

// now is the time since the start.
func (l *loader) now() time.Duration { return l.clock() - l.zero }

// run sends for as long as the round lasts, and then awaits what is under way.
func (l *loader) run() (out loadOutcome, err error) {
	if err := l.call(loadBegin, leadMessages); err != nil {
		return out, fmt.Errorf("begin: %w", err)
	}
	clock := startStopwatch()
	l.zero = l.clock()
	now := l.now()
	for ; now < l.round.Duration; now = l.now() {
		if err := l.turn(now); err != nil {
			return out, err
		}
	}
	out.InTime = int64(l.echoed)
	// What became due while the last turn went on is not late yet.
	if _, err := l.sendDue(now); err != nil {
		return out, err
	}
	out.Outstanding = int64(l.sent - l.echoed)
	if err := l.drain(); err != nil {
		return out, fmt.Errorf("%d of %d messages have no echo: %w", l.sent-l.echoed, l.sent, err)
	}
	out.Span = clock.span()
	if err := l.call(loadEnd, 1); err != nil {
		return out, fmt.Errorf("end: %w", err)
	}
	out.Unsent = l.leave(now)
	out.Outstanding += out.Unsent
	out.Sent, out.Due = int64(l.sent), int64(l.sent)+out.Unsent
	out.RoundTrips = l.times
	return out, nil
}

// turn sends what is due and takes what has arrived.
func (l *loader) turn(now time.Duration) error {
	sent, err := l.sendDue(now)
	if err != nil {
		return err
	}
	got, err := l.take()
	if err != nil {
		return err
	}
	return l.watch.after(sent + got)
}

// sendDue sends what is due, one batch at most, and returns how many it sent.
func (l *loader) sendDue(now time.Duration) (n int, err error) {
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
		if err := l.port.commit(l.round.put(buf, loadMessage, l.sent, l.due)); err != nil {
			return n, err
		}
		l.sent++
		if l.plan != nil {
			l.due = l.plan.next()
		}
	}
	_, err = l.port.flush()
	return n, err
}

// take takes the echoes that have arrived, one batch at most, and returns how many.
func (l *loader) take() (n int, err error) {
	for ; n < loadBatch; n++ {
		p, err := l.port.poll()
		if err != nil || p == nil {
			return n, err
		}
		if err := l.echo(p); err != nil {
			return n, err
		}
	}
	return n, nil
}

// echo notes an echo.
func (l *loader) echo(p []byte) error {
	number, took := loadNumber(p), l.now()-loadDue(p)
	switch {
	case !l.round.is(p) || loadKind(p) != loadMessage:
		return fmt.Errorf("%d bytes came that are no echo", len(p))
	case number >= l.sent || took < 0:
		return fmt.Errorf("the echo of message %d came, which was not sent yet", number)
	case number != l.echoed:
		return fmt.Errorf("the echo of message %d came, not that of %d", number, l.echoed)
	}
	if l.round.Check {
		if err := l.round.verify(p); err != nil {
			return err
		}
	}
	l.echoed++
	return l.times.note(took)
}

// drain awaits the echo of what was sent.
func (l *loader) drain() error {
	for l.echoed != l.sent {
		if _, err := l.port.flush(); err != nil {
			return err
		}
		n, err := l.take()
		if err != nil {
			return err
		}
		if err := l.watch.after(n); err != nil {
			return err
		}
	}
	return nil
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
func (l *loader) call(kind byte, words int) error {
	for n := range uint32(words) {
		buf, err := roomFor(l.port, &l.watch)
		if err != nil {
			return err
		}
		if err := l.port.commit(l.round.put(buf, kind, n, 0)); err != nil {
			return err
		}
		for echoed := false; !echoed; {
			if _, err := l.port.flush(); err != nil {
				return err
			}
			p, err := l.port.poll()
			switch {
			case err != nil:
				return err
			case p == nil:
				if err := l.watch.idle(); err != nil {
					return err
				}
				continue
			case !l.round.is(p) || loadKind(p) != kind || loadNumber(p) != n:
				return fmt.Errorf("%d bytes came that are no echo of a word", len(p))
			}
			echoed = true
			l.watch.progress()
		}
	}
	return nil
}

// echoer is the echoing side of a load.
type echoer struct {
	round loadRound
	port  loadPort
	watch watchdog
	ended bool
}

// echoLoad is a task: it echoes a load until its end, and says what that took.
func echoLoad(j *job, r loadRound) (Span, error) {
	port, err := beginLoad(j, r)
	if err != nil {
		return Span{}, err
	}
	e := &echoer{round: r, port: port, watch: watchdog{stop: j.stop}}
	return e.run()
}

func (e *echoer) run() (Span, error) {
	clock := startStopwatch()
	for {
		n, all, err := e.turn()
		switch {
		case err != nil:
			return Span{}, err
		case e.ended && all:
			return clock.span(), nil
		}
		if err := e.watch.after(n); err != nil {
			return Span{}, err
		}
	}
}

// turn echoes what has arrived, one batch at most. It returns how many messages
// that were, and whether all echoes are on their way.
func (e *echoer) turn() (n int, all bool, err error) {
	for ; n < loadBatch && !e.ended; n++ {
		p, err := e.port.poll()
		if err != nil {
			return n, false, err
		}
		if p == nil {
			break
		}
		if !e.round.is(p) {
			return n, false, fmt.Errorf("%d bytes came that are no message of this load", len(p))
		}
		e.ended = loadKind(p) == loadEnd
		buf, err := roomFor(e.port, &e.watch)
		if err != nil {
			return n, false, err
		}
		if err := e.port.commit(copy(buf, p)); err != nil {
			return n, false, err
		}
	}
	all, err = e.port.flush()
	return n, all, err
}

// roomFor is the room for the next message, as soon as there is some.
func roomFor(port loadPort, w *watchdog) ([]byte, error) {
	for {
		if buf := port.next(); buf != nil {
			return buf, nil
		}
		if _, err := port.flush(); err != nil {
			return nil, err
		}
		if err := w.idle(); err != nil {
			return nil, err
		}
	}
}
