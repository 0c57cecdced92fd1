// Package openmpi runs programs of Debian's Open MPI, unmodified, on the namespaces of a star, each as a host with a
// name and an interface of its own.
//
//	mpirun --- script (instead of ssh) --- orted, ranks   in namespace 1: node1
//	  |
//	  +-- ranks                                           in namespace 0: node0
package openmpi

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"viaxdp/internal/lab/testbed"
)

// Names of Debian's programs, and the packages that have them.
const (
	Compiler = "mpicc.openmpi"
	launcher = "mpirun.openmpi"
	Packages = "openmpi-bin libopenmpi-dev"
)

// Missing is the first program that is not on PATH; empty: none.
func Missing() string {
	for _, tool := range []string{Compiler, launcher, "nsenter", "unshare", "taskset"} {
		if _, err := exec.LookPath(tool); err != nil {
			return tool
		}
	}
	return ""
}

// Build compiles a program.
func Build(ctx context.Context, from, to string) error {
	if out, err := exec.CommandContext(ctx, Compiler, "-O2", from, "-o", to, "-lm").CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", Compiler, err, out)
	}
	return nil
}

// A Transport is what ranks of different hosts send over.
type Transport []string

// The transports.
var (
	// TCP is the kernel's, on the interface of the star.
	TCP = Transport{"pml", "ob1", "btl", "tcp,self", "btl_tcp_if_include", testbed.StarInterface}
	// VIA is the provider viaxdp of libfabric, RXM the same with libfabric's ofi_rxm between, which makes FI_EP_RDM of
	// FI_EP_MSG. Windows of one-sided operations are made of messages: Open MPI 4.1 does not make them over mtl ofi,
	// whatever the provider.
	VIA = append(ofi("viaxdp"), "mca_base_env_list", "FI_PROVIDER=^ofi_rxm") // else Open MPI takes it, whose name begins alike
	RXM = ofi("viaxdp;ofi_rxm")
)

func ofi(provider string) Transport {
	return Transport{"pml", "cm", "mtl", "ofi", "mtl_ofi_provider_include", provider, "osc", "pt2pt"}
}

// A Config says how ranks run.
type Config struct {
	Ranks  int      // on each host
	CPUs   []int    // of each host; nil: any
	Before []string // shell commands before each program on each host, as "export A=b"; nil: none
}

// Hosts are the namespaces of a star. Close stops what keeps them, before the star is closed.
type Hosts struct {
	dir    string // of the script
	script string
	ranks  int
	yield  bool // there are more ranks than CPUs, so a rank that waits yields its CPU
	names  []string
	first  []string // what starts a command on the first
	keep   []*exec.Cmd
}

// Start makes hosts of the first n namespaces of a star.
func Start(star *testbed.Star, n int, cfg Config) (_ *Hosts, err error) {
	h := &Hosts{ranks: max(1, cfg.Ranks)}
	cpus := runtime.NumCPU()
	if cfg.CPUs != nil {
		cpus = len(slices.Compact(slices.Sorted(slices.Values(cfg.CPUs))))
	}
	h.yield = n*h.ranks > cpus
	defer func() {
		if err != nil {
			h.Close()
		}
	}()
	if h.dir, err = os.MkdirTemp("", "via-xdp-openmpi-"); err != nil {
		return nil, err
	}
	text := "#!/bin/sh\nhost=$1; shift\ncase $host in\n"
	for i := range n {
		keeper := exec.Command("sleep", "infinity")
		if err := star.Start(i, -1, keeper); err != nil {
			return nil, err
		}
		h.keep = append(h.keep, keeper)
		name := star.Ends[i].IPv4.Addr().String()
		enter := []string{"nsenter", "--net", "--target", fmt.Sprint(keeper.Process.Pid), "unshare", "--uts"}
		if cfg.CPUs != nil {
			enter = append([]string{"taskset", "-c", fmt.Sprint(cfg.CPUs[i])}, enter...)
		}
		begin := fmt.Sprintf("hostname node%d; ", i)
		if cfg.Before != nil {
			begin += cfg.Before[i] + "; "
		}
		text += fmt.Sprintf("%s) exec %s sh -c \"%s$*\" ;;\n", name, strings.Join(enter, " "), begin)
		h.names = append(h.names, fmt.Sprintf("%s:%d", name, h.ranks))
		if i == 0 {
			h.first = append(enter, "sh", "-c", begin+`exec "$@"`, "sh")
		}
	}
	h.script = filepath.Join(h.dir, "start")
	return h, os.WriteFile(h.script, []byte(text+"esac\nexit 1\n"), 0o755)
}

// Close releases the hosts.
func (h *Hosts) Close() error {
	for _, k := range h.keep {
		k.Process.Kill()
		k.Wait()
	}
	return os.RemoveAll(h.dir)
}

// Run runs a program's ranks on all hosts, with more of the environment, and returns what they print.
func (h *Hosts) Run(ctx context.Context, over Transport, env []string, program ...string) (string, error) {
	args := append(h.first[1:len(h.first):len(h.first)], launcher, "--oversubscribe",
		"-host", strings.Join(h.names, ","), "-np", fmt.Sprint(h.ranks*len(h.names)))
	mca := append(Transport{
		"plm_rsh_agent", h.script, "orte_keep_fqdn_hostnames", "1", "oob_tcp_if_include", testbed.StarInterface,
		"hwloc_base_binding_policy", "none", // they are where the script puts them
	}, over...)
	if h.yield { // Open MPI counts only the ranks of one host
		mca = append(mca, "mpi_yield_when_idle", "1")
	}
	for i := 0; i < len(mca); i += 2 {
		args = append(args, "--mca", mca[i], mca[i+1])
	}
	cmd := exec.CommandContext(ctx, h.first[0], append(args, program...)...)
	cmd.Env = append(append(os.Environ(), "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"), env...)
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}
