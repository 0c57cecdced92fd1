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
	"viaxdp/mvich/mpibench"
)

// osuGroups are the benchmarks that users of MPI know.
var osuGroups = []group{{
	slow: true, name: "layers-osu", title: "Ohio State University's benchmarks: mvich by each protocol, and MPICH",
	cost: osuCost, run: (*session).layersOSU,
}}

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

// An osuJob is benchmarks that the same ranks make one after the other.
type osuJob struct {
	ranks int
	names []string
}

// osuJobs gives each rank a CPU: those benchmarks that may have more than two ranks
// have them where there are four.
func osuJobs(cpus int) []osuJob {
	pair, more := []string{"latency", "bw", "bibw"}, []string{"mbw_mr", "allreduce", "alltoall"}
	if cpus < 4 {
		return []osuJob{{2, slices.Concat(pair, more)}}
	}
	return []osuJob{{2, pair}, {4, more}}
}

// An osuRow is mvich by a protocol, or MPICH.
type osuRow struct {
	name     string
	protocol string // empty: MPICH
	most     int    // bytes of a message; 0: any
}

// largestEager is the largest size of the axis that goes in one packet.
const largestEager = 4096

var osuRows = []osuRow{
	{mvichRow, "auto", 0}, {mpichRow, "", 0},
	{"mvich-eager", "eager", largestEager}, {"mvich-r3", "r3", 0}, {"mvich-rget", "rget", 0}, {"mvich-rput", "rput", 0},
}

// osuSizes are how long messages are, and what bounds their number.
func osuSizes(quick bool) mpibench.Options {
	if quick {
		return mpibench.Options{MinSize: 64, MaxSize: 64 << 10, Step: 1 << 10, Iterations: 2}
	}
	return mpibench.Options{MinSize: 1, MaxSize: 4 << 20, Step: 4, MostBytes: 64 << 20}
}

// osuTime bounds one run, which takes some seconds.
const osuTime = 5 * time.Minute

// osuCost is about how long layersOSU takes.
func osuCost(s *session) time.Duration {
	rows, run := len(osuRows), 6*time.Second
	if s.Quick {
		run = ranksTime
	}
	if !mpich.Installed() {
		rows--
	}
	return time.Duration(s.turns()*rows) * run
}

// onePairNote is of a machine with less than four CPUs.
const onePairNote = "Fewer than four CPUs: mbw_mr has one pair, and says of several nothing; allreduce of four ranks is in layers-allreduce."

func osuNotes(jobs []osuJob) []string {
	notes := []string{
		fmt.Sprintf("Ranks in namespaces of their own, each bound to a CPU, joined by a veth pair, more than two by a bridge: two of latency, bw and bibw, %d of the others. Latency is one way, times are means, bandwidth is that of all ranks together, in windows of 64 messages; buffers are the same again and again.", jobs[len(jobs)-1].ranks),
		"Iterations are OSU's, fewer of long messages, and the same of both.",
		"mvich-eager, -r3, -rget, -rput: all messages by that protocol; eager as far as they go in one packet. mvich chooses.",
	}
	if jobs[len(jobs)-1].ranks == 2 {
		notes = append(notes, onePairNote)
	}
	return notes
}

// layersOSU starts ranks, of this program and of MPICH, on pairs that are alike.
func (s *session) layersOSU() (*report.Group, error) {
	cpus, err := testbed.AllowedCPUs()
	if err != nil {
		return nil, err
	}
	jobs := osuJobs(len(cpus))
	g := &report.Group{Axis: alongSizes, Base: mpichRow, Conditions: bench.HostConditions(), Notes: osuNotes(jobs)}
	g.Conditions.Interface, g.Conditions.MTU = testbed.StarInterface, s.mtu()
	ours, err := s.rankProgram()
	if err != nil {
		return nil, err
	}
	their, err := s.newMPICH(g, mpichNote)
	if err != nil {
		return nil, err
	}
	defer their.close()
	t := newSheet(nil)
	for turn := 1; turn <= s.turns(); turn++ {
		for _, row := range osuRows {
			program := slices.Concat(ours, []string{"--protocol=" + row.protocol})
			if row.name == mpichRow {
				if program = []string{their.path}; their.path == "" {
					continue
				}
			}
			for _, job := range jobs {
				err := s.runOSU(t, row, job, program, turn)
				if s.ctx.Err() != nil {
					return nil, context.Cause(s.ctx)
				}
				if err != nil && row.name == mpichRow { // ours stand without it
					their.path = ""
					g.Notes = append(g.Notes, fmt.Sprintf(missingNote, mpichRow, turn, err))
					break
				}
				if err != nil {
					return nil, fmt.Errorf("%s: %w", row.name, err)
				}
			}
		}
	}
	if err := t.fill(g, s.at.Group, s.Out); err != nil {
		return nil, err
	}
	if g.Row(mpichRow) == nil {
		g.Base = ""
	}
	return g, nil
}

// runOSU makes the benchmarks of a job once.
func (s *session) runOSU(t *sheet, row osuRow, job osuJob, program []string, turn int) error {
	s.step("%s, ranks: %d (turn %d of %d)", row.name, job.ranks, turn, s.turns())
	o := osuSizes(s.Quick)
	if row.most > 0 {
		o.MaxSize = min(o.MaxSize, row.most)
	}
	ctx, cancel := context.WithTimeout(s.ctx, osuTime)
	defer cancel()
	rows, err := mpich.Run{
		Program: program, Names: job.names, Ranks: job.ranks, MTU: s.mtu(), Flags: row.protocol != "",
		Min: o.MinSize, Max: o.MaxSize, Step: o.Step, Iterations: o.Iterations, MostBytes: o.MostBytes,
	}.Measure(ctx)
	if err != nil {
		return err
	}
	for _, r := range rows {
		at := t.at(row.name, float64(r.Bytes))
		osuMetrics[r.Name](at, r)
		n, err := mpibench.Iterations(r.Name, r.Bytes, o)
		if err != nil {
			return err
		}
		at.n += int64(n)
	}
	return nil
}
