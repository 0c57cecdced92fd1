package suite

import (
	"encoding/json"
	"strings"
	"testing"

	"viaxdp/bench/report"
	"viaxdp/internal/lab/nstest"
)

// One, two and four senders have all figures, ours and the kernel's, shares are those of as
// many senders, no frame of ours is lost without a name, and the report has its array of them.
func TestIncastGroup(t *testing.T) {
	nstest.Require(t)
	r, err := Run(t.Context(), shortly(report.IncastGroup))
	if err != nil {
		t.Fatal(err)
	}
	g := r.Group(report.IncastGroup)
	if g == nil || len(g.Series) != len(incastRows) || g.Conditions.Mode != "generic" || g.Conditions.MTU != 1500 ||
		len(g.Conditions.PinnedCPUs) != 5 || len(g.Notes) == 0 {
		t.Fatalf("%+v", g)
	}
	for _, s := range g.Series {
		if len(s.Points) != len(incastSenders) {
			t.Fatalf("%s: %d points, want %d", s.Name, len(s.Points), len(incastSenders))
		}
		for i, p := range s.Points {
			n := float64(incastSenders[i])
			figure := func(m report.Metric, least, most float64) {
				t.Helper()
				if v := p.Values[m]; len(v.Turns) != 1 || !(v.Median >= least) || v.Median > most {
					t.Errorf("%s, %v senders: %s %+v, want %v to %v", s.Name, n, m, v, least, most)
				}
			}
			if p.X != n || p.N < int64(n) {
				t.Errorf("%s, %v senders: %+v", s.Name, n, p)
			}
			const rounding = 1e-9
			figure(report.Bandwidth, rounding, 1e9)
			figure(report.SendersRatio, rounding, 1e9)
			figure(report.Fairness, 1/n, 1+rounding)
			figure(report.LeastShare, rounding, 1)
			figure(report.ResentRatio, 0, 1)
			figure(report.DroppedRatio, 0, 1)
			if s.Name == waiting {
				figure(report.Unnamed, 0, 0)
			}
			if i == 0 && (p.Values[report.SendersRatio].Median != 1 || p.Values[report.Fairness].Median != 1) {
				t.Errorf("%s, one sender: %+v", s.Name, p.Values)
			}
		}
	}
	var out strings.Builder
	if err := r.Write(&out); err != nil {
		t.Fatal(err)
	}
	var told struct {
		Incast []map[string]any `json:"incast"`
	}
	if err := json.Unmarshal([]byte(out.String()), &told); err != nil {
		t.Fatal(err)
	}
	if len(told.Incast) != len(incastSenders) {
		t.Fatalf("%v", told)
	}
	for i, row := range told.Incast {
		tcp, _ := row["tcp"].(map[string]any)
		for _, key := range []string{"goodput_ratio", "fairness", "least_share", "resent_ratio", "dropped_ratio"} {
			for what, v := range map[string]any{"ours": row[key], "TCP's": tcp[key]} {
				if _, ok := v.(float64); !ok {
					t.Errorf("%v: %s %s is %v", row["senders"], what, key, v)
				}
			}
		}
		if row["senders"] != float64(incastSenders[i]) || row["unnamed_frames"] != 0. || tcp["unnamed_frames"] != nil {
			t.Errorf("row %d: %v", i, row)
		}
	}
	if files, err := r.WritePlots(t.TempDir()); err != nil || len(files) == 0 {
		t.Errorf("%d plots: %v", len(files), err)
	}
}
