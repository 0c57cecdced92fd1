package report

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"gonum.org/v1/plot"
	"pgregory.net/rapid"

	"viaxdp/bench"
)

// The transports of bench, all in one plot, are all told apart, and those that
// have a colour of their own have it.
func TestLooks(t *testing.T) {
	names := slices.Concat(bench.Names(), bench.ProgramsInC())
	if !slices.Contains(names, "asavie-xdp") { // built with its tag only
		names = append(names, "asavie-xdp", "asavie-xdp-wait")
	}
	all := looks(names)
	type drawn struct{ colour, stroke int }
	seen := map[drawn]string{}
	for _, name := range names {
		l := all[name]
		if other, ok := seen[drawn{l.colour, l.stroke}]; ok {
			t.Errorf("%s is drawn as %s is", name, other)
		}
		seen[drawn{l.colour, l.stroke}] = name
	}
	for name, colour := range map[string]int{
		"raw-afxdp": 0, "vi-reliable-delivery": 1, "tcp-spin": 2, "udp-spin": 4, "vi-unreliable": 6, "asavie-xdp": 7,
	} {
		if l := all[name]; l.colour != colour || l.stroke != 0 {
			t.Errorf("%s looks like %+v", name, l)
		}
	}
	if a, b := all["tcp-spin"], all["tcp-net"]; a.colour != b.colour || a.shape == b.shape {
		t.Errorf("tcp-spin looks like %+v, tcp-net like %+v", a, b)
	}
}

// A series looks the same in every group in which its family comes first.
func TestLooksAcrossGroups(t *testing.T) {
	a, b := looks([]string{"raw-afxdp", "tcp-spin", "vi-reliable-delivery"}), looks([]string{"sockperf udp", "vi-reliable-delivery", "iperf3", "tcp-spin"})
	for _, name := range []string{"tcp-spin", "vi-reliable-delivery"} {
		if a[name].colour != b[name].colour {
			t.Errorf("%s changes its colour", name)
		}
	}
	// As long as there are colours, each series has its own.
	var names []string
	colours := map[int]bool{}
	for i := range palette {
		names = append(names, fmt.Sprintf("vi-reliable-delivery, %d segments", i))
	}
	for _, l := range looks(names) {
		colours[l.colour] = true
	}
	if len(colours) != len(palette) {
		t.Errorf("%d series have %d colours", len(names), len(colours))
	}
}

func TestRamp(t *testing.T) {
	last := math.Inf(1)
	for i := range 8 {
		c := ramp(i, 8)
		light := 0.3*float64(c.R) + 0.6*float64(c.G) + 0.1*float64(c.B)
		if light >= last {
			t.Errorf("colour %d is not darker", i)
		}
		last = light
	}
	if ramp(0, 1) != ramp(7, 8) {
		t.Error("a single line is not drawn dark")
	}
}

// Names keep their order and their distance, stay on the canvas while there is
// room, and stay where they are when nothing is in their way.
func TestApart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.SliceOfN(rapid.Float64Range(0, 100), 0, 15).Draw(t, "want")
		slices.Sort(want)
		got := apart(want, 10, 0, 100)
		gap := 10.
		if n := len(want); n > 1 {
			gap = min(gap, 100/float64(n-1))
		}
		free := true
		for i, y := range got {
			if y < -1e-9 || y > 100+1e-9 {
				t.Fatalf("%v is outside", y)
			}
			if i > 0 && y-got[i-1] < gap-1e-9 {
				t.Fatalf("%v and %v are too near", got[i-1], y)
			}
			free = free && (i == 0 || want[i]-want[i-1] >= gap)
		}
		for i := range got {
			if free && math.Abs(got[i]-want[i]) > 1e-9 {
				t.Fatalf("%v was moved to %v", want[i], got[i])
			}
		}
	})
	if got, want := apart([]float64{50, 50}, 10, 0, 100), []float64{45, 55}; !slices.Equal(got, want) {
		t.Errorf("two at the same place: %v, want %v", got, want)
	}
}

// Ticks lie on the axis, a few of them.
func TestTicks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lo := math.Pow(10, rapid.Float64Range(-29, 28).Draw(t, "from"))
		hi := lo * math.Pow(10, rapid.Float64Range(0.4, 20).Draw(t, "decades"))
		for name, ticker := range map[string]plot.Ticker{"decades": decades{}, "linear": linear{}} {
			ticks := ticker.Ticks(lo, hi)
			if len(ticks) == 0 || len(ticks) > 20 {
				t.Fatalf("%s: %d ticks from %v to %v", name, len(ticks), lo, hi)
			}
			for _, tick := range ticks {
				if tick.Value < lo || tick.Value > hi*(1+1e-9) || tick.Label == "" {
					t.Fatalf("%s: tick %+v from %v to %v", name, tick, lo, hi)
				}
			}
		}
	})
}

func TestNines(t *testing.T) {
	s := nines{}
	for share, want := range map[float64]float64{0: 0, 0.9: 1. / 3, 0.99: 2. / 3, 0.999: 1} {
		if got := s.Normalize(0, 0.999, share); math.Abs(got-want) > 1e-9 {
			t.Errorf("%v is at %v, want %v", share, got, want)
		}
	}
	var labels []string
	for _, tick := range s.Ticks(0, 0.99995) {
		labels = append(labels, tick.Label)
	}
	if want := []string{"0", "50%", "90%", "99%", "99.9%", "99.99%"}; !slices.Equal(labels, want) {
		t.Errorf("ticks %q, want %q", labels, want)
	}
}
