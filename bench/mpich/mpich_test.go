package mpich

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"viaxdp/internal/nstest"
)

func TestParse(t *testing.T) {
	for _, test := range []struct {
		name, text string
		want       []Row
	}{
		{"latency", "# Size  Latency\n8   3.98   3.50   3.80   4.00   9.10   50\n16 4.1 3.6 3.9 4.1 9.2 40\n", []Row{
			{Bytes: 8, Mean: 3.98, Least: 3.5, P50: 3.8, P99: 4, P999: 9.1, Count: 50},
			{Bytes: 16, Mean: 4.1, Least: 3.6, P50: 3.9, P99: 4.1, P999: 9.2, Count: 40},
		}},
		{"bw", "1000  2.50\n", []Row{{Bytes: 1000, MBps: 2.5, Messages: 2500}}},
		{"mbw_mr", "1000  2.50 2500.00\n", []Row{{Bytes: 1000, MBps: 2.5, Messages: 2500}}},
		{"allreduce", "\n# mvich Allreduce Latency Test\n8  109.50\n", []Row{{Bytes: 8, Mean: 109.5}}},
		{"bw", "", nil},
	} {
		got, err := parse(test.name, test.text)
		if err != nil || !cmp.Equal(got, test.want) {
			t.Errorf("%s: %v, %s", test.name, err, cmp.Diff(test.want, got))
		}
	}
	for _, text := range []string{"8\n", "8 fast\n"} {
		if rows, err := parse("latency", text); err == nil {
			t.Errorf("%q is %+v", text, rows)
		}
	}
}

// built is the probe, built where MPICH is installed; as other people's programs, it
// may be missing unless VIA_PEERS says that they are required.
func built(t *testing.T) (path string) {
	t.Helper()
	switch {
	case Installed():
	case os.Getenv("VIA_PEERS") == "require":
		t.Fatalf("MPICH is not installed (Debian's package %s)", Package)
	default:
		t.Skipf("MPICH is not installed (Debian's package %s)", Package)
	}
	nstest.Require(t)
	path, err := Build(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Where MPICH is installed its figures are there, and make sense.
func TestMeasure(t *testing.T) {
	path := built(t)
	for _, name := range []string{"latency", "bw", "alltoall"} {
		rows, err := Run{Program: []string{path}, Name: name, Ranks: 2, MTU: 1500, Min: 64, Max: 256, Iterations: 3}.Measure(t.Context())
		if err != nil || len(rows) != 3 {
			t.Fatalf("%s: %d rows, %v", name, len(rows), err)
		}
		for i, r := range rows {
			if r.Bytes != 64<<i || (r.Mean > 0) == (r.MBps > 0) || name == "latency" && !(r.Least > 0 && r.Least <= r.P50 && r.P50 <= r.P99 && r.Count == 3) {
				t.Errorf("%s: %+v", name, r)
			}
		}
	}
	if _, err := (Run{Program: []string{path}, Name: "nothing", Ranks: 2, MTU: 1500, Min: 1, Max: 1}).Measure(t.Context()); err == nil {
		t.Error("a benchmark that it does not know")
	}
}

// Each run comes to its end: MPI_Finalize does not, now and then.
func TestEnds(t *testing.T) {
	path := built(t)
	for i := range 30 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		_, err := Run{Program: []string{path}, Name: "bw", Ranks: 2, MTU: 1500, Min: 64, Max: 64, Iterations: 100}.Measure(ctx)
		cancel()
		if err != nil {
			t.Fatalf("run %d: %v", i, err)
		}
	}
}
