package suite

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"viaxdp/bench/mpich"
	"viaxdp/bench/report"
	"viaxdp/internal/lab/nstest"
)

// The layers have figures of every row at every size, which the report also has
// as the demo's arrays; HTTP has its rate over both networks.
func TestLayers(t *testing.T) {
	nstest.Require(t)
	r, err := Run(t.Context(), shortly(layerMessages, "layers-http"))
	if err != nil {
		t.Fatal(err)
	}
	names := []string{mvichRow, vianetRow, delivery, tcpNet}
	if mpich.Installed() {
		names = append(names, mpichRow)
	}
	g := r.Group(layerMessages)
	for _, name := range names {
		for _, at := range []struct {
			series string
			bytes  float64
		}{{name, 64}, {name, 65536}, {name + mtuSuffix(longMTU), 65536}} {
			s := g.Row(at.series)
			if s == nil || s.At(at.bytes) == nil {
				t.Errorf("no %s at %v bytes", at.series, at.bytes)
				continue
			}
			v := s.At(at.bytes).Values
			if v[report.P50].Median <= 0 || v[report.Bandwidth].Median <= 0 || v[report.Rate].Median <= 0 {
				t.Errorf("%s at %v bytes: %v", at.series, at.bytes, v)
			}
		}
	}
	if want := 3 * len(names); len(r.Latency) != want || len(r.Bandwidth) != want {
		t.Errorf("%d latencies and %d bandwidths, want %d", len(r.Latency), len(r.Bandwidth), want)
	}
	for _, l := range r.Latency {
		if l.Name == mvichRow && l.Bytes == 64 && (l.P50 != g.Row(mvichRow).At(64).Values[report.P50].Median || l.N == 0) {
			t.Errorf("the array has %+v", l)
		}
	}
	for _, name := range []string{"net/http over vianet", "net/http over TCP"} {
		if s := r.Group("layers-http").Row(name); s == nil || !(s.At(1024).Values[report.Rate].Median > 0) {
			t.Errorf("no rate of %s", name)
		}
	}
}

// Where MPICH's program fails the other rows have their figures, and the report
// says why there are none of MPICH.
func TestLayersWithoutTheirs(t *testing.T) {
	nstest.Require(t)
	dir := t.TempDir()
	const compiler = "#!/bin/sh\nprintf '#!/bin/sh\\necho broken >&2; exit 3\\n' > $3\nchmod +x $3\n" // of -O2 -o PROGRAM SOURCE
	if err := os.WriteFile(filepath.Join(dir, "mpicc.mpich"), []byte(compiler), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	r, err := Run(t.Context(), shortly(layerMessages))
	if err != nil {
		t.Fatal(err)
	}
	g := r.Group(layerMessages)
	for _, name := range []string{mvichRow, vianetRow, delivery, tcpNet} {
		if s := g.Row(name); s == nil || s.At(64) == nil {
			t.Errorf("no %s", name)
		}
	}
	if notes := strings.Join(g.Notes, "\n"); !strings.Contains(notes, "No figures of mpich-tcp from turn 1 on") || !strings.Contains(notes, "broken") {
		t.Errorf("the notes are\n%s", notes)
	}
}
