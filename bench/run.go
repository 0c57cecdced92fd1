package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// Run carries out a plan: turn by turn, and in each turn row by row, so that
// a drift of the machine meets all rows alike.
func Run(ctx context.Context, p Plan, client, server *Worker) (*Result, error) {
	if err := p.validate(); err != nil {
		return nil, err
	}
	p.Turns = max(p.Turns, 1)
	r := &run{
		ctx: ctx, plan: p, client: client, server: server,
		collector: newCollector(p.Histogram), conditions: HostConditions(),
		// Stray frames of an earlier run are most likely of other rounds.
		round: uint16(rand.Uint32()),
	}
	for turn := 1; turn <= p.Turns; turn++ {
		for _, row := range p.Rows {
			r.step = Step{Turn: turn, Turns: p.Turns, Name: row.label()}
			if err := r.row(row); err != nil {
				return nil, fmt.Errorf("%s: %w", row.label(), err)
			}
		}
	}
	result := r.collector.result(p.Rows, p.Sizes)
	result.Conditions = r.conditions
	result.Conditions.Polling = pollingOf(p.Rows)
	return result, nil
}

// run is the state of Run.
type run struct {
	ctx            context.Context
	plan           Plan
	client, server *Worker
	collector      *collector
	conditions     Conditions
	step           Step
	round          uint16
}

// both calls the two workers at the same time.
func (r *run) both(client, server request) (reply, reply, error) {
	return both(r.ctx, r.client, client, r.server, server)
}

// row opens the transport of a row, measures all sizes and closes it.
func (r *run) row(row Row) error {
	t, err := find(row.Name)
	if err != nil {
		return err
	}
	open := func() error { return r.open(row, t) }
	if (t.arena || row.Beside) && r.plan.Opening != nil {
		err = r.plan.Opening(open)
	} else {
		err = open()
	}
	if err != nil {
		return err
	}
	for _, bytes := range r.plan.Sizes {
		r.step.Bytes = bytes
		if r.plan.Progress != nil {
			r.plan.Progress(r.step)
		}
		m := measured{Case: Case{row.label(), bytes}, polls: !t.sleeps && !row.VI.Notify && !row.VI.Engine, whole: t.whole}
		if r.plan.Latency {
			if err := r.latency(m); err != nil {
				return fmt.Errorf("latency, %d bytes: %w", bytes, err)
			}
		}
		if r.plan.Bandwidth {
			if err := r.bandwidth(m); err != nil {
				return fmt.Errorf("bandwidth, %d bytes: %w", bytes, err)
			}
		}
	}
	_, _, err = r.both(request{Op: opClose}, request{Op: opClose})
	return err
}

func (r *run) open(row Row, t *transport) error {
	params := func(w *Worker, server bool) *Params {
		p := w.at(row.usesXDP())
		p.Server, p.MaxBytes, p.VI, p.Beside = server, slices.Max(r.plan.Sizes), row.VI, row.Beside
		if row.SmallPages {
			p.Hugepages = false
		}
		return &p
	}
	a, b, err := r.both(
		request{Op: opOpen, Name: t.name, Params: params(r.client, false)},
		request{Op: opOpen, Name: t.name, Params: params(r.server, true)})
	if err != nil {
		return err
	}
	if a.Hello == nil || b.Hello == nil {
		return errors.New("a worker has not said where it is")
	}
	r.conditions.learn(a.Hello.Facts)
	r.conditions.pinned(a.Hello.Facts, b.Hello.Facts)
	_, _, err = r.both(request{Op: opConnect, Peer: b.Hello}, request{Op: opConnect, Peer: a.Hello})
	return err
}

// measured is what a measurement is of.
type measured struct {
	Case
	polls bool // it never sleeps
	whole bool // its latency is that of a whole round trip
}

// Warm-up of a measurement: first a few messages whose bytes are checked, then
// ever more until it has lasted a part of the measurement.
const (
	warmMessages = 8
	warmPart     = 6 // of Duration
)

// Each counted round of a ping-pong is led in by messages that do not count, for
// some time: after a pause Go's monitor thread wakes up fifty times, 20 us and what
// its timer adds apart, before it looks less often, and then stops a thread that
// polls on the same CPU for some 12 us each time (runtime.sysmon). Without it these
// were more than one in a hundred of the messages of a short round.
const (
	leadMessages = 16 // at least
	leadTime     = 6 * time.Millisecond
)

// LeadIn is about how much longer a ping-pong takes than its duration and warm-up:
// what leads in its rounds.
func LeadIn(duration time.Duration) time.Duration {
	return max(roundPart, duration/maxRoundTime) * leadTime
}

// leads is the number of messages that lead in, at a cost of per each.
func leads(per time.Duration) int {
	return min(max(leadMessages, int(leadTime/per)), maxRound)
}

// A measurement consists of several rounds, each of them sized by the speed of
// the one before: at least roundPart of them, and none longer than
// maxRoundTime.
const (
	roundPart    = 4
	maxRoundTime = time.Second
)

func (r *run) latency(m measured) error {
	h := newHistogram()
	var client, server Span
	messages := 0 // those that do not count included: the spans do, too
	err := r.measure(m.Bytes, maxRound, leads, func(round Round, count bool) (Span, error) {
		a, b, err := r.both(request{Op: opPing, Round: &round}, request{Op: opEcho, Round: &round})
		if err != nil {
			return Span{}, err
		}
		if a.Span == nil {
			return Span{}, errors.New("the client has not said how long it took")
		}
		if count {
			part, err := decodeHistogram(a.RTT)
			if err != nil {
				return Span{}, err
			}
			h.Merge(part)
			messages += 2 * (round.Lead + round.Messages)
			client.add(*a.Span)
			if b.Span != nil {
				server.add(*b.Span)
			}
		}
		return *a.Span, nil
	})
	if err == nil {
		r.collector.addLatency(m, h, messages, client, server)
	}
	return err
}

func (r *run) bandwidth(m measured) error {
	var tx, rx Span
	messages, best := 0, 0.
	// Frame numbers of a round have 32 bits; no frame carries less than 256
	// bytes of a longer message.
	limit := 1 << 30 / (1 + m.Bytes/256)
	err := r.measure(m.Bytes, limit, nil, func(round Round, count bool) (Span, error) {
		a, b, err := r.both(request{Op: opSend, Round: &round}, request{Op: opReceive, Round: &round})
		if err != nil {
			return Span{}, err
		}
		if a.Span == nil || b.Span == nil || a.Span.Wall <= 0 || b.Span.Wall <= 0 {
			return Span{}, errors.New("a side has not said how long it took")
		}
		if count {
			messages += round.Messages
			best = max(best, float64(round.Messages)/a.Span.Wall.Seconds())
			tx.add(*a.Span)
			rx.add(*b.Span)
		}
		return *a.Span, nil
	})
	if err == nil {
		r.collector.addBandwidth(m, messages, tx, rx, best)
	}
	return err
}

// measure runs rounds of at most limit messages: the warm-up, and then those
// that count until the plan's duration is over or its messages are sent. lead, which
// may be nil, gives the number of messages that lead in a round that counts, by the
// time that one takes. Without a duration the first of these rounds has fewer than it
// should: a message took longer in the warm-up, which is then but the first messages,
// cold and checked.
func (r *run) measure(bytes, limit int, lead func(per time.Duration) int, round func(_ Round, count bool) (Span, error)) error {
	var per time.Duration // of one message
	next := func(messages int, check, count bool) (time.Duration, error) {
		r.round++
		it := Round{ID: r.round, Bytes: bytes, Messages: messages, Check: check || r.plan.Check}
		if count && lead != nil {
			it.Lead = lead(per)
		}
		span, err := round(it, count)
		per = max(span.Wall/time.Duration(it.Lead+messages), 1)
		return span.Wall, err
	}
	var warm time.Duration
	warming := r.plan.Duration / warmPart
	for n := warmMessages; ; n = min(2*n, limit) {
		wall, err := next(n, n == warmMessages, false)
		if err != nil {
			return err
		}
		if warm += wall; warm >= warming {
			break
		}
	}
	// However long the warm-up took, what counts has its time.
	spent := warming
	for sent := 0; !r.enough(sent, spent); {
		n := r.share(sent, spent, per, limit)
		if _, err := next(n, false, true); err != nil {
			return err
		}
		spent += time.Duration(n) * per // without what led in
		sent += n
	}
	return nil
}

// enough says that a measurement is over.
func (r *run) enough(sent int, spent time.Duration) bool {
	p := &r.plan
	if p.Messages > 0 {
		return sent >= p.Messages
	}
	// A rest of a few messages is not worth a round.
	return sent > 0 && sent >= p.Least && spent+spent/16 >= p.Duration
}

// share is the number of messages of the next round, at a cost of per each.
func (r *run) share(sent int, spent, per time.Duration, limit int) int {
	p := &r.plan
	if p.Messages > 0 {
		n := max(min(limit, int(maxRoundTime/per)), min(warmMessages, limit))
		return min(n, p.Messages-sent)
	}
	n := int((p.Duration - spent) / per)
	if rest := p.Least - sent; n < rest {
		n = min(rest, int(maxRoundTime/per))
	} else {
		n = min(n, int(min(maxRoundTime, p.Duration/roundPart)/per))
	}
	return max(min(n, limit), min(warmMessages, limit))
}
