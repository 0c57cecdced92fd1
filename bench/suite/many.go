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
	cpus := 0
	g, err = s.gather(g, s.turns(), func(t *sheet, turn int) error {
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
				return fmt.Errorf("%d queues: %w", n, err)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	g.Notes = []string{
		"Reliable Delivery one way, descriptors in lists of 16. Each queue of the pair has a VI at either end and one thread that drives both ends, pinned to a CPU: a queue keeps one CPU busy.",
		fmt.Sprintf("The efficiency is the rate by that of one queue, and by the CPUs that took part: as many as queues, but no more than %d here.", cpus),
		"Native mode: a veth pair forgets the queue's number in generic mode.",
	}
	if cpus < slices.Max(queueCounts) {
		g.Notes = append(g.Notes, fmt.Sprintf("With more than %d queues the threads of several take turns on a CPU.", cpus))
	}
	return g, nil
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

// incastGroups ask what a receiver gets of several senders at the same time.
var incastGroups = []group{{
	name: report.IncastGroup, title: "One, two and four senders into one receiver",
	cost: func(s *session) time.Duration {
		streams := len(incastRows) * len(incastSenders)
		return time.Duration(s.turns()*streams) * (incastTime(s)*7/6 + 3*openingTime)
	},
	run: runIncast,
}}

// incastRows are ours and the kernel's. There are more processes than CPUs: none may poll.
var incastRows = []struct {
	label string
	tcp   bool
}{{waiting, false}, {tcpBlock, true}}

// incastSenders are the points; the first is what the others are compared with.
var incastSenders = []int{1, 2, 4}

const incastBytes = 64 << 10 // of a message

// incastTime is how long a window is: senders that share a CPU take turns on it, each for
// some milliseconds.
func incastTime(s *session) time.Duration {
	if s.Quick {
		return s.duration()
	}
	return max(s.duration(), 300*time.Millisecond)
}

// runIncast measures all numbers of senders of each row in each turn.
func runIncast(s *session) (_ *report.Group, err error) {
	g := &report.Group{
		Axis: report.Axis{Name: "senders", Log: true},
		Notes: []string{
			fmt.Sprintf("A receiver and its senders are processes in namespaces of their own, joined by a bridge. Each sender streams messages of %s as fast as it may. The receiver has a CPU for itself where there are two, and the senders share the others; all sleep when they wait.", sizeName(incastBytes)),
			"Goodput and shares are those of a time in which all senders had begun and none had ended, its ratio is to that of one sender in the same turn, and fairness is Jain's index of the senders' shares: 1 where they are alike, 1/n where one of n has all.",
			"Frames sent again are those of all that the senders have sent (TCP: segments). Frames dropped are those that an interface, the program or the receiver's socket has counted; an interface's may be counted twice, and TCP's are longer than a segment. Frames lost without a name were sent, and neither came nor were counted. That every message came is part of the measurement.",
			"TCP has the path to itself, without an XDP program and with segmentation offload.",
		},
	}
	// The bed's workers sleep; it allows for hugepages.
	bed, err := s.bed(s.mtu())
	if err != nil {
		return nil, err
	}
	n, err := bench.OpenIncast(bench.IncastConfig{
		Senders: incastSenders[len(incastSenders)-1], BedConfig: s.bedConfig(s.mtu()), Opening: bed.Opening,
	})
	if err != nil {
		return nil, err
	}
	defer n.Close()
	g, err = s.gather(g, s.turns(), func(t *sheet, turn int) error {
		for _, row := range incastRows {
			base := 0.
			for _, senders := range incastSenders {
				s.step("%s, senders: %d (turn %d of %d)", row.label, senders, turn, s.turns())
				r, err := n.Stream(s.ctx, bench.IncastLoad{TCP: row.tcp, Senders: senders, Bytes: incastBytes, Duration: incastTime(s)})
				if err != nil {
					return fmt.Errorf("%s, senders: %d: %w", row.label, senders, err)
				}
				if senders == incastSenders[0] {
					base = r.MBps
				}
				at := t.at(row.label, float64(senders))
				at.incast(r, base, row.tcp)
				at.disturb(turn, r.Disturbed)
			}
		}
		return nil
	})
	if err == nil {
		g.Conditions = n.Conditions()
	}
	return g, err
}

// incast takes the figures of one turn. base is the goodput of one sender.
func (g *gathered) incast(r *bench.IncastResult, base float64, tcp bool) {
	g.put(report.Bandwidth, r.MBps)
	g.put(report.SendersRatio, r.MBps/base)
	g.put(report.Fairness, r.Fairness())
	g.put(report.LeastShare, r.LeastShare())
	sent := float64(max(r.Frames, 1))
	g.put(report.ResentRatio, float64(r.Resent)/sent)
	g.put(report.DroppedRatio, float64(r.Dropped)/sent)
	if !tcp {
		g.put(report.Unnamed, float64(r.Unnamed))
	}
	for _, n := range r.Messages {
		g.n += n
	}
}
