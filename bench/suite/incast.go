package suite

import (
	"fmt"
	"time"

	"viaxdp/bench"
	"viaxdp/bench/report"
	"viaxdp/internal/lab/fail"
)

// incastGroups ask what a receiver gets of several senders at the same time.
var incastGroups = []group{{
	name: report.IncastGroup, title: "One, two and four senders into one receiver",
	turn: 5 * time.Second, most: bench.MaxTime, run: runIncast,
}}

// incastRows are ours and the kernel's, both by net.Conn. There are more processes than CPUs:
// none may poll.
var incastRows = []struct {
	label string
	tcp   bool
}{{vianetRow, false}, {tcpNet, true}}

// incastSenders are the points; the first is what the others are compared with.
var incastSenders = []int{1, 2, 4}

const incastBytes = 64 << 10 // of a message

// incastTime is how long a window is at least: senders that share a CPU take turns on it,
// each for some milliseconds.
const incastTime = 300 * time.Millisecond

// runIncast measures all numbers of senders of each row in each turn.
func runIncast(s *session) *report.Group {
	g := &report.Group{
		Axis: report.Axis{Name: "senders", Log: true},
		Notes: []string{
			fmt.Sprintf("A receiver and its senders are processes in namespaces of their own, joined by a bridge. Each sender streams messages of %s as fast as it may. The receiver has a CPU for itself where there are two, and the senders share the others; all sleep when they wait.", sizeName(incastBytes)),
			"Goodput and shares are those of a time in which all senders had begun and none had ended, its ratio is to that of one sender in the same turn, and fairness is Jain's index of the senders' shares: 1 where they are alike, 1/n where one of n has all.",
			"Frames sent again are those of all that the senders have sent (TCP: segments). Frames dropped are those that an interface, the XDP program or the receiver's socket has counted; an interface's may be counted twice, and TCP's are longer than a segment. Frames lost without a name were sent, and neither came nor were counted. That every message came is part of the measurement.",
			"TCP has the path to itself, without an XDP program and with segmentation offload.",
		},
	}
	n := fail.Must(bench.OpenIncast(bench.IncastConfig{Senders: incastSenders[len(incastSenders)-1], BedConfig: s.bedConfig(s.mtu())}))
	defer n.Close()
	g = s.gather(g, s.turns(), func(t *sheet) {
		for _, row := range incastRows {
			base := 0.
			for _, senders := range incastSenders {
				s.step("%s, senders: %d", row.label, senders)
				r := fail.Must(n.Stream(s.ctx, bench.IncastLoad{TCP: row.tcp, Senders: senders, Bytes: incastBytes, Duration: s.longer(incastTime)}))
				if senders == incastSenders[0] {
					base = r.MBps
				}
				at := t.at(row.label, float64(senders))
				at.incast(r, base, row.tcp)
				at.disturb(r.Disturbed)
			}
		}
	})
	g.Conditions = n.Conditions()
	return g
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
