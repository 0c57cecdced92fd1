package report

import (
	"math"
	"strconv"

	"gonum.org/v1/plot"
)

// tickLabel is a number in a few characters.
func tickLabel(v float64) string {
	short := func(v float64) string { return strconv.FormatFloat(v, 'g', 4, 64) }
	switch a := math.Abs(v); {
	case a >= 1e6 && a < 1e10:
		return short(v/1e6) + "M"
	case a >= 1e4 && a < 1e6:
		return short(v/1e3) + "k"
	}
	return short(v)
}

// decades marks 1, 2 and 5 of each power of ten, or only those powers that there
// is room for.
type decades struct{}

// Ticks is plot.Ticker.
func (decades) Ticks(lo, hi float64) []plot.Tick {
	first, last := math.Floor(math.Log10(lo)), math.Ceil(math.Log10(hi))
	step, of := 1.0, []float64{1, 2, 5}
	if last-first > 4 {
		step, of = math.Ceil((last-first)/12), []float64{1}
	}
	var ticks []plot.Tick
	for e := first; e <= last; e += step {
		for _, m := range of {
			if v := m * math.Pow(10, e); v >= lo && v <= hi {
				ticks = append(ticks, plot.Tick{Value: v, Label: tickLabel(v)})
			}
		}
	}
	return ticks
}

// linear marks the multiples of 1, 2 or 5 times a power of ten, at most eight.
type linear struct{}

// Ticks is plot.Ticker.
func (linear) Ticks(lo, hi float64) []plot.Tick {
	power := math.Pow(10, math.Floor(math.Log10((hi-lo)/8)))
	step := 10 * power
	for _, m := range []float64{1, 2, 5} {
		if (hi-lo)/(m*power) <= 8 {
			step = m * power
			break
		}
	}
	var ticks []plot.Tick
	for n := math.Ceil(lo / step); n*step <= hi; n++ {
		ticks = append(ticks, plot.Tick{Value: n * step, Label: tickLabel(n * step)})
	}
	return ticks
}

// maxPlaces is how many places of points there is room to label.
const maxPlaces = 14

// places marks the places that the points have, unless they are too many or
// each series has its own.
func (g *Group) places(xs []float64) plot.Ticker {
	if len(xs) > maxPlaces || !g.shared() {
		if g.Axis.Log {
			return decades{}
		}
		return linear{}
	}
	var ticks plot.ConstantTicks
	for _, x := range xs {
		label := tickLabel(x)
		if g.Axis.Unit == "bytes" {
			label = inBytes(x)
		}
		ticks = append(ticks, plot.Tick{Value: x, Label: label})
	}
	return ticks
}

// nines is a scale of shares below 1 on which 90 %, 99 % and 99.9 % are equally
// far apart.
type nines struct{}

// Normalize is plot.Normalizer.
func (nines) Normalize(lo, hi, x float64) float64 {
	n := func(share float64) float64 { return -math.Log10(1 - share) }
	return (n(x) - n(lo)) / (n(hi) - n(lo))
}

// Ticks is plot.Ticker.
func (nines) Ticks(lo, hi float64) []plot.Tick {
	ticks := []plot.Tick{{Value: 0, Label: "0"}, {Value: 0.5, Label: "50%"}}
	for n := 1; n <= maxNines; n++ {
		share := 1 - math.Pow(10, -float64(n))
		if share > hi {
			break
		}
		ticks = append(ticks, plot.Tick{Value: share, Label: strconv.FormatFloat(100*share, 'f', max(n-2, 0), 64) + "%"})
	}
	return ticks
}

// maxNines is how far the scale goes: 99.99999 %.
const maxNines = 7
