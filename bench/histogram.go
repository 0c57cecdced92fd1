package bench

import (
	"fmt"
	"io"
	"math"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Histograms hold round trips in nanoseconds, with three digits: exact below
// 2 us, 0.1 % above.
const (
	histogramMax    = int64(60 * time.Second)
	histogramDigits = 3
)

func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, histogramMax, histogramDigits)
}

// encodeSamples makes a histogram of times in nanoseconds.
func encodeSamples(samples []int64) ([]byte, error) {
	h := newHistogram()
	for _, ns := range samples {
		if err := h.RecordValue(min(ns, histogramMax)); err != nil {
			return nil, err
		}
	}
	return encodeHistogram(h)
}

func encodeHistogram(h *hdrhistogram.Histogram) ([]byte, error) {
	return h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
}

func decodeHistogram(b []byte) (*hdrhistogram.Histogram, error) {
	h, err := hdrhistogram.Decode(b)
	if err != nil {
		return nil, fmt.Errorf("histogram: %w", err)
	}
	return h, nil
}

// oneWay is half of a round trip in nanoseconds, in microseconds with the
// precision of a nanosecond; roundTrip is the whole.
func oneWay(ns int64) float64    { return round3(float64(ns) / 2000) }
func roundTrip(ns int64) float64 { return round3(float64(ns) / 1000) }

func round3(v float64) float64 { return math.Round(v*1000) / 1000 }

// WriteHistogram prints the histogram of a transport's round trips as the
// latencies that are reported of it: one line for each step that halves the
// share of slower messages.
func WriteHistogram(w io.Writer, name string, h *hdrhistogram.Histogram) error {
	us, head := oneWay, "one-way us"
	if RoundTrip(name) {
		us, head = roundTrip, "round trip us"
	}
	if _, err := fmt.Fprintf(w, "%13s %12s %14s\n", head, "share", "messages"); err != nil {
		return err
	}
	for _, b := range h.CumulativeDistribution() {
		if _, err := fmt.Fprintf(w, "%13.3f %12.6f %14d\n", us(b.ValueAt), b.Quantile/100, b.Count); err != nil {
			return err
		}
	}
	return nil
}
