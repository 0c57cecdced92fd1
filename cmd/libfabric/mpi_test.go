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
	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/testbed"
)

// hosts are namespaces for Debian's Open MPI, each as a host with a name and an interface.
type hosts struct {
	agent string // the script that starts a command on a host, for mpirun
	ranks int    // on each
	names []string
	first []string // what starts a command on the first
	env   []string
}

// newHosts makes n hosts for that number of ranks each. If it is more than one, each host has an agent, since the ranks share
// the only queue of its interface.
func newHosts(t *testing.T, n, ranks int) *hosts {
	t.Helper()
	star, err := testbed.NewStar(n, 1500)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { star.Close() })
	h := &hosts{agent: filepath.Join(t.TempDir(), "agent"), ranks: ranks}
	var command string
	if ranks > 1 {
		command = filepath.Join(t.TempDir(), "via-xdp")
		if out, err := exec.Command("go", "build", "-o", command, "../via-xdp").CombinedOutput(); err != nil {
			t.Fatalf("go build: %v\n%s", err, out)
		}
	}
	script := "#!/bin/sh\nhost=$1; shift\ncase $host in\n"
	for i, end := range star.Ends {
		keeper := exec.Command("sleep", "1000") // of the namespace, until the star is closed
		if err := star.Start(i, -1, keeper); err != nil {
			t.Fatal(err)
		}
		name := end.IPv4.Addr().String()
		enter := fmt.Sprintf("nsenter --net --target %d unshare --uts sh -c", keeper.Process.Pid)
		begin := fmt.Sprintf("hostname node%d; ", i)
		if ranks > 1 {
			socket := filepath.Join(t.TempDir(), "agent.sock")
			agent := exec.Command(command, "agent", "--config", os.DevNull, "--socket", socket, "--no-fdstored")
			if err := star.Start(i, -1, agent); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _, _ = agent.Process.Signal(syscall.SIGTERM), agent.Wait() })
			if !await.Comes(func() bool { _, err = agentclient.Probe(socket); return err == nil }) {
				t.Fatal(err)
			}
			begin += "export VIA_AGENT=" + socket + "; "
		}
		script += fmt.Sprintf("%s) exec %s \"%s$*\" ;;\n", name, enter, begin)
		h.names = append(h.names, fmt.Sprintf("%s:%d", name, ranks))
		if i == 0 {
			h.first = append(strings.Fields(enter), begin+`exec "$@"`, "sh")
		}
	}
	if err := os.WriteFile(h.agent, []byte(script+"esac\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	h.env = append(os.Environ(), "FI_PROVIDER_PATH="+made.dir+"/prov", "VIA_HUGEPAGES=avoid",
		fmt.Sprintf("VIA_SILENCE=%d", silence.Milliseconds()),
		"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")
	return h
}

// run runs the ranks of a program.
func (h *hosts) run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	command := append(h.first, "mpirun.openmpi", "--mca", "plm_rsh_agent", h.agent, "--mca", "orte_keep_fqdn_hostnames", "1",
		"--mca", "oob_tcp_if_include", testbed.StarInterface, "-host", strings.Join(h.names, ","),
		"--mca", "pml", "cm", "--mca", "mtl", "ofi", "--mca", "mtl_ofi_provider_include", "viaxdp;ofi_rxm", "--mca", "osc", "pt2pt",
		"--oversubscribe", "-np", fmt.Sprint(h.ranks*len(h.names)))
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
	for _, c := range []struct{ n, ranks int }{{2, 1}, {4, 1}, {2, 2}, {2, 4}} {
		t.Run(fmt.Sprintf("%d hosts, %d ranks each", c.n, c.ranks), func(t *testing.T) {
			n := c.n * c.ranks
			h := newHosts(t, c.n, c.ranks)
			out, err := h.run(t, program)
			if err != nil || strings.Count(out, " checks\n") != n {
				t.Fatalf("%v\n%s", err, out)
			}
			if n == 4 && c.ranks == 1 || n > 4 {
				return
			}
			began := time.Now()
			if out, err = h.run(t, program, "dies"); err == nil || strings.Contains(out, " checks\n") {
				t.Errorf("a job with a rank that dies: %v after %v\n%s", err, time.Since(began), out)
			}
		})
	}
}
