package report

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func incastPoint(senders float64, values map[Metric]float64) Point {
	p := Point{X: senders, N: 1, Values: map[Metric]Value{}}
	for m, v := range values {
		p.Values[m] = ValueOf([]float64{v})
	}
	return p
}

// The array has an element for each number of senders with exactly the agreed names; a figure
// that is missing is null.
func TestIncastArray(t *testing.T) {
	r := Report{Groups: []Group{{Name: IncastGroup, Series: []Series{
		{Name: "vianet", Points: []Point{
			incastPoint(1, map[Metric]float64{SendersRatio: 1, Fairness: 1}),
			incastPoint(2, map[Metric]float64{
				SendersRatio: 0.75, Fairness: 0.9, LeastShare: 0.5, ResentRatio: 0.25, DroppedRatio: 0.125, Unnamed: 3,
			}),
		}},
		{Name: "tcp-net", Points: []Point{incastPoint(2, map[Metric]float64{SendersRatio: 1.5, Fairness: 0.8, LeastShare: 0.3})}},
	}}}}
	var out bytes.Buffer
	if err := r.Write(&out); err != nil {
		t.Fatal(err)
	}
	var got struct{ Incast any }
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	figures := func(goodput, fairness, least, resent, dropped, unnamed any) map[string]any {
		return map[string]any{
			"goodput_ratio": goodput, "fairness": fairness, "least_share": least,
			"resent_ratio": resent, "dropped_ratio": dropped, "unnamed_frames": unnamed,
		}
	}
	one, two := figures(1., 1., nil, nil, nil, nil), figures(0.75, 0.9, 0.5, 0.25, 0.125, 3.)
	one["senders"], one["tcp"] = 1., figures(nil, nil, nil, nil, nil, nil)
	two["senders"], two["tcp"] = 2., figures(1.5, 0.8, 0.3, nil, nil, nil)
	if diff := cmp.Diff(any([]any{one, two}), got.Incast); diff != "" {
		t.Error(diff)
	}
	again, err := Read(&out)
	if err != nil || len(again.Incast) != 2 || again.Incast[1]["least_share"] != 0.5 {
		t.Errorf("%+v, %v", again, err)
	}
	// A report without the group has no such array.
	out.Reset()
	if err := (&Report{}).Write(&out); err != nil || bytes.Contains(out.Bytes(), []byte(`"incast"`)) {
		t.Errorf("%v in %s", err, out.Bytes())
	}
	for m, lower := range map[Metric]bool{
		SendersRatio: false, Fairness: false, LeastShare: false, DroppedRatio: true, Unnamed: true,
	} {
		if m.Lower() != lower {
			t.Errorf("%s: less is better: %v", m, m.Lower())
		}
	}
}
