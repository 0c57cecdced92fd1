package libfabric

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"viaxdp/internal/agent/agentclient"
	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/cprogram"
	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/openmpi"
	"viaxdp/internal/lab/testbed"
	"viaxdp/internal/lab/testsize"
)

// newHosts makes n hosts for that number of ranks each. If it is more than one, each host has an agent, since the ranks share
// the only queue of its interface.
func newHosts(t *testing.T, n, ranks int) *openmpi.Hosts {
	t.Helper()
	star, err := testbed.NewStar(n, 1500)
	nstest.Must(t, err)
	t.Cleanup(func() { star.Close() })
	cfg := openmpi.Config{Ranks: ranks}
	if ranks > 1 {
		cfg.Before = starAgents(t, star, n)
	}
	h, err := openmpi.Start(star, n, cfg)
	nstest.Must(t, err)
	t.Cleanup(func() { h.Close() })
	return h
}

// starAgents starts an agent in each namespace; before a program it takes one of these commands.
func starAgents(t *testing.T, star *testbed.Star, n int) (before []string) {
	t.Helper()
	program, err := command()
	nstest.Must(t, err)
	for i := range n {
		socket := filepath.Join(t.TempDir(), "agent.sock")
		agent := exec.Command(program, "agent", "--config", os.DevNull, "--socket", socket, "--no-fdstored")
		nstest.Must(t, star.Start(i, -1, agent))
		t.Cleanup(func() { _, _ = agent.Process.Signal(syscall.SIGTERM), agent.Wait() })
		if !await.Comes(func() bool { _, err = agentclient.Probe(socket); return err == nil }) {
			t.Fatal(err)
		}
		before = append(before, "export VIA_AGENT="+socket)
	}
	return before
}

// mpiEnv is what ranks find in their environment.
func mpiEnv() []string {
	return []string{"FI_PROVIDER_PATH=" + made.dir + "/prov", fmt.Sprintf("VIA_SILENCE=%d", cprogram.Silence.Milliseconds())}
}

// mpiTransports are the ways to the provider: its own FI_EP_RDM, and that of ofi_rxm.
var mpiTransports = map[string]openmpi.Transport{"viaxdp": openmpi.VIA, "ofi_rxm": openmpi.RXM}

// mpiProgram compiles a program of testdata/mpi.
func mpiProgram(t *testing.T, name string) string {
	t.Helper()
	dir := build(t)
	if tool := openmpi.Missing(); tool != "" {
		nstest.Lacks(t, "needs %s: apt-get install %s", tool, openmpi.Packages)
	}
	nstest.Must(t, openmpi.Build(t.Context(), "testdata/mpi/"+name+".c", dir+"/"+name))
	return dir + "/" + name
}

// Debian's Open MPI, unmodified, runs over the provider: point-to-point, collectives, communicators, one-sided.
// A rank that dies ends the job.
func TestOpenMPI(t *testing.T) {
	program := mpiProgram(t, "ranks")
	cases := []struct {
		n, ranks int
		over     string
	}{{2, 1, "viaxdp"}, {2, 2, "viaxdp"}, {4, 1, "viaxdp"}, {2, 2, "ofi_rxm"}, {4, 1, "ofi_rxm"}, {2, 4, "viaxdp"}}
	if !testsize.Every() {
		cases = cases[:1] // TestMPIApplications has ofi_rxm, too
	}
	for _, c := range cases {
		t.Run(fmt.Sprintf("%s, %d hosts, %d ranks each", c.over, c.n, c.ranks), func(t *testing.T) {
			n := c.n * c.ranks
			h := newHosts(t, c.n, c.ranks)
			over := mpiTransports[c.over]
			out, err := h.Run(t.Context(), over, mpiEnv(), program)
			nstest.FatalIf(t, err != nil || strings.Count(out, " checks\n") != n, "%v\n%s", err, out)
			if n == 4 && c.ranks == 1 || n > 4 {
				return
			}
			began := time.Now()
			if out, err = h.Run(t.Context(), over, mpiEnv(), program, "dies"); err == nil || strings.Contains(out, " checks\n") {
				t.Errorf("a job with a rank that dies: %v after %v\n%s", err, time.Since(began), out)
			}
		})
	}
}

// The applications of mvich/mpiapps, in C, have the results of a serial run, with one, two and four ranks a host.
func TestMPIApplications(t *testing.T) {
	program := mpiProgram(t, "apps")
	perHost := []int{1, 2, 4}
	if !testsize.Every() {
		perHost = perHost[:1]
	}
	for _, ranks := range perHost {
		h := newHosts(t, 2, ranks)
		for _, app := range [][]string{{"stencil", "200", "200"}, {"cg", "100", "1000"}} {
			for name, over := range mpiTransports {
				t.Run(fmt.Sprintf("%s, %s, %d ranks a host", app[0], name, ranks), func(t *testing.T) {
					out, err := h.Run(t.Context(), over, mpiEnv(), append([]string{program}, app...)...)
					if err != nil || !strings.Contains(out, fmt.Sprintf("%d ranks", 2*ranks)) || !strings.Contains(out, "as alone") {
						t.Errorf("%v\n%s", err, out)
					}
					t.Log(strings.TrimSpace(out))
				})
			}
		}
	}
}
