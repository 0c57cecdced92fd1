package peers

import (
	"errors"
	"fmt"
	"math"
	"strings"
)

// Figures are what a program has found. A program tells some of them; the
// others are 0.
type Figures struct {
	N int64 // messages that were timed: round trips, or messages of a stream

	// One way, in microseconds.
	Min, Mean, P50, P99, P999 float64

	MBps     float64 // content in 10^6 bytes a second
	Messages float64 // a second

	Disturbed []string // why the figures are doubtful; nil: they are not
}

// check refuses figures that no measurement can have.
func (f Figures) check() error {
	some := false
	for _, v := range []float64{f.Min, f.Mean, f.P50, f.P99, f.P999, f.MBps, f.Messages} {
		if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
			return fmt.Errorf("a figure of %v", v)
		}
		some = some || v > 0
	}
	switch {
	case !some:
		return errors.New("all figures are 0")
	case f.N < 1:
		return fmt.Errorf("%d messages were measured", f.N)
	}
	return nil
}

// checked is f, or the reason that it cannot be.
func (f Figures) checked() (Figures, error) {
	if err := f.check(); err != nil {
		return Figures{}, err
	}
	return f, nil
}

// unreadable is the error of a parser that does not find what it looks for in
// what a program has printed: a complaint of the program if there is one.
func unreadable(out, what string) error {
	if line := complaintIn(out); line != "" {
		return errors.New(line)
	}
	if last := lastLine(out); last != "" {
		return fmt.Errorf("its output has no %s, and ends: %s", what, last)
	}
	return fmt.Errorf("its output has no %s: it is empty", what)
}

// complaintIn is the first line of a program's output that tells of a failure;
// empty: there is none.
func complaintIn(out string) string {
	for line := range strings.Lines(out) {
		if strings.Contains(strings.ToLower(line), "error") || saysNothingFound(line) {
			return strings.TrimSpace(line)
		}
	}
	return ""
}

// saysNothingFound knows sockperf's "No valid observations found. Try tune
// parameters".
func saysNothingFound(out string) bool {
	return strings.Contains(strings.ToLower(out), "no valid observations")
}

// lastLine is the last line of a text that is not blank.
func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return strings.TrimSpace(text[strings.LastIndexByte(text, '\n')+1:])
}
