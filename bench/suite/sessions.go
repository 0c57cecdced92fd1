package suite

import (
	"fmt"

	"github.com/HdrHistogram/hdrhistogram-go"

	"viaxdp/bench"
	"viaxdp/bench/report"
)

// inTurns opens each of the transports in each turn, and has f measure it. What
// the sessions tell of the conditions goes into g.
func (s *session) inTurns(
	g *report.Group, transports []string, maxBytes int, f func(turn int, transport string, at *bench.Session) error,
) error {
	for turn := 1; turn <= s.turns(); turn++ {
		for _, name := range transports {
			err := s.with(g, name, maxBytes, func(at *bench.Session) error { return f(turn, name, at) })
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// with opens a transport for f on the session's bed.
func (s *session) with(g *report.Group, name string, maxBytes int, f func(*bench.Session) error) error {
	bed, err := s.bed(s.mtu())
	if err != nil {
		return err
	}
	client, server := bed.Workers()
	return bed.Do(s.ctx, func() error {
		at, err := bench.OpenSession(s.ctx, client, server, name, maxBytes, bed.Opening)
		if err == nil {
			err = f(at)
		}
		if err == nil {
			err = at.Close(s.ctx)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		g.Conditions = conditionsOf(g.Conditions, at.Conditions())
		return nil
	})
}

// leastP999 is how many messages must have been measured for the slowest
// thousandth to be one of them.
const leastP999 = 1000

// times takes the times of a turn in nanoseconds; us makes of each what is
// reported, in microseconds.
func (g *gathered) times(h *hdrhistogram.Histogram, us func(ns int64) float64) {
	g.put(report.Min, us(h.Min()))
	g.put(report.Max, us(h.Max()))
	g.put(report.P50, us(h.ValueAtQuantile(50)))
	g.put(report.Mean, us(int64(h.Mean())))
	g.put(report.Stdev, us(int64(h.StdDev())))
	g.put(report.P99, us(h.ValueAtQuantile(99)))
	if h.TotalCount() >= leastP999 {
		g.put(report.P999, us(h.ValueAtQuantile(99.9)))
	}
	g.n += h.TotalCount()
	g.histograms = append(g.histograms, h)
}

// micro is a time in nanoseconds, in microseconds.
func micro(ns int64) float64 { return float64(ns) / 1e3 }
