package libfabric

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/testbed"
)

// hosts are namespaces for Debian's Open MPI, each as a host with a name and an interface.
type hosts struct {
	agent string // the script that starts a command on a host, for mpirun
	names []string
	first []string // what starts a command on the first
	env   []string
}

func newHosts(t *testing.T, n int) *hosts {
	t.Helper()
	star, err := testbed.NewStar(n, 1500)
	nstest.Must(t, err)
	t.Cleanup(func() { star.Close() })
	h := &hosts{agent: filepath.Join(t.TempDir(), "agent")}
	script := "#!/bin/sh\nhost=$1; shift\ncase $host in\n"
	for i, end := range star.Ends {
		keeper := exec.Command("sleep", "1000") // of the namespace, until the star is closed
		nstest.Must(t, star.Start(i, -1, keeper))
		name := end.IPv4.Addr().String()
		enter := fmt.Sprintf("nsenter --net --target %d unshare --uts sh -c", keeper.Process.Pid)
		script += fmt.Sprintf("%s) exec %s \"hostname node%d; $*\" ;;\n", name, enter, i)
		h.names = append(h.names, name)
		if i == 0 {
			h.first = append(strings.Fields(enter), `hostname node0; exec "$@"`, "sh")
		}
	}
	nstest.Must(t, os.WriteFile(h.agent, []byte(script+"esac\nexit 1\n"), 0o755))
	h.env = append(os.Environ(), "FI_PROVIDER_PATH="+made.dir+"/prov", "VIA_HUGEPAGES=avoid",
		fmt.Sprintf("VIA_SILENCE=%d", silence.Milliseconds()),
		"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")
	return h
}

// run runs a rank of a program on each host.
func (h *hosts) run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	command := append(h.first, "mpirun.openmpi", "--mca", "plm_rsh_agent", h.agent, "--mca", "orte_keep_fqdn_hostnames", "1",
		"--mca", "oob_tcp_if_include", testbed.StarInterface, "-host", strings.Join(h.names, ","),
		"--mca", "pml", "cm", "--mca", "mtl", "ofi", "--mca", "mtl_ofi_provider_include", "viaxdp;ofi_rxm", "--mca", "osc", "pt2pt",
		"--oversubscribe", "-np", fmt.Sprint(len(h.names)))
	cmd := exec.CommandContext(t.Context(), command[0], append(command[1:], args...)...)
	cmd.Env, cmd.WaitDelay = h.env, time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Debian's Open MPI, unmodified, runs over the provider: point-to-point, collectives, communicators, one-sided.
// A rank that dies ends the job.
func TestOpenMPI(t *testing.T) {
	dir := build(t, "nsenter", "unshare")
	for _, tool := range []string{"mpicc.openmpi", "mpirun.openmpi"} {
		if _, err := exec.LookPath(tool); err != nil {
			nstest.Lacks(t, "needs %s: apt-get install openmpi-bin libopenmpi-dev", tool)
		}
	}
	program := dir + "/ranks"
	if out, err := exec.Command("mpicc.openmpi", "-O2", "-Wall", "-Wextra", "-Werror", "testdata/mpi/ranks.c", "-o", program).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, n := range []int{2, 4} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			h := newHosts(t, n)
			out, err := h.run(t, program)
			if err != nil || strings.Count(out, " checks\n") != n {
				t.Fatalf("%v\n%s", err, out)
			}
			if n > 2 {
				return
			}
			began := time.Now()
			if out, err = h.run(t, program, "dies"); err == nil || strings.Contains(out, " checks\n") {
				t.Errorf("a job with a rank that dies: %v after %v\n%s", err, time.Since(began), out)
			}
		})
	}
}
