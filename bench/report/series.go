package report

import (
	"cmp"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"
)

const delivery = "vi-reliable-delivery"

var (
	// rivals are prefixes of the names of series that measure the kernel's TCP or other people's programs.
	rivals = []string{
		"tcp", "net/http over TCP", "TCP, no proxy", "two proxies, TCP between",
		"sockperf", "iperf3", "fi_", "ucx_", "mpich", "openmpi-tcp",
	}
	// uncompared are prefixes of the names of all other series that are not via-xdp's: AF_XDP rings without a VI, the
	// kernel's UDP, and via-xdp with a setting that it would not choose.
	uncompared = []string{"raw-", "asavie-", "udp", "mvich-"}
)

// isRival reports whether a series measures the kernel's TCP or another program. A program over via-xdp's libfabric provider
// counts as via-xdp.
func isRival(series string) bool {
	return begins(series, rivals) && !strings.Contains(series, "-viaxdp")
}

// isVIA reports whether a series is of via-xdp. Unknown names count as such, so that a loss of theirs is not missed.
func isVIA(series string) bool { return !isRival(series) && !begins(series, uncompared) }

func begins(s string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(s, p) })
}

// roundTrip reports whether the latencies of a series are whole round trips,
// and so not to be compared with those of others.
func roundTrip(series string) bool {
	return strings.Contains(series, "round trip") || strings.Contains(series, "rdma-read")
}

// sameMeasure reports whether a metric means the same in two series.
func sameMeasure(m Metric, a, b string) bool {
	return !m.latency() || roundTrip(a) == roundTrip(b)
}

// like finds the point that stands at the same place: of the same label, or of
// the same X where there is no label.
func (s *Series) like(p *Point) *Point {
	return first(s.Points, func(q *Point) bool { return q.Label == p.Label && (p.Label != "" || q.X == p.X) })
}

// ratio is a point's figure by that of the group's base at the same place; NaN
// where there is none.
func (g *Group) ratio(s *Series, p *Point, m Metric) float64 {
	base := g.Row(g.Base)
	if base == nil || !sameMeasure(m, s.Name, base.Name) {
		return math.NaN()
	}
	q := base.like(p)
	if q == nil {
		return math.NaN()
	}
	return p.median(m) / q.median(m)
}

// at is a point's place as people read it.
func (g *Group) at(p *Point) string {
	switch {
	case p.Label != "":
		return p.Label
	case g.Axis.Name == "":
		return ""
	case g.Axis.Unit == "bytes":
		return InBytes(p.X)
	}
	return plain(p.X)
}

// cell is a point and its series.
type cell struct {
	*Series
	*Point
}

// cells are all points of the group.
func (g *Group) cells() iter.Seq[cell] {
	return func(yield func(cell) bool) {
		for s := range each(g.Series) {
			for p := range each(s.Points) {
				if !yield(cell{s, p}) {
					return
				}
			}
		}
	}
}

// xs are the places that the group's points have, in ascending order.
func (g *Group) xs() []float64 {
	var xs []float64
	for c := range g.cells() {
		xs = append(xs, c.X)
	}
	slices.Sort(xs)
	return slices.Compact(xs)
}

// shared reports whether the series have most of their places in common, so
// that a row for each and a column for each X make a table.
func (g *Group) shared() bool {
	n := 0
	for _, s := range g.Series {
		n += len(s.Points)
	}
	return 2*n > len(g.Series)*len(g.xs())
}

// blocks are the points in the order of a table: a block for each X, or for
// each series where they have few X in common.
func (g *Group) blocks() [][]cell {
	var blocks [][]cell
	if g.shared() {
		for _, x := range g.xs() {
			var block []cell
			for s := range each(g.Series) {
				if p := s.At(x); p != nil {
					block = append(block, cell{s, p})
				}
			}
			blocks = append(blocks, block)
		}
		return blocks
	}
	for s := range each(g.Series) {
		var block []cell
		for p := range each(s.Points) {
			block = append(block, cell{s, p})
		}
		slices.SortStableFunc(block, func(a, b cell) int { return cmp.Compare(a.X, b.X) })
		blocks = append(blocks, block)
	}
	return blocks
}

// mtu is the MTU of a series: the group's, unless the name ends in one.
func (g *Group) mtu(s *Series) int {
	if _, after, ok := strings.Cut(s.Name, " MTU "); ok {
		if n, err := strconv.Atoi(after); err == nil {
			return n
		}
	}
	return g.Conditions.MTU
}
