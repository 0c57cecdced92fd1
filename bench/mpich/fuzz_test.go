package mpich

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
)

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
