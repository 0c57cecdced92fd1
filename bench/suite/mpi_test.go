package suite

import (
	"errors"
	"flag"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"viaxdp/bench/mpich"
	"viaxdp/bench/peers"
	"viaxdp/bench/report"
	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/openmpi"
	"viaxdp/mvich"
	"viaxdp/mvich/mpibench"
	"viaxdp/mvich/pmi"
	"viaxdp/vipl"
)

// beRank is a rank that package mpirun has started.
func beRank(f func(c *mvich.Comm) error, options ...mvich.Option) (err error) {
	launcher, err := pmi.FromEnv()
	if err != nil {
		return err
	}
	nic, err := vipl.OpenNIC(os.Getenv(mvich.DeviceVariable), vipl.WithSilence(10*time.Second))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, nic.Close()) }()
	world, err := mvich.Init(nic, launcher, options...)
	if err != nil {
		return err
	}
	if err := f(world.Comm()); err != nil {
		world.Abort(1)
		return err
	}
	return world.Finalize()
}

// benchRank is what via-xdp mpibench is: suite-rank --min=N --max=N ... NAME...
func benchRank() error {
	var o mpibench.Options
	protocol := mvich.Auto
	f := flag.NewFlagSet(asRank, flag.ExitOnError)
	f.Func("protocol", "", func(name string) error {
		for protocol < mvich.RPUT && protocol.String() != name {
			protocol++
		}
		return nil
	})
	for name, to := range map[string]*int{
		"min": &o.MinSize, "max": &o.MaxSize, "step": &o.Step, "iterations": &o.Iterations, "warmup": &o.Warmup, "most-bytes": &o.MostBytes,
	} {
		f.IntVar(to, name, 0, "")
	}
	f.Parse(os.Args[2:])
	return beRank(func(c *mvich.Comm) error {
		for _, name := range f.Args() {
			rows, err := mpibench.Run(c, name, o)
			if err != nil {
				return err
			}
			if c.Rank() > 0 {
				continue
			}
			if err := mpibench.Print(os.Stdout, name, rows); err != nil {
				return err
			}
		}
		return nil
	}, mvich.WithProtocol(protocol))
}

// Without the arguments of what it starts a group does not run.
func TestArgumentsMissing(t *testing.T) {
	nstest.Require(t)
	names := []string{"layers-osu", "layers-openmpi", "layers-loss-mpi"}
	if (peers.Loads()[0]).Installed() {
		names = append(names, "layers-proxy")
	}
	for _, name := range names {
		nstest.ErrSays(t, name, nstest.Err(Run(t.Context(), shortly(name))), "no arguments")
	}
}

// Each benchmark has its figure by each protocol at each size, and so have MPICH and Open MPI where they are
// installed. Sizes that do not fit in a packet have no figure of the eager protocol.
func TestOSU(t *testing.T) {
	cfg := shortly("layers-osu", "layers-openmpi")
	cfg.RankArgs = []string{asRank}
	r := measure(t, cfg)
	for _, row := range slices.Concat(osuRows, openMPIRows) {
		g := r.Group("layers-osu")
		if row.open != nil {
			g = r.Group("layers-openmpi")
		}
		if row.name == mpichRow && !mpich.Installed() || row.open != nil && openmpi.Missing() != "" ||
			row.open != nil && !slices.Equal(row.open, openmpi.TCP) && !peers.ProviderInstalled() {
			continue
		}
		s := g.Row(row.name)
		if s == nil {
			t.Errorf("no %s", row.name)
			continue
		}
		for _, bytes := range []int{64, 64 << 10} {
			p := s.At(float64(bytes))
			if fits := row.most == 0 || bytes <= row.most; (p != nil) != fits {
				t.Errorf("%s at %d bytes: %+v", row.name, bytes, p)
			}
			if p == nil {
				continue
			}
			for _, m := range []report.Metric{
				report.OSULatency, report.OSUBandwidth, report.OSUBothWays, report.OSUPairs, report.OSUPairsRate, report.OSUAllReduce, report.OSUAllToAll,
			} {
				if v := p.Values[m]; !(v.Median > 0) {
					t.Errorf("%s at %d bytes: %s %+v", row.name, bytes, m, v)
				}
			}
			pairs, rate := p.Values[report.OSUPairs].Median*1e6, p.Values[report.OSUPairsRate].Median*float64(bytes)
			nstest.ErrorIf(t, math.Abs(pairs-rate) > 1e-6*rate || p.N != 2*int64(len(mpibench.Names())),
				"%s at %d bytes: %v and %v bytes a second, %d iterations", row.name, bytes, pairs, rate, p.N)
		}
	}
	if g := r.Group("layers-osu"); mpich.Installed() != (g.Base == mpichRow) {
		t.Errorf("compared with %q", g.Base)
	}
}

// Every benchmark is made once, and what may have more than two ranks has them where each gets
// a CPU.
func TestOSUJobs(t *testing.T) {
	for _, cpus := range []int{1, 2, 3, 4, 64} {
		var names []string
		for _, j := range osuJobs(cpus, false) {
			names = append(names, j.names...)
			if pairs := slices.Contains(j.names, "mbw_mr"); pairs && cpus >= 4 && j.ranks < 4 {
				t.Errorf("%d CPUs: %d ranks, which is one pair, of %v", cpus, j.ranks, j.names)
			}
			if two := slices.Contains(j.names, "latency"); j.ranks > 2 && (two || cpus < j.ranks) {
				t.Errorf("%d CPUs: %d ranks of %v", cpus, j.ranks, j.names)
			}
		}
		if slices.Sort(names); !slices.Equal(names, mpibench.Names()) {
			t.Errorf("%d CPUs: %v", cpus, names)
		}
	}
}

// Ranks have their figures with and without a loss, and the points say which. If MPICH's
// program fails, mvich still has its figures, and the report has the reason.
func TestRanksUnderLoss(t *testing.T) {
	dir := t.TempDir()
	const compiler = "#!/bin/sh\nprintf '#!/bin/sh\\necho broken >&2; exit 3\\n' > $3\nchmod +x $3\n" // of -O2 -o PROGRAM SOURCE
	nstest.Must(t, os.WriteFile(filepath.Join(dir, "mpicc.mpich"), []byte(compiler), 0o700))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	cfg := shortly("layers-loss-mpi")
	cfg.RankArgs = []string{asRank}
	g := measure(t, cfg).Group("layers-loss-mpi")
	if c := g.Conditions; len(c.PinnedCPUs) != 4 { // of four ranks
		t.Errorf("pinned to %d", c.PinnedCPUs)
	}
	for label, m := range map[string]report.Metric{
		"latency of 8 B, 2 ranks, lossless": report.OSULatency, "bw of 64 KiB, 2 ranks, loss-1%": report.OSUBandwidth,
		"allreduce of 8 B, 4 ranks, loss-1%": report.OSUAllReduce,
	} {
		if !slices.ContainsFunc(g.Row(mvichRow).Points, func(p report.Point) bool { return p.Label == label && p.Values[m].Median > 0 }) {
			t.Errorf("no %s in %+v", label, g.Row(mvichRow).Points)
		}
	}
	notes := strings.Join(g.Notes, "\n")
	if g.Base != "" || !strings.Contains(notes, "No figures of mpich-tcp, latency of 8 B, 2 ranks, lossless: ") || !strings.Contains(notes, "broken") {
		t.Errorf("compared with %q; the notes are\n%s", g.Base, notes)
	}
}
