package report

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func faultPoint(x float64, label string, goodput, p99, spurious float64) Point {
	one := func(v float64) Value { return ValueOf([]float64{v}) }
	return Point{X: x, Label: label, N: 1, Values: map[Metric]Value{
		GoodputRatio: one(goodput), P99: one(p99), SpuriousRatio: one(spurious),
	}}
}

// The array has one element for each fault with exactly the agreed names, without the
// lossless point; a figure that is missing is null.
func TestLossArray(t *testing.T) {
	r := Report{Groups: []Group{{Name: LossGroup, Series: []Series{
		{Name: delivery, Points: []Point{faultPoint(0, "lossless", 1, 50, 0), faultPoint(1, "loss-1%", 0.95, 300, 0.001)}},
		{Name: LossTCP, Points: []Point{faultPoint(0, "lossless", 1, 60, 0)}},
	}}}}
	var out bytes.Buffer
	if err := r.Write(&out); err != nil {
		t.Fatal(err)
	}
	var got struct{ Loss any }
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	want := []any{map[string]any{
		"fault": "loss-1%", "goodput_ratio": 0.95, "pingpong_p99_us": 300., "spurious_ratio": 0.001,
		"tcp": map[string]any{"goodput_ratio": nil, "pingpong_p99_us": nil, "spurious_ratio": nil},
	}}
	if diff := cmp.Diff(any(want), got.Loss); diff != "" {
		t.Error(diff)
	}
	r.Groups[0].Series = append(r.Groups[0].Series,
		Series{Name: LossBBR, Points: []Point{faultPoint(1, "loss-1%", 0.5, 2e5, 0.002)}})
	if rows := lossArray.of(&r); len(rows) != 1 || rows[0]["tcp_bbr"].(ArrayRow)["goodput_ratio"] != number(0.5) {
		t.Errorf("%+v", rows)
	}
	again, err := Read(&out)
	if err != nil || len(again.Loss) != 1 || again.Loss[0]["fault"] != "loss-1%" {
		t.Errorf("%+v, %v", again, err)
	}
	// A report without the group has no such array.
	out.Reset()
	if err := (&Report{}).Write(&out); err != nil || bytes.Contains(out.Bytes(), []byte(`"loss"`)) {
		t.Errorf("%v in %s", err, out.Bytes())
	}
}

// Goodput is better when it is more, so that a comparison of reports does not praise
// its loss.
func TestGoodputIsBetterHigher(t *testing.T) {
	if GoodputRatio.Lower() || !SpuriousRatio.Lower() {
		t.Error("which way is better")
	}
}
