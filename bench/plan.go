package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Plan says what is measured.
type Plan struct {
	Names     []string      // transports, in the order of the report
	Sizes     []int         // bytes of a message
	Turns     int           // times that all names are gone through; 0: 1
	Duration  time.Duration // of one measurement: a name, a size, a turn
	Messages  int           // of one measurement instead of Duration; 0: by Duration
	Latency   bool          // ping-pong
	Bandwidth bool          // stream
	Check     bool          // verify every byte, not only those of the warm-up
	Histogram bool          // keep histograms in the Result

	// Progress is told what comes next; may be nil.
	Progress func(Step)
	// Opening is called around the opening of endpoints that map memory on
	// hugepages; may be nil.
	Opening func(open func() error) error
}

// Step is one measurement of a plan.
type Step struct {
	Turn, Turns int // from 1
	Name        string
	Bytes       int
}

// Defaults of a plan.
const (
	DefaultTurns    = 3
	DefaultDuration = 75 * time.Millisecond
)

// DefaultSizes are the message sizes of a plan in bytes.
func DefaultSizes() []int { return []int{64, 1024, 4096, 65536} }

// A measurement consists of several rounds, each of them sized by the speed of
// the one before: at least roundPart of them, and none longer than
// maxRoundTime.
const (
	roundPart    = 4
	maxRoundTime = time.Second
)

// validate refuses what cannot be run.
func (p *Plan) validate() error {
	if len(p.Names) == 0 || len(p.Sizes) == 0 || !p.Latency && !p.Bandwidth {
		return errors.New("nothing to measure: give at least one name and one size")
	}
	for i, n := range p.Names {
		if _, err := find(n); err != nil {
			return err
		}
		if slices.Contains(p.Names[:i], n) {
			return fmt.Errorf("the name %s occurs twice", n)
		}
	}
	for i, s := range p.Sizes {
		if s < 1 || s > MaxMessage {
			return fmt.Errorf("message size %d: must be from 1 to %d bytes", s, MaxMessage)
		}
		if slices.Contains(p.Sizes[:i], s) {
			return fmt.Errorf("the size %d occurs twice", s)
		}
	}
	switch {
	case p.Messages < 0 || p.Turns < 0:
		return errors.New("counts must not be negative")
	case p.Messages == 0 && p.Duration <= 0:
		return errors.New("the duration must be positive")
	}
	return nil
}

// Run carries out a plan: turn by turn, and in each turn name by name, so that
// a drift of the machine meets all names alike.
func Run(ctx context.Context, p Plan, client, server *Worker) (*Result, error) {
	if err := p.validate(); err != nil {
		return nil, err
	}
	p.Turns = max(p.Turns, 1)
	r := &run{
		ctx: ctx, plan: p, client: client, server: server,
		collector: newCollector(p.Histogram), conditions: hostConditions(),
	}
	for turn := 1; turn <= p.Turns; turn++ {
		for _, name := range p.Names {
			r.step = Step{Turn: turn, Turns: p.Turns, Name: name}
			if err := r.transport(name); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	result := r.collector.result(p.Names, p.Sizes)
	result.Conditions = r.conditions
	result.Conditions.Polling = pollingOf(p.Names)
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

// transport opens a transport, measures all sizes and closes it.
func (r *run) transport(name string) error {
	t, err := find(name)
	if err != nil {
		return err
	}
	open := func() error { return r.open(t) }
	if t.arena && r.plan.Opening != nil {
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
		k := Case{name, bytes}
		if r.plan.Latency {
			if err := r.latency(k); err != nil {
				return fmt.Errorf("latency, %d bytes: %w", bytes, err)
			}
		}
		if r.plan.Bandwidth {
			if err := r.bandwidth(k); err != nil {
				return fmt.Errorf("bandwidth, %d bytes: %w", bytes, err)
			}
		}
	}
	_, _, err = r.both(request{Op: opClose}, request{Op: opClose})
	return err
}

func (r *run) open(t *transport) error {
	params := func(w *Worker, server bool) *Params {
		p := w.params
		if t.xdp && w.over != nil {
			p = *w.over
		}
		p.Server, p.MaxBytes = server, slices.Max(r.plan.Sizes)
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

// Warm-up of a measurement: first a few messages whose bytes are checked, then
// ever more until it has lasted a part of the measurement.
const (
	warmMessages = 8
	warmPart     = 6 // of Duration
	leadMessages = 16
)

func (r *run) latency(k Case) error {
	h := newHistogram()
	return r.measure(k, maxRound, func(round Round, count bool) (Span, error) {
		if count {
			round.Lead = leadMessages
		}
		a, _, err := r.both(request{Op: opPing, Round: &round}, request{Op: opEcho, Round: &round})
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
		}
		return *a.Span, nil
	}, func() { r.collector.addLatency(k, h) })
}

func (r *run) bandwidth(k Case) error {
	var tx, rx Span
	messages := 0
	// Frame numbers of a round have 32 bits; no frame carries less than 256
	// bytes of a longer message.
	limit := 1 << 30 / (1 + k.Bytes/256)
	return r.measure(k, limit, func(round Round, count bool) (Span, error) {
		a, b, err := r.both(request{Op: opSend, Round: &round}, request{Op: opReceive, Round: &round})
		if err != nil {
			return Span{}, err
		}
		if a.Span == nil || b.Span == nil || a.Span.Wall <= 0 || b.Span.Wall <= 0 {
			return Span{}, errors.New("a side has not said how long it took")
		}
		if count {
			messages += round.Messages
			tx.add(*a.Span)
			rx.add(*b.Span)
		}
		return *a.Span, nil
	}, func() { r.collector.addBandwidth(k, messages, tx, rx) })
}

func (s *Span) add(o Span) { s.Wall, s.CPU = s.Wall+o.Wall, s.CPU+o.CPU }

// measure runs rounds of at most limit messages: the warm-up, and then those
// that count until the plan's duration is over or its messages are sent.
func (r *run) measure(k Case, limit int, round func(Round, bool) (Span, error), done func()) error {
	next := func(messages int, check, count bool) (Span, error) {
		r.round++
		return round(Round{
			ID: r.round, Bytes: k.Bytes, Messages: messages, Check: check || r.plan.Check,
		}, count)
	}
	var per time.Duration // of one message
	var warm time.Duration
	warming := r.plan.Duration / warmPart
	for n := warmMessages; ; n = min(2*n, limit) {
		span, err := next(n, n == warmMessages, false)
		if err != nil {
			return err
		}
		per = max(span.Wall/time.Duration(n), 1)
		if warm += span.Wall; warm >= warming {
			break
		}
	}
	// However long the warm-up took, what counts has its time.
	spent := warming
	bound := min(maxRoundTime, r.plan.Duration/roundPart)
	if r.plan.Messages > 0 {
		bound = maxRoundTime
	}
	for sent := 0; ; {
		n := min(limit, int(bound/per))
		if r.plan.Messages > 0 {
			n = min(n, r.plan.Messages-sent)
		} else {
			n = min(n, int((r.plan.Duration-spent)/per))
		}
		n = max(n, min(warmMessages, limit))
		if r.plan.Messages > 0 {
			n = min(n, r.plan.Messages-sent)
		}
		span, err := next(n, false, true)
		if err != nil {
			return err
		}
		per = max(span.Wall/time.Duration(n), 1)
		spent += span.Wall
		sent += n
		// A rest of a few messages is not worth a round.
		over := r.plan.Messages == 0 && spent+spent/16 >= r.plan.Duration
		if over || r.plan.Messages > 0 && sent >= r.plan.Messages {
			break
		}
	}
	done()
	return nil
}
