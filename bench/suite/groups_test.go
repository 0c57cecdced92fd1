package suite

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"viaxdp/bench"
	"viaxdp/bench/report"
	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/testbed"
)

// measured runs one group shortly.
func measured(t *testing.T, name string) (*report.Report, *report.Group) {
	t.Helper()
	r := measure(t, shortly(name))
	g := r.Group(name)
	nstest.FatalIf(t, g == nil || len(g.Notes) == 0, "%+v", g)
	if files, err := r.WritePlots(t.TempDir()); err != nil || len(files) == 0 {
		t.Errorf("%d plots: %v", len(files), err)
	}
	return r, g
}

// vianet has figures at every size and both MTUs, beside the layer below it.
func TestLayers(t *testing.T) {
	_, g := measured(t, "layers-messages")
	for _, name := range []string{vianetRow, delivery, tcpNet} {
		for _, at := range []struct {
			series string
			bytes  float64
		}{{name, 64}, {name, 65536}, {name + mtuSuffix(9000), 65536}} {
			s := g.Row(at.series)
			if s == nil || s.At(at.bytes) == nil {
				t.Errorf("no %s at %v bytes", at.series, at.bytes)
				continue
			}
			v := s.At(at.bytes).Values
			nstest.ErrorIf(t, v[report.P50].Median <= 0 || v[report.Bandwidth].Median <= 0 || v[report.Rate].Median <= 0,
				"%s at %v bytes: %v", at.series, at.bytes, v)
		}
	}
}

func TestHTTP(t *testing.T) {
	_, g := measured(t, "layers-http")
	for _, name := range []string{httpVianet, httpTCP} {
		if s := g.Row(name); s == nil || !(s.At(1024).Values[report.Rate].Median > 0) {
			t.Errorf("no rate of %s", name)
		}
	}
	if c := g.Conditions; c.Mode != "generic" || c.MTU != 1500 || c.Polling != "wait" || len(c.PinnedCPUs) != 2 {
		t.Errorf("conditions: %+v", c)
	}
}

// Under each fault both transports have all figures, and the forwarder's counters prove the
// fault.
func TestLoss(t *testing.T) {
	nstest.Require(t)
	some := []fault{faults[0], faults[3], faults[5]}
	g := newSession(t.Context(), shortly()).underFaults(faultRows(true), some)
	nstest.FatalIf(t, len(g.Series) != 2 || g.Conditions.Mode != "generic" || len(g.Conditions.PinnedCPUs) == 0, "%+v", g)
	for _, s := range g.Series {
		if len(s.Points) != len(some) {
			t.Fatalf("%s: %d points, want %d", s.Name, len(s.Points), len(some))
		}
		for i, p := range s.Points {
			if v := p.Values[report.FaultRatio]; some[i].hit != nil && !(v.Median > 0) {
				t.Errorf("%s, %s: no frame met the fault: %+v", s.Name, p.Label, v)
			}
			for _, m := range []report.Metric{report.P50, report.P99, report.Bandwidth, report.GoodputRatio, report.ResentRatio, report.SpuriousRatio} {
				if v := p.Values[m]; len(v.Turns) == 0 || !(v.Median >= 0) {
					t.Errorf("%s, %s: %s %+v", s.Name, p.Label, m, v)
				}
			}
			nstest.ErrorIf(t, some[i].faults.Loss > 0 && !(p.Values[report.ResentRatio].Median > 0),
				"%s, %s: frames were lost and none was sent again", s.Name, p.Label)
			nstest.ErrorIf(t, p.Label != some[i].name || p.N == 0 || p.Values[report.GoodputRatio].Median <= 0,
				"%s: point %d is %+v", s.Name, i, p)
		}
	}
}

// Where some rows sleep and others poll, the conditions say which, whatever comes first.
func TestPollingUnderFaults(t *testing.T) {
	nstest.Require(t)
	rows := []faultRow{{vianetRow, vianetRow, "", 1}, {report.LossTCP, tcpSpin, "cubic", 1}}
	g := newSession(t.Context(), shortly()).underFaults(rows, faults[:1])
	if p := g.Conditions.Polling; !strings.HasPrefix(p, "spin; ") || !strings.Contains(p, vianetRow) {
		t.Errorf("polling: %s", p)
	}
}

// The name of a fault matches its effect, and TCP is measured with the congestion control that
// its row names.
func TestFaultsAreWhatTheyAreCalled(t *testing.T) {
	share := map[string]float64{"loss-0.1%": 0.001, "loss-1%": 0.01, "loss-5%": 0.05}
	for _, f := range faults {
		nstest.Equal(t, f.name, f.faults.Loss, share[f.name])
		nstest.ErrorIf(t, f.name == "burst-1%" && f.faults.Burst*float64(f.faults.BurstLen) != 0.01,
			"%s: %+v", f.name, f.faults)
		if f.name == "reorder-2%" && (f.faults.Reorder != 0.02 || f.hit(testbed.EmulatorCounters{Reordered: 3}) != 3) {
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

// One, two and four senders have all figures, for vianet and the kernel. There is a share for
// each sender, every lost frame of vianet has a named counter, and the report has its array.
func TestIncastGroup(t *testing.T) {
	r, g := measured(t, report.IncastGroup)
	if len(g.Series) != len(incastRows) || g.Conditions.Mode != "generic" || g.Conditions.MTU != 1500 || len(g.Conditions.PinnedCPUs) != 5 {
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
			nstest.ErrorIf(t, p.X != n || p.N < int64(n), "%s, %v senders: %+v", s.Name, n, p)
			const rounding = 1e-9
			figure(report.Bandwidth, rounding, 1e9)
			figure(report.SendersRatio, rounding, 1e9)
			figure(report.Fairness, 1/n, 1+rounding)
			figure(report.LeastShare, rounding, 1)
			figure(report.ResentRatio, 0, 1)
			figure(report.DroppedRatio, 0, 1)
			if s.Name == vianetRow {
				figure(report.Unnamed, 0, 0)
			}
			nstest.ErrorIf(t, i == 0 && (p.Values[report.SendersRatio].Median != 1 || p.Values[report.Fairness].Median != 1),
				"%s, one sender: %+v", s.Name, p.Values)
		}
	}
	var out strings.Builder
	nstest.Must(t, r.Write(&out))
	var got struct {
		Incast []map[string]any `json:"incast"`
	}
	nstest.Must(t, json.Unmarshal([]byte(out.String()), &got))
	nstest.FatalIf(t, len(got.Incast) != len(incastSenders), "%v", got)
	for i, row := range got.Incast { // what else it has package report tests
		tcp, _ := row["tcp"].(map[string]any)
		if row["senders"] != float64(incastSenders[i]) || row["unnamed_frames"] != 0. || tcp["goodput_ratio"] == nil || tcp["unnamed_frames"] != nil {
			t.Errorf("row %d: %v", i, row)
		}
	}
}

// The simulated groups have figures of VIs and of DCTCP at the same places, with plots.
func TestFabricGroups(t *testing.T) {
	for name, want := range map[string]struct {
		series string
		metric report.Metric
	}{
		"fabric-sharing":     {"VI and TCP", report.FirstShare},
		"fabric-web-search":  {"VI", report.SlowdownP99},
		"fabric-data-mining": {"DCTCP", report.SlowdownP99},
		"fabric-incast":      {"VI", report.LinkUsed},
		"fabric-failure":     {"VI", report.Recovery},
	} {
		r, g := measured(t, name)
		s := g.Row(want.series)
		if s == nil || !(s.Points[len(s.Points)-1].Values[want.metric].Median > 0) {
			t.Errorf("%s: no %s of %s: %+v", name, want.metric, want.series, g)
		}
		var table strings.Builder
		if err := r.WriteTable(&table); err != nil || !strings.Contains(table.String(), "virtual time") {
			t.Errorf("%s: %v\n%s", name, err, table.String())
		}
		t.Log(table.String())
	}
}

// Each flow through a bottleneck has its figures, and a queue where the forwarder is the bottleneck.
func TestSharingGroups(t *testing.T) {
	for name, want := range map[string]report.Metric{"sharing-cubic": report.FirstShare, "sharing-vis": report.FlowFairness, "sharing-alone": report.MeanQueue} {
		_, g := measured(t, name)
		nstest.ErrorIf(t, g.Conditions.Mode != "generic" || len(g.Conditions.PinnedCPUs) == 0, "%s: %+v", name, g.Conditions)
		if notes := strings.Join(g.Notes, "\n"); !strings.Contains(notes, "start 10ms apart") { // as they do in a quick run
			t.Errorf("%s: %s", name, notes)
		}
		last := g.Series[len(g.Series)-1].Points[0]
		if v, ok := last.Values[want]; !ok || !(v.Median >= 0) {
			t.Errorf("%s, %s: no %s: %+v", name, last.Label, want, last.Values)
		}
		for _, s := range g.Series {
			for _, p := range s.Points {
				if v := p.Values[report.LinkUsed]; !(v.Median > 0) || p.Label == "" || p.N == 0 {
					t.Errorf("%s, %s: %+v", name, s.Name, p)
				}
			}
		}
	}
}
