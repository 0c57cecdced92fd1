package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"viaxdp/bench"
	"viaxdp/internal/lab/nstest"
)

// textsOf are the texts of an SVG, which is well formed and has no coordinates
// that are no numbers.
func textsOf(t interface {
	Helper()
	Fatalf(string, ...any)
}, svg []byte) []string {
	t.Helper()
	if bytes.Contains(svg, []byte("NaN")) || bytes.Contains(svg, []byte("Inf")) {
		t.Fatalf("coordinates that are no numbers:\n%s", svg)
	}
	var texts []string
	dec := xml.NewDecoder(bytes.NewReader(svg))
	in := ""
	for {
		token, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return texts
		}
		if err != nil {
			t.Fatalf("not well formed: %v", err)
		}
		switch token := token.(type) {
		case xml.StartElement:
			in = token.Name.Local
		case xml.EndElement:
			in = ""
		case xml.CharData:
			if in == "text" {
				texts = append(texts, string(token))
			}
		}
	}
}

// shows checks that a plot has some texts.
func shows(t *testing.T, file string, want ...string) {
	t.Helper()
	svg, err := os.ReadFile(file)
	nstest.Must(t, err)
	texts := textsOf(t, svg)
	for _, text := range want {
		nstest.ErrorIf(t, !slices.Contains(texts, text), "%s: no %q in %q", file, text, texts)
	}
}

func TestPlots(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	r := sample()
	withHistograms(t, r, dir)
	files, err := r.WritePlots(dir)
	nstest.Must(t, err)
	want := []struct {
		file  string
		texts []string
	}{
		{"pingpong-latency.svg", []string{"pingpong: median latency (MTU 1500, XDP mode generic, Some CPU 9000)", "us", "message size", "64 B", "64 KiB",
			"raw-afxdp", "vi-reliable-delivery", "vi-rdma-read (round trip)", "tcp-spin"}},
		{"pingpong-bandwidth.svg", []string{"MB/s", "vi-rdma-read", "tcp-spin", "64 KiB"}},
		{"pingpong-percentiles.svg", []string{"share of messages", "99%", "99.9%", "vi-rdma-read (round trip)", "udp-spin"}},
		{"load-latency.svg", []string{"load: median latency, and 99 % dotted (MTU 1500, XDP mode generic, Some CPU 9000)", "offered rate, messages/s", "100k", "tcp-spin"}},
		{"load-bandwidth.svg", []string{"million/s"}},
		{"load-percentiles-vi-reliable-delivery.svg", []string{"41.67k messages/s", "375k messages/s"}},
		{"load-percentiles-tcp-spin.svg", []string{"150k messages/s"}},
		{"vibe-vis-latency.svg", []string{"open VIs", "4096"}},
		{"vibe-vis-bandwidth.svg", []string{"open VIs"}},
		{"vibe-ops-operation.svg", []string{"create VI", "disconnect"}},
		{"abl-table-latency.svg", []string{"table", "locked map"}},
	}
	nstest.FatalIf(t, len(files) != len(want), "wrote %q", files)
	for i, w := range want {
		nstest.Equal(t, "file", files[i], filepath.Join(dir, w.file))
		shows(t, files[i], w.texts...)
	}
}

// A plot without its histograms is left out and named; the others are there.
func TestPlotsWithoutHistograms(t *testing.T) {
	r := sample()
	withHistograms(t, r, t.TempDir())
	dir := t.TempDir()
	files, err := r.WritePlots(dir)
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "pingpong-percentiles.svg") || !strings.Contains(err.Error(), ".hdr") {
		t.Errorf("error %v", err)
	}
	nstest.ErrorIf(t, len(files) != 8, "wrote %q", files)
	for _, f := range files {
		if _, err := os.Stat(f); err != nil {
			t.Error(err)
		}
	}
}

// A distribution grows, and its median is the histogram's.
func TestDistribution(t *testing.T) {
	xys := distribution(tailed(t, 4000, 10000), 1./2000)
	for i, p := range xys {
		nstest.FatalIf(t, p.X < 0 || p.X >= 1 || i > 0 && (p.X < xys[i-1].X || p.Y < xys[i-1].Y),
			"point %d of the distribution is %+v", i, p)
		nstest.ErrorIf(t, math.Abs(p.X-0.5) < 0.01 && math.Abs(p.Y-2) > 0.05, "the median is %v us, want 2", p.Y)
	}
}

// The plots of a run of plans: round trips are called so where the others are one way.
func TestResultPlots(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	r := &bench.Result{Latency: []bench.Latency{
		{Name: "vi-reliable-delivery", Bytes: 64, P50: 2}, {Name: "vi-reliable-delivery", Bytes: 65536, P50: 60}, {Name: "vi-rdma-read", Bytes: 64, P50: 4},
	}, Bandwidth: []bench.Bandwidth{{Name: "vi-rdma-read", Bytes: 64, MBps: 1}}}
	files, err := WriteResultPlots(r, dir)
	if want := []string{filepath.Join(dir, "latency.svg"), filepath.Join(dir, "bandwidth.svg")}; err != nil || !slices.Equal(files, want) {
		t.Fatalf("wrote %v, want %v: %v", files, want, err)
	}
	shows(t, files[0], "vi-reliable-delivery", "vi-rdma-read (round trip)", "64 KiB")
	shows(t, files[1], "vi-rdma-read", "MB/s")
	r.Bandwidth = nil
	if files, err := WriteResultPlots(r, dir); err != nil || len(files) != 1 {
		t.Errorf("without bandwidths: %v, %v", files, err)
	}
}

// Every report that can be read can be drawn, whatever its figures.
func TestAnyReportIsDrawn(t *testing.T) {
	figure := rapid.OneOf(rapid.Float64Range(0, 100), rapid.Float64())
	rapid.Check(t, func(t *rapid.T) {
		r := anyReport().Draw(t, "report")
		for g := range each(r.Groups) {
			for c := range g.cells() {
				if rapid.Bool().Draw(t, "wild") {
					c.Values = map[Metric]Value{
						P50: ValueOf(rapid.SliceOfN(figure, 0, 3).Draw(t, "turns")), Bandwidth: {Median: figure.Draw(t, "median")},
					}
				}
			}
			for _, pic := range g.pictures() {
				p, err := pic.draw(nil)
				nstest.Must(t, err)
				svg, err := p.render()
				nstest.Must(t, err)
				textsOf(t, svg)
			}
		}
	})
}

func TestRamp(t *testing.T) {
	last := math.Inf(1)
	for i := range 8 {
		c := ramp(i, 8)
		light := 0.3*float64(c.R) + 0.6*float64(c.G) + 0.1*float64(c.B)
		nstest.ErrorIf(t, light >= last, "colour %d is not darker", i)
		last = light
	}
	nstest.Equal(t, "a single line", ramp(0, 1), ramp(7, 8))
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
	nstest.Same(t, "ticks", labels, []string{"0", "50%", "90%", "99%", "99.9%", "99.99%"})
}
