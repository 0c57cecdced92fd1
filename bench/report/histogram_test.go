package report

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"viaxdp/internal/lab/nstest"
)

// The written log is what viewers of HdrHistogram expect, line by line.
func TestHistogramLog(t *testing.T) {
	h := tailed(t, 4000, 500)
	var log bytes.Buffer
	nstest.Must(t, WriteHistograms(&log, "pingpong,\n64", h))
	lines := strings.Split(strings.TrimSuffix(log.String(), "\n"), "\n")
	last := len(lines) - 1
	if diff := cmp.Diff([]string{
		"#[pingpong, 64]",
		"#[values in nanoseconds, an interval for each turn]",
		"#[Histogram log format version 1.3]",
		"#[StartTime: 0 (seconds since epoch), 1970-01-01T00:00:00Z]",
		`"StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"`,
	}, lines[:last]); diff != "" {
		t.Error(diff)
	}
	// The length of the interval in seconds, the maximum in ms, and the cookie
	// of V2 compressed histograms.
	if !strings.HasPrefix(lines[last], "0.000000,1.000000,0.0") || !strings.Contains(lines[last], ",HISTFAAA") {
		t.Errorf("the interval is %.80s", lines[last])
	}
}

func TestHistogramsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var turns []*hdrhistogram.Histogram
		for range rapid.IntRange(1, 4).Draw(t, "turns") {
			h := hdrhistogram.New(1, 60e9, 3)
			for _, v := range rapid.SliceOf(rapid.Int64Range(0, 60e9)).Draw(t, "values") {
				nstest.Must(t, h.RecordValue(v))
			}
			turns = append(turns, h)
		}
		var log bytes.Buffer
		nstest.Must(t, WriteHistograms(&log, "any", turns...))
		got, err := ReadHistograms(&log)
		nstest.Must(t, err)
		if len(got) != len(turns) {
			t.Fatalf("%d intervals of %d", len(got), len(turns))
		}
		for i, h := range turns {
			if !got[i].Equals(h) {
				t.Errorf("interval %d has other values", i)
			}
			start, end := int64(i)*1000, int64(i+1)*1000
			if got[i].StartTimeMs() != start || got[i].EndTimeMs() != end {
				t.Errorf("interval %d is from %d to %d, want %d to %d", i, got[i].StartTimeMs(), got[i].EndTimeMs(), start, end)
			}
		}
	})
}

func TestSaveHistograms(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	p := Point{X: 65536}
	nstest.Must(t, p.SaveHistograms(dir, "vibe-base", "vi-reliable-delivery, Wait (x)", tailed(t, 4000, 100), tailed(t, 8000, 50)))
	nstest.Equal(t, "file", p.Histogram, "vibe-base-vi-reliable-delivery-wait-x-65536.hdr")
	h, err := p.LoadHistogram(os.DirFS(dir))
	nstest.Must(t, err)
	if h.TotalCount() != 150 || h.ValueAtPercentile(99.9) < 8000 {
		t.Errorf("%d values, 99.9 %% of them up to %d ns", h.TotalCount(), h.ValueAtPercentile(99.9))
	}
	if h, err := new(Point).LoadHistogram(os.DirFS(dir)); h != nil || err != nil {
		t.Errorf("of a point without: %v, %v", h, err)
	}
	labelled := Point{X: 3, Label: "create VI"}
	if err := labelled.SaveHistograms(dir, "vibe-ops", "…", tailed(t, 4000, 100)); err != nil || labelled.Histogram != "vibe-ops-_-create-vi.hdr" {
		t.Errorf("with a label: %s, %v", labelled.Histogram, err)
	}
	nstest.ErrorIf(t, p.SaveHistograms(dir, "g", "s") == nil, "a file without histograms is no error")
}

func TestReadHistogramsRefuses(t *testing.T) {
	for _, in := range []string{"", "#[Histogram log format version 1.3]\n", "0.0,1.0,2.0,HISTFAAA\n", "{}\n"} {
		if h, err := ReadHistograms(strings.NewReader(in)); err == nil {
			t.Errorf("%q: read %d histograms", in, len(h))
		}
	}
}

// Reading any log ends with histograms or an error.
func FuzzReadHistograms(f *testing.F) {
	h := hdrhistogram.New(1, int64(time.Second), 3)
	for i := range int64(50) {
		_ = h.RecordValue(i * i * 1000)
	}
	var log bytes.Buffer
	nstest.Must(f, WriteHistograms(&log, "x", h, h))
	f.Add(log.Bytes())
	f.Add([]byte("#[x]\n"))
	f.Add([]byte("0.0,1.0,2.0,AAAA\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		turns, err := ReadHistograms(bytes.NewReader(b))
		nstest.ErrorIf(t, err == nil && len(turns) == 0, "no histogram, and no error")
	})
}
