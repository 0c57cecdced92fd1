package libfabric

import (
	"testing"
	"time"

	"viaxdp/bench/mpich"
	"viaxdp/bench/peers"
	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/openmpi"
	"viaxdp/internal/lab/testsize"
)

// What bench measures of the provider and of libvipl, where it finds them, has figures.
func TestBench(t *testing.T) {
	dir := build(t)
	for name, value := range map[string]string{
		"FI_PROVIDER_PATH": dir + "/prov", "LD_LIBRARY_PATH": dir + "/lib", "C_INCLUDE_PATH": dir + "/lib", "LIBRARY_PATH": dir + "/lib",
		"VIA_HUGEPAGES": "avoid",
	} {
		t.Setenv(name, value)
	}
	own := t.TempDir()
	nstest.Must(t, peers.BuildVIA(t.Context(), own))
	rows, missing := peers.VIARows(own)
	nstest.FatalIf(t, len(rows) != 3 || len(missing) > 0, "%d rows; missing: %q", len(rows), missing)
	bed, err := peers.Start(1500)
	nstest.Must(t, err)
	defer bed.Close()
	for _, r := range rows {
		f, err := bed.Measure(t.Context(), r, 64, 20*time.Millisecond)
		nstest.ErrorIf(t, err != nil || !(f.Mean > 0) || r.Quantiles != (f.P50 > 0) || f.N == 0, "%s: %+v, %v", r.Name, f, err)
	}
	if tool := openmpi.Missing(); tool != "" {
		nstest.Lacks(t, "needs %s: apt-get install %s", tool, openmpi.Packages)
	}
	program, err := mpich.Build(t.Context(), own, openmpi.Compiler)
	nstest.Must(t, err)
	transports := map[string]openmpi.Transport{"viaxdp": openmpi.VIA}
	if testsize.Every() {
		transports["tcp"], transports["ofi_rxm"] = openmpi.TCP, openmpi.RXM
	}
	for name, over := range transports {
		got, err := mpich.Run{
			Program: []string{program}, Names: []string{"latency", "bw"}, Ranks: 2, MTU: 1500, Min: 8, Max: 8, Iterations: 20, OpenMPI: over,
		}.Measure(t.Context())
		nstest.ErrorIf(t, err != nil || len(got) != 2 || !(got[0].Mean > 0) || !(got[1].MBps > 0),
			"Open MPI over %s: %+v, %v", name, got, err)
	}
}
