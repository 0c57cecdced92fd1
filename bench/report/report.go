package report

import (
	"fmt"
	"iter"
	"math"
	"slices"
	"time"

	"viaxdp/bench"
)

// Version of the file format. A reader refuses others.
const Version = 1

// Report is what one run of the suite has found.
type Report struct {
	Version int       `json:"version"`
	Started time.Time `json:"started"`
	Took    float64   `json:"took_s"`
	Command string    `json:"command"` // measures the same again
	Turns   int       `json:"turns"`   // times that all rows of a group were gone through
	Groups  []Group   `json:"groups"`
}

// Group is one question that the suite asks, as a table and a plot answer it.
type Group struct {
	Name   string   `json:"name"`            // as on the command line
	Title  string   `json:"title"`           // one line
	Axis   Axis     `json:"axis"`            // what X of its points is
	Series []Series `json:"series"`          // rows, in the order of the report
	Base   string   `json:"base,omitempty"`  // series that the others are compared with
	Notes  []string `json:"notes,omitempty"` // what a reader must know to read the figures right
	// Conditions are those of the group: MTU and mode differ between groups.
	Conditions bench.Conditions `json:"conditions"`
	// Renewed is when the group was measured again, in a run of its own; zero: it was not.
	Renewed time.Time `json:"renewed,omitzero"`
}

// Axis is what varies along a series.
type Axis struct {
	Name string `json:"name"` // "message size", "open VIs", "segments", "offered rate"; "" for single points
	Unit string `json:"unit"` // "bytes", "", "messages/s"
	Log  bool   `json:"log"`
}

// Series is one row of a table, one line of a plot.
type Series struct {
	Name   string  `json:"name"`
	Points []Point `json:"points"`
}

// Point is one measurement: all turns of one row at one X.
type Point struct {
	X float64 `json:"x"`
	// Label stands for X where X is only an index ("create VI").
	Label  string           `json:"label,omitempty"`
	Values map[Metric]Value `json:"values"`
	N      int64            `json:"n"` // messages or operations measured
	// Disturbed says why the point is doubtful; empty: it is not. Disturbed
	// points are reported and marked.
	Disturbed []string `json:"disturbed,omitempty"`
	// Histogram is the file with the point's HdrHistograms, one for each turn, of
	// round trips or operations in nanoseconds, relative to the report; empty:
	// none was kept. SaveHistograms writes it.
	Histogram string `json:"histogram,omitempty"`
}

// Metric names a figure with its unit.
type Metric string

// The metrics. Latencies are one way, half of a round trip, unless the
// group's notes say otherwise.
const (
	Min       Metric = "min_us"
	P50       Metric = "p50_us"
	P99       Metric = "p99_us"
	P999      Metric = "p999_us"
	Max       Metric = "max_us"
	Mean      Metric = "avg_us"
	Stdev     Metric = "stdev_us"
	Rate      Metric = "msgs_per_s"
	Bandwidth Metric = "MBps"      // 10^6 bytes of content a second
	Peak      Metric = "peak_MBps" // the same, in the best of the rounds that a measurement consists of
	CPUTx     Metric = "cpu_tx_us" // CPU time of the sender's process a message
	CPURx     Metric = "cpu_rx_us" // CPU time of the receiver's process a message
	Operation Metric = "op_us"     // time of one operation that moves no data
	// Of an open loop: messages that were due and had no echo when the time was over.
	Outstanding Metric = "outstanding"
	// Of a stream under a fault: goodput relative to that without one; frames hit by the
	// fault, frames resent, and frames resent needlessly, relative to all frames sent.
	GoodputRatio  Metric = "goodput_ratio"
	FaultRatio    Metric = "fault_ratio"
	ResentRatio   Metric = "resent_ratio"
	SpuriousRatio Metric = "spurious_ratio"
	// Of several senders into one receiver: goodput relative to that of one; Jain's index
	// of their shares; the least share relative to the greatest; frames counted as
	// dropped, relative to all frames sent; frames that are missing although no counter
	// has them.
	SendersRatio Metric = "senders_ratio"
	Fairness     Metric = "fairness"
	LeastShare   Metric = "least_share"
	DroppedRatio Metric = "dropped_ratio"
	Unnamed      Metric = "unnamed_frames"
	// Of flows in a network: used share of a link; share of VIs beside TCP; Jain's index of all flows; mean queue in
	// bytes; time of a flow by that in an empty network; frames of VIs sent again, relative to all that they sent;
	// retransmission timeouts of all flows; time until flows go on after a failure.
	LinkUsed     Metric = "link_used"
	FirstShare   Metric = "first_share"
	FlowFairness Metric = "flow_fairness"
	MeanQueue    Metric = "mean_queue_bytes"
	SlowdownP50  Metric = "slowdown_p50"
	SlowdownP99  Metric = "slowdown_p99"
	FlowsResent  Metric = "flows_resent_ratio"
	FlowTimeouts Metric = "timeouts"
	Recovery     Metric = "recovery_us"
	// Of Ohio State University's benchmarks of MPI, each a figure of its own.
	OSULatency   Metric = "osu_latency_us"
	OSUBandwidth Metric = "osu_bw_MBps"
	OSUBothWays  Metric = "osu_bibw_MBps"
	OSUPairs     Metric = "osu_mbw_mr_MBps"
	OSUPairsRate Metric = "osu_mbw_mr_msgs_per_s"
	OSUAllReduce Metric = "osu_allreduce_us"
	OSUAllToAll  Metric = "osu_alltoall_us"
)

// Value is one figure over the turns of a run. Where there is none, the median is
// NaN, which JSON has as null.
type Value struct {
	Median float64   `json:"median"`
	Turns  []float64 `json:"turns"`
}

// ValueOf summarises one figure of each turn; the median of an even number is
// the mean of the middle two.
func ValueOf(turns []float64) Value {
	v := slices.Sorted(slices.Values(turns))
	if len(v) == 0 {
		return Value{Median: math.NaN()}
	}
	n := len(v)
	return Value{Median: (v[(n-1)/2] + v[n/2]) / 2, Turns: slices.Clone(turns)}
}

// Spread is how far the turns lie apart: greatest less least, by the median. 0 for a single turn.
func (v Value) Spread() float64 {
	if len(v.Turns) == 0 || v.Median == 0 {
		return 0
	}
	return (slices.Max(v.Turns) - slices.Min(v.Turns)) / v.Median
}

// each yields the elements themselves, and no copies of them.
func each[T any](list []T) iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for i := range list {
			if !yield(&list[i]) {
				return
			}
		}
	}
}

// first returns the first element that satisfies the condition, or nil.
func first[T any](list []T, is func(*T) bool) *T {
	for e := range each(list) {
		if is(e) {
			return e
		}
	}
	return nil
}

// Group finds a group by its name, or returns nil.
func (r *Report) Group(name string) *Group {
	return first(r.Groups, func(g *Group) bool { return g.Name == name })
}

// Row finds a series by its name, or returns nil.
func (g *Group) Row(name string) *Series {
	return first(g.Series, func(s *Series) bool { return s.Name == name })
}

// At finds a point by its X, or returns nil.
func (s *Series) At(x float64) *Point {
	return first(s.Points, func(p *Point) bool { return p.X == x })
}

// Renewable reports whether groups of that many turns may take the place of r's.
func (r *Report) Renewable(turns int) error {
	if turns != r.Turns {
		return fmt.Errorf("the report is of %d turns, and groups that are measured again have to be of as many, not %d", r.Turns, turns)
	}
	return nil
}

// Renew puts the groups of a later run in the place of r's, or behind them.
func (r *Report) Renew(by *Report) {
	for _, g := range by.Groups {
		g.Renewed = by.Started
		if old := r.Group(g.Name); old != nil {
			*old = g
		} else {
			r.Groups = append(r.Groups, g)
		}
	}
}
