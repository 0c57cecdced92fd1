package suite

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"viaxdp/bench"
	"viaxdp/bench/mpich"
	"viaxdp/bench/report"
	"viaxdp/internal/testbed"
)

// layerLossGroups are what a loss of frames does to the layers above VIs.
var layerLossGroups = []group{{
	slow: true, name: "layers-loss", title: "Goodput and ping-pong of mvich and vianet when the network loses frames",
	cost: func(s *session) time.Duration { return s.faultsCost(layerRows(), someFaults()) },
	run:  func(s *session) (*report.Group, error) { return s.underFaults(layerRows(), someFaults()) },
}, {
	slow: true, name: "layers-loss-http", title: "HTTP requests over vianet and over TCP when the network loses frames",
	cost: func(s *session) time.Duration {
		return time.Duration(2*len(someFaults())*s.turns()) * (2*time.Second + httpTime(s))
	},
	run: (*session).layersLossHTTP,
}, {
	slow: true, name: "layers-loss-mpi", title: "Ranks of mvich and MPICH when the network loses frames",
	cost: lossyCost,
	run:  (*session).layersLossMPI,
}}

// layerRows are the layers, and TCP beside.
func layerRows() []faultRow {
	return []faultRow{
		{mvichRow, mvichRow, "", 2000}, {vianetRow, vianetRow, "", 2000}, {delivery, delivery, "", 2000},
		{report.LossTCP, tcpSpin, "cubic", 50},
	}
}

// someFaults are none, and the loss of one frame in a hundred.
func someFaults() []fault {
	return slices.DeleteFunc(slices.Clone(faults), func(f fault) bool { return f.name != lossless && f.name != "loss-1%" })
}

// httpLoad is what HTTP is measured with.
func (s *session) httpLoad(vianet bool) bench.HTTPLoad {
	return bench.HTTPLoad{Vianet: vianet, Bytes: 1024, Connections: 16, Duration: httpTime(s)}
}

const (
	httpVianet = "net/http over vianet"
	httpTCP    = "net/http over TCP"
)

// layersLossHTTP makes requests through a forwarder.
func (s *session) layersLossHTTP() (*report.Group, error) {
	g := &report.Group{Axis: faultAxis, Base: httpTCP, Conditions: bench.HostConditions(), Notes: []string{
		fmt.Sprintf("net/http on both sides, unchanged: %d connections that are kept, each with one request of %s under way. Messages are requests.",
			s.httpLoad(true).Connections, sizeName(s.httpLoad(true).Bytes)),
		"The two sides are joined through a forwarder that loses frames of both directions. TCP runs on a pair of its own with the same loss, without an XDP program and without segmentation offload.",
	}}
	bed, err := s.throughBed()
	if err != nil {
		return nil, err
	}
	t := newSheet(nil)
	client, server := bed.Workers()
	measure := func(turn int, vianet bool, i int, f fault) error {
		series := map[bool]string{true: httpVianet, false: httpTCP}[vianet]
		s.step("%s, %s (turn %d of %d)", series, f.name, turn, s.turns())
		f.faults.Seed = uint64(turn)
		bed.SetFaults(vianet, f.faults)
		defer bed.SetFaults(vianet, testbed.Faults{})
		var r *bench.HTTPResult
		err := bed.Do(s.ctx, func() (err error) {
			r, err = bench.HTTP(s.ctx, client, server, s.httpLoad(vianet), bed.Opening)
			return err
		})
		if err != nil {
			return fmt.Errorf("%s, %s: %w", series, f.name, err)
		}
		at := t.at(series, float64(i))
		at.put(report.Rate, r.PerSecond)
		at.n += r.Requests
		at.disturb(turn, r.Disturbed)
		return nil
	}
	for turn := 1; turn <= s.turns() && err == nil; turn++ {
		for i, f := range someFaults() {
			err = errors.Join(err, measure(turn, true, i, f))
			err = errors.Join(err, measure(turn, false, i, f))
			if err != nil {
				break
			}
		}
	}
	if err = errors.Join(err, bed.Close()); err != nil {
		return nil, err
	}
	if err := t.fill(g, s.at.Group, s.Out); err != nil {
		return nil, err
	}
	nameFaults(g, someFaults())
	return g, nil
}

// A lossyRun is a benchmark of package mpibench under losses.
type lossyRun struct {
	name         string
	ranks, bytes int
	loss         float64
	ours, theirs int // iterations; a loss may cost TCP a fifth of a second
	warmup       int // iterations before, of either
	metric       report.Metric
}

func (r lossyRun) label() string {
	f := lossless
	if r.loss > 0 {
		f = fmt.Sprintf("loss-%g%%", 100*r.loss)
	}
	return fmt.Sprintf("%s of %s, %d ranks, %s", r.name, sizeName(r.bytes), r.ranks, f)
}

var lossyRuns = []lossyRun{
	{"latency", 2, 8, 0, 5000, 1000, 200, report.Operation},
	{"latency", 2, 8, 0.01, 5000, 300, 200, report.Operation},
	{"bw", 2, 64 << 10, 0, 50, 20, 1, report.Bandwidth},
	{"bw", 2, 64 << 10, 0.01, 50, 5, 1, report.Bandwidth},
	{"allreduce", 4, 8, 0, 500, 100, allReduceWarmup, report.Operation},
	{"allreduce", 4, 8, 0.01, 500, 300, allReduceWarmup, report.Operation},
}

// lossyCost is about how long layersLossMPI takes.
func lossyCost(s *session) time.Duration {
	ours, theirs := time.Second, 2*time.Second
	if s.Quick {
		ours, theirs = ranksTime, ranksTime
	}
	if mpich.Installed() {
		ours += theirs
	}
	return time.Duration(s.turns()*len(lossyRuns)) * ours
}

const lossyNote = "mpich-tcp: MPICH over the kernel's TCP, processes pinned to the same CPUs in turn, on the same bridge: " +
	"its ports' XDP program, which loses the frames of mvich, loses those of MPICH, too."

// layersLossMPI starts ranks, of this program and of MPICH, around a hub that loses
// frames.
func (s *session) layersLossMPI() (*report.Group, error) {
	g := &report.Group{Axis: report.Axis{Name: "benchmark"}, Base: mpichRow, Conditions: bench.HostConditions(), Notes: []string{
		"Ranks in namespaces joined by a bridge, whose ports lose a share of the frames, each by itself; without a loss it is the same way. Their interfaces segment nothing, as a wire would have it. Bound to the CPUs in turn.",
		"Times are means, of a latency one way. Both warm up alike. MPICH makes fewer iterations, since a loss may cost TCP a fifth of a second, and ranks that poll on fewer CPUs take turns.",
		pollingNote,
	}}
	g.Conditions.Interface, g.Conditions.MTU = testbed.StarInterface, s.mtu()
	if len(s.RankArgs) == 0 {
		return nil, errors.New("no arguments with which this program becomes a rank")
	}
	their, err := s.newMPICH(g, lossyNote)
	if err != nil {
		return nil, err
	}
	defer their.close()
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	t := newSheet(nil)
	failed := make([]bool, len(lossyRuns)) // of MPICH, which then is left alone
	for turn := 1; turn <= s.turns(); turn++ {
		for i, r := range lossyRuns {
			for _, row := range []struct {
				name string
				run  mpich.Run
			}{
				{mvichRow, mpich.Run{Program: append([]string{self}, s.RankArgs...), Flags: true, Iterations: r.ours}},
				{mpichRow, mpich.Run{Program: []string{their.path}, Iterations: r.theirs}},
			} {
				if row.name == mpichRow && (their.path == "" || failed[i]) {
					continue
				}
				s.step("%s, %s (turn %d of %d)", row.name, r.label(), turn, s.turns())
				run := row.run
				run.Names, run.Ranks, run.MTU, run.Min, run.Max, run.Lossy, run.Loss = []string{r.name}, r.ranks, s.mtu(), r.bytes, r.bytes, true, r.loss
				run.Iterations = cmp.Or(map[bool]int{true: 5}[s.Quick], run.Iterations)
				run.Warmup = min(r.warmup, run.Iterations)
				ctx, cancel := context.WithTimeout(s.ctx, mpichTime)
				rows, err := run.Measure(ctx)
				cancel()
				switch {
				case s.ctx.Err() != nil:
					return nil, context.Cause(s.ctx)
				case err != nil && row.name == mpichRow: // ours stands without it
					failed[i] = true
					g.Notes = append(g.Notes, fmt.Sprintf(missingNote, mpichRow+", "+r.label(), turn, err))
					continue
				case err != nil:
					return nil, fmt.Errorf("%s: %s: %w", row.name, r.label(), err)
				}
				at := t.at(row.name, float64(i))
				at.put(r.metric, map[bool]float64{true: rows[0].MBps, false: rows[0].Mean}[r.metric == report.Bandwidth])
				at.n += int64(run.Iterations)
			}
		}
	}
	if err := t.fill(g, s.at.Group, s.Out); err != nil {
		return nil, err
	}
	if g.Row(mpichRow) == nil {
		g.Base = ""
	}
	for i := range g.Series {
		for j := range g.Series[i].Points {
			p := &g.Series[i].Points[j]
			p.Label = lossyRuns[int(p.X)].label()
		}
	}
	return g, nil
}
