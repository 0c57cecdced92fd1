package report

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"viaxdp/internal/lab/fail"
)

// Write writes the report as one indented JSON object. Figures that are not
// finite become null. A report that Read would refuse is an error. The arrays are
// for programs that check what LossGroup and IncastGroup have found; Read leaves them out.
func (r *Report) Write(w io.Writer) (err error) {
	defer fail.Catch(&err)
	fail.During("report", r.check)
	out := struct {
		Report
		Loss   []arrayRow `json:"loss,omitempty"`   // by fault
		Incast []arrayRow `json:"incast,omitempty"` // by the number of senders
	}{*r, lossArray.of(r), incastArray.of(r)}
	out.Version = Version
	return writeJSON(w, &out)
}

// writeJSON writes a value as one indented JSON object.
func writeJSON(w io.Writer, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

// Read reads a report that Write has written. It refuses other versions of the
// format, and reports that contradict themselves.
func Read(r io.Reader) (_ *Report, err error) {
	defer fail.Catch(&err)
	b := fail.Must(io.ReadAll(r))
	var head struct {
		Version *int `json:"version"`
	}
	switch err := json.Unmarshal(b, &head); {
	case err != nil:
		fail.With("report: not the JSON of a report: %w", err)
	case head.Version == nil:
		fail.With("report: no version in it: give a report.json that via-xdp bench has written")
	case *head.Version != Version:
		fail.With("report: version %d of the format, this program knows %d: use the via-xdp that has written it", *head.Version, Version)
	}
	var out Report
	fail.During("report", func() {
		fail.If(json.Unmarshal(b, &out))
		out.check()
	})
	return &out, nil
}

// check refuses a report in which a name or a place means two things.
func (r *Report) check() {
	if !finite(r.Took) {
		fail.With("it took %v s", r.Took)
	}
	groups, files := map[string]bool{}, map[string]bool{}
	for i := range r.Groups {
		g := &r.Groups[i]
		if g.Name == "" || groups[g.Name] {
			fail.With("group %d: the name %q is empty or occurs twice", i+1, g.Name)
		}
		groups[g.Name] = true
		series := map[string]bool{}
		for j := range g.Series {
			s := &g.Series[j]
			if s.Name == "" || series[s.Name] {
				fail.With("group %s, series %d: the name %q is empty or occurs twice", g.Name, j+1, s.Name)
			}
			series[s.Name] = true
			fail.During(fmt.Sprintf("group %s, series %s", g.Name, s.Name), func() { s.check(files) })
		}
	}
}

// check adds the files of the histograms to those that are known.
func (s *Series) check(files map[string]bool) {
	xs, labels := map[float64]bool{}, map[string]bool{}
	for i := range s.Points {
		p := &s.Points[i]
		switch {
		case !finite(p.X):
			fail.With("point %d: x is %v", i+1, p.X)
		case xs[p.X]:
			fail.With("two points at %v", p.X)
		case p.Label != "" && labels[p.Label]:
			fail.With("two points with the label %q", p.Label)
		}
		xs[p.X], labels[p.Label] = true, true
		if f := p.Histogram; f != "" {
			if !filepath.IsLocal(f) {
				fail.With("the histogram %q is not below the report", f)
			}
			if files[f] {
				fail.With("the histogram %q belongs to two points", f)
			}
			files[f] = true
		}
	}
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// number is a figure in JSON: null when it is not finite, NaN when it is null.
type number float64

func (n number) MarshalJSON() ([]byte, error) {
	if !finite(float64(n)) {
		return []byte("null"), nil
	}
	return json.Marshal(float64(n))
}

func (n *number) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		*n = number(math.NaN())
		return nil
	}
	return json.Unmarshal(b, (*float64)(n))
}

// value is Value in JSON.
type value struct {
	Median number   `json:"median"`
	Turns  []number `json:"turns"`
}

// MarshalJSON writes figures that are not finite as null.
func (v Value) MarshalJSON() ([]byte, error) {
	out := value{Median: number(v.Median)}
	for _, t := range v.Turns {
		out.Turns = append(out.Turns, number(t))
	}
	return json.Marshal(out)
}

// UnmarshalJSON reads null, and a median that is not there, as NaN.
func (v *Value) UnmarshalJSON(b []byte) error {
	in := value{Median: number(math.NaN())}
	if err := json.Unmarshal(b, &in); err != nil {
		return err
	}
	*v = Value{Median: float64(in.Median)}
	for _, t := range in.Turns {
		v.Turns = append(v.Turns, float64(t))
	}
	return nil
}

// Groups whose figures the report also has as arrays, for programs that check them.
const (
	LossGroup   = "loss"   // its points are faults, called so by their labels
	IncastGroup = "incast" // its points are numbers of senders
)

// Series of LossGroup beside vi-reliable-delivery.
const (
	LossTCP = "tcp-spin, cubic"
	LossBBR = "tcp-spin, bbr"
)

// arrayRow is one element of an array: a point of via-xdp's row, and those of the kernel's rows
// in objects. Figures are medians over the turns; what was not measured is null.
type arrayRow map[string]any

// array says what becomes of a group.
type array struct {
	group, ours string
	tcp         map[string]string // series, by their objects; tcp is there in any case
	key         string            // of the point's place
	figures     map[string]Metric
}

var (
	lossArray = array{
		group: LossGroup, ours: delivery, key: "fault", tcp: map[string]string{"tcp": LossTCP, "tcp_bbr": LossBBR},
		figures: map[string]Metric{"goodput_ratio": GoodputRatio, "pingpong_p99_us": P99, "spurious_ratio": SpuriousRatio},
	}
	incastArray = array{
		group: IncastGroup, ours: "vianet", key: "senders", tcp: map[string]string{"tcp": "tcp-net"},
		figures: map[string]Metric{
			"goodput_ratio": SendersRatio, "fairness": Fairness, "least_share": LeastShare,
			"resent_ratio": ResentRatio, "dropped_ratio": DroppedRatio, "unnamed_frames": Unnamed,
		},
	}
)

// of makes the array of a report, nil without the group. A labelled point at 0 is what the others
// are compared with.
func (a array) of(r *Report) []arrayRow {
	g := r.Group(a.group)
	if g == nil || g.Row(a.ours) == nil {
		return nil
	}
	figures := func(p *Point) arrayRow {
		row := arrayRow{}
		for name, m := range a.figures {
			row[name] = number(p.median(m))
		}
		return row
	}
	rows := []arrayRow{}
	for p := range each(g.Row(a.ours).Points) {
		row := figures(p)
		switch {
		case p.Label == "":
			row[a.key] = int(p.X)
		case p.X == 0:
			continue
		default:
			row[a.key] = p.Label
		}
		for object, name := range a.tcp {
			s, q := g.Row(name), &Point{}
			if s != nil && s.like(p) != nil {
				q = s.like(p)
			}
			if s != nil || object == "tcp" {
				row[object] = figures(q)
			}
		}
		rows = append(rows, row)
	}
	return rows
}
