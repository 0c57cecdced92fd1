package suite

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"viaxdp/bench"
	"viaxdp/bench/report"
	"viaxdp/internal/lab/fail"
)

// loadGroups ask how latency grows with load.
var loadGroups = []group{{
	name: "load", title: "Latency at an offered rate",
	turn: 8 * time.Second, most: bench.MaxLoadTime, run: runLoad,
}}

// loadTime is how long a load lasts at least: long enough for its p99.9 to be that of many
// messages, at a tenth of the highest rate, too.
const loadTime = 250 * time.Millisecond

// closedLoops is how many closed loops are measured; the fastest counts.
const closedLoops = 3

// loadBytes is the length of the messages.
const loadBytes = 64

// loaded are the rows of the group.
var loaded = []struct {
	transport string
	poisson   bool
}{
	{delivery, false}, {delivery, true}, {tcpSpin, false},
}

const poissonSuffix = ", random times"

// shares are the rates that are offered, as shares of the highest rate of a
// closed loop.
func shares(quick bool) []float64 {
	if quick {
		return []float64{0.5, 1.2}
	}
	return []float64{0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 1, 1.2}
}

// rateSteps is how many rates there are within a factor of ten: the steps are
// 6 %, less than those between two shares.
const rateSteps = 40

// offered rounds a rate to the nearest of a fixed series of rates, so that figures of
// different runs can be compared.
func offered(rate float64) float64 {
	step := math.Pow(10, math.Round(math.Log10(rate)*rateSteps)/rateSteps)
	digits := math.Pow(10, math.Floor(math.Log10(step))-2) // three are kept
	return math.Round(math.Round(step/digits) * digits)
}

// leastRate is the lowest rate that is offered: some messages are due, however
// short the time.
const leastRate = 1000

// sustained is the share of the messages that were due from which on a rate counts as reached.
const sustained = 0.99

// runLoad measures the highest rate of each transport in a closed loop, and then
// open loops at shares of it, in turns.
func runLoad(s *session) *report.Group {
	g := &report.Group{
		Axis: report.Axis{Name: "offered rate", Unit: "messages/s", Log: true},
		Notes: []string{
			fmt.Sprintf("Open loop: messages of %d bytes are due at equal intervals, or (\"%s\") at random times independent of each other, and echoed by the other side. Latency is the whole time from when a message was due, not from when it was sent, until its echo was there: a stall shows in all messages behind it.", loadBytes, strings.TrimPrefix(poissonSuffix, ", ")),
			fmt.Sprintf("Rates are shares of what a closed loop of %d messages reached at the beginning, in the best of three tries, rounded to steps of 6 %%. The message rate is that of echoes; at random times, more or fewer messages than the offered rate may be due. A rate was not sustained if less than 99 %% of what was due had its echo when the time was over: messages waited longer and longer, those never sent included.", bench.LoadWindow),
			fmt.Sprintf("A VI has at most %d messages under way, for which the peer has receives; TCP as many as its buffers hold. Messages that are due together go over TCP with one system call and to a VI as lists of up to 16 descriptors.", bench.LoadWindow),
			loneKernelPair,
		},
	}
	highest, long := s.highest(g), max(s.longer(loadTime), bench.MinLoadTime)
	g = s.gather(g, s.turns(), func(t *sheet) {
		for _, row := range loaded {
			s.with(g, row.transport, bench.MaxLoadBytes, func(at *bench.Session) {
				label := row.transport
				if row.poisson {
					label += poissonSuffix
				}
				// Warm up the session before it counts.
				fail.Must(at.Load(s.ctx, closedLoop(s.duration()/4)))
				for _, rate := range rates(highest[row.transport], shares(s.Quick)) {
					s.step("%s, %.0f messages/s", label, rate)
					t.load(label, rate, fail.Must(at.Load(s.ctx, bench.Load{
						Bytes: loadBytes, Rate: rate, Poisson: row.poisson, Seed: uint64(t.turn), Duration: long,
					})))
				}
			})
		}
	})
	g.Notes = append(g.Notes, unsustained(g, long)...)
	return g
}

// closedLoop keeps the largest number of messages under way.
func closedLoop(d time.Duration) bench.Load {
	return bench.Load{Bytes: loadBytes, Duration: max(d, bench.MinLoadTime)}
}

// highest measures the rate of a closed loop of each transport, and notes it.
func (s *session) highest(g *report.Group) map[string]float64 {
	highest := map[string]float64{}
	for _, row := range loaded {
		if _, known := highest[row.transport]; known {
			continue
		}
		s.step("%s, closed loop", row.transport)
		s.with(g, row.transport, bench.MaxLoadBytes, func(at *bench.Session) {
			fail.Must(at.Load(s.ctx, closedLoop(s.duration()/4)))
			for range closedLoops {
				r := fail.Must(at.Load(s.ctx, closedLoop(max(s.duration(), QuickDuration))))
				highest[row.transport] = max(highest[row.transport], r.Achieved)
			}
		})
		g.Notes = append(g.Notes, fmt.Sprintf("%s: %.0f messages/s in a closed loop.", row.transport, highest[row.transport]))
	}
	return highest
}

// rates are the shares of a rate, each once.
func rates(highest float64, shares []float64) []float64 {
	var all []float64
	for _, share := range shares {
		all = append(all, offered(max(share*highest, leastRate)))
	}
	return slices.Compact(all)
}

// load takes the figures of one load.
func (t *sheet) load(label string, rate float64, r *bench.LoadResult) {
	p := t.at(label, rate)
	p.times(r.RoundTrips, micro)
	p.put(report.Rate, r.Achieved)
	p.put(report.CPUTx, r.CPUTx)
	p.put(report.CPURx, r.CPURx)
	p.put(report.Outstanding, float64(r.Outstanding))
	p.disturb(r.Disturbed)
}

// unsustained says which rates were not reached by loads of a length. What was due, and not the offered rate, is what
// counts: at random times, it differs from the offered rate by several percent where only some hundreds are due.
func unsustained(g *report.Group, long time.Duration) []string {
	var notes []string
	for _, row := range g.Series {
		for _, p := range row.Points {
			got, left := p.Values[report.Rate].Median, p.Values[report.Outstanding].Median
			if due := got + left/long.Seconds(); got < sustained*due {
				notes = append(notes, fmt.Sprintf("%s: %.0f messages/s were not sustained (%.0f; %.0f outstanding at the end).", row.Name, p.X, got, left))
			}
		}
	}
	return notes
}
