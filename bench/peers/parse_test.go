package peers

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"viaxdp/internal/lab/nstest"
)

func recorded(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	nstest.Must(t, err)
	return string(b)
}

func rowOf(t testing.TB, name string) Row {
	t.Helper()
	for _, r := range Rows() {
		if r.Name == name {
			return r
		}
	}
	t.Fatalf("no row %s", name)
	return Row{}
}

// Outputs of the real programs, as TestPrograms -record has written them, and
// what a reader finds in them by eye.
func TestParse(t *testing.T) {
	// rate of iperf3's stream: bytes in seconds.
	rate := func(bytes, seconds float64) float64 { return bytes / seconds }
	for _, test := range []struct {
		row   string
		bytes int
		want  Figures
	}{
		{"sockperf-udp", 64, Figures{N: 7870, Min: 10.967, Mean: 34.928, P50: 31.746, P99: 114.785, P999: 283.827}},
		{"sockperf-udp-spin", 64, Figures{N: 125827, Min: 1.788, Mean: 2.177, P50: 2.143, P99: 2.459, P999: 13.316}},
		{"sockperf-tcp", 64, Figures{N: 7786, Min: 11.168, Mean: 35.311, P50: 35.503, P99: 49.767, P999: 61.366}},
		{"sockperf-tcp", 65536, Figures{N: 4522, Min: 20.763, Mean: 60.768, P50: 34.709, P99: 1341.565, P999: 2066.093}},
		{"sockperf-tcp-spin", 64, Figures{N: 85891, Min: 2.616, Mean: 3.192, P50: 3.163, P99: 3.506, P999: 15.238}},
		{"sockperf-tcp-spin", 65536, Figures{N: 16046, Min: 12.552, Mean: 17.142, P50: 17.051, P99: 25.728, P999: 31.499}},
		{"iperf3-tcp", 64, Figures{
			N: 38289960 / 64, MBps: rate(38.28996, 1.000038), Messages: rate(38289960./64, 1.000038),
		}},
		{"iperf3-tcp", 65536, Figures{
			N: 1475870344 / 65536, MBps: rate(1475.870344, 1.000209), Messages: rate(1475870344./65536, 1.000209),
		}},
		{"fi_pingpong-msg", 64, Figures{N: 6000, Mean: 3.99}},
		{"fi_pingpong-msg", 65536, Figures{N: 1000, Mean: 16.75}},
		{"fi_pingpong-rdm", 64, Figures{N: 6000, Mean: 15.01}},
		{"fi_pingpong-rdm", 65536, Figures{N: 1000, Mean: 98.05}},
		{"ucx_perftest-tag-lat", 64, Figures{N: 6200, P50: 4.155, Mean: 4.196}},
		{"ucx_perftest-tag-lat", 65536, Figures{N: 1000, P50: 36.496, Mean: 36.932}},
		{"ucx_perftest-tag-bw", 64, Figures{N: 12400, MBps: 269622 * 64 / 1e6, Messages: 269622}},
		{"ucx_perftest-tag-bw", 65536, Figures{N: 1359, MBps: 60931 * 65536 / 1e6, Messages: 60931}},
	} {
		file := fmt.Sprintf("%s-%d.txt", test.row, test.bytes)
		got, err := rowOf(t, test.row).parse(recorded(t, file), test.bytes)
		nstest.WantErr(t, file, err, nil)
		nstest.Same(t, file, got, test.want, cmpopts.EquateApprox(1e-9, 0))
	}
}

// What programs print when they have nothing to report becomes an error that
// says why.
func TestParseComplaints(t *testing.T) {
	for _, test := range []struct{ row, file, want string }{
		{"sockperf-tcp", "sockperf-refused.txt", "Can`t connect socket (errno=111 Connection refused)"},
		{"sockperf-tcp", "sockperf-too-long.txt", "forcibly closed by a peer"},
		{"sockperf-udp-spin", "sockperf-nothing.txt", "No valid observations"},
		{"iperf3-tcp", "iperf3-refused.json", "unable to connect to server: Connection refused"},
		{"ucx_perftest-tag-lat", "ucx-no-device.txt", "no usable transports/devices"},
	} {
		f, err := rowOf(t, test.row).parse(recorded(t, test.file), 64)
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %+v, %v", test.file, f, err)
		}
	}
}

// Output that is no such program's, or cut off, is refused by every parser.
func TestParseMalformed(t *testing.T) {
	for _, r := range Rows() {
		for _, out := range []string{"", "\n\n", "hello", "{", "{}", "iterations,\n", "usec/xfer\n"} {
			if f, err := r.parse(out, 64); err == nil {
				t.Errorf("%s reads %q as %+v", r.Name, out, f)
			}
		}
		good := recorded(t, r.Name+"-64.txt")
		if f, err := r.parse(good[:len(good)/3], 64); err == nil {
			t.Errorf("%s reads a third of its output as %+v", r.Name, f)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, test := range []struct{ row, from, to, want string }{
		{"fi_pingpong-msg", " =", " -", "messages were lost"},
		{"fi_pingpong-msg", "usec/xfer", "s", "no usec/xfer"},
		{"iperf3-tcp", `"blksize":	64`, `"blksize":	63`, "blocks had 63 bytes"},
		{"iperf3-tcp", `"sum_received":`, `"sum":`, "received nothing"},
		{"ucx_perftest-tag-lat", "overall_lat", "other", "no column overall_lat"},
		{"ucx_perftest-tag-bw", "overall_mr", "other", "no column overall_mr"},
		{"sockperf-udp", "percentile 50.000", "percentile 51.000", "no median"},
	} {
		out := recorded(t, test.row+"-64.txt")
		changed := strings.Replace(out, test.from, test.to, 1)
		if changed == out {
			t.Errorf("%s: %q is not in the output", test.row, test.from)
		}
		nstest.ErrSays(t, fmt.Sprintf("%s with %q", test.row, test.to), nstest.Err(rowOf(t, test.row).parse(changed, 64)), test.want)
	}
}

// For any output of a program, a parser returns plausible figures or an error.
func FuzzParse(f *testing.F) {
	files, err := filepath.Glob(filepath.Join("testdata", "*.*"))
	if err != nil || len(files) == 0 {
		f.Fatalf("no recorded outputs: %v", err)
	}
	for _, file := range files {
		f.Add(recorded(f, filepath.Base(file)))
	}
	rows := Rows()
	f.Fuzz(func(t *testing.T, out string) {
		for _, r := range rows {
			got, err := r.parse(out, 64)
			switch {
			case err == nil && (got.N < 1 || !(got.P50+got.Mean+got.MBps > 0)):
				t.Errorf("%s: %+v", r.Name, got)
			case err != nil && !cmp.Equal(got, Figures{}):
				t.Errorf("%s: figures %+v beside the error %v", r.Name, got, err)
			case err != nil && err.Error() == "":
				t.Errorf("%s: an error that says nothing", r.Name)
			}
		}
	})
}
