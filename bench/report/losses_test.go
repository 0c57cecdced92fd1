package report

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"testing"

	"viaxdp/internal/lab/nstest"
)

// latencies is a group of one message size with a median for each series.
func latencies(name string, bytes float64, p50 map[string]float64) Group {
	g := Group{Name: name, Axis: Axis{Name: "message size", Unit: "bytes"}, Conditions: conditionsOf(1500)}
	for name, v := range p50 {
		g.Series = append(g.Series, Series{Name: name, Points: []Point{{X: bytes, Values: map[Metric]Value{P50: ValueOf([]float64{v})}}}})
	}
	slices.SortFunc(g.Series, func(a, b Series) int { return cmp.Compare(a.Points[0].median(P50), b.Points[0].median(P50)) })
	return g
}

// Rows of via-xdp can lose to TCP and other programs, but not to rings, UDP, each other, or
// another MTU. They are compared with the best of those that are better. A forced protocol
// does not lose. Other programs and TCP never count as via-xdp, under any name, but those over its
// provider of libfabric do.
func TestLosses(t *testing.T) {
	for _, c := range []struct {
		p50  map[string]float64
		want []string
	}{
		{map[string]float64{
			"raw-afxdp": 1, "udp-spin": 1.5, "asavie-xdp": 1.6, "vi-unreliable": 2, "sockperf tcp": 2.5, "tcp-spin": 3,
			"reads by hand": 3.5, "vi-rdma-read": 9, "tcp-spin MTU 9000": 0.1,
		}, []string{"reads by hand against sockperf tcp"}},
		{map[string]float64{
			"mvich": 5, "mvich-r3": 9, "mpich-tcp": 4, "tcp-net": 3, "net/http over TCP": 6, "net/http over vianet": 7,
		}, []string{"net/http over vianet against tcp-net", "mvich against tcp-net"}},
		{map[string]float64{ // of layers-proxy
			"TCP, no proxy": 2, "two proxies, TCP between": 3, "two proxies, VIA between": 4,
		}, []string{"two proxies, VIA between against TCP, no proxy"}},
		{map[string]float64{ // of layers-openmpi
			"openmpi-tcp": 2, "openmpi-viaxdp": 3, "openmpi-rxm": 5,
		}, []string{"openmpi-rxm against openmpi-tcp", "openmpi-viaxdp against openmpi-tcp"}},
		{map[string]float64{ // of peers
			"fi_pingpong-msg (mean)": 5, "fi_pingpong-msg-viaxdp (mean)": 6, "fi_pingpong-rdm-viaxdp (mean)": 4, "vi-reliable-delivery": 4.5,
			"libvipl-pingpong": 7, "tcp-spin": 5.5,
		}, []string{"libvipl-pingpong against fi_pingpong-msg (mean)", "fi_pingpong-msg-viaxdp (mean) against fi_pingpong-msg (mean)"}},
	} {
		var got []string
		for _, l := range (&Report{Groups: []Group{latencies("any", 64, c.p50)}}).losses() {
			nstest.Equal(t, l.point.Name, l.ratio(), c.p50[l.point.Name]/c.p50[l.rival.Name])
			got = append(got, l.point.Name+" against "+l.rival.Name)
		}
		nstest.Same(t, "losses", got, c.want)
	}
}

// A metric for which more is better loses by being less.
func TestLossesOfBandwidth(t *testing.T) {
	worst := math.Inf(1)
	found := false
	for _, l := range sample().losses() {
		if l.ratio() > worst {
			t.Errorf("%v times worse after %v", l.ratio(), worst)
		}
		worst = l.ratio()
		if l.metric == Bandwidth && l.point.Name == delivery && l.point.X == 65536 && l.rival.Name == "tcp-spin" {
			found = true
			if want := l.rival.median(Bandwidth) / l.point.median(Bandwidth); l.ratio() != want || want < 1 {
				t.Errorf("%v times worse, want %v", l.ratio(), want)
			}
		}
		nstest.ErrorIf(t, l.metric == Min || l.metric == Rate && l.rival.Name == "tcp-spin",
			"%s is among the losses", l.metric)
	}
	nstest.ErrorIf(t, !found, "64 KiB streams do not lose to TCP")
}

// Losses are listed group by group, by the worst place, with a star if they exceed the spread
// of the turns.
func TestMarkdownLosses(t *testing.T) {
	group := func(name string, ours, theirs float64) Group {
		g := latencies(name, 64, map[string]float64{delivery: ours, "tcp-spin": theirs})
		for i := range g.Series {
			p := g.Series[i].Points[0]
			p.X = 256
			if g.Series[i].Name == delivery {
				p.Values = map[Metric]Value{P50: ValueOf([]float64{ours / 2, 1})}
			}
			g.Series[i].Points = append(g.Series[i].Points, p)
		}
		return g
	}
	r := &Report{Groups: []Group{group("a", 6, 2), group("b", 1, 2), group("c", 20, 2)}}
	r.Groups[0].Row("tcp-spin").At(64).Disturbed = []string{"noise"}
	const want = "| c | 2 | 10.00 \\* | vi-reliable-delivery | 64 B | Median latency, us | 20.00 | 2.00 | tcp-spin |\n" +
		"| a | 1 | 3.00 \\* † | vi-reliable-delivery | 64 B | Median latency, us | 6.00 | 2.00 | tcp-spin |\n\n"
	got := page(t, r)
	has(t, got, want)
	nstest.ErrorIf(t, strings.Contains(got, "\n| b | "), "b is in\n%s", got)
	l := r.losses()[2]
	if l.point.X != 256 || l.marks() != "" {
		t.Errorf("%v at %v has the marks %q, though the turns overlap", l.point.Name, l.point.X, l.marks())
	}
	r.Groups = r.Groups[1:2]
	has(t, page(t, r), "\nNo row of via-xdp was worse")
}
