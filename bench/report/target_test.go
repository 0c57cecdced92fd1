package report

import (
	"math"
	"slices"
	"testing"
)

// along is a group of one message size with a latency for each series, which is median
// and mean.
func along(axis string, mtu int, x float64, p50 map[string]float64) Group {
	g := Group{Name: "any", Axis: Axis{Name: axis}, Conditions: conditionsOf(mtu)}
	for name, v := range p50 {
		g.Series = append(g.Series, Series{Name: name, Points: []Point{{X: x, Values: map[Metric]Value{P50: ValueOf([]float64{v}), Mean: ValueOf([]float64{v})}}}})
	}
	slices.SortFunc(g.Series, func(a, b Series) int { return compareX(a.Points[0].median(P50), b.Points[0].median(P50)) })
	return g
}

func TestTargets(t *testing.T) {
	vis := Group{Name: "vibe-vis", Axis: Axis{Name: openVIs}, Series: []Series{{Name: delivery, Points: []Point{
		{X: 1, Values: map[Metric]Value{P50: ValueOf([]float64{2})}}, {X: 4096, Values: map[Metric]Value{P50: ValueOf([]float64{2.4})}},
	}}}}
	lossy := Group{Name: LossGroup, Axis: Axis{Name: faults}}
	for i, label := range []string{"lossless", "loss-5%", "reorder-2%"} {
		for j, name := range []string{delivery, LossTCP} {
			if i == 0 {
				lossy.Series = append(lossy.Series, Series{Name: name})
			}
			lossy.Series[j].Points = append(lossy.Series[j].Points, Point{X: float64(i), Label: label, Values: map[Metric]Value{
				GoodputRatio: ValueOf([]float64{0.8}), P99: ValueOf([]float64{3300}), SpuriousRatio: ValueOf([]float64{0.02}),
			}})
		}
	}
	for _, c := range []struct {
		name    string
		group   Group
		against []string // of the losses, the worst first
		ratios  []float64
	}{
		{"kept", along(sizes, 1500, 64, map[string]float64{delivery: 2.5, raw: 2, tcpSpin: 6}), nil, nil},
		{"the floor", along(sizes, 1500, 64, map[string]float64{raw: 2.2, rawC: 2}),
			[]string{"target <= 1.05 x raw-afxdp-c"}, []float64{1.1 / 1.05}},
		{"missed", along(sizes, 1500, 64, map[string]float64{delivery: 3, raw: 2, tcpSpin: 6}),
			[]string{"target <= 1.25 x raw-afxdp", "target <= 0.45 x tcp-spin"}, []float64{1.2, 3 / 2.7}},
		{"at another size", along(sizes, 1500, 128, map[string]float64{delivery: 3, raw: 2, tcpSpin: 6}), nil, nil},
		{"along another axis", along("segments", 1500, 64, map[string]float64{delivery: 3, raw: 2}), nil, nil},
		{"of another MTU", along(sizes, 1500, 4096, map[string]float64{delivery: 3, rawCopy: 1}), nil, nil},
		{"of its MTU", along(sizes, 9000, 4096, map[string]float64{delivery: 3, rawCopy: 2}),
			[]string{"target <= 1.25 x raw-afxdp-copy"}, []float64{1.2}},
		{"MTUs in the names", along(sizes, 0, 4096, map[string]float64{
			delivery + " MTU 9000": 3, rawCopy + " MTU 9000": 2, rawCopy + " MTU 1500": 1, delivery + " MTU 1500": 9,
		}), []string{"target <= 1.25 x raw-afxdp-copy MTU 9000"}, []float64{1.2}},
		{"other programs", along(sizes, 1500, 64, map[string]float64{
			delivery: 3, "fi_pingpong-msg (mean)": 10, "fi_pingpong-rdm (mean)": 8, "ucx_perftest tcp": 11, "sockperf udp": 5, "sockperf tcp": 4,
		}), []string{"target <= 0.2 x fi_pingpong-msg (mean)", "target <= 0.5 x sockperf udp"}, []float64{1.5, 1.2}},
		{"layers", along(sizes, 1500, 8, map[string]float64{mvich: 3, delivery: 2, "mpich-tcp": 8}),
			[]string{"target <= 1.25 x vi-reliable-delivery", "target <= 0.35 x mpich-tcp"}, []float64{1.2, 3 / 2.8}},
		{"faults", lossy, []string{"target <= 1 %", "target >= 0.97", "target <= 3000 us"}, []float64{2, 0.97 / 0.8, 1.1}},
		{"open VIs", vis, []string{"target <= 1.1 x that with 1"}, []float64{1.2 / 1.1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &Report{Groups: []Group{c.group}}
			losses := r.losses()
			if len(losses) != len(c.against) {
				t.Fatalf("%d losses: %+v", len(losses), losses)
			}
			for i, l := range losses {
				if l.against != c.against[i] || math.Abs(l.ratio()-c.ratios[i]) > 1e-9 {
					t.Errorf("loss %d is %s by %v, want %s by %v", i, l.against, l.ratio(), c.against[i], c.ratios[i])
				}
			}
		})
	}
}

// The text of a target says all of it.
func TestTargetNames(t *testing.T) {
	seen := map[string]bool{}
	for _, target := range targets {
		if s := target.String(); seen[s] {
			t.Errorf("two targets are called %s", s)
		} else {
			seen[s] = true
		}
	}
	for want, target := range map[string]target{
		"vi-reliable-delivery median latency at 64 B: <= 1.25 x raw-afxdp":            targets[4],
		"vi-reliable-delivery bandwidth at 4 KiB, MTU 9000: >= 0.96 x raw-afxdp-copy": targets[12],
		"via-xdp median latency with 4096 open VIs: <= 1.1 x that with 1":             targets[18],
		"raw-afxdp messages at 64 B: >= 0.95 x raw-afxdp-c":                           targets[2],
		"raw-afxdp-copy bandwidth at 64 KiB, MTU 1500: >= 0.95 x raw-afxdp-copy-c":    targets[3],
		"vi-reliable-delivery mean latency at 64 B: <= 0.2 x fi_pingpong-msg":         targets[20],
		"vi-reliable-delivery median latency at 64 B: <= 0.5 x sockperf, not tcp":     targets[22],
		"mvich bandwidth at 1 MiB, MTU 9000: >= 1.3 x mpich-tcp":                      targets[26],
		"mvich time of an operation at 8 B: <= 0.5 x mpich-tcp":                       targets[27],
		"net/http over vianet messages at 1 KiB: >= 1.5 x net/http over TCP":          speeds[len(speeds)-1],
		"vi-reliable-delivery goodput by that without a fault, loss-5%: >= 0.7":       targets[len(speeds)+4],
		"vi-reliable-delivery 99 % latency, loss-5%: <= 3000 us":                      targets[len(speeds)+5],
		"vi-reliable-delivery frames sent again that had arrived, reorder-2%: <= 1 %": targets[len(targets)-1],
		"vi-reliable-delivery-wait median latency: <= 1.1 x tcp-block":                targets[19],
	} {
		if got := target.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// Rows of via-xdp lose to TCP and other programs, not to rings or UDP, nor to
// each other; against the best of those that are better.
func TestLosses(t *testing.T) {
	group := along(sizes, 1500, 256, map[string]float64{
		"raw-afxdp": 1, "udp-spin": 1.5, "asavie-xdp": 1.6, "vi-unreliable": 2, "sockperf tcp": 2.5, "tcp-spin": 3,
		"reads by hand": 3.5, "vi-rdma-read": 9, "tcp-spin MTU 9000": 0.1,
	})
	r := &Report{Groups: []Group{group}}
	losses := r.losses()
	if len(losses) != 1 {
		t.Fatalf("%d losses: %+v", len(losses), losses)
	}
	if l := losses[0]; l.point.Name != "reads by hand" || l.against != "sockperf tcp" || l.ratio() != 3.5/2.5 {
		t.Errorf("%s against %s, %v times worse", l.point.Name, l.against, l.ratio())
	}
}

// What via-xdp is made to do does not lose, and other people's programs and TCP are not
// via-xdp, whatever they are called.
func TestLossesOfLayers(t *testing.T) {
	group := along(sizes, 1500, 64, map[string]float64{
		"mvich": 5, "mvich-r3": 9, "mpich-tcp": 4, "tcp-net": 3, "net/http over TCP": 6, "net/http over vianet": 7,
	})
	r := &Report{Groups: []Group{group}}
	var names []string
	for _, l := range r.losses() {
		names = append(names, l.point.Name+" against "+l.against)
	}
	if want := []string{"net/http over vianet against tcp-net", "mvich against tcp-net"}; !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
}

// What is more the better loses by being less.
func TestLossesOfBandwidth(t *testing.T) {
	r := sample()
	worst := math.Inf(1)
	found := false
	for _, l := range r.losses() {
		if l.ratio() > worst {
			t.Errorf("%v times worse after %v", l.ratio(), worst)
		}
		worst = l.ratio()
		if l.metric == Bandwidth && l.point.Name == delivery && l.point.X == 65536 && l.against == tcpSpin {
			found = true
			if want := l.rival.median(Bandwidth) / l.point.median(Bandwidth); l.ratio() != want || want < 1 {
				t.Errorf("%v times worse, want %v", l.ratio(), want)
			}
		}
		if l.metric == Min || l.metric == Rate && l.against == tcpSpin {
			t.Errorf("%s is among the losses", l.metric)
		}
	}
	if !found {
		t.Error("64 KiB streams do not lose to TCP")
	}
}
