package bench

import "time"

// loadLinger is how long the echoing side stays after the last word, where the
// echo of it may be lost.
const loadLinger = 20 * time.Millisecond

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
	var last time.Time
	for {
		n, all, err := e.turn()
		switch {
		case err != nil:
			return Span{}, err
		case n > 0:
			e.watch.progress()
			if e.ended {
				last = time.Now()
			}
		case e.ended && all && (!e.port.lossy() || time.Since(last) > loadLinger):
			return clock.span(), nil
		default:
			if err := e.watch.idle(); err != nil {
				return Span{}, err
			}
		}
	}
}

// turn echoes what has arrived, one batch at most. It returns how many messages
// that were, and whether all echoes are on their way.
func (e *echoer) turn() (n int, all bool, err error) {
	for n < loadBatch {
		p, err := e.port.poll()
		if err != nil {
			return n, false, err
		}
		if p == nil {
			break
		}
		if !e.round.is(p) {
			continue
		}
		n++
		e.ended = e.ended || loadKind(p) == loadEnd
		if err := e.echo(p); err != nil {
			return n, false, err
		}
	}
	all, err = e.port.flush()
	return n, all, err
}

// echo sends a message back.
func (e *echoer) echo(p []byte) error {
	buf, err := roomFor(e.port, &e.watch)
	if err != nil {
		return err
	}
	return e.port.commit(copy(buf, p))
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
