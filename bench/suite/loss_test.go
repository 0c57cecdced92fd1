package suite

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"viaxdp/bench"
	"viaxdp/bench/report"
	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/testbed"
)

// Under every fault both transports have all figures, the forwarder's counters say
// that it took place, and the report has its array of them.
func TestLossGroup(t *testing.T) {
	nstest.Require(t)
	r, err := Run(t.Context(), shortly(report.LossGroup))
	if err != nil {
		t.Fatal(err)
	}
	g := r.Group(report.LossGroup)
	if g == nil || len(g.Series) != 2 || g.Conditions.Mode != "generic" || len(g.Conditions.PinnedCPUs) == 0 {
		t.Fatalf("%+v", g)
	}
	for _, s := range g.Series {
		if len(s.Points) != len(faults) {
			t.Fatalf("%s: %d points, want %d", s.Name, len(s.Points), len(faults))
		}
		for i, p := range s.Points {
			metrics := []report.Metric{report.P50, report.P99, report.Bandwidth, report.GoodputRatio, report.ResentRatio, report.SpuriousRatio}
			if f := faults[i]; f.hit != nil {
				if v := p.Values[report.FaultRatio]; !(v.Median > 0) {
					t.Errorf("%s, %s: no frame met the fault: %+v", s.Name, f.name, v)
				}
			}
			for _, m := range metrics {
				if v := p.Values[m]; len(v.Turns) == 0 || !(v.Median >= 0) {
					t.Errorf("%s, %s: %s %+v", s.Name, p.Label, m, v)
				}
			}
			if faults[i].faults.Loss >= 0.05 && !(p.Values[report.ResentRatio].Median > 0) {
				t.Errorf("%s, %s: frames were lost and none was sent again", s.Name, p.Label)
			}
			if p.Label != faults[i].name || p.N == 0 || p.Values[report.GoodputRatio].Median <= 0 {
				t.Errorf("%s: point %d is %+v", s.Name, i, p)
			}
		}
	}
	var out strings.Builder
	if err := r.Write(&out); err != nil {
		t.Fatal(err)
	}
	var told struct {
		Loss []map[string]any `json:"loss"`
	}
	if err := json.Unmarshal([]byte(out.String()), &told); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, row := range told.Loss {
		names = append(names, row["fault"].(string))
		tcp, _ := row["tcp"].(map[string]any)
		for _, key := range []string{"goodput_ratio", "pingpong_p99_us", "spurious_ratio"} {
			for what, v := range map[string]any{"ours": row[key], "TCP's": tcp[key]} {
				if _, ok := v.(float64); !ok {
					t.Errorf("%s: %s %s is %v", row["fault"], what, key, v)
				}
			}
		}
	}
	if diff := cmp.Diff([]string{"loss-0.1%", "loss-1%", "loss-5%", "burst-1%", "reorder-2%"}, names); diff != "" {
		t.Error(diff)
	}
	if files, err := r.WritePlots(t.TempDir()); err != nil || len(files) == 0 {
		t.Errorf("%d plots: %v", len(files), err)
	}
}

// What a fault is called is what it does, and TCP is measured with the congestion
// control that its row names.
func TestFaultsAreWhatTheyAreCalled(t *testing.T) {
	share := map[string]float64{"loss-0.1%": 0.001, "loss-1%": 0.01, "loss-5%": 0.05}
	for _, f := range faults {
		if f.faults.Loss != share[f.name] {
			t.Errorf("%s loses %v", f.name, f.faults.Loss)
		}
		if f.name == "burst-1%" && f.faults.Burst*float64(f.faults.BurstLen) != 0.01 {
			t.Errorf("%s: %+v", f.name, f.faults)
		}
		if f.name == "reorder-2%" && (f.faults.Reorder != 0.02 || f.hit(testbed.WayCounters{Reordered: 3}) != 3) {
			t.Errorf("%s: %+v", f.name, f.faults)
		}
	}
	for _, row := range faultRows(false) {
		var p bench.Params
		row.params(&p)
		if want := strings.TrimPrefix(row.label, "tcp-spin, "); row.congestion != "" && p.Congestion != want {
			t.Errorf("%s: congestion control %q", row.label, p.Congestion)
		}
	}
	if hasCongestion("none such") || !slices.ContainsFunc(faultRows(true), func(r faultRow) bool { return r.label == report.LossTCP }) {
		t.Error("rows of the quick run")
	}
}
