package suite

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"viaxdp/bench"
	"viaxdp/bench/report"
)

// queueGroups ask how much more several queues of a NIC carry than one.
var queueGroups = []group{{
	name: "queues", title: "One, two and four queues with as many VIs",
	cost: func(s *session) time.Duration {
		measured := time.Duration(len(queueCounts) * len(queueSizes(s.Quick))) // with a warm-up, a sixth of each
		return time.Duration(s.turns()) * (measured*queueTime(s)*7/6 + time.Duration(len(queueCounts))*3*openingTime)
	},
	run: runQueues,
}}

// queueCounts are the points; the first is what the others are compared with.
var queueCounts = []int{1, 2, 4}

func queueSizes(quick bool) []int { return fewer(quick, []int{64, 1024, 16384}, 64, 1024) }

// queueTime is how long a stream lasts: with more queues than CPUs their threads take
// turns, each for some milliseconds.
func queueTime(s *session) time.Duration {
	if s.Quick {
		return s.duration()
	}
	return max(s.duration(), 250*time.Millisecond)
}

// runQueues measures all numbers of queues in each turn, on a pair of their own.
func runQueues(s *session) (*report.Group, error) {
	g := &report.Group{Axis: report.Axis{Name: "queues", Log: true}}
	// The bed's workers sleep; it allows for hugepages.
	bed, err := s.bed(s.mtu())
	if err != nil {
		return nil, err
	}
	t := newSheet(nil)
	cpus := 0
	for turn := 1; turn <= s.turns(); turn++ {
		base := map[int]float64{} // of a size, a second
		for _, n := range queueCounts {
			var spread *bench.Spread
			err := bed.Opening(func() (err error) {
				spread, err = bench.OpenSpread(bench.SpreadConfig{Queues: n, MTU: s.mtu(), Hugepages: s.Hugepages})
				return err
			})
			if spread != nil {
				if err == nil {
					g.Conditions, cpus = spread.Conditions(), max(cpus, spread.CPUs())
					err = s.spread(t, spread, n, turn, base)
				}
				err = errors.Join(err, spread.Close())
			}
			if err != nil {
				return nil, fmt.Errorf("%d queues: %w", n, err)
			}
		}
	}
	g.Notes = []string{
		"Reliable Delivery one way, descriptors in lists of 16. Each queue of the pair has a VI at either end and one thread that drives both ends, pinned to a CPU: a queue keeps one CPU busy.",
		fmt.Sprintf("The efficiency is the rate by that of one queue, and by the CPUs that took part: as many as queues, but no more than %d here.", cpus),
		"Native mode: a veth pair forgets the queue's number in generic mode.",
	}
	if cpus < slices.Max(queueCounts) {
		g.Notes = append(g.Notes, fmt.Sprintf("With more than %d queues the threads of several take turns on a CPU.", cpus))
	}
	return g, t.fill(g, s.at.Group, s.Out)
}

// spread measures the streams over so many queues in one turn.
func (s *session) spread(t *sheet, spread *bench.Spread, n, turn int, base map[int]float64) error {
	for _, bytes := range queueSizes(s.Quick) {
		s.step("%d queues, %s (turn %d of %d)", n, sizeName(bytes), turn, s.turns())
		r, err := spread.Stream(s.ctx, bytes, queueTime(s))
		if err != nil {
			return fmt.Errorf("%s: %w", sizeName(bytes), err)
		}
		if n == queueCounts[0] {
			base[bytes] = r.PerSecond
		}
		p := t.at(sizeName(bytes), float64(n))
		p.put(report.Rate, r.PerSecond)
		p.put(report.Bandwidth, r.PerSecond*float64(bytes)/1e6)
		p.put(report.QueueEfficiency, r.PerSecond/base[bytes]/float64(spread.CPUs()))
		p.n += r.Messages
		p.disturb(turn, r.Disturbed)
	}
	return nil
}
