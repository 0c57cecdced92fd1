package suite

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"viaxdp/bench/mpich"
	"viaxdp/bench/peers"
	"viaxdp/bench/report"
	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/testbed"
	"viaxdp/mvich"
	"viaxdp/mvich/mpiapps"
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

// benchRank is what via-xdp mpibench is: suite-rank NAME... --min=N, --max=N and so on.
func benchRank() error {
	var o mpibench.Options
	var names []string
	option := mvich.WithProtocol(mvich.Auto)
	for _, arg := range os.Args[2:] {
		name, value, flag := strings.Cut(arg, "=")
		if !flag {
			names = append(names, arg)
			continue
		}
		if name == "--protocol" {
			for p := mvich.Auto; p <= mvich.RPUT; p++ {
				if p.String() == value {
					option = mvich.WithProtocol(p)
				}
			}
			continue
		}
		n, err := strconv.Atoi(value)
		if err != nil {
			return err
		}
		switch name {
		case "--min":
			o.MinSize = n
		case "--max":
			o.MaxSize = n
		case "--step":
			o.Step = n
		case "--iterations":
			o.Iterations = n
		case "--warmup":
			o.Warmup = n
		case "--most-bytes":
			o.MostBytes = n
		}
	}
	return beRank(func(c *mvich.Comm) error {
		for _, name := range names {
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
	}, option)
}

// appRank is what via-xdp mpiapp is: suite-app --json --size N --steps N NAME.
func appRank() error {
	return beRank(func(c *mvich.Comm) error {
		r, err := mpiapps.Run(c, os.Args[len(os.Args)-1], mpiapps.Options{Size: 64, Steps: 20})
		if err != nil || r == nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(r)
	})
}

// Each application has its figures on each number of ranks, which belong together.
func TestScaling(t *testing.T) {
	nstest.Require(t)
	cfg := shortly("layers-scaling")
	cfg.AppArgs = []string{asApp}
	r, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	cpus, err := testbed.AllowedCPUs()
	if err != nil {
		t.Fatal(err)
	}
	g, counts := r.Group("layers-scaling"), scalingRanks(len(cpus))
	if len(g.Series) != len(mpiapps.Names()) {
		t.Fatalf("%d series", len(g.Series))
	}
	for _, s := range g.Series {
		alone := s.At(1)
		if len(s.Points) != len(counts) {
			t.Errorf("%s: %d points of %v ranks", s.Name, len(s.Points), counts)
		}
		for _, ranks := range counts {
			p := s.At(float64(ranks))
			if p == nil || alone == nil {
				t.Fatalf("%s: no %d ranks", s.Name, ranks)
			}
			value := func(m report.Metric) float64 { return p.Values[m].Median }
			speedup := alone.Values[report.Elapsed].Median / value(report.Elapsed)
			if !(value(report.Elapsed) > 0) || math.Abs(value(report.Speedup)-speedup) > 1e-9*speedup ||
				math.Abs(value(report.Efficiency)*float64(ranks)-speedup) > 1e-9*speedup || !(value(report.Communication) >= 0) {
				t.Errorf("%s, %d ranks: %v", s.Name, ranks, p.Values)
			}
		}
	}
}

// Without the arguments of what it starts a group does not run.
func TestArgumentsMissing(t *testing.T) {
	nstest.Require(t)
	names := []string{"layers-scaling", "layers-osu", "layers-allreduce", "layers-loss-mpi"}
	if (peers.Loads()[0]).Installed() {
		names = append(names, "layers-proxy")
	}
	for _, name := range names {
		if _, err := Run(t.Context(), shortly(name)); err == nil || !strings.Contains(err.Error(), "no arguments") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Ranks double as far as there are CPUs for them and the testbed has room, and 4 are
// tried anywhere.
func TestScalingRanks(t *testing.T) {
	for cpus, want := range map[int][]int{
		1: {1, 2, 4}, 4: {1, 2, 4}, 7: {1, 2, 4}, 8: {1, 2, 4, 8}, 20: {1, 2, 4, 8, 16},
		1000: {1, 2, 4, 8, 16, 32, 64, 128},
	} {
		if got := scalingRanks(cpus); !slices.Equal(got, want) {
			t.Errorf("%d CPUs: %v, want %v", cpus, got, want)
		}
	}
}

// Each benchmark has its figure by each protocol at each size, and so has MPICH where it
// is installed; what does not fit in a packet has none of the eager protocol.
func TestOSU(t *testing.T) {
	nstest.Require(t)
	cfg := shortly("layers-osu")
	cfg.RankArgs = []string{asRank}
	r, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	g := r.Group("layers-osu")
	for _, row := range osuRows {
		if row.name == mpichRow && !mpich.Installed() {
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
			if math.Abs(pairs-rate) > 1e-6*rate || p.N != 2*int64(len(osuMetrics)) {
				t.Errorf("%s at %d bytes: %v and %v bytes a second, %d iterations", row.name, bytes, pairs, rate, p.N)
			}
		}
	}
	if mpich.Installed() != (g.Base == mpichRow) {
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
		if says := slices.Contains(osuNotes(osuJobs(cpus, false)), onePairNote); says != (cpus < 4) {
			t.Errorf("%d CPUs: it says that there is one pair: %v", cpus, says)
		}
		if slices.Sort(names); !slices.Equal(names, mpibench.Names()) {
			t.Errorf("%d CPUs: %v", cpus, names)
		}
	}
}

// Every layer has its figures with and without a loss, and the points say which. Those of HTTP over TCP
// may be 0: what it loses takes longer to be sent again than the test measures.
func TestLayersUnderLoss(t *testing.T) {
	nstest.Require(t)
	cfg := shortly("layers-loss", "layers-loss-http", "layers-loss-mpi")
	cfg.RankArgs = []string{asRank}
	r, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	labelled := func(group, series string, labels ...string) {
		t.Helper()
		s := r.Group(group).Row(series)
		if s == nil {
			t.Errorf("%s: no %s", group, series)
			return
		}
		for _, want := range labels {
			there := false
			for _, p := range s.Points {
				for _, m := range []report.Metric{report.Bandwidth, report.Rate, report.Operation} {
					v, measured := p.Values[m]
					there = there || p.Label == want && measured && (v.Median > 0 || series == httpTCP)
				}
			}
			if !there {
				t.Errorf("%s, %s: no %s in %+v", group, series, want, s.Points)
			}
		}
	}
	for _, name := range []string{mvichRow, vianetRow, delivery, report.LossTCP} {
		labelled("layers-loss", name, lossless, "loss-1%")
	}
	labelled("layers-loss-http", httpVianet, lossless, "loss-1%")
	labelled("layers-loss-http", httpTCP, lossless, "loss-1%")
	labelled("layers-loss-mpi", mvichRow, "latency of 8 B, 2 ranks, lossless", "bw of 64 KiB, 2 ranks, loss-1%", "allreduce of 8 B, 4 ranks, loss-1%")
	if mpich.Installed() {
		labelled("layers-loss-mpi", mpichRow, "latency of 8 B, 2 ranks, loss-1%")
	}
}
