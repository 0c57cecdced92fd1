package suite

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"viaxdp/bench"
	"viaxdp/bench/mpich"
	"viaxdp/bench/report"
	"viaxdp/internal/lab/testbed"
	"viaxdp/internal/ops/mpirun"
	"viaxdp/mvich/mpiapps"
	"viaxdp/mvich/mpibench"
)

// rankGroups start ranks of mvich, and of MPICH where it is installed, and have them make
// the benchmarks that users of MPI know.
var rankGroups = []group{{
	name: "layers-allreduce", title: "A collective operation of four ranks, mvich and MPICH",
	cost: func(s *session) time.Duration { return mpichCost + s.ranksCost(1, time.Second) },
	run: func(s *session) (*report.Group, error) {
		g := &report.Group{Axis: alongSizes, Base: mpichRow, Conditions: bench.HostConditions(), Notes: []string{
			"4 ranks in namespaces on a bridge, bound to the CPUs in turn; the mean over the ranks of the time of one operation.", pollingNote,
		}}
		return s.ranks(g, mpichNote, autoRows, []rankJob{{
			names: []string{"allreduce"}, ranks: 4, ours: 500, theirs: 10, warmup: allReduceWarmup, metric: report.Operation,
			sizes: mpibench.Options{MinSize: 8, MaxSize: 8},
		}})
	},
}, {
	slow: true, name: "layers-osu", title: "Ohio State University's benchmarks: mvich by each protocol, and MPICH",
	cost: func(s *session) time.Duration { return s.ranksCost(len(osuRows), 6*time.Second) },
	run: func(s *session) (*report.Group, error) {
		cpus, err := testbed.AllowedCPUs()
		if err != nil {
			return nil, err
		}
		jobs := osuJobs(len(cpus), s.Quick)
		g := &report.Group{Axis: alongSizes, Base: mpichRow, Conditions: s.starConditions(), Notes: osuNotes(jobs)}
		return s.ranks(g, mpichNote, osuRows, jobs)
	},
}}

// lossyRankGroup is the same when the network loses frames.
var lossyRankGroup = group{
	slow: true, name: "layers-loss-mpi", title: "Ranks of mvich and MPICH when the network loses frames",
	cost: func(s *session) time.Duration { return s.ranksCost(2*len(lossyJobs()), 1250*time.Millisecond) },
	run: func(s *session) (*report.Group, error) {
		g := &report.Group{Axis: report.Axis{Name: "benchmark"}, Base: mpichRow, Conditions: s.starConditions(), Notes: []string{
			"Ranks in namespaces joined by a bridge, whose ports lose a share of the frames, each by itself; without a loss it is the same way. Their interfaces segment nothing, as a wire would have it. Bound to the CPUs in turn.",
			"Times are means, of a latency one way. Both warm up alike. MPICH makes fewer iterations, since a loss may cost TCP a fifth of a second, and ranks that poll on fewer CPUs take turns.",
			pollingNote,
		}}
		return s.ranks(g, lossyNote, autoRows, lossyJobs())
	},
}

const (
	mpichNote = "mpich-tcp: MPICH over the kernel's TCP, processes pinned to the same CPUs in turn, " +
		"in namespaces of their own joined by veth pairs of the same MTU without an XDP program."
	lossyNote = "mpich-tcp: MPICH over the kernel's TCP, processes pinned to the same CPUs in turn, on the same bridge: " +
		"its ports' XDP program, which loses the frames of mvich, loses those of MPICH, too."
	pollingNote = "Where there are fewer CPUs than ranks those of mvich sleep while they wait, and MPICH's poll, as either does when nobody says otherwise."
	// missingNote is of a row, a turn and a cause.
	missingNote = "No figures of %s from turn %d on, or not all of it: %v."
	// onePairNote is of a machine with less than four CPUs.
	onePairNote = "Fewer than four CPUs: mbw_mr has one pair, and says of several nothing; allreduce of four ranks is in layers-allreduce."
)

const (
	mpichTime       = 30 * time.Second       // bounds a run at one size
	osuTime         = 5 * time.Minute        // and one at many
	ranksTime       = 500 * time.Millisecond // about what starting and ending ranks takes
	mpichCost       = 600 * time.Millisecond // of one size, latency and bandwidth; about what building the program takes, too
	allReduceWarmup = 10                     // operations
)

// ranksCost is about how long some runs of ranks take in all turns.
func (s *session) ranksCost(runs int, each time.Duration) time.Duration {
	if s.Quick {
		each = ranksTime
	}
	return time.Duration(s.turns()*runs) * each
}

// A rankRow is mvich by a protocol, or MPICH.
type rankRow struct {
	name     string
	protocol string // empty: MPICH
	most     int    // bytes of a message; 0: any
}

var autoRows = []rankRow{{mvichRow, "auto", 0}, {mpichRow, "", 0}}

// osuRows has eager messages up to the largest size of the axis that goes in one packet.
var osuRows = append(slices.Clone(autoRows),
	rankRow{"mvich-eager", "eager", 4096}, rankRow{"mvich-r3", "r3", 0}, rankRow{"mvich-rget", "rget", 0}, rankRow{"mvich-rput", "rput", 0})

// A rankJob is benchmarks that the same ranks make one after the other.
type rankJob struct {
	names        []string
	ranks        int
	sizes        mpibench.Options
	ours, theirs int // iterations; 0: OSU's
	warmup       int
	metric       report.Metric // of a job of one benchmark; empty: those of osuMetrics

	lossy bool // the ranks are joined by a hub that loses a share of the frames
	loss  float64
	label string // of the point; empty: it is by size
	x     float64
}

// osuMetrics are the figures of a benchmark.
var osuMetrics = map[string]func(at *gathered, r mpich.Row){
	"latency": func(at *gathered, r mpich.Row) { at.put(report.OSULatency, r.Mean) },
	"bw":      func(at *gathered, r mpich.Row) { at.put(report.OSUBandwidth, r.MBps) },
	"bibw":    func(at *gathered, r mpich.Row) { at.put(report.OSUBothWays, r.MBps) },
	"mbw_mr": func(at *gathered, r mpich.Row) {
		at.put(report.OSUPairs, r.MBps)
		at.put(report.OSUPairsRate, r.Messages)
	},
	"allreduce": func(at *gathered, r mpich.Row) { at.put(report.OSUAllReduce, r.Mean) },
	"alltoall":  func(at *gathered, r mpich.Row) { at.put(report.OSUAllToAll, r.Mean) },
}

// put takes the figure of a row.
func (j rankJob) put(at *gathered, r mpich.Row) {
	switch j.metric {
	case "":
		osuMetrics[r.Name](at, r)
	case report.Bandwidth:
		at.put(j.metric, r.MBps)
	default:
		at.put(j.metric, r.Mean)
	}
}

// osuJobs gives each rank a CPU: those benchmarks that may have more than two ranks
// have them where there are four.
func osuJobs(cpus int, quick bool) []rankJob {
	sizes := mpibench.Options{MinSize: 1, MaxSize: 4 << 20, Step: 4, MostBytes: 64 << 20}
	if quick {
		sizes = mpibench.Options{MinSize: 64, MaxSize: 64 << 10, Step: 1 << 10, Iterations: 2}
	}
	pair, more := []string{"latency", "bw", "bibw"}, []string{"mbw_mr", "allreduce", "alltoall"}
	if cpus < 4 {
		return []rankJob{{names: slices.Concat(pair, more), ranks: 2, sizes: sizes}}
	}
	return []rankJob{{names: pair, ranks: 2, sizes: sizes}, {names: more, ranks: 4, sizes: sizes}}
}

func osuNotes(jobs []rankJob) []string {
	most := jobs[len(jobs)-1].ranks
	notes := []string{
		fmt.Sprintf("Ranks in namespaces of their own, each bound to a CPU, joined by a veth pair, more than two by a bridge: two of latency, bw and bibw, %d of the others. Latency is one way, times are means, bandwidth is that of all ranks together, in windows of 64 messages; buffers are the same again and again.", most),
		"Iterations are OSU's, fewer of long messages, and the same of both.",
		"mvich-eager, -r3, -rget, -rput: all messages by that protocol; eager as far as they go in one packet. mvich chooses.",
	}
	if most == 2 {
		notes = append(notes, onePairNote)
	}
	return notes
}

// lossyJobs have fewer iterations of MPICH: a loss may cost TCP a fifth of a second.
func lossyJobs() (jobs []rankJob) {
	for i, j := range []struct {
		name         string
		ranks, bytes int
		loss         float64
		ours, theirs int
		warmup       int
		metric       report.Metric
	}{
		{"latency", 2, 8, 0, 5000, 1000, 200, report.Operation},
		{"latency", 2, 8, 0.01, 5000, 300, 200, report.Operation},
		{"bw", 2, 64 << 10, 0, 50, 20, 1, report.Bandwidth},
		{"bw", 2, 64 << 10, 0.01, 50, 5, 1, report.Bandwidth},
		{"allreduce", 4, 8, 0, 500, 100, allReduceWarmup, report.Operation},
		{"allreduce", 4, 8, 0.01, 500, 300, allReduceWarmup, report.Operation},
	} {
		jobs = append(jobs, rankJob{
			names: []string{j.name}, ranks: j.ranks, sizes: mpibench.Options{MinSize: j.bytes, MaxSize: j.bytes},
			ours: j.ours, theirs: j.theirs, warmup: j.warmup, metric: j.metric, lossy: true, loss: j.loss, x: float64(i),
			label: fmt.Sprintf("%s of %s, %d ranks, %s", j.name, sizeName(j.bytes), j.ranks, lossName(j.loss)),
		})
	}
	return jobs
}

// ranks has each row do all jobs in each turn. A job that MPICH fails is left to ours from
// then on: ranks that poll on fewer CPUs may take long.
func (s *session) ranks(g *report.Group, note string, rows []rankRow, jobs []rankJob) (*report.Group, error) {
	if len(s.RankArgs) == 0 {
		return nil, errors.New("no arguments with which this program becomes a rank")
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	their, err := s.newMPICH(g, note)
	if err != nil {
		return nil, err
	}
	defer their.close()
	failed := make([]bool, len(jobs))
	g, err = s.gather(g, s.turns(), func(t *sheet, turn int) error {
		for i, job := range jobs {
			for _, row := range rows {
				program, isMPICH := slices.Concat([]string{self}, s.RankArgs, []string{"--protocol=" + row.protocol}), row.protocol == ""
				if isMPICH {
					if program = []string{their.path}; their.path == "" || failed[i] {
						continue
					}
				}
				what := cmp.Or(job.label, fmt.Sprintf("ranks: %d", job.ranks))
				s.step("%s, %s (turn %d of %d)", row.name, what, turn, s.turns())
				err := s.runRanks(t, row, job, program)
				switch {
				case s.ctx.Err() != nil:
					return context.Cause(s.ctx)
				case err != nil && isMPICH: // ours stands without it
					failed[i] = true
					g.Notes = append(g.Notes, fmt.Sprintf(missingNote, mpichRow+", "+what, turn, err))
				case err != nil:
					return fmt.Errorf("%s, %s: %w", row.name, what, err)
				}
			}
		}
		return nil
	})
	if err == nil && g.Row(mpichRow) == nil {
		g.Base = ""
	}
	return g, err
}

// runRanks does a job once; when quick with few iterations.
func (s *session) runRanks(t *sheet, row rankRow, job rankJob, program []string) error {
	o, limit := job.sizes, osuTime
	if job.ours > 0 {
		o.Iterations, limit = job.ours, mpichTime
		if row.protocol == "" {
			o.Iterations = job.theirs
		}
		if s.Quick {
			o.Iterations = 5
		}
		o.Warmup = min(job.warmup, o.Iterations)
	}
	if row.most > 0 {
		o.MaxSize = min(o.MaxSize, row.most)
	}
	ctx, cancel := context.WithTimeout(s.ctx, limit)
	defer cancel()
	rows, err := mpich.Run{
		Program: program, Names: job.names, Ranks: job.ranks, MTU: s.mtu(), Flags: row.protocol != "", Lossy: job.lossy, Loss: job.loss,
		Min: o.MinSize, Max: o.MaxSize, Step: o.Step, Iterations: o.Iterations, Warmup: o.Warmup, MostBytes: o.MostBytes,
	}.Measure(ctx)
	if err != nil {
		return err
	}
	for _, r := range rows {
		x := job.x
		if job.label == "" {
			x = float64(r.Bytes)
		}
		at := t.at(row.name, x)
		at.label = job.label
		job.put(at, r)
		n, err := mpibench.Iterations(r.Name, r.Bytes, o)
		if err != nil {
			return err
		}
		at.n += int64(n)
	}
	return nil
}

// starConditions are those of programs in the namespaces of a star.
func (s *session) starConditions() bench.Conditions {
	c := bench.HostConditions()
	c.Interface, c.MTU = testbed.StarInterface, s.mtu()
	return c
}

// theirs is MPICH's program, or none.
type theirs struct {
	dir  string
	path string // empty: MPICH is not installed
}

// newMPICH makes the program; note says how it is connected.
func (s *session) newMPICH(g *report.Group, note string) (t theirs, err error) {
	if !mpich.Installed() {
		g.Notes = append(g.Notes, fmt.Sprintf("No figures of %s: MPICH is not installed (Debian's package %s).", mpichRow, mpich.Package))
		return t, nil
	}
	if t.dir, err = os.MkdirTemp("", "via-xdp-mpich-"); err != nil {
		return t, err
	}
	if t.path, err = mpich.Build(s.ctx, t.dir); err != nil {
		t.close()
		return t, err
	}
	g.Notes = append(g.Notes, note, "MPICH "+mpich.Version(s.ctx)+".")
	return t, nil
}

func (t theirs) close() {
	if t.dir != "" {
		os.RemoveAll(t.dir)
	}
}

// theirMessages measures MPICH in one turn.
func (s *session) theirMessages(t theirs, sheet *sheet, p part, turn int) error {
	if t.path == "" {
		return nil
	}
	for _, bytes := range p.sizes {
		s.step("%s, %s (turn %d of %d)", mpichRow, sizeName(bytes), turn, s.turns())
		series, x := p.place(row{Row: bench.Row{Label: mpichRow}}, bytes)
		at := sheet.at(series, x)
		pings, windows := max(20, min(5000, 20_000_000/bytes)), max(2, min(100, 50_000_000/(64*bytes)))
		if s.Quick {
			pings, windows = 50, 1
		}
		for name, count := range map[string]int{"latency": pings, "bw": windows} {
			ctx, cancel := context.WithTimeout(s.ctx, mpichTime)
			rows, err := mpich.Run{
				Program: []string{t.path}, Names: []string{name}, Ranks: 2, MTU: p.mtu, Min: bytes, Max: bytes, Iterations: count,
			}.Measure(ctx)
			cancel()
			if err != nil {
				return err
			}
			got := rows[0]
			if name == "latency" {
				at.put(report.Min, got.Least)
				at.put(report.P50, got.P50)
				at.put(report.Mean, got.Mean)
				at.put(report.P99, got.P99)
				at.n += int64(got.Count)
			} else {
				at.put(report.Bandwidth, got.MBps)
				at.put(report.Rate, got.Messages)
			}
		}
	}
	return nil
}

// scalingGroups are applications of mvich on more and more ranks.
var scalingGroups = []group{{
	slow: true, name: "layers-scaling", title: "Strong scaling of a stencil and of conjugate gradients over mvich",
	cost: func(s *session) time.Duration {
		run := 3 * time.Second
		if s.Quick {
			run = ranksTime
		}
		cpus, _ := testbed.AllowedCPUs() // scaling says what is wrong
		return time.Duration(s.turns()*len(mpiapps.Names())*len(scalingRanks(len(cpus)))) * run
	},
	run: (*session).scaling,
}}

// scalingRanks are the ranks of each run, as many at most as there are CPUs, but 4 in any
// case. The first is what the others are compared with.
func scalingRanks(cpus int) (all []int) {
	for n := 1; n <= min(max(4, cpus), testbed.MaxStar); n *= 2 {
		all = append(all, n)
	}
	return all
}

// mostWaited is the share of the time that ranks may be without a CPU, where they are
// not more than CPUs, before their figures are doubtful.
const mostWaited = 0.1

// scalingTime bounds one run.
const scalingTime = 5 * time.Minute

// scaling runs each application with each number of ranks in each turn. Every run
// checks its result against a serial one.
func (s *session) scaling() (*report.Group, error) {
	cpus, err := testbed.AllowedCPUs()
	if err != nil {
		return nil, err
	}
	g := &report.Group{Axis: report.Axis{Name: "ranks", Log: true}, Conditions: s.starConditions(), Notes: []string{
		"The same problem on each number of ranks, in namespaces of their own, joined by a veth pair or a bridge. Speed-up is the time of one rank by that of all, in the same turn; efficiency is speed-up by ranks. Communication is the share of the time that is spent in calls of mvich, waiting included, mean of the ranks.",
		"Rank 0 of each run computes the problem alone afterwards; a result that differs (the stencil's by a bit, that of conjugate gradients by a millionth of the largest value) fails the run.",
		fmt.Sprintf("Ranks run on %d CPUs: more of them cannot be faster, and those that wait sleep.", len(cpus)),
	}}
	if len(s.AppArgs) == 0 {
		return nil, errors.New("no arguments with which this program becomes a rank of an application")
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	counts := scalingRanks(len(cpus))
	return s.gather(g, s.turns(), func(t *sheet, turn int) error {
		for _, name := range mpiapps.Names() {
			var alone float64
			for _, ranks := range counts {
				s.step("%s, ranks: %d (turn %d of %d)", name, ranks, turn, s.turns())
				r, err := s.runApp(self, name, ranks)
				if err != nil {
					return fmt.Errorf("%s, ranks: %d: %w", name, ranks, err)
				}
				if ranks == counts[0] {
					alone = r.Seconds
				}
				at := t.at(fmt.Sprintf("%s, %d x %d", name, r.Size, r.Size), float64(ranks))
				at.put(report.Elapsed, 1e3*r.Seconds)
				at.put(report.Speedup, alone/r.Seconds)
				at.put(report.Efficiency, alone/r.Seconds/float64(ranks))
				at.put(report.Communication, r.Communication)
				at.n += int64(r.Steps)
				var reasons []string
				if ranks <= len(cpus) && r.Waited > mostWaited {
					reasons = []string{fmt.Sprintf("a rank waited for a CPU more than %.0f %% of the time", 100*mostWaited)}
				}
				at.disturb(turn, reasons)
			}
		}
		return nil
	})
}

// runApp runs an application once.
func (s *session) runApp(self, name string, ranks int) (*mpiapps.Result, error) {
	args := append([]string{self}, s.AppArgs...)
	args = append(args, "--json")
	if s.Quick {
		args = append(args, "--size", "64", "--steps", "20")
	}
	ctx, cancel := context.WithTimeout(s.ctx, scalingTime)
	defer cancel()
	var out, errs bytes.Buffer
	err := mpirun.Run(ctx, mpirun.Job{Ranks: ranks, Program: append(args, name), MTU: s.mtu(), Stdout: &out, Stderr: &errs})
	if err != nil {
		if said := bytes.TrimSpace(errs.Bytes()); len(said) > 0 {
			err = fmt.Errorf("%w: %s", err, said)
		}
		return nil, err
	}
	var r mpiapps.Result
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		return nil, fmt.Errorf("it printed %q: %w", out.Bytes(), err)
	}
	if r.Ranks != ranks || !(r.Seconds > 0) {
		return nil, fmt.Errorf("it printed %q", out.Bytes())
	}
	return &r, nil
}
