// Package mpich measures MPICH over the kernel's TCP as mvich/mpibench measures
// package mvich. A small program of its own, probe.c, is compiled by mpicc.mpich
// and started by package mpirun: each rank in a namespace with an interface that
// never has an XDP program, so that the kernel's offloads are all there.
package mpich

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"viaxdp/internal/mpirun"
	"viaxdp/internal/testbed"
)

// Package is Debian's, that has the compiler and the library.
const Package = "libmpich-dev"

const compiler = "mpicc.mpich"

//go:embed c/probe.c
var source []byte

// Installed says whether MPICH's compiler is there.
func Installed() bool {
	_, err := exec.LookPath(compiler)
	return err == nil
}

// Version is what MPICH says of itself, empty when it does not.
func Version(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "mpichversion").Output()
	if err != nil {
		return ""
	}
	var words []string
	for line := range strings.Lines(string(out)) {
		name, value, _ := strings.Cut(line, ":")
		if name = strings.TrimSpace(name); name == "MPICH Version" || name == "MPICH Device" {
			words = append(words, strings.TrimSpace(value))
		}
	}
	return strings.Join(words, " ")
}

// Build compiles the program in a directory, and returns its path.
func Build(ctx context.Context, dir string) (string, error) {
	from, path := filepath.Join(dir, "probe.c"), filepath.Join(dir, "probe")
	if err := os.WriteFile(from, source, 0o600); err != nil {
		return "", err
	}
	out, err := exec.CommandContext(ctx, compiler, "-O2", "-o", path, from).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", compiler, err, bytes.TrimSpace(out))
	}
	return path, nil
}

// Run is one run of a benchmark of package mpibench: latency, bw, bibw, mbw_mr,
// allreduce or alltoall.
type Run struct {
	Program    []string // the program of Build and its arguments before Name, or another that prints the same
	Name       string
	Ranks      int
	MTU        int
	Min, Max   int  // bytes, in powers of two from Min
	Iterations int  // 0: OSU's
	Warmup     int  // iterations before, that do not count; 0: OSU's
	Flags      bool // Min, Max, Iterations and Warmup are flags, as of via-xdp mpibench
	Lossy      bool // the ranks are joined by a hub that loses a share of the frames
	Loss       float64
}

// Row is the result for one size: times in microseconds, and bandwidth in MB/s of
// 10^6 bytes.
type Row struct {
	Bytes                 int
	Mean                  float64 // of latency, one way, and of collective operations
	Least, P50, P99, P999 float64 // of latency
	MBps, Messages        float64 // of the others; messages a second
	Count                 int     // round trips, of latency
}

// tcpOnly keeps the libraries below MPICH to TCP.
var tcpOnly = []string{"UCX_TLS=tcp,self", "UCX_NET_DEVICES=" + testbed.StarInterface, "FI_PROVIDER=tcp", "MPIR_CVAR_NOLOCAL=1"}

// Measure does a run. Its ranks are bound to CPUs in turn.
func (r Run) Measure(ctx context.Context) ([]Row, error) {
	var out, errs bytes.Buffer
	args := []string{r.Name, strconv.Itoa(r.Min), strconv.Itoa(r.Max), strconv.Itoa(r.Iterations), strconv.Itoa(r.Warmup)}
	if r.Flags {
		args = []string{r.Name, "--min=" + args[1], "--max=" + args[2], "--iterations=" + args[3], "--warmup=" + args[4]}
	}
	err := mpirun.Run(ctx, mpirun.Job{
		Ranks: r.Ranks, Program: append(r.Program[:len(r.Program):len(r.Program)], args...),
		Env: tcpOnly, MTU: r.MTU, Bind: true, Lossy: r.Lossy, Loss: r.Loss, Stdout: &out, Stderr: &errs,
	})
	if err != nil {
		if said := bytes.TrimSpace(errs.Bytes()); len(said) > 0 {
			err = fmt.Errorf("%w: %s", err, said)
		}
		return nil, fmt.Errorf("%s of %d to %d bytes: %w", r.Name, r.Min, r.Max, err)
	}
	rows, err := parse(r.Name, out.String())
	if err == nil && len(rows) == 0 {
		err = fmt.Errorf("%s has printed no row", r.Name)
	}
	return rows, err
}

// parse reads the columns of a benchmark.
func parse(name, text string) ([]Row, error) {
	var rows []Row
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		var v []float64
		for word := range strings.FieldsSeq(line) {
			x, err := strconv.ParseFloat(word, 64)
			if err == nil && !(x >= 0 && x <= math.MaxInt32) {
				err = errors.New("no figure of a benchmark")
			}
			if err != nil {
				return nil, fmt.Errorf("%s printed %q: %w", name, line, err)
			}
			v = append(v, x)
		}
		bandwidth := name == "bw" || name == "bibw" || name == "mbw_mr"
		if len(v) < 2 || bandwidth && v[0] < 1 {
			return nil, fmt.Errorf("%s printed %q: want columns of figures", name, line)
		}
		row := Row{Bytes: int(v[0])}
		switch {
		case bandwidth:
			row.MBps, row.Messages = v[1], v[1]*1e6/v[0]
		case len(v) == 7:
			row.Mean, row.Least, row.P50, row.P99, row.P999, row.Count = v[1], v[2], v[3], v[4], v[5], int(v[6])
		default:
			row.Mean = v[1]
		}
		rows = append(rows, row)
	}
	return rows, nil
}
