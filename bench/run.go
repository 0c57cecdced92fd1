package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
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
		pace: pace{
			duration: p.Duration, messages: p.Messages, least: p.Least, check: p.Check,
			// Stray frames of an earlier run are most likely of other rounds.
			round: uint16(rand.Uint32()),
		},
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
	pace           pace
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

func (r *run) latency(m measured) error {
	h := newHistogram()
	var client, server Span
	messages := 0 // those that do not count included: the spans do, too
	err := r.pace.measure(m.Bytes, maxRound, leads, func(round Round, count bool) (Span, error) {
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
	err := r.pace.measure(m.Bytes, limit, nil, func(round Round, count bool) (Span, error) {
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
