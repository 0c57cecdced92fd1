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
	Histogram bool          // keep histograms in the Result

	// Progress is told what comes next; may be nil.
	Progress func(Step)
	// Opening is called around the opening of endpoints that map memory on
	// hugepages; may be nil.
	Opening func(open func() error) error
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

// validate refuses what cannot be run.
func (p *Plan) validate() error {
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
