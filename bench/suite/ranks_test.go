package suite

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"viaxdp/bench/mpich"
	"viaxdp/bench/report"
	"viaxdp/internal/nstest"
	"viaxdp/mvich"
	"viaxdp/mvich/mpiapps"
	"viaxdp/mvich/mpibench"
	"viaxdp/mvich/pmi"
	"viaxdp/vipl"
)

// beRank is a rank that package mpirun has started.
func beRank(f func(c *mvich.Comm) error) (err error) {
	launcher, err := pmi.FromEnv()
	if err != nil {
		return err
	}
	nic, err := vipl.OpenNic(os.Getenv(mvich.DeviceVariable), vipl.WithSilence(10*time.Second))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, nic.Close()) }()
	world, err := mvich.Init(nic, launcher)
	if err != nil {
		return err
	}
	if err := f(world.Comm()); err != nil {
		world.Abort(1)
		return err
	}
	return world.Finalize()
}

// benchRank is what via-xdp mpibench is: suite-rank NAME --min=N --max=N --iterations=N --warmup=N.
func benchRank() error {
	var o mpibench.Options
	for _, arg := range os.Args[3:] {
		name, value, _ := strings.Cut(arg, "=")
		n, err := strconv.Atoi(value)
		if err != nil {
			return err
		}
		switch name {
		case "--min":
			o.MinSize = n
		case "--max":
			o.MaxSize = n
		case "--iterations":
			o.Iterations = n
		case "--warmup":
			o.Warmup = n
		}
	}
	return beRank(func(c *mvich.Comm) error {
		rows, err := mpibench.Run(c, os.Args[2], o)
		if err != nil || c.Rank() > 0 {
			return err
		}
		return mpibench.Print(os.Stdout, os.Args[2], rows)
	})
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
	g := r.Group("layers-scaling")
	if len(g.Series) != len(mpiapps.Names()) {
		t.Fatalf("%d series", len(g.Series))
	}
	for _, s := range g.Series {
		alone := s.At(1)
		for _, ranks := range scalingRanks {
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
	if _, err := Run(t.Context(), shortly("layers-scaling")); err == nil {
		t.Error("it ran without arguments for a rank")
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
	if _, err := Run(t.Context(), shortly("layers-loss-mpi")); err == nil {
		t.Error("it ran without arguments for a rank")
	}
}
