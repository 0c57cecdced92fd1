package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Result is the report of a run, as written by --json.
type Result struct {
	Conditions Conditions  `json:"conditions"`
	Latency    []Latency   `json:"latency"`
	Bandwidth  []Bandwidth `json:"bandwidth"`

	// Histograms of round trips in nanoseconds, of all turns.
	Histograms map[Case]*hdrhistogram.Histogram `json:"-"`
}

// Case is a row and a message size.
type Case struct {
	Name  string // label of the row
	Bytes int
}

// Latency of messages one way, half of a round trip, in microseconds; of an RDMA
// read it is the whole round trip, see RoundTrip. Where there are several
// turns, Min is the least of them and Max the greatest, and the others are the
// medians of the turns' figures.
type Latency struct {
	Name  string `json:"name"`
	Bytes int    `json:"bytes"`
	N     int64  `json:"n"` // round trips measured

	// RoundTrip: the times are those of whole round trips, a request and its
	// answer, and no one-way latency.
	RoundTrip bool `json:"round_trip"`

	Min  float64 `json:"min_us"`
	P50  float64 `json:"p50_us"`
	P99  float64 `json:"p99_us"`
	P999 float64 `json:"p999_us"`

	Max   float64 `json:"max_us"`
	Avg   float64 `json:"avg_us"`
	Stdev float64 `json:"stdev_us"` // standard deviation

	Disturbed []string `json:"disturbed,omitempty"` // why the figures are doubtful
}

// Bandwidth of a stream of messages in one direction; medians of the turns.
type Bandwidth struct {
	Name     string  `json:"name"`
	Bytes    int     `json:"bytes"`
	MBps     float64 `json:"MBps"`       // content, 10^6 bytes a second
	Peak     float64 `json:"peak_MBps"`  // the same, in the best round of all turns
	Messages float64 `json:"msgs_per_s"` // messages a second
	CPUTx    float64 `json:"cpu_tx"`     // CPU time of the sender's process by wall time; 1: one CPU
	CPURx    float64 `json:"cpu_rx"`     // CPU time of the receiver's process by wall time

	Disturbed []string `json:"disturbed,omitempty"` // why the figures are doubtful
}

// WriteJSON writes the result as one indented object.
func (r *Result) WriteJSON(w io.Writer) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

// LatencyOf finds a row, or returns nil.
func (r *Result) LatencyOf(name string, bytes int) *Latency {
	i := slices.IndexFunc(r.Latency, func(l Latency) bool { return l.Name == name && l.Bytes == bytes })
	if i < 0 {
		return nil
	}
	return &r.Latency[i]
}

// BandwidthOf finds a row, or returns nil.
func (r *Result) BandwidthOf(name string, bytes int) *Bandwidth {
	i := slices.IndexFunc(r.Bandwidth, func(b Bandwidth) bool { return b.Name == name && b.Bytes == bytes })
	if i < 0 {
		return nil
	}
	return &r.Bandwidth[i]
}

// collector gathers the turns of each case.
type collector struct {
	latency   map[Case][]Latency
	bandwidth map[Case][]Bandwidth
	merged    map[Case]*hdrhistogram.Histogram
}

func newCollector() *collector {
	return &collector{latency: map[Case][]Latency{}, bandwidth: map[Case][]Bandwidth{}, merged: map[Case]*hdrhistogram.Histogram{}}
}

// addLatency takes the round trips of a turn; whole: they are reported, and not half of them.
func (c *collector) addLatency(k Case, whole bool, r *ExchangeResult) {
	us := oneWay
	if whole {
		us = roundTrip
	}
	h := r.RoundTrips
	c.latency[k] = append(c.latency[k], Latency{
		Name: k.Name, Bytes: k.Bytes, N: h.TotalCount(), RoundTrip: whole, Min: us(h.Min()),
		P50: us(h.ValueAtQuantile(50)), P99: us(h.ValueAtQuantile(99)), P999: us(h.ValueAtQuantile(99.9)),
		Max: us(h.Max()), Avg: us(int64(h.Mean())), Stdev: us(int64(h.StdDev())),
		Disturbed: r.Disturbed,
	})
	if c.merged[k] == nil {
		c.merged[k] = newHistogram()
	}
	c.merged[k].Merge(h)
}

// addBandwidth takes the stream of a turn.
func (c *collector) addBandwidth(k Case, r *ExchangeResult) {
	c.bandwidth[k] = append(c.bandwidth[k], Bandwidth{
		Name: k.Name, Bytes: k.Bytes, MBps: r.MBps, Peak: r.Peak, Messages: r.PerSecond,
		CPUTx: r.tx.CPU.Seconds() / r.tx.Wall.Seconds(), CPURx: r.rx.CPU.Seconds() / r.rx.Wall.Seconds(),
		Disturbed: r.Disturbed,
	})
}

// result puts the medians in the order of rows, then sizes.
func (c *collector) result(rows []Row, sizes []int) *Result {
	r := &Result{Latency: []Latency{}, Bandwidth: []Bandwidth{}, Histograms: c.merged}
	for _, row := range rows {
		for _, bytes := range sizes {
			k := Case{row.label(), bytes}
			if turns := c.latency[k]; len(turns) > 0 {
				r.Latency = append(r.Latency, medianLatency(turns))
			}
			if turns := c.bandwidth[k]; len(turns) > 0 {
				r.Bandwidth = append(r.Bandwidth, medianBandwidth(turns))
			}
		}
	}
	return r
}

func medianLatency(turns []Latency) Latency {
	m := medians(turns, func(l *Latency) []*float64 {
		return []*float64{&l.P50, &l.P99, &l.P999, &l.Avg, &l.Stdev}
	})
	m.N, m.Disturbed = 0, nil
	for _, t := range turns {
		m.N += t.N
		m.Min, m.Max = min(m.Min, t.Min), max(m.Max, t.Max)
		m.Disturbed = joinReasons(m.Disturbed, t.Disturbed)
	}
	return m
}

func medianBandwidth(turns []Bandwidth) Bandwidth {
	m := medians(turns, func(b *Bandwidth) []*float64 { return []*float64{&b.MBps, &b.Messages, &b.CPUTx, &b.CPURx} })
	m.Disturbed = nil
	for _, t := range turns {
		m.Peak = max(m.Peak, t.Peak)
		m.Disturbed = joinReasons(m.Disturbed, t.Disturbed)
	}
	return m
}

// medians is the first turn with the medians of all turns in some of its figures; of an even
// number of turns, the mean of the middle two.
func medians[T any](turns []T, figures func(*T) []*float64) T {
	m := turns[0]
	for i, f := range figures(&m) {
		v := make([]float64, len(turns))
		for k := range turns {
			v[k] = *figures(&turns[k])[i]
		}
		slices.Sort(v)
		n := len(v)
		*f = round3((v[(n-1)/2] + v[n/2]) / 2)
	}
	return m
}

// Histograms hold round trips in nanoseconds, with three digits: exact below
// 2 us, 0.1 % above.
const (
	histogramMax    = int64(60 * time.Second)
	histogramDigits = 3
)

func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, histogramMax, histogramDigits)
}

// Histogram is one that travels between processes.
type Histogram struct{ *hdrhistogram.Histogram }

// MarshalJSON encodes it as HdrHistogram V2.
func (h Histogram) MarshalJSON() ([]byte, error) {
	b, err := h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	if err != nil {
		return nil, err
	}
	return json.Marshal(b)
}

// UnmarshalJSON decodes it.
func (h *Histogram) UnmarshalJSON(text []byte) error {
	var b []byte
	err := json.Unmarshal(text, &b)
	if err == nil {
		h.Histogram, err = hdrhistogram.Decode(b)
	}
	if err != nil {
		return fmt.Errorf("histogram: %w", err)
	}
	return nil
}

// note records a time, of a nanosecond at least.
func (h Histogram) note(d time.Duration) error {
	return h.RecordValue(min(max(int64(d), 1), histogramMax))
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
