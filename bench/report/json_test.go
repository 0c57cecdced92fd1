package report

import (
	"bytes"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"viaxdp/internal/lab/nstest"
)

// same compares reports as far as their JSON can hold them.
var same = cmp.Options{cmpopts.EquateNaNs(), cmpopts.EquateEmpty()}

func written(t interface {
	Helper()
	Fatal(...any)
}, r *Report) []byte {
	t.Helper()
	return []byte(text(t, r.Write))
}

// The names in the file are what other programs read.
func TestJSONGolden(t *testing.T) {
	r := sample()
	r.Groups = []Group{*r.Group("abl-table")}
	r.Groups[0].Series[0].Points[0].Histogram = "abl-table-table-0.hdr"
	golden(t, "report.json", text(t, r.Write))
}

func TestJSONRoundTripOfAny(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := anyReport().Draw(t, "report")
		got, err := Read(bytes.NewReader(written(t, want)))
		nstest.Must(t, err)
		if diff := cmp.Diff(want, got, same); diff != "" {
			t.Fatal(diff)
		}
	})
}

// Infinite figures, which JSON cannot hold, become none, and what is none stays so.
func TestJSONInfinite(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, c := range []struct{ in, want Value }{
		{Value{inf, []float64{-inf, 2}}, Value{nan, []float64{nan, 2}}}, {ValueOf(nil), Value{Median: nan}},
		{Value{nan, []float64{1, nan}}, Value{nan, []float64{1, nan}}},
	} {
		r := sample()
		r.Groups[0].Series[0].Points[0].Values[P50] = c.in
		got, err := Read(bytes.NewReader(written(t, r)))
		nstest.Must(t, err)
		r.Groups[0].Series[0].Points[0].Values[P50] = c.want
		nstest.Same(t, "report", got, r, same)
	}
}

// A missing figure is none, and not 0.
func TestJSONNoFigure(t *testing.T) {
	for _, value := range []string{`null`, `{}`, `{"median":null,"turns":null}`} {
		r, err := Read(strings.NewReader(`{"version":1,"groups":[{"name":"g","series":[{"name":"s","points":[
			{"x":1,"values":{"p50_us":` + value + `}}]}]}]}`))
		nstest.Must(t, err)
		if v := r.Groups[0].Series[0].Points[0].Values[P50]; !math.IsNaN(v.Median) || len(v.Turns) != 0 {
			t.Errorf("%s: read %+v", value, v)
		}
	}
}

func TestReadRefuses(t *testing.T) {
	group := func(s string) string { return `{"version":1,"groups":[` + s + `]}` }
	points := func(s string) string { return group(`{"name":"g","series":[{"name":"s","points":[` + s + `]}]}`) }
	for _, c := range []struct{ name, in, want string }{
		{"nothing", "", "not the JSON of a report"},
		{"a list", "[]", "not the JSON of a report"},
		{"two", `{"version":1}{"version":1}`, "not the JSON of a report"},
		{"no version", `{"conditions":{}}`, "no version in it: give a report.json"},
		{"a later version", `{"version":2,"groups":7}`, "version 2 of the format, this program knows 1: use"},
		{"another type", `{"version":1,"groups":7}`, "groups"},
		{"a group without a name", group(`{}`), `group 1: the name ""`},
		{"a group twice", group(`{"name":"g"},{"name":"g"}`), `group 2: the name "g"`},
		{"a series twice", group(`{"name":"g","series":[{"name":"s"},{"name":"s"}]}`), `group g, series 2: the name "s"`},
		{"a point twice", points(`{"x":1},{"x":1}`), "group g, series s: two points at 1"},
		{"a label twice", points(`{"x":1,"label":"a"},{"x":2,"label":"a"}`), `two points with the label "a"`},
		{"a histogram elsewhere", points(`{"x":1,"histogram":"../../etc/passwd"}`), "is not below the report"},
		{"a histogram of two points", points(`{"x":1,"histogram":"a"},{"x":2,"histogram":"a"}`), "belongs to two points"},
	} {
		t.Run(c.name, func(t *testing.T) {
			nstest.ErrSays(t, c.name, nstest.Err(Read(strings.NewReader(c.in))), c.want)
		})
	}
}

// A report that could not be read back is not written.
func TestWriteRefuses(t *testing.T) {
	for _, spoil := range []func(*Report){
		func(r *Report) { r.Took = math.Inf(1) },
		func(r *Report) { r.Groups[0].Series[0].Points[0].X = math.NaN() },
		func(r *Report) { r.Groups[1].Name = r.Groups[0].Name },
	} {
		r := sample()
		spoil(r)
		nstest.ErrorIf(t, r.Write(io.Discard) == nil, "written all the same")
	}
}

// Any report that Read accepts can be written, read again, and shown.
func FuzzRead(f *testing.F) {
	f.Add(written(f, sample()))
	f.Add([]byte(`{"version":1,"groups":[{"name":"g","axis":{"name":"a","log":true},"base":"s","series":[{"name":"s","points":[
		{"x":-1,"values":{"p50_us":{"median":1e308,"turns":[null,-1]},"?":null},"disturbed":[""]},{"x":1e300,"label":"|\n"}]}]}]}`))
	f.Add([]byte(`{"version":1,"groups":[{"name":"load","title":"","series":[{"name":"tcp","points":[{"values":{}}]}]}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := Read(bytes.NewReader(b))
		if err != nil {
			return
		}
		again, err := Read(bytes.NewReader(written(t, r)))
		nstest.Must(t, err)
		if diff := cmp.Diff(r, again, same); diff != "" {
			t.Fatal(diff)
		}
		nstest.Check(t, r.WriteTable(io.Discard))
		nstest.Check(t, r.WriteMarkdown(io.Discard, "plots"))
		c := Compare(r, again)
		nstest.Check(t, c.WriteTable(io.Discard))
		nstest.ErrorIf(t, len(c.OnlyA)+len(c.OnlyB)+len(c.Conditions) > 0 || c.WorseThan(0),
			"a report differs from itself: %+v", c)
	})
}
