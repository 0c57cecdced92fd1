package report

import (
	"fmt"
	"io"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"viaxdp/internal/lab/nstest"
)

func TestMarkdown(t *testing.T) {
	r := sample()
	withHistograms(t, r, t.TempDir())
	golden(t, "benchmarks.md", text(t, func(w io.Writer) error { return r.WriteMarkdown(w, "benchmarks") }))
}

var embedded = regexp.MustCompile(`!\[[^\]]*\]\(([^)]*)\)`)

// embeds checks that the document embeds the plots that are written for it, and no others.
func embeds(t *testing.T, r *Report, histograms string) string {
	t.Helper()
	files, err := r.WriteDocumentPlots(histograms, filepath.Join(t.TempDir(), "a", "b"))
	nstest.Must(t, err)
	written := page(t, r)
	var got, want []string
	for _, m := range embedded.FindAllStringSubmatch(written, -1) {
		got = append(got, m[1])
	}
	for _, f := range files {
		want = append(want, "plots/"+filepath.Base(f))
	}
	nstest.ErrorIf(t, len(want) == 0 || !slices.Equal(got, want), "embedded: %q, written: %q", got, want)
	return written
}

func TestMarkdownEmbedsPlots(t *testing.T) {
	dir := t.TempDir()
	embeds(t, sample(), dir)
	r := sample()
	withHistograms(t, r, dir)
	embeds(t, r, dir)
}

// If nothing loses and nothing was disturbed, the document says both.
func TestMarkdownOfNothing(t *testing.T) {
	r := &Report{Command: "via-xdp bench --turns 7 peers"}
	has(t, page(t, r), "No point was disturbed.", "\nvia-xdp bench --turns 7 peers\n")
}

func TestEscape(t *testing.T) {
	for in, want := range map[string]string{
		"a|b":            `a\|b`,
		"<b> [1] `x`\n":  "&lt;b> \\[1\\] \\`x\\`",
		"fi_pingpong":    `fi\_pingpong`,
		"2.04 \\* and *": `2.04 \* and \*`,
	} {
		nstest.Equal(t, in, escape(in), want)
	}
}

// A report of many groups shows those that are featured and lists the others, each once.
func TestBrief(t *testing.T) {
	r, dir := sample(), t.TempDir()
	withHistograms(t, r, dir)
	featured := r.Groups[0]
	for i := len(r.Groups); i < wholeSuite; i++ {
		g := featured
		g.Name = fmt.Sprintf("plain-%d", i)
		r.Groups = append(r.Groups, g)
	}
	page := embeds(t, r, dir)
	for i := range r.Groups {
		name, shown := r.Groups[i].Name, r.Groups[i].isFeatured()
		nstest.ErrorIf(t, strings.Contains(page, "\n## "+name+"\n") != shown || !shown && !strings.Contains(page, "| "+name+" |"),
			"%s: featured %v", name, shown)
	}
	nstest.ErrorIf(t, !featured.isFeatured(), "the sample has no featured group")
}

// anyValue is a figure of some turns, now and then of none.
func anyValue() *rapid.Generator[Value] {
	return rapid.Custom(func(t *rapid.T) Value {
		return ValueOf(rapid.SliceOfN(rapid.Float64Range(0.001, 1e7), 0, 7).Draw(t, "turns"))
	})
}

func anyPoint() *rapid.Generator[Point] {
	return rapid.Custom(func(t *rapid.T) Point {
		return Point{
			X:         rapid.Float64Range(-1, 1e6).Draw(t, "x"),
			Values:    rapid.MapOfN(rapid.SampledFrom([]Metric{P50, P99, Bandwidth, Rate, CPUTx, "new_us"}), anyValue(), 0, 5).Draw(t, "values"),
			N:         rapid.Int64Range(0, math.MaxInt64).Draw(t, "n"),
			Disturbed: rapid.SliceOfN(rapid.String(), 0, 2).Draw(t, "disturbed"),
		}
	})
}

// anyReport has a few names, so that two of them have something in common.
func anyReport() *rapid.Generator[*Report] {
	series := rapid.Custom(func(t *rapid.T) Series {
		s := Series{
			Name: rapid.SampledFrom([]string{"raw-afxdp", "vi-unreliable", "vi-rdma-read", "tcp-spin", "iperf3", "a | b"}).Draw(t, "series"),
			Points: rapid.SliceOfNDistinct(anyPoint(), 0, 5, func(p Point) float64 {
				return p.X
			}).Draw(t, "points"),
		}
		if rapid.Bool().Draw(t, "labels") {
			for i := range s.Points {
				s.Points[i].X, s.Points[i].Label = float64(i), string(rune('a'+i))
			}
		} else if rapid.Bool().Draw(t, "places in common") {
			for i := range s.Points {
				s.Points[i].X = float64(int(1) << i)
			}
		}
		return s
	})
	group := rapid.Custom(func(t *rapid.T) Group {
		return Group{
			Name:  rapid.SampledFrom([]string{"pingpong", "load", "vibe-vis", "abl-crc"}).Draw(t, "group"),
			Title: rapid.String().Draw(t, "title"),
			Axis: Axis{
				Name: rapid.SampledFrom([]string{"", "message size", "open VIs"}).Draw(t, "axis"),
				Unit: rapid.SampledFrom([]string{"", "bytes"}).Draw(t, "unit"), Log: rapid.Bool().Draw(t, "log"),
			},
			Series:     rapid.SliceOfNDistinct(series, 0, 4, func(s Series) string { return s.Name }).Draw(t, "all series"),
			Base:       rapid.SampledFrom([]string{"", "raw-afxdp", "nowhere"}).Draw(t, "base"),
			Conditions: conditionsOf(rapid.SampledFrom([]int{1500, 9000}).Draw(t, "MTU")),
			Renewed:    rapid.SampledFrom([]time.Time{{}, time.Unix(1e9, 0).UTC()}).Draw(t, "renewed"),
		}
	})
	return rapid.Custom(func(t *rapid.T) *Report {
		return &Report{
			Version: Version, Started: time.Unix(rapid.Int64Range(0, 1e10).Draw(t, "started"), 0).UTC(), Turns: 5,
			Groups: rapid.SliceOfNDistinct(group, 0, 3, func(g Group) string { return g.Name }).Draw(t, "groups"),
		}
	})
}
