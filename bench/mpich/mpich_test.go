package mpich

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"viaxdp/internal/lab/nstest"
)

func TestParse(t *testing.T) {
	names := []string{"latency", "bw", "mbw_mr", "allreduce"}
	for _, test := range []struct {
		text string
		want []Row
	}{
		{"# latency\n# Size  Latency\n8   3.98   3.50   3.80   4.00   9.10   50\n16 4.1 3.6 3.9 4.1 9.2 40\n", []Row{
			{Name: "latency", Bytes: 8, Mean: 3.98, Least: 3.5, P50: 3.8, P99: 4, P999: 9.1, Count: 50},
			{Name: "latency", Bytes: 16, Mean: 4.1, Least: 3.6, P50: 3.9, P99: 4.1, P999: 9.2, Count: 40},
		}},
		{"# bw\n1000  2.50\n#mbw_mr: both\n1  0.02 24680.00\n", []Row{
			{Name: "bw", Bytes: 1000, MBps: 2.5, Messages: 2500}, {Name: "mbw_mr", Bytes: 1, MBps: 0.02468, Messages: 24680},
		}},
		{"\n# allreduce: mvich Allreduce Latency Test\n8  109.50\n", []Row{{Name: "allreduce", Bytes: 8, Mean: 109.5}}},
		{"", nil},
	} {
		got, err := parse(names, test.text)
		if err != nil || !cmp.Equal(got, test.want) {
			t.Errorf("%q: %v, %s", test.text, err, cmp.Diff(test.want, got))
		}
	}
	for _, text := range []string{"# latency\n8\n", "# latency\n8 fast\n", "8 1\n", "# bibw\n8 1\n"} {
		if rows, err := parse(names, text); err == nil {
			t.Errorf("%q is %+v", text, rows)
		}
	}
}

// built is the probe, built where MPICH is installed.
func built(t *testing.T) (path string) {
	t.Helper()
	if !Installed() {
		nstest.LacksProgram(t, "MPICH is not installed (Debian's package %s)", Package)
	}
	nstest.Require(t)
	path, err := Build(t.Context(), t.TempDir(), Compiler)
	nstest.Must(t, err)
	return path
}

// Where MPICH is installed, its figures are complete and plausible.
func TestMeasure(t *testing.T) {
	path := built(t)
	names := []string{"latency", "bw", "bibw", "mbw_mr", "allreduce", "alltoall"}
	rows, err := Run{
		Program: []string{path}, Names: names, Ranks: 2, MTU: 1500, Min: 16, Max: 1024, Step: 8, Iterations: 3,
	}.Measure(t.Context())
	if err != nil || len(rows) != 3*len(names) {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	for i, r := range rows {
		latency := r.Name == "latency"
		if r.Name != names[i/3] || r.Bytes != 16<<(i%3*3) || (r.Mean > 0) == (r.MBps > 0) ||
			latency && !(r.Least > 0 && r.Least <= r.P50 && r.P50 <= r.P99 && r.Count == 3) {
			t.Errorf("%+v", r)
		}
	}
	// Of 400 bytes that may move two go at a time.
	few := Run{Program: []string{path}, Names: []string{"latency"}, Ranks: 2, MTU: 1500, Min: 200, Max: 200, MostBytes: 400}
	if rows, err := few.Measure(t.Context()); err != nil || len(rows) != 1 || rows[0].Count != 2 {
		t.Errorf("%+v, %v", rows, err)
	}
	for name, wrong := range map[string]Run{
		"a benchmark that it does not know": {Names: []string{"nothing"}, Min: 1, Max: 1},
		"sizes that do not grow":            {Names: []string{"bw"}, Min: 1, Max: 8, Step: 1},
	} {
		wrong.Program, wrong.Ranks, wrong.MTU = []string{path}, 2, 1500
		nstest.ErrorIf(t, nstest.Err(wrong.Measure(t.Context())) == nil, "%s", name)
	}
}

// What Open MPI's launcher says is no row.
func TestParseLauncher(t *testing.T) {
	rows, err := parse([]string{"latency"}, "# latency: a benchmark\n[node0:16472] plm:rsh: Warning: setpgid(16480,16480) failed\n8 3.5\n")
	if err != nil || len(rows) != 1 || rows[0].Bytes != 8 || rows[0].Mean != 3.5 {
		t.Errorf("%+v, %v", rows, err)
	}
}

// Every run ends, although MPI_Finalize hangs now and then.
func TestEnds(t *testing.T) {
	path := built(t)
	for i := range 30 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		_, err := Run{Program: []string{path}, Names: []string{"bw"}, Ranks: 2, MTU: 1500, Min: 64, Max: 64, Iterations: 1, Warmup: 1}.Measure(ctx)
		cancel()
		if err != nil {
			t.Fatalf("run %d: %v", i, err)
		}
	}
}

// Any output of ranks gives valid figures or an error. Printed rows are read back unchanged,
// except for rounding of derived figures.
func FuzzParse(f *testing.F) {
	f.Add("latency", "# Size  Latency\n8   3.98   3.50   3.80   4.00   9.10   50\n")
	f.Add("bw", "1000  2.50\n")
	f.Add("mbw_mr", "0 0 0\n")
	f.Add("allreduce", "\n# mvich\n8  NaN\n")
	f.Add("alltoall", "1e300 0x1p-2 _\n")
	f.Add("latency", "8 4 4 4 4 4 50\n# bw: Bandwidth\n1 2 3\n")
	f.Add("bw", "19 2.5\n")
	f.Add("bibw", "1.5 2\n")
	f.Add("bw", "1 3000\n")
	names := []string{"latency", "bw", "bibw", "mbw_mr", "allreduce", "alltoall"}
	f.Fuzz(func(t *testing.T, name, text string) {
		rows, err := parse(names, "# "+name+": a benchmark\n"+text)
		if err != nil {
			return
		}
		var again strings.Builder
		for _, r := range rows {
			for _, v := range []float64{r.Mean, r.Least, r.P50, r.P99, r.P999, r.MBps, r.Messages} {
				if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
					t.Fatalf("%s: %q is %+v", name, text, r)
				}
			}
			if r.Bytes < 0 || r.Count < 0 {
				t.Fatalf("%s: %q is %+v", name, text, r)
			}
			if r.MBps > 1e9 {
				return // so near to what is refused that rounding may cross it
			}
			fmt.Fprintf(&again, "# %s:\n", r.Name)
			if strings.Contains(r.Name, "bw") {
				fmt.Fprintln(&again, r.Bytes, r.MBps, r.Messages)
			} else {
				fmt.Fprintln(&again, r.Bytes, r.Mean, r.Least, r.P50, r.P99, r.P999, r.Count)
			}
		}
		if second, err := parse(names, again.String()); err != nil || !slices.EqualFunc(second, rows, same) {
			t.Fatalf("%s: %q is %+v, printed again %q is %+v, %v", name, text, rows, again.String(), second, err)
		}
	})
}

// same reports whether rows have the same figures.
func same(a, b Row) bool {
	near := func(x, y float64) bool { return math.Abs(x-y) <= 1e-9*max(x, y)+1e-12 }
	if !near(a.MBps, b.MBps) || !near(a.Messages, b.Messages) {
		return false
	}
	a.MBps, a.Messages = b.MBps, b.Messages
	return a == b
}
