package suite

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"viaxdp/bench"
	"viaxdp/bench/mpich"
	"viaxdp/bench/peers"
	"viaxdp/bench/report"
	"viaxdp/internal/lab/fail"
	"viaxdp/internal/lab/openmpi"
	"viaxdp/internal/lab/testbed"
	"viaxdp/mvich/mpibench"
)

// mpiGroups start ranks of mvich, and of MPICH where it is installed, and have them run the
// benchmarks that users of MPI know.
var mpiGroups = []group{{
	slow: true, name: "layers-osu", title: "Ohio State University's benchmarks: mvich by each protocol, and MPICH",
	turn: 36 * time.Second,
	run: func(s *session) *report.Group {
		return s.osu(osuRows, "mvich-eager, -r3, -rget, -rput: all messages by that protocol; eager as far as they go in one packet. mvich chooses.")
	},
}, {
	long: true, name: "layers-openmpi", title: "The same benchmarks: Open MPI over TCP, and over libfabric and VIs",
	turn: 36 * time.Second,
	run: func(s *session) *report.Group {
		return s.osu(openMPIRows, "openmpi-tcp, -viaxdp, -rxm: Debian's Open MPI over the kernel's TCP, over libfabric's provider viaxdp, and over ofi_rxm and viaxdp.")
	},
}, {
	slow: true, name: "layers-loss-mpi", title: "Ranks of mvich and MPICH when the network loses frames",
	turn: 15 * time.Second,
	run: func(s *session) *report.Group {
		return s.ranks(&report.Group{Axis: report.Axis{Name: "benchmark"}, Notes: []string{
			"Ranks in namespaces joined by a bridge, whose ports lose a share of the frames, each by itself; without a loss it is the same way. Their interfaces segment nothing, as a wire would have it. Bound to the CPUs in turn.",
			"Times are means, of a latency one way. Both warm up alike. MPICH makes fewer iterations, since a loss may cost TCP a fifth of a second, and ranks that poll on fewer CPUs take turns.",
			"Where there are fewer CPUs than ranks those of mvich sleep while they wait, and MPICH's poll: each by default.",
		}}, autoRows, lossyJobs())
	},
}}

// osu runs the benchmarks of Ohio State University.
func (s *session) osu(rows []rankRow, note string) *report.Group {
	cpus := fail.Must(testbed.AllowedCPUs())
	jobs := osuJobs(len(cpus), s.Quick)
	most := jobs[len(jobs)-1].ranks
	return s.ranks(&report.Group{Axis: alongSizes, Notes: []string{
		fmt.Sprintf("Ranks in namespaces of their own, each bound to a CPU, joined by a veth pair, more than two by a bridge: two of latency, bw and bibw, %d of the others. Latency is one way, times are means, bandwidth is that of all ranks together, in windows of 64 messages; buffers are the same again and again.", most),
		"Iterations are OSU's, fewer of long messages, and the same of all.",
		note,
	}}, rows, jobs)
}

const (
	mvichRow = "mvich"
	mpichRow = "mpich-tcp"

	mpichNote = "mpich-tcp: MPICH over the kernel's TCP, processes pinned to the same CPUs in turn, in namespaces that are joined alike, without an XDP program but one that loses frames."
	jobTime   = 5 * time.Minute // bounds a run
)

// A rankRow is mvich by a protocol, MPICH, or Open MPI.
type rankRow struct {
	name     string
	protocol string            // of mvich; empty: another MPI
	most     int               // bytes of a message; 0: any
	open     openmpi.Transport // Open MPI's; nil: it is not Open MPI
}

var autoRows = []rankRow{{name: mvichRow, protocol: "auto"}, {name: mpichRow}}

// osuRows has eager messages up to the largest size of the axis that goes in one packet.
var osuRows = append(slices.Clone(autoRows),
	rankRow{name: "mvich-eager", protocol: "eager", most: 16 << 10}, rankRow{name: "mvich-r3", protocol: "r3"},
	rankRow{name: "mvich-rget", protocol: "rget"}, rankRow{name: "mvich-rput", protocol: "rput"})

var openMPIRows = []rankRow{{name: "openmpi-tcp", open: openmpi.TCP}, {name: "openmpi-viaxdp", open: openmpi.VIA}, {name: "openmpi-rxm", open: openmpi.RXM}}

// A rankJob is benchmarks that the same ranks run one after the other.
type rankJob struct {
	names []string
	ranks int
	mpibench.Options
	theirs int // iterations of another MPI; 0: as many

	lossy bool // the ranks are joined by a hub that loses a share of the frames
	loss  float64
	label string // of the point; empty: it is by size
	x     float64
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
		return []rankJob{{names: slices.Concat(pair, more), ranks: 2, Options: sizes}}
	}
	return []rankJob{{names: pair, ranks: 2, Options: sizes}, {names: more, ranks: 4, Options: sizes}}
}

// lossyJobs have fewer iterations of MPICH: a loss may cost TCP a fifth of a second.
func lossyJobs() (jobs []rankJob) {
	for i, j := range []struct {
		name         string
		ranks, bytes int
		loss         float64
		ours, theirs int
		warmup       int
	}{
		{"latency", 2, 8, 0, 5000, 1000, 200},
		{"latency", 2, 8, 0.01, 5000, 300, 200},
		{"bw", 2, 64 << 10, 0, 50, 20, 1},
		{"bw", 2, 64 << 10, 0.01, 50, 5, 1},
		{"allreduce", 4, 8, 0, 500, 100, 10},
		{"allreduce", 4, 8, 0.01, 500, 300, 10},
	} {
		jobs = append(jobs, rankJob{
			names: []string{j.name}, ranks: j.ranks, theirs: j.theirs, lossy: true, loss: j.loss, x: float64(i),
			Options: mpibench.Options{MinSize: j.bytes, MaxSize: j.bytes, Iterations: j.ours, Warmup: j.warmup},
			label:   fmt.Sprintf("%s of %s, %d ranks, %s", j.name, sizeName(j.bytes), j.ranks, lossName(j.loss)),
		})
	}
	return jobs
}

// others are programs of other MPI implementations, by row. A row that has none has a note.
func (s *session) others(g *report.Group, rows []rankRow, dir string) map[string]string {
	programs := map[string]string{}
	leave := func(r rankRow, why string) {
		g.Notes = append(g.Notes, fmt.Sprintf("No figures of %s: %s.", r.name, why))
	}
	for _, r := range rows {
		switch {
		case r.protocol != "":
			continue
		case r.open == nil && !mpich.Installed():
			leave(r, "MPICH is not installed (Debian's package "+mpich.Package+")")
			continue
		case r.open != nil && openmpi.Missing() != "":
			leave(r, openmpi.Missing()+" is not installed (Debian's packages "+openmpi.Packages+")")
			continue
		case r.open != nil && !slices.Equal(r.open, openmpi.TCP) && !peers.ProviderInstalled():
			leave(r, "libfabric does not find the provider viaxdp (make -C cmd/libfabric install, or FI_PROVIDER_PATH)")
			continue
		}
		compiler := openmpi.Compiler
		if r.open == nil {
			compiler = mpich.Compiler
			g.Base, g.Notes = mpichRow, append(g.Notes, mpichNote, "MPICH "+mpich.Version(s.ctx)+".")
		}
		programs[r.name] = fail.Must(mpich.Build(s.ctx, dir, compiler))
	}
	return programs
}

// ranks runs all jobs of each row in each turn. A job that another MPI fails is not tried with it
// again, since ranks that poll on too few CPUs may take long.
func (s *session) ranks(g *report.Group, rows []rankRow, jobs []rankJob) *report.Group {
	if len(s.RankArgs) == 0 {
		fail.With("no arguments with which this program becomes a rank")
	}
	self := fail.Must(os.Executable())
	most := slices.MaxFunc(jobs, func(a, b rankJob) int { return cmp.Compare(a.ranks, b.ranks) }).ranks
	g.Conditions = s.starConditions(most)
	dir := fail.Must(os.MkdirTemp("", "via-xdp-mpi-"))
	defer os.RemoveAll(dir)
	others := s.others(g, rows, dir)
	g = s.gather(g, s.turns(), func(t *sheet) {
		for _, job := range jobs {
			for _, row := range rows {
				what := fmt.Sprintf("%s, %s", row.name, cmp.Or(job.label, fmt.Sprintf("ranks: %d", job.ranks)))
				run := func(program ...string) {
					s.step("%s", what)
					s.runRanks(t, row, job, program)
				}
				if row.protocol != "" {
					run(slices.Concat([]string{self}, s.RankArgs, []string{"--protocol=" + row.protocol})...)
				} else if path := others[row.name]; path != "" { // ours stands without it
					s.attempt(g, t, what, func() { run(path) })
				}
			}
		}
	})
	if g.Row(mpichRow) == nil {
		g.Base = ""
	}
	return g
}

// runRanks does a job once; when quick with few iterations.
func (s *session) runRanks(t *sheet, row rankRow, job rankJob, program []string) {
	o := job.Options
	if row.protocol == "" {
		o.Iterations = cmp.Or(job.theirs, o.Iterations)
	}
	if s.Quick && o.Iterations > 0 {
		o.Iterations = min(o.Iterations, 5)
		o.Warmup = min(o.Warmup, o.Iterations)
	}
	if row.most > 0 {
		o.MaxSize = min(o.MaxSize, row.most)
	}
	ctx, cancel := context.WithTimeout(s.ctx, jobTime)
	defer cancel()
	rows := fail.Must(mpich.Run{
		Program: program, Names: job.names, Ranks: job.ranks, MTU: s.mtu(), Flags: row.protocol != "", Lossy: job.lossy, Loss: job.loss,
		Min: o.MinSize, Max: o.MaxSize, Step: o.Step, Iterations: o.Iterations, Warmup: o.Warmup, MostBytes: o.MostBytes, OpenMPI: row.open,
	}.Measure(ctx))
	for _, r := range rows {
		x := job.x
		if job.label == "" {
			x = float64(r.Bytes)
		}
		at := t.at(row.name, x)
		at.label = job.label
		switch r.Name {
		case "latency":
			at.put(report.OSULatency, r.Mean)
		case "bw":
			at.put(report.OSUBandwidth, r.MBps)
		case "bibw":
			at.put(report.OSUBothWays, r.MBps)
		case "mbw_mr":
			at.put(report.OSUPairs, r.MBps)
			at.put(report.OSUPairsRate, r.Messages)
		case "allreduce":
			at.put(report.OSUAllReduce, r.Mean)
		case "alltoall":
			at.put(report.OSUAllToAll, r.Mean)
		}
		at.n += int64(fail.Must(mpibench.Iterations(r.Name, r.Bytes, o)))
	}
}

// starConditions are those of programs in the namespaces of a star, which are bound to CPUs in turn.
func (s *session) starConditions(namespaces int) bench.Conditions {
	c, cpus := bench.HostConditions(), fail.Must(testbed.AllowedCPUs())
	c.Interface, c.MTU = testbed.StarInterface, s.mtu()
	for i := range namespaces {
		c.PinnedCPUs = append(c.PinnedCPUs, cpus[i%len(cpus)])
	}
	return c
}
