// Package mpich measures MPICH over the kernel's TCP as mvich/mpibench measures
// package mvich. A small program of its own, probe.c, is compiled by mpicc.mpich
// and started by package mpirun: each rank in a namespace with an interface that
// never has an XDP program, so that the kernel's offloads are all there.
//
// The same program of Open MPI, started by its mpirun, measures that over TCP and over libfabric's
// provider viaxdp.
package mpich

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"viaxdp/internal/lab/fail"
	"viaxdp/internal/lab/openmpi"
	"viaxdp/internal/lab/testbed"
	"viaxdp/internal/ops/mpirun"
)

// Package is Debian's, that has the compiler and the library.
const Package = "libmpich-dev"

// Compiler is MPICH's.
const Compiler = "mpicc.mpich"

//go:embed c/probe.c
var source []byte

// Installed reports whether MPICH's compiler is there.
func Installed() bool {
	_, err := exec.LookPath(Compiler)
	return err == nil
}

// Version is the version that MPICH prints, or empty.
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

// Build compiles the program in a directory by a compiler, [Compiler] or openmpi.Compiler, and returns its path.
func Build(ctx context.Context, dir, compiler string) (string, error) {
	from, path := filepath.Join(dir, "probe.c"), filepath.Join(dir, "probe-"+compiler)
	if err := os.WriteFile(from, source, 0o600); err != nil {
		return "", err
	}
	out, err := exec.CommandContext(ctx, compiler, "-O2", "-o", path, from).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", compiler, err, bytes.TrimSpace(out))
	}
	return path, nil
}

// Run is one run of benchmarks of package mpibench: latency, bw, bibw, mbw_mr,
// allreduce, alltoall.
type Run struct {
	Program    []string // the program of Build, or another that prints the same, and its arguments before Names
	Names      []string // one after the other
	Ranks      int
	MTU        int
	Min, Max   int  // bytes
	Step       int  // from one size to the next, times; 0: 2
	Iterations int  // 0: OSU's
	Warmup     int  // iterations before, that do not count; 0: OSU's
	MostBytes  int  // of mpibench.Options
	Flags      bool // the figures are flags, as of via-xdp mpibench
	Lossy      bool // the ranks are joined by a hub that loses a share of the frames
	Loss       float64
	OpenMPI    openmpi.Transport // Program is Open MPI's, and its ranks send over this; nil: it is not
}

// Row is the result of a benchmark for one size: times in microseconds, and bandwidth in MB/s of
// 10^6 bytes.
type Row struct {
	Name                  string
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
	var args []string
	for _, figure := range []struct {
		name  string
		value int
	}{
		{"min", r.Min}, {"max", r.Max}, {"step", cmp.Or(r.Step, 2)},
		{"iterations", r.Iterations}, {"warmup", r.Warmup}, {"most-bytes", r.MostBytes},
	} {
		arg := strconv.Itoa(figure.value)
		if r.Flags {
			arg = "--" + figure.name + "=" + arg
		}
		args = append(args, arg)
	}
	args = append(args, r.Names...)
	program := append(r.Program[:len(r.Program):len(r.Program)], args...)
	run := func() error {
		return mpirun.Run(ctx, mpirun.Job{
			Ranks: r.Ranks, Program: program,
			Env: tcpOnly, MTU: r.MTU, Bind: true, Lossy: r.Lossy, Loss: r.Loss, Stdout: &out, Stderr: &errs,
		})
	}
	if r.OpenMPI != nil {
		run = func() error { return r.openMPI(ctx, program, &out, &errs) }
	}
	err := run()
	if err != nil {
		if said := bytes.TrimSpace(errs.Bytes()); len(said) > 0 {
			err = fmt.Errorf("%w: %s", err, said)
		}
		return nil, fmt.Errorf("%s of %d to %d bytes: %w", strings.Join(r.Names, ", "), r.Min, r.Max, err)
	}
	rows, err := parse(r.Names, out.String())
	for _, name := range r.Names {
		if err == nil && !slices.ContainsFunc(rows, func(row Row) bool { return row.Name == name }) {
			err = fmt.Errorf("%s has printed no row", name)
		}
	}
	return rows, err
}

// openMPI runs the program on a star, each rank on a host of its own, bound to CPUs in turn.
func (r Run) openMPI(ctx context.Context, program []string, out, errs *bytes.Buffer) (err error) {
	defer fail.Catch(&err)
	cpus := fail.Must(testbed.AllowedCPUs())
	star := fail.Must(testbed.NewStar(r.Ranks, r.MTU))
	defer star.Close()
	cfg := openmpi.Config{Ranks: 1}
	for i := range r.Ranks {
		cfg.CPUs = append(cfg.CPUs, cpus[i%len(cpus)])
	}
	hosts := fail.Must(openmpi.Start(star, r.Ranks, cfg))
	defer hosts.Close()
	said, err := hosts.Run(ctx, r.OpenMPI, nil, program...)
	if err != nil {
		out = errs
	}
	out.WriteString(said)
	return err
}

// parse reads the columns of benchmarks. A line that begins with # and the name of
// one is before its rows.
func parse(names []string, text string) ([]Row, error) {
	var rows []Row
	var name string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if said, comment := strings.CutPrefix(line, "#"); comment {
			if of, _, _ := strings.Cut(strings.TrimSpace(said), ":"); slices.Contains(names, of) {
				name = of
			}
			continue
		}
		if line == "" || strings.HasPrefix(line, "[") { // [HOST:PID], of Open MPI's launcher
			continue
		}
		bandwidth := name == "bw" || name == "bibw" || name == "mbw_mr"
		var v []float64
		for word := range strings.FieldsSeq(line) {
			x, err := strconv.ParseFloat(word, 64)
			most := float64(math.MaxInt32)
			if bandwidth && len(v) == 2 {
				most *= 1e6 // messages of a byte
			}
			if err == nil && (!(x >= 0 && x <= most) || len(v) == 0 && x != math.Trunc(x)) {
				err = errors.New("no figure of a benchmark")
			}
			if err != nil {
				return nil, fmt.Errorf("%s printed %q: %w", name, line, err)
			}
			v = append(v, x)
		}
		if name == "" || len(v) < 2 || bandwidth && v[0] < 1 {
			return nil, fmt.Errorf("%s printed %q: want columns of figures, of a benchmark", name, line)
		}
		row := Row{Name: name, Bytes: int(v[0])}
		switch {
		case bandwidth:
			row.MBps, row.Messages = v[1], v[1]*1e6/v[0]
			if len(v) > 2 { // of small messages it says more than two digits of MB/s
				row.MBps, row.Messages = v[2]*v[0]/1e6, v[2]
			}
		case len(v) == 7:
			row.Mean, row.Least, row.P50, row.P99, row.P999, row.Count = v[1], v[2], v[3], v[4], v[5], int(v[6])
		default:
			row.Mean = v[1]
		}
		rows = append(rows, row)
	}
	return rows, nil
}
