package suite

import (
	"context"
	"fmt"
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
		return time.Duration(2*len(someFaults())*s.turns()) * (time.Second + httpTime(s))
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
	ours, theirs := time.Second, 1500*time.Millisecond
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
	ours, err := s.rankProgram()
	if err != nil {
		return nil, err
	}
	their, err := s.newMPICH(g, lossyNote)
	if err != nil {
		return nil, err
	}
	defer their.close()
	programs := []struct {
		row string
		run mpich.Run
	}{
		{mvichRow, mpich.Run{Program: ours, Flags: true}},
		{mpichRow, mpich.Run{Program: []string{their.path}}},
	}
	t := newSheet(nil)
	failed := make([]bool, len(lossyRuns)) // of MPICH, which then is left alone
	for turn := 1; turn <= s.turns(); turn++ {
		for i, r := range lossyRuns {
			for _, p := range programs {
				isMPICH := p.row == mpichRow
				if isMPICH && (their.path == "" || failed[i]) {
					continue
				}
				s.step("%s, %s (turn %d of %d)", p.row, r.label(), turn, s.turns())
				run := p.run
				run.Iterations = r.ours
				if isMPICH {
					run.Iterations = r.theirs
				}
				value, n, err := s.measureLossy(r, run)
				switch {
				case s.ctx.Err() != nil:
					return nil, context.Cause(s.ctx)
				case err != nil && isMPICH: // ours stands without it
					failed[i] = true
					g.Notes = append(g.Notes, fmt.Sprintf(missingNote, mpichRow+", "+r.label(), turn, err))
					continue
				case err != nil:
					return nil, fmt.Errorf("%s: %s: %w", p.row, r.label(), err)
				}
				at := t.at(p.row, float64(i))
				at.put(r.metric, value)
				at.n += int64(n)
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

// measureLossy makes one run of a program, of so many iterations, or of a few when
// quick, and returns the run's figure and the number of iterations.
func (s *session) measureLossy(r lossyRun, run mpich.Run) (value float64, iterations int, err error) {
	run.Iterations = s.iterations(run.Iterations)
	run.Warmup = min(r.warmup, run.Iterations)
	run.Names, run.Min, run.Max = []string{r.name}, r.bytes, r.bytes
	run.Ranks, run.MTU, run.Lossy, run.Loss = r.ranks, s.mtu(), true, r.loss
	ctx, cancel := context.WithTimeout(s.ctx, mpichTime)
	defer cancel()
	rows, err := run.Measure(ctx)
	switch {
	case err != nil:
		return 0, 0, err
	case r.metric == report.Bandwidth:
		return rows[0].MBps, run.Iterations, nil
	}
	return rows[0].Mean, run.Iterations, nil
}
