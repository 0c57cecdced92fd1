package suite

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"viaxdp/bench"
	"viaxdp/bench/report"
	"viaxdp/internal/lab/fail"
)

// An experiment is a group that runs plans of package bench.
type experiment struct {
	axis  report.Axis
	base  string // series that the others are compared with; empty: none
	notes []string
	parts func(quick bool) []part
}

// A part of an experiment is rows on one bed. Each turn measures all parts.
type part struct {
	mtu       int // 0: the session's
	rows      []row
	sizes     []int // bytes of a message
	latency   bool
	bandwidth bool
	least     int // messages at each point in all turns together, however long it takes

	// apart keeps ping-pong and stream in series of their own, so that each has
	// its CPU time.
	apart bool

	// place says where in the report a row's figures at a size belong.
	place func(r row, bytes int) (series string, x float64)
}

// A row of a part, and its place on an axis that is not the size.
type row struct {
	bench.Row
	x float64
}

// bySize makes a series of each row, along message sizes.
func bySize(r row, bytes int) (string, float64) { return r.Label, float64(bytes) }

// byRow makes a series of each size, along the rows.
func byRow(r row, bytes int) (string, float64) { return sizeName(bytes), r.x }

// alongSizes is the axis of most groups.
var alongSizes = report.Axis{Name: "message size", Unit: "bytes", Log: true}

// group makes a group of the experiment; turn is about how long a turn takes.
func (e experiment) group(name, title string, turn time.Duration) group {
	return group{
		name: name, title: title, turn: turn, plans: &e,
		run: func(s *session) *report.Group { return s.measure(e) },
	}
}

// asSet is a row with the settings of the run.
func (s *session) asSet(r bench.Row) bench.Row {
	r.VI.NoSegmentation = r.VI.NoSegmentation || s.NoSegmentation && bench.TakesVIOptions(r.Name)
	return r
}

// series is the name of a part's series at one place, of ping-pong or stream.
func (p part) series(r row, bytes int, stream bool) (string, float64) {
	name, x := p.place(r, bytes)
	switch {
	case p.apart && stream:
		name += ", stream"
	case p.apart:
		name += ", ping-pong"
	}
	return name, x
}

// measure runs all turns of an experiment.
func (s *session) measure(e experiment) *report.Group {
	parts := e.parts(s.Quick)
	g := &report.Group{Axis: e.axis, Base: e.base, Notes: slices.Clone(e.notes)}
	return s.gather(g, s.turns(), func(t *sheet) {
		for _, p := range parts {
			s.measurePart(g, t, p)
		}
	}, parts...)
}

// measurePart goes once through the rows of a part.
func (s *session) measurePart(g *report.Group, t *sheet, p part) {
	bed, least := s.bed(cmp.Or(p.mtu, s.mtu())), (p.least+s.turns()-1)/s.turns()
	var of report.Group // its conditions are the part's
	var rows []bench.Row
	for _, r := range p.rows {
		rows = append(rows, r.Row)
		s.within(bed, &of, r.Row, slices.Max(p.sizes), func(at *bench.Session) {
			for _, bytes := range p.sizes {
				s.step("%s, %s", r.Label, sizeName(bytes))
				if p.latency {
					t.pingPong(p, r, bytes, fail.Must(at.PingPong(s.ctx, bytes, s.duration(), least)))
				}
				if p.bandwidth {
					t.stream(p, r, bytes, fail.Must(at.Stream(s.ctx, bytes, s.duration(), least)))
				}
			}
		})
	}
	of.Conditions.Polling = bench.PollingOf(rows)
	g.Conditions = conditionsOf(g.Conditions, of.Conditions)
}

// conditionsOf keeps the first conditions with an AF_XDP mode, or else the first.
func conditionsOf(had, got bench.Conditions) bench.Conditions {
	if had.Kernel == "" || had.Mode == "" && got.Mode != "" {
		return got
	}
	return had
}

// Names of transports that many groups have.
const (
	rawRings    = "raw-afxdp"
	rawCopy     = "raw-afxdp-copy"
	unreliable  = "vi-unreliable"
	delivery    = "vi-reliable-delivery"
	waiting     = "vi-reliable-delivery-wait"
	reception   = "vi-reliable-reception"
	rdmaWrite   = "vi-rdma-write"
	rdmaRead    = "vi-rdma-read"
	tcpSpin     = "tcp-spin"
	tcpBlock    = "tcp-block"
	udpSpin     = "udp-spin"
	besideLabel = "tcp-spin on the XDP pair"
)

// plain are rows of transports that are used as usual. The name of one whose
// latency is a whole round trip says so.
func plain(names ...string) []row {
	var rows []row
	for _, n := range names {
		label := n
		if bench.RoundTrip(n) {
			label += " (round trip)"
		}
		rows = append(rows, row{Row: bench.Row{Label: label, Name: n}})
	}
	return rows
}

// with is a row of a VI with options.
func with(label, name string, o bench.VIOptions) row {
	return row{Row: bench.Row{Label: label, Name: name, VI: o}}
}

// along are rows of Reliable Delivery with one option at each of its values,
// which are their places on the axis.
func along(values []int, what string, set func(*bench.VIOptions, int)) []row {
	var rows []row
	for _, n := range values {
		r := with(fmt.Sprintf("%s, %d %s", delivery, n, what), delivery, bench.VIOptions{})
		set(&r.VI, n)
		r.x = float64(n)
		rows = append(rows, r)
	}
	return rows
}

// fewer is all of them, or when quick some.
func fewer(quick bool, all []int, some ...int) []int {
	if quick {
		return some
	}
	return all
}

// powers are those of base from first to last; last is always included.
func powers(base, first, last int) []int {
	var values []int
	for v := first; v < last; v *= base {
		values = append(values, v)
	}
	return append(values, last)
}

// exchange is a part with ping-pong and stream at message sizes.
func exchange(rows []row, sizes []int) part {
	return part{rows: rows, sizes: sizes, latency: true, bandwidth: true, place: bySize}
}

// named is the part at an MTU that its series say.
func (p part) named(mtu int) part {
	p.mtu = mtu
	p.place = func(r row, bytes int) (string, float64) { return r.Label + mtuSuffix(mtu), float64(bytes) }
	return p
}

// mtuSuffix ends the name of a series with an MTU other than its group's.
func mtuSuffix(mtu int) string { return fmt.Sprintf(" MTU %d", mtu) }

// sizeName is a size as people write it.
func sizeName(bytes int) string { return report.InBytes(float64(bytes)) }
