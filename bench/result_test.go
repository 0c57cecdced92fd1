package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"viaxdp/internal/lab/nstest"
)

func sample() *Result {
	r := &Result{Conditions: Conditions{
		Kernel: "6.18.0", CPUs: 2, CPUModel: "Some CPU 9000", Hypervisor: true, Interface: "via0", Mode: "generic", Features: []string{"basic", "redirect"}, MTU: 1500,
		FrameBytes: 1514, Hugepages: "hugetlb", Polling: "spin", PinnedCPUs: []int{0, 1}, Version: "v1.2.3",
	}}
	for i, name := range []string{"raw-afxdp", "vi-reliable-delivery", "vi-rdma-read", "tcp-spin"} {
		for _, bytes := range []int{64, 65536} {
			f := float64(i + 1)
			r.Latency = append(r.Latency, Latency{Name: name, Bytes: bytes, N: 1000, RoundTrip: RoundTrip(name), Min: f, P50: 2 * f, P99: 3 * f, P999: 4 * f, Max: 9 * f, Avg: 2.5 * f, Stdev: f / 2})
			r.Bandwidth = append(r.Bandwidth, Bandwidth{Name: name, Bytes: bytes, MBps: 300 / f, Peak: 400 / f, Messages: 5e6 / f, CPUTx: 1, CPURx: 0.5})
		}
	}
	return r
}

// The report has exactly these names.
func TestJSON(t *testing.T) {
	var buf bytes.Buffer
	nstest.Must(t, sample().WriteJSON(&buf))
	var got map[string]any
	nstest.Must(t, json.Unmarshal(buf.Bytes(), &got))
	keys := func(v any) []string {
		var k []string
		for name := range v.(map[string]any) {
			k = append(k, name)
		}
		slices.Sort(k)
		return k
	}
	first := func(name string) any { return got[name].([]any)[0] }
	for _, c := range []struct {
		what string
		got  any
		want []string
	}{
		{"result", any(got), []string{"bandwidth", "conditions", "latency"}},
		{"conditions", got["conditions"], []string{
			"cpu_model", "cpus", "frame_bytes", "hugepages", "hypervisor", "interface", "kernel", "mode", "mtu", "pinned_cpus", "polling", "version", "xdp_features",
		}},
		{"latency", first("latency"), []string{"avg_us", "bytes", "max_us", "min_us", "n", "name", "p50_us", "p999_us", "p99_us", "round_trip", "stdev_us"}},
		{"bandwidth", first("bandwidth"), []string{"MBps", "bytes", "cpu_rx", "cpu_tx", "msgs_per_s", "name", "peak_MBps"}},
	} {
		if diff := cmp.Diff(c.want, keys(c.got)); diff != "" {
			t.Errorf("%s: %s", c.what, diff)
		}
	}
	// Read back, it is the same; and empty arrays are arrays.
	var back Result
	nstest.Must(t, json.Unmarshal(buf.Bytes(), &back))
	if diff := cmp.Diff(sample(), &back); diff != "" {
		t.Error(diff)
	}
	buf.Reset()
	nstest.Must(t, newCollector(false).result(nil, nil).WriteJSON(&buf))
	if !strings.Contains(buf.String(), `"latency": []`) {
		t.Errorf("an empty result: %s", buf.String())
	}
}

func TestTable(t *testing.T) {
	one := sample() // a single transport, nothing to compare it with, and a doubt
	one.Latency, one.Bandwidth = one.Latency[2:4], one.Bandwidth[2:4]
	one.Latency[1].Disturbed = []string{"the client waited"}
	one.Bandwidth[1].Disturbed = []string{"the client waited", "the server waited"}
	for file, r := range map[string]*Result{"table.txt": sample(), "one.txt": one} {
		var buf bytes.Buffer
		nstest.Must(t, r.WriteTable(&buf))
		want, err := os.ReadFile("testdata/" + file)
		nstest.Must(t, err)
		if diff := cmp.Diff(string(want), buf.String()); diff != "" {
			t.Errorf("%s: %s", file, diff)
		}
	}
}

// Half of a round trip is reported, but all of a read.
func TestRoundTrip(t *testing.T) {
	c := newCollector(false)
	h := newHistogram()
	if err := h.RecordValue(1500); err != nil { // exact below 2 us
		t.Fatal(err)
	}
	for name, want := range map[string]float64{"vi-rdma-write": 0.75, "vi-rdma-read": 1.5, "tcp-spin": 0.75} {
		c.addLatency(Case{name, 8}, RoundTrip(name), &ExchangeResult{RoundTrips: h})
		r := c.result(RowsOf([]string{name}), []int{8})
		if l := r.Latency[0]; l.P50 != want || l.Min != want || l.RoundTrip != (name == "vi-rdma-read") {
			t.Errorf("%s: %+v, want %v us", name, l, want)
		}
		var buf bytes.Buffer
		nstest.Must(t, WriteHistogram(&buf, name, h))
		head := "one-way us"
		if name == "vi-rdma-read" {
			head = "round trip us"
		}
		if !strings.Contains(buf.String(), head) || !strings.Contains(buf.String(), fmt.Sprintf("%.3f ", want)) {
			t.Errorf("%s: histogram\n%s", name, &buf)
		}
	}
}

// Medians of turns, the least minimum, the sum of counts.
func TestCollector(t *testing.T) {
	c := newCollector(true)
	k := Case{"tcp-spin", 64}
	for _, us := range []int64{9, 2, 4} {
		h := newHistogram()
		for i := range 100 {
			if err := h.RecordValue((us + int64(i%2)) * 2000); err != nil { // a round trip of 2*us, or 2*us+2
				t.Fatal(err)
			}
		}
		spent := Span{Wall: time.Second, CPU: time.Duration(us) * time.Millisecond, Waited: 200 * time.Millisecond}
		r := &ExchangeResult{RoundTrips: h, tx: spent, all: 500}
		if us == 9 {
			r.Disturbed = disturbances(spent, Span{}, true)
		}
		c.addLatency(k, false, r)
	}
	for _, seconds := range []time.Duration{1, 4, 2} {
		c.addBandwidth(k, &ExchangeResult{
			N: 1e6, MBps: 64 / float64(seconds), best: 2e6 / float64(seconds),
			tx: Span{Wall: seconds * time.Second, CPU: time.Second}, rx: Span{Wall: seconds * time.Second, CPU: seconds * time.Second},
		})
	}
	r := c.result(RowsOf([]string{"udp-spin", "tcp-spin"}), []int{64, 128})
	if len(r.Latency) != 1 || len(r.Bandwidth) != 1 {
		t.Fatalf("got %d and %d rows", len(r.Latency), len(r.Bandwidth))
	}
	l := r.Latency[0]
	near := func(got, want float64) bool { return math.Abs(got-want) <= want/500 }
	if l.Name != "tcp-spin" || l.Bytes != 64 || l.N != 300 || !near(l.Min, 2) || !near(l.P50, 4) || !near(l.P99, 5) ||
		!near(l.Max, 10) || !near(l.Avg, 4.5) || !near(l.Stdev, 0.5) {
		t.Errorf("latency: %+v", l)
	}
	if l.CPU != 4 || len(l.Disturbed) != 1 || !strings.Contains(l.Disturbed[0], "client") {
		t.Errorf("CPU time %v us, disturbed %q; want 4, as the client waited in one turn", l.CPU, l.Disturbed)
	}
	b := r.Bandwidth[0]
	if b.MBps != 32 || b.Peak != 128 || b.Messages != 5e5 || b.CPUTx != 0.5 || b.CPURx != 1 {
		t.Errorf("bandwidth: %+v", b)
	}
	if n := r.Histograms[k].TotalCount(); n != 300 {
		t.Errorf("the histogram has %d values", n)
	}
	if got := median([]int{1, 2, 3, 10}, func(i int) float64 { return float64(i) }); got != 2.5 {
		t.Errorf("median of an even number: %v", got)
	}
}
