package report

import (
	"math"
	"slices"
	"strconv"
)

// quantity is how a metric is shown.
type quantity struct {
	metric Metric
	column string  // in tables, as perftest calls it
	title  string  // in documents and plots
	unit   string  // in documents and plots
	per    float64 // metric's unit in one of unit
	digits int     // behind the point in tables
	more   bool    // is better
}

// family is what one table or plot shows.
type family struct {
	name    string // of its plot; "" for none
	metrics []quantity
	leads   []Metric // the first that a group has is the one that it is about; none: each stands by itself, and has its ratio to the base
}

// families are all metrics in the order in which they are shown.
var families = []family{
	{name: "latency", leads: []Metric{P50, P99, P999, Min}, metrics: []quantity{
		{Min, "t_min[usec]", "Least latency of a turn", "us", 1, 2, false},
		{Max, "t_max[usec]", "Greatest latency of a turn", "us", 1, 2, false},
		{P50, "t_typical[usec]", "Median latency", "us", 1, 2, false},
		{Mean, "t_avg[usec]", "Mean latency", "us", 1, 2, false},
		{Stdev, "t_stdev[usec]", "Standard deviation of the latency", "us", 1, 2, false},
		{P99, "99% percentile[usec]", "99 % latency", "us", 1, 2, false},
		{P999, "99.9% percentile[usec]", "99.9 % latency", "us", 1, 2, false},
	}},
	{name: "bandwidth", leads: []Metric{Bandwidth, Rate, CPUTx, CPURx}, metrics: []quantity{
		{Peak, "BW peak[MB/sec]", "Bandwidth of the best round", "MB/s", 1, 2, true},
		{Bandwidth, "BW average[MB/sec]", "Bandwidth", "MB/s", 1, 2, true},
		{Rate, "MsgRate[Mpps]", "Messages", "million/s", 1e6, 6, true},
		{CPUTx, "cpu tx[usec]", "CPU time of the sender a message", "us", 1, 3, false},
		{CPURx, "cpu rx[usec]", "CPU time of the receiver a message", "us", 1, 3, false},
		{Outstanding, "outstanding", "Messages outstanding at the end", "", 1, 0, false},
	}},
	{name: "operation", leads: []Metric{Operation}, metrics: []quantity{
		{Operation, "t_typical[usec]", "Time of an operation", "us", 1, 2, false},
	}},
	{name: "goodput", leads: []Metric{GoodputRatio, SendersRatio}, metrics: []quantity{
		{GoodputRatio, "goodput", "Goodput by that without a fault", "", 1, 3, true},
		{FaultRatio, "frames hit[%]", "Frames that met the fault", "%", 0.01, 2, false},
		{SendersRatio, "goodput", "Goodput by that of one sender", "", 1, 3, true},
		{Fairness, "fairness", "Jain's index of the senders' shares", "", 1, 3, true},
		{LeastShare, "least/most", "Least share of a sender by the greatest", "", 1, 3, true},
		{ResentRatio, "resent[%]", "Frames sent again", "%", 0.01, 2, false},
		{SpuriousRatio, "spurious[%]", "Frames sent again that had arrived", "%", 0.01, 2, false},
		{DroppedRatio, "dropped[%]", "Frames dropped by name", "%", 0.01, 2, false},
		{Unnamed, "unnamed", "Frames lost without a name", "", 1, 0, false},
	}},
	{name: "fabric", metrics: []quantity{
		{LinkUsed, "link used", "Share of the link that is used", "", 1, 3, true},
		{FirstShare, "first's share", "Share of the flows named first in what all flows carry", "", 1, 3, true},
		{FlowFairness, "fairness", "Jain's index of all flows", "", 1, 3, true},
		{SlowdownP50, "slowdown p50", "Median slowdown", "", 1, 2, false},
		{SlowdownP99, "slowdown p99", "99 % slowdown", "", 1, 2, false},
		{MeanQueue, "queue[KB]", "Mean queue", "KB", 1000, 1, false},
		{FlowsResent, "resent[%]", "Frames of VIs sent again", "%", 0.01, 2, false},
		{FlowTimeouts, "timeouts", "Retransmission timeouts", "", 1, 0, false},
		{Recovery, "recovered[usec]", "Time until flows have recovered", "us", 1, 0, false},
	}},
	{name: "osu", metrics: []quantity{
		{OSULatency, "Latency (us)", "Latency (osu_latency)", "us", 1, 2, false},
		{OSUBandwidth, "Bandwidth (MB/s)", "Bandwidth (osu_bw)", "MB/s", 1, 2, true},
		{OSUBothWays, "Bi-dir. (MB/s)", "Bandwidth both ways (osu_bibw)", "MB/s", 1, 2, true},
		{OSUPairs, "mbw_mr MB/s", "Bandwidth of all pairs (osu_mbw_mr)", "MB/s", 1, 2, true},
		{OSUPairsRate, "Messages/s", "Messages of all pairs (osu_mbw_mr)", "1/s", 1, 0, true},
		{OSUAllReduce, "Allreduce (us)", "Time of an operation (osu_allreduce)", "us", 1, 2, false},
		{OSUAllToAll, "Alltoall (us)", "Time of an operation (osu_alltoall)", "us", 1, 2, false},
	}},
}

// quantities are those of all families.
var quantities = func() (all []quantity) {
	for _, f := range families {
		all = append(all, f.metrics...)
	}
	return all
}()

// aside are metrics that tables and reports have, and documents, which are long
// enough, have not.
var aside = []Metric{Max, Mean, Stdev, Peak}

// quantityOf is how a metric of this package is shown.
func quantityOf(m Metric) quantity {
	return *first(quantities, func(q *quantity) bool { return q.metric == m })
}

// Lower reports whether less of a metric is better.
func (m Metric) Lower() bool {
	return !slices.ContainsFunc(quantities, func(q quantity) bool { return q.metric == m && q.more })
}

// known reports whether the metric is one of this package.
func (m Metric) known() bool {
	return slices.ContainsFunc(quantities, func(q quantity) bool { return q.metric == m })
}

// heading is title and unit, as far as there are any.
func (q quantity) heading() string {
	if q.unit == "" {
		return q.title
	}
	return q.title + ", " + q.unit
}

// latency reports whether a metric is a time that a message takes.
func (m Metric) latency() bool {
	return slices.ContainsFunc(families[0].metrics, func(q quantity) bool { return q.metric == m })
}

// peers reports whether each metric of the family stands by itself.
func (f family) peers() bool { return f.leads == nil }

// nameOf is what the plot of one of its metrics is called.
func (f family) nameOf(m Metric) string {
	if f.peers() {
		return string(m)
	}
	return f.name
}

// drawn are the metrics of a family that a group has a table in documents and a plot of each.
func (f family) drawn(g *Group) (list []Metric) {
	if !f.peers() {
		if i := slices.IndexFunc(f.leads, g.has); i >= 0 {
			return f.leads[i : i+1]
		}
		return nil
	}
	for _, q := range f.metrics {
		if g.has(q.metric) {
			list = append(list, q.metric)
		}
	}
	return list
}

// has reports whether any point of the group has a figure for a metric.
func (g *Group) has(m Metric) bool {
	for c := range g.cells() {
		if finite(c.median(m)) {
			return true
		}
	}
	return false
}

// median is a point's figure for a metric, NaN when there is none.
func (p *Point) median(m Metric) float64 {
	if v, ok := p.Values[m]; ok {
		return v.Median
	}
	return math.NaN()
}

// Range is the least and the greatest of the turns, the median where no turns
// were kept, and NaN where there is nothing.
func (v Value) Range() (lo, hi float64) {
	lo, hi = math.Inf(1), math.Inf(-1)
	for _, t := range v.Turns {
		if finite(t) {
			lo, hi = min(lo, t), max(hi, t)
		}
	}
	if lo > hi {
		return v.Median, v.Median
	}
	return lo, hi
}

// fixed is a figure with a number of digits behind the point.
func fixed(v float64, digits int) string {
	switch {
	case !finite(v):
		return "-"
	case math.Abs(v) >= 1e15:
		return strconv.FormatFloat(v, 'g', 4, 64)
	}
	return strconv.FormatFloat(v, 'f', digits, 64)
}

// round is a figure with three digits or a few more, as people read it.
func round(v float64) string {
	switch a := math.Abs(v); {
	case a != 0 && a < 0.00995:
		return strconv.FormatFloat(v, 'g', 3, 64)
	case a != 0 && a < 0.0995:
		return fixed(v, 4)
	case a < 0.995:
		return fixed(v, 3)
	case a < 99.5:
		return fixed(v, 2)
	case a < 999.5:
		return fixed(v, 1)
	}
	return fixed(v, 0)
}

// plain is an X: all of a whole number, three digits of others.
func plain(x float64) string {
	if x == math.Trunc(x) {
		return fixed(x, 0)
	}
	return round(x)
}

func percent(v float64) string {
	if !finite(v) {
		return "-"
	}
	return fixed(100*v, 1) + "%"
}

// InBytes is a size as people write it.
func InBytes(x float64) string {
	unit := 0
	for ; unit < 3 && x >= 1024 && math.Mod(x, 1024) == 0; unit++ {
		x /= 1024
	}
	return plain(x) + []string{" B", " KiB", " MiB", " GiB"}[unit]
}
