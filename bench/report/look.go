package report

import (
	"image/color"
	"slices"
	"strings"

	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// palette is that of Okabe and Ito, which people who confuse colours can tell
// apart; its yellow, too faint for a line on white, is a grey here.
var palette = []color.RGBA{
	{0, 0, 0, 255},       // black
	{0, 114, 178, 255},   // blue
	{213, 94, 0, 255},    // vermilion
	{0, 158, 115, 255},   // bluish green
	{230, 159, 0, 255},   // orange
	{204, 121, 167, 255}, // reddish purple
	{86, 180, 233, 255},  // sky blue
	{130, 130, 130, 255}, // grey
}

// homes are the colours of palette that some families have in every plot.
var homes = map[string]int{
	"raw-afxdp": 0, "vi-reliable-delivery": 1, "tcp": 2, "vi-reliable-reception": 3,
	"udp": 4, "vi-rdma": 5, "vi-unreliable": 6, "asavie-xdp": 7,
}

var (
	strokes = [][]vg.Length{
		nil,
		{vg.Points(5), vg.Points(2.5)},
		{vg.Points(1.5), vg.Points(2)},
		{vg.Points(6), vg.Points(2), vg.Points(1.5), vg.Points(2)},
		{vg.Points(6), vg.Points(2), vg.Points(1.5), vg.Points(2), vg.Points(1.5), vg.Points(2)},
	}
	shapes = []draw.GlyphDrawer{
		draw.CircleGlyph{}, draw.BoxGlyph{}, draw.PyramidGlyph{}, draw.RingGlyph{},
		draw.SquareGlyph{}, draw.TriangleGlyph{}, draw.CrossGlyph{}, draw.PlusGlyph{},
	}
)

// look of a series: indices of palette, strokes and shapes. The stroke is the
// solid one for the first series of a colour.
type look struct{ colour, stroke, shape int }

func (l look) color() color.RGBA { return palette[l.colour] }

func (l look) line() draw.LineStyle {
	return draw.LineStyle{Color: l.color(), Width: vg.Points(1.5), Dashes: strokes[l.stroke]}
}

func (l look) glyph() draw.GlyphStyle {
	return draw.GlyphStyle{Color: l.color(), Radius: vg.Points(2.8), Shape: shapes[l.shape]}
}

// familyOf is a transport without the way in which it waits or copies, and without
// its language.
func familyOf(series string) string {
	name, _, _ := strings.Cut(series, " ")
	name = strings.TrimRight(name, ",")
	for _, f := range []string{"tcp", "udp", "vi-rdma"} {
		if name == f || strings.HasPrefix(name, f+"-") {
			return f
		}
	}
	return strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(name, "-c"), "-wait"), "-copy")
}

// looks gives each series its own: families that have a colour in every plot
// get it, for their first series; the others colours that are left; and when
// none is, the colour of their family again, with other strokes and shapes.
func looks(names []string) map[string]look {
	out := map[string]look{}
	used := make([]int, len(palette)) // series by colour
	firsts := map[string]int{}        // colour by family
	give := func(name string, colour int) {
		out[name] = look{colour, used[colour] % len(strokes), len(out) % len(shapes)}
		used[colour]++
		if f := familyOf(name); used[colour] == 1 {
			if _, ok := firsts[f]; !ok {
				firsts[f] = colour
			}
		}
	}
	for _, name := range names {
		if home, ok := homes[familyOf(name)]; ok && used[home] == 0 {
			give(name, home)
		}
	}
	for _, name := range names {
		if _, ok := out[name]; ok {
			continue
		}
		if free := slices.Index(used, 0); free >= 0 {
			give(name, free)
		} else if first, ok := firsts[familyOf(name)]; ok {
			give(name, first)
		} else {
			give(name, slices.Index(used, slices.Min(used)))
		}
	}
	return out
}

// ramp is the colour of one of n lines that have an order, from light to dark:
// a blue that grows, readable in grey.
func ramp(i, n int) color.RGBA {
	t := 1.0
	if n > 1 {
		t = float64(i) / float64(n-1)
	}
	mix := func(from, to float64) uint8 { return uint8(from + t*(to-from)) }
	return color.RGBA{mix(107, 8), mix(174, 29), mix(214, 88), 255}
}
