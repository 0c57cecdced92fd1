package bench

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Plan says what is measured.
type Plan struct {
	Rows      []Row         // in the order of the report
	Sizes     []int         // bytes of a message
	Turns     int           // times that all rows are gone through; 0: 1
	Duration  time.Duration // of one measurement: a row, a size, a turn
	Messages  int           // of one measurement instead of Duration; 0: by Duration
	Least     int           // messages that a measurement has at least, however long it takes
	Latency   bool          // ping-pong
	Bandwidth bool          // stream
	Check     bool          // verify every byte, not only those of the warm-up

	// Progress, if not nil, is called before each step.
	Progress func(Step)
}

// A Row of the report is a transport, and how it is used.
type Row struct {
	Label string // in the report; empty: Name
	Name  string // transport
	VI    VIOptions

	// Beside runs a transport of the kernel on the interface of the AF_XDP
	// transports, while an XDP program is attached to it.
	Beside bool
	// SmallPages keeps memory off hugepages, whatever the workers' parameters say.
	SmallPages bool
}

// RowsOf makes a row of each transport, used as usual.
func RowsOf(names []string) []Row {
	rows := make([]Row, len(names))
	for i, n := range names {
		rows[i].Name = n
	}
	return rows
}

// label is what the row is called in the report.
func (r Row) label() string {
	if r.Label == "" {
		return r.Name
	}
	return r.Label
}

func (r Row) usesXDP() bool { return UsesXDP(r.Name) || r.Beside }

// Step is one measurement of a plan.
type Step struct {
	Turn, Turns int    // from 1
	Name        string // label of the row
	Bytes       int
}

// Defaults of a plan.
const (
	DefaultTurns    = 3
	DefaultDuration = 70 * time.Millisecond
)

// DefaultSizes are the message sizes of a plan in bytes.
func DefaultSizes() []int { return []int{64, 1024, 4096, 65536} }

// Validate refuses what cannot be run.
func (p *Plan) Validate() error {
	if len(p.Rows) == 0 || len(p.Sizes) == 0 || !p.Latency && !p.Bandwidth {
		return errors.New("nothing to measure: give at least one name and one size")
	}
	for i, r := range p.Rows {
		if err := r.validate(); err != nil {
			return err
		}
		if slices.ContainsFunc(p.Rows[:i], func(o Row) bool { return o.label() == r.label() }) {
			return fmt.Errorf("the name %s occurs twice", r.label())
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
	case p.Messages < 0 || p.Least < 0 || p.Turns < 0:
		return errors.New("counts must not be negative")
	case p.Messages == 0 && p.Duration <= 0:
		return errors.New("the duration must be positive")
	}
	return nil
}

func (r Row) validate() error {
	t, err := find(r.Name)
	switch {
	case err != nil:
		return err
	case r.Beside && t.xdp:
		return fmt.Errorf("%s: only a transport of the kernel runs beside an XDP program", r.label())
	}
	if err := r.VI.validate(t); err != nil {
		return fmt.Errorf("%s: %w", r.label(), err)
	}
	return nil
}

// A pace sizes the rounds of a measurement, each by the speed of the one before, so
// that those that count take a given time together, or have a given number of
// messages.
type pace struct {
	duration time.Duration // of the rounds that count
	messages int           // that count, instead of duration; 0: by duration
	least    int           // messages that count at least, however long it takes
	check    bool          // verify every byte, not only those of the warm-up
	round    uint16        // the ID of the last round
}

// Warm-up of a measurement: first a few messages whose bytes are checked, then growing
// numbers until the warm-up has lasted a part of the measurement.
const (
	warmMessages = 8
	warmPart     = 6 // of the duration
)

// Each counted round of a ping-pong begins with a lead-in of uncounted messages. After
// a pause, Go's monitor thread (runtime.sysmon) wakes up fifty times, at intervals of
// 20 us and its timer's slack, before it slows down. Each time it stops a thread that
// polls on the same CPU for some 12 us. Without the lead-in this would affect more than
// one in a hundred messages of a short round.
const (
	leadMessages = 16 // at least
	leadTime     = 6 * time.Millisecond
)

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

// measure runs rounds of at most limit messages: the warm-up, and then
// those that count until the duration is over or the messages are sent. lead, which
// may be nil, gives the number of messages that lead in a round that counts, by the
// time that one takes. Without a duration the first of these rounds has fewer than it
// should: the warm-up is then the first messages alone, cold and checked, and a
// message took longer there.
func (p *pace) measure(limit int, lead func(per time.Duration) int, round func(_ Round, count bool) Span) {
	var per time.Duration // of one message
	next := func(messages int, check, count bool) time.Duration {
		p.round++
		it := Round{ID: p.round, Messages: messages, Check: check || p.check}
		if count && lead != nil {
			it.Lead = lead(per)
		}
		span := round(it, count)
		per = max(span.Wall/time.Duration(it.Lead+messages), 1)
		return span.Wall
	}
	var warm time.Duration
	warming := p.duration / warmPart
	for n := warmMessages; ; n = min(2*n, limit) {
		if warm += next(n, n == warmMessages, false); warm >= warming {
			break
		}
	}
	// However long the warm-up took, what counts has its time.
	spent := warming
	for sent := 0; !p.enough(sent, spent); {
		n := p.share(sent, spent, per, limit)
		next(n, false, true)
		spent += time.Duration(n) * per // without what led in
		sent += n
	}
}

// enough reports whether a measurement is over.
func (p *pace) enough(sent int, spent time.Duration) bool {
	if p.messages > 0 {
		return sent >= p.messages
	}
	// A rest of a few messages is not worth a round.
	return sent > 0 && sent >= p.least && spent+spent/16 >= p.duration
}

// share is the number of messages of the next round, at a cost of per each.
func (p *pace) share(sent int, spent, per time.Duration, limit int) int {
	if p.messages > 0 {
		n := max(min(limit, int(maxRoundTime/per)), min(warmMessages, limit))
		return min(n, p.messages-sent)
	}
	n := int((p.duration - spent) / per)
	if rest := p.least - sent; n < rest {
		n = min(rest, int(maxRoundTime/per))
	} else {
		n = min(n, int(min(maxRoundTime, p.duration/roundPart)/per))
	}
	return max(min(n, limit), min(warmMessages, limit))
}
