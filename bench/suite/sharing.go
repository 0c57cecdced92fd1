package suite

import (
	"fmt"
	"time"

	"viaxdp/bench"
	"viaxdp/bench/report"
	"viaxdp/internal/lab/fail"
)

// sharingGroups ask what VIs do to a bottleneck that they share with the kernel's TCP, or with each other.
var sharingGroups = []group{
	sharing("sharing-cubic", "A VI and a TCP flow of CUBIC through one bottleneck", 100*time.Second,
		sharingRow{"VI and cubic", 1, []string{"cubic"}, 0, besideTCP}),
	sharing("sharing-bbr", "A VI, and a TCP flow of CUBIC, beside one of BBR through one bottleneck", 200*time.Second,
		sharingRow{"VI and bbr", 1, []string{"bbr"}, 0, besideTCP},
		sharingRow{"cubic and bbr", 0, []string{"cubic", "bbr"}, 0, besideTCP}),
	sharing("sharing-vis", "VIs that start together, and late, through one bottleneck", 100*time.Second,
		sharingRow{"two VIs", 2, nil, 0, amongVIs},
		sharingRow{"two VIs, one late", 2, nil, lateStart, amongVIs},
		sharingRow{"ten VIs", 10, nil, 0, amongVIs},
		sharingRow{"ten VIs, one after the other", 10, nil, lateStart, amongVIs}),
	sharing("sharing-alone", "A VI alone, and VIs, through bottlenecks that drop and that mark", 70*time.Second,
		sharingRow{"VI alone", 1, nil, 0, aloneAt},
		sharingRow{"two VIs", 2, nil, 0, marking},
		sharingRow{"ten VIs", 10, nil, 0, marking}),
}

// A sharingRow is flows, and the bottlenecks that they meet.
type sharingRow struct {
	label string
	vis   int
	tcps  []string // congestion control of each TCP flow beside them
	apart time.Duration
	at    []bench.Bottleneck
}

const (
	mbit      = 1_000_000
	lateStart = 200 * time.Millisecond
	sharePath = 10 * time.Millisecond // the longer of two round trips

	shareWarm = 2 * time.Second // after the last start: a flow of CUBIC takes seconds to give way
	shareTime = 6 * time.Second
	shareMost = bench.MaxTime - 5*time.Second // with the starts of ten flows, and what is not counted, a minute
)

// Bottlenecks of a row.
var (
	besideTCP = []bench.Bottleneck{
		{Rate: 200 * mbit, Queue: 50e3}, {Rate: 200 * mbit, Queue: 150e3}, {Rate: 200 * mbit, Queue: 1e6}, {Rate: 1000 * mbit, Queue: 300e3},
		{Rate: 200 * mbit, Queue: 50e3, Trip: sharePath}, {Rate: 200 * mbit, Queue: 150e3, Trip: sharePath},
		{Rate: 200 * mbit, Queue: 1e6, Trip: sharePath}, {Rate: 1000 * mbit, Queue: 300e3, Trip: sharePath},
		{Rate: 200 * mbit, Queue: 150e3, PerFlow: true}, {Rate: 200 * mbit, Queue: 150e3, PerFlow: true, Trip: sharePath},
	}
	amongVIs = []bench.Bottleneck{{Rate: 200 * mbit, Queue: 50e3}, {Rate: 200 * mbit, Queue: 150e3}, {Rate: 200 * mbit, Queue: 1e6}}
	marking  = []bench.Bottleneck{{Rate: 200 * mbit, Queue: 1e6, Mark: 30e3}}
	aloneAt  = append([]bench.Bottleneck{
		{Rate: 10 * mbit, Queue: 150e3}, {Rate: 100 * mbit, Queue: 150e3}, {Rate: 1000 * mbit, Queue: 300e3},
		{Rate: 200 * mbit, Queue: 150e3, Trip: sharePath},
	}, marking...)
)

// shareLabel names a bottleneck.
func shareLabel(b bench.Bottleneck) string {
	label := fmt.Sprintf("%d Mbit/s, %d KB", b.Rate/mbit, b.Queue/1000)
	if b.PerFlow {
		label += " for each flow"
	}
	if b.Mark > 0 {
		label += fmt.Sprintf(", marks above %d KB", b.Mark/1000)
	}
	if b.Trip > 0 {
		label += fmt.Sprintf(", %v", b.Trip)
	}
	return label
}

// sharing makes a group of rows.
func sharing(name, title string, turn time.Duration, rows ...sharingRow) group {
	return group{long: true, name: name, title: title, turn: turn, most: shareMost, run: func(s *session) *report.Group { return s.share(rows) }}
}

const sharingNote = "Two namespaces joined through a third, whose forwarder adds the round trip (none is said: none, under 0.2 ms). The bottleneck behind it is the kernel's token bucket filter, or the forwarder itself where it adds a round trip, marks, or each flow has a queue of its own. All flows go one way through the interface that has the XDP program, without segmentation offload; all VIs are of one NIC handle, whose frames the forwarder takes for one flow. Processes sleep when they wait, and share two CPUs with the forwarder."

// share runs all rows in each turn. A quick run has the first bottleneck of each.
func (s *session) share(rows []sharingRow) *report.Group {
	warm, long, apart := shareWarm, s.longer(shareTime), time.Duration(1)
	if s.Quick {
		warm, apart = min(warm, 3*s.duration()), 20
	}
	g := &report.Group{
		Axis: report.Axis{Name: "bottleneck"},
		Notes: []string{sharingNote, fmt.Sprintf("Counted are %v, from %v after the last start. Flows that are late, or follow one after the other, start %v apart. The link is used by whole frames; content is 0.941 of those of a VI at MTU 1500. Shares and Jain's index are of content.", long, warm, lateStart/apart),
			"Frames sent again are those of the VIs, of all that they have sent. The mean queue is that of the forwarder."},
	}
	s.through(func(bed *bench.Bed) {
		s.gather(g, s.turns(), func(t *sheet) {
			for _, row := range rows {
				for x, b := range row.at {
					if s.Quick && x > 0 {
						break
					}
					label := shareLabel(b)
					s.step("%s, %s", row.label, label)
					load := bench.SharingLoad{VIs: row.vis, Apart: row.apart / apart, Warm: warm, Time: long, TCPs: row.tcps}
					r := fail.Must(bed.Share(s.ctx, b, load))
					at := t.at(row.label, float64(x))
					at.label = label
					at.shared(r, b.Forwarder())
					at.disturb(r.Disturbed)
					g.Conditions = conditionsOf(g.Conditions, r.Conditions)
				}
			}
		})
	})
	return g
}

// shared takes the figures of one turn.
func (g *gathered) shared(r *bench.SharingResult, forwarder bool) {
	g.put(report.LinkUsed, r.Used)
	if r.VIs < len(r.Rates) {
		g.put(report.FirstShare, r.Share())
	}
	if len(r.Rates) > 1 {
		g.put(report.FlowFairness, r.Jain())
	}
	if forwarder {
		g.put(report.MeanQueue, r.Queue)
	}
	if r.VIs > 0 {
		g.put(report.FlowsResent, float64(r.Resent)/float64(max(r.Sent, 1)))
	}
	g.n += int64(len(r.Rates))
}
