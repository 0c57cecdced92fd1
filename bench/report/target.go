package report

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// target is what a series has to reach: so many times the figure of another
// one at the same place of the same group, or less for what is better when it
// is less; or a figure that stands by itself.
type target struct {
	row    string // "": every series of via-xdp
	metric Metric
	factor float64
	rival  string  // series; of another program, how its name begins; "": row itself, at from
	not    string  // what rival's name must not have in it
	axis   string  // of the group
	x      float64 // the place on it; 0: all of them
	from   float64 // without a rival: the place to compare with
	mtu    int     // 0: any
	limit  float64 // without a rival or from: the figure
	label  string  // of the place; "": any
}

// Axes of groups that targets are for.
const (
	sizes   = "message size"
	openVIs = "open VIs"
	faults  = "fault"
)

// Rows of bench that targets are for, and against.
const (
	delivery = "vi-reliable-delivery"
	waiting  = "vi-reliable-delivery-wait"
	write    = "vi-rdma-write"
	raw      = "raw-afxdp"
	rawCopy  = "raw-afxdp-copy"
	rawC     = "raw-afxdp-c"
	rawCopyC = "raw-afxdp-copy-c"
	tcpSpin  = "tcp-spin"
	tcpBlock = "tcp-block"
	tcpNet   = "tcp-net"
	mvich    = "mvich"
	vianet   = "vianet"
	mpichTCP = "mpich-tcp"
)

// The MTUs that targets name: Ethernet's, that of jumbo frames, and the largest
// of a veth pair.
const (
	mtuEthernet = 1500
	mtuJumbo    = 9000
	mtuLargest  = 65535
)

// targets are what the project asks of itself: of the rings that the others are
// compared with, that they are not slower for being Go's, then of VIs, of the
// layers above them, and of what faults of the network cost. fi_pingpong tells no
// median.
var targets = slices.Concat(speeds, underFault("loss-0.1%", 0.97, 1000), underFault("loss-1%", 0.90, 1000),
	underFault("loss-5%", 0.70, 3000), underFault("burst-1%", 0.85, 3000), underFault("reorder-2%", 0.97, 0), []target{
		{row: delivery, metric: SpuriousRatio, axis: faults, label: "reorder-2%", limit: 0.01},
	})

// underFault are the targets of goodput, to that without a fault, and of the 99 %
// round trip in us; 0: none.
func underFault(label string, goodput, p99 float64) []target {
	list := []target{{row: delivery, metric: GoodputRatio, axis: faults, label: label, limit: goodput}}
	if p99 != 0 {
		list = append(list, target{row: delivery, metric: P99, axis: faults, label: label, limit: p99})
	}
	return list
}

var speeds = []target{
	{row: raw, metric: P50, factor: 1.05, rival: rawC, axis: sizes, x: 64},
	{row: rawCopy, metric: P50, factor: 1.05, rival: rawCopyC, axis: sizes, x: 64},
	{row: raw, metric: Rate, factor: 0.95, rival: rawC, axis: sizes, x: 64},
	{row: rawCopy, metric: Bandwidth, factor: 0.95, rival: rawCopyC, axis: sizes, x: 65536, mtu: mtuEthernet},
	{row: delivery, metric: P50, factor: 1.25, rival: raw, axis: sizes, x: 64},
	{row: delivery, metric: P50, factor: 0.45, rival: tcpSpin, axis: sizes, x: 64},
	{row: delivery, metric: P50, factor: 0.30, rival: tcpNet, axis: sizes, x: 64},
	{row: delivery, metric: P99, factor: 1.5, rival: raw, axis: sizes, x: 64},
	{row: delivery, metric: P50, factor: 1.25, rival: rawCopy, axis: sizes, x: 4096, mtu: mtuJumbo},
	{row: delivery, metric: P50, factor: 0.6, rival: tcpSpin, axis: sizes, x: 4096, mtu: mtuJumbo},
	{row: delivery, metric: Rate, factor: 4, rival: raw, axis: sizes, x: 64},
	{row: delivery, metric: Rate, factor: 8, rival: tcpSpin, axis: sizes, x: 64},
	{row: delivery, metric: Bandwidth, factor: 0.96, rival: rawCopy, axis: sizes, x: 4096, mtu: mtuJumbo},
	{row: delivery, metric: Bandwidth, factor: 0.95, rival: rawCopy, axis: sizes, x: 65536, mtu: mtuEthernet},
	{row: delivery, metric: Bandwidth, factor: 0.9, rival: rawCopy, axis: sizes, x: 65536, mtu: mtuLargest},
	{row: delivery, metric: Bandwidth, factor: 1.5, rival: "iperf3", not: "udp", axis: sizes, x: 65536, mtu: mtuLargest},
	{row: write, metric: P50, factor: 1, rival: delivery, axis: sizes},
	{row: write, metric: Bandwidth, factor: 1, rival: delivery, axis: sizes},
	{metric: P50, factor: 1.1, axis: openVIs, x: 4096, from: 1},
	{row: waiting, metric: P50, factor: 1.1, rival: tcpBlock, axis: sizes},
	{row: delivery, metric: Mean, factor: 0.2, rival: "fi_pingpong-msg", axis: sizes, x: 64},
	{row: delivery, metric: P50, factor: 0.3, rival: "ucx_perftest", axis: sizes, x: 64},
	{row: delivery, metric: P50, factor: 0.5, rival: "sockperf", not: "tcp", axis: sizes, x: 64},
	{row: mvich, metric: P50, factor: 1.25, rival: delivery, axis: sizes, x: 8},
	{row: mvich, metric: P50, factor: 0.35, rival: mpichTCP, axis: sizes, x: 8},
	{row: mvich, metric: Bandwidth, factor: 0.93, rival: delivery, axis: sizes, x: 1 << 20, mtu: mtuJumbo},
	{row: mvich, metric: Bandwidth, factor: 1.3, rival: mpichTCP, axis: sizes, x: 1 << 20, mtu: mtuJumbo},
	{row: mvich, metric: Operation, factor: 0.5, rival: mpichTCP, axis: sizes, x: 8},
	{row: vianet, metric: P50, factor: 1.25, rival: delivery, axis: sizes, x: 64},
	{row: vianet, metric: P50, factor: 0.5, rival: tcpNet, axis: sizes, x: 64},
	{row: vianet, metric: Bandwidth, factor: 0.93, rival: delivery, axis: sizes, x: 1 << 20, mtu: mtuJumbo},
	{row: vianet, metric: Bandwidth, factor: 1.2, rival: tcpNet, axis: sizes, x: 1 << 20, mtu: mtuJumbo},
	{row: "net/http over vianet", metric: Rate, factor: 1.5, rival: "net/http over TCP", axis: sizes, x: 1024},
}

// String is a target as people read it.
func (t target) String() string { return t.what() + ": " + t.asked() }

// what is the figure that a target is about.
func (t target) what() string {
	s := t.row
	if s == "" {
		s = "via-xdp"
	}
	s += " " + quantityOf(t.metric).noun()
	if t.x != 0 && t.axis == sizes {
		s += " at " + inBytes(t.x)
	}
	if t.mtu != 0 {
		s += fmt.Sprintf(", MTU %d", t.mtu)
	}
	switch {
	case t.label != "":
		s += ", " + t.label
	case t.rival == "":
		s += fmt.Sprintf(" with %s %s", plain(t.x), t.axis)
	}
	return s
}

// asked is how the figure has to compare.
func (t target) asked() string {
	switch {
	case t.rival == "":
		return t.against(cell{})
	case t.not != "":
		return t.bound() + " " + t.rival + ", not " + t.not
	}
	return t.bound() + " " + t.rival
}

// against is how the figure has to compare with that of a rival.
func (t target) against(rival cell) string {
	switch {
	case t.limit != 0:
		return t.bound()
	case t.rival == "":
		return t.bound() + " that with " + plain(t.from)
	}
	return t.bound() + " " + rival.Name
}

// bound is the limit, or how many times the rival's figure there may be, or have to be.
func (t target) bound() string {
	sign := ">= "
	if t.metric.Lower() {
		sign = "<= "
	}
	if t.limit != 0 {
		q := quantityOf(t.metric)
		return strings.TrimSpace(sign + strconv.FormatFloat(t.limit/q.per, 'g', -1, 64) + " " + q.unit)
	}
	return sign + strconv.FormatFloat(t.factor, 'g', -1, 64) + " x"
}

// noun is a quantity in a sentence.
func (q quantity) noun() string { return strings.ToLower(q.title[:1]) + q.title[1:] }

// verdict is what a target comes to at one place, where a report has what it needs.
type verdict struct {
	row   cell
	rival cell // where the target is a figure, that
	limit float64
}

// missed reports whether the figure is on the wrong side of the limit.
func (v verdict) missed(m Metric) bool { return worse(m, v.row.median(m), v.limit) > 1 }

// verdicts finds all places of a group that a target is about.
func (t target) verdicts(g *Group) []verdict {
	if g.Axis.Name != t.axis {
		return nil
	}
	var list []verdict
	for i := range g.Series {
		s := &g.Series[i]
		name, mtu := g.mtu(s)
		if !t.about(name) || t.mtu != 0 && mtu != t.mtu {
			continue
		}
		for j := range s.Points {
			p := &s.Points[j]
			if t.x != 0 && p.X != t.x || t.label != "" && p.Label != t.label || !finite(p.median(t.metric)) {
				continue
			}
			if t.limit != 0 {
				bar := cell{&Series{}, &Point{Values: map[Metric]Value{t.metric: ValueOf([]float64{t.limit})}}}
				list = append(list, verdict{cell{s, p}, bar, t.limit})
				continue
			}
			for _, r := range t.rivals(g, s, p, mtu) {
				if v := r.median(t.metric); finite(v) {
					list = append(list, verdict{cell{s, p}, r, t.factor * v})
				}
			}
		}
	}
	return list
}

// about reports whether a series has to reach the target.
func (t target) about(series string) bool {
	return series == t.row || t.row == "" && kindOf(series) == via
}

// rivals are the points that one has to be compared with.
func (t target) rivals(g *Group, s *Series, p *Point, mtu int) []cell {
	if t.rival == "" {
		if q := s.At(t.from); q != nil {
			return []cell{{s, q}}
		}
		return nil
	}
	var list []cell
	for i := range g.Series {
		r := &g.Series[i]
		name, m := g.mtu(r)
		if !t.isRival(name) || m != mtu {
			continue
		}
		if q := r.like(p); q != nil {
			list = append(list, cell{r, q})
		}
	}
	return list
}

// isRival reports whether a series is the target's rival.
func (t target) isRival(series string) bool {
	if kindOf(t.rival) != others {
		return series == t.rival
	}
	return strings.HasPrefix(series, t.rival) && (t.not == "" || !strings.Contains(strings.ToLower(series), t.not))
}

// mtu is a series' name without its MTU, and the MTU: the group's, if the name
// does not end in one.
func (g *Group) mtu(s *Series) (string, int) {
	if name, after, ok := strings.Cut(s.Name, " MTU "); ok {
		if n, err := strconv.Atoi(after); err == nil {
			return strings.TrimRight(name, ","), n
		}
	}
	return s.Name, g.Conditions.MTU
}
