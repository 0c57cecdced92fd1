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
	"viaxdp/bench/report"
)

// layerGroups measure the layers above VIs, packages mvich and vianet, beside
// what they stand on and what they stand for.
var layerGroups = []group{{
	name: layerMessages, title: "Messages of mvich and vianet beside a VI, package net and MPICH",
	cost: layersCost, run: (*session).layers,
}, {
	name: "layers-http", title: "HTTP requests over vianet and over TCP",
	cost: func(s *session) time.Duration {
		return time.Duration(2*s.turns()) * (2*time.Second + httpTime(s))
	},
	run: (*session).layersHTTP,
}, {
	name: "layers-allreduce", title: "A collective operation of four ranks, mvich and MPICH",
	cost: func(s *session) time.Duration { return mpichCost + time.Duration(s.turns())*allReduceCost },
	run:  (*session).layersAllReduce,
}}

// layerMessages is the group whose figures a report has also as the arrays of the
// demo.
const layerMessages = "layers-messages"

const (
	mvichRow  = "mvich"
	vianetRow = "vianet"
	tcpNet    = "tcp-net"
	mpichRow  = "mpich-tcp"
	longMTU   = 9000
)

var mpichNote = "mpich-tcp: MPICH over the kernel's TCP, processes pinned to the same CPUs in turn, " +
	"in namespaces of their own joined by veth pairs of the same MTU without an XDP program."

// pollingNote is of ranks that may be more than CPUs.
const pollingNote = "Where there are fewer CPUs than ranks those of mvich sleep while they wait, and MPICH's poll, as either does when nobody says otherwise."

// missingNote is of a row, a turn and a cause.
const missingNote = "No figures of %s from turn %d on, or not all of it: %v."

// layersParts are at the session's MTU and at that of jumbo frames.
func layersParts(s *session) []part {
	rows := plain(mvichRow, vianetRow, delivery, tcpNet)
	first := exchange(rows, fewer(s.Quick, slices.Concat([]int{8}, powers(4, 64, 1<<20)), 64, 65536))
	first.mtu = s.mtu()
	if s.mtu() == longMTU {
		return []part{first}
	}
	long := exchange(rows, fewer(s.Quick, powers(4, 4096, 1<<20), 65536))
	long.mtu = longMTU
	long.place = func(r row, bytes int) (string, float64) { return r.Label + mtuSuffix(longMTU), float64(bytes) }
	return []part{first, long}
}

const (
	mpichCost     = 600 * time.Millisecond // of one size, latency and bandwidth; about what building the program takes, too
	allReduceCost = 1 * time.Second        // of a turn

	allReduceWarmup = 10 // operations
)

func layersCost(s *session) (sum time.Duration) {
	for _, p := range layersParts(s) {
		sum += p.cost(s)
		if mpich.Installed() {
			sum += time.Duration(s.turns()*len(p.sizes)) * mpichCost
		}
	}
	return sum
}

func (s *session) layers() (*report.Group, error) {
	parts := layersParts(s)
	g := &report.Group{Axis: alongSizes, Base: delivery, Notes: []string{
		"mvich and vianet send from and receive into memory of the NIC's arena, as the VI does.", loneKernelPair,
	}}
	their, err := s.newMPICH(g, mpichNote)
	if err != nil {
		return nil, err
	}
	defer their.close()
	t := newSheet(parts)
	for turn := 1; turn <= s.turns(); turn++ {
		for _, p := range parts {
			if err := s.measurePart(g, t, p, turn); err != nil {
				return nil, err
			}
			err := s.theirMessages(their, t, p, turn)
			if s.ctx.Err() != nil {
				return nil, context.Cause(s.ctx)
			}
			if err != nil { // the other rows stand without it
				their.path = ""
				g.Notes = append(g.Notes, fmt.Sprintf(missingNote, mpichRow, turn, err))
			}
		}
	}
	return g, t.fill(g, layerMessages, s.Out)
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

// trips is how many round trips, or windows of messages, of a size MPICH makes.
func trips(s *session, bytes int) (pings, windows int) {
	if s.Quick {
		return 50, 1
	}
	return max(20, min(5000, 20_000_000/bytes)), max(2, min(100, 50_000_000/(64*bytes)))
}

// theirMessages measures MPICH in one turn.
func (s *session) theirMessages(t theirs, sheet *sheet, p part, turn int) error {
	if t.path == "" {
		return nil
	}
	for _, bytes := range p.sizes {
		s.step("%s, %s (turn %d of %d)", mpichRow, sizeName(bytes), turn, s.turns())
		pings, windows := trips(s, bytes)
		series, x := p.place(row{Row: bench.Row{Label: mpichRow}}, bytes)
		at := sheet.at(series, x)
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

// mpichTime bounds one run of it.
const mpichTime = 30 * time.Second

// httpTime is how long requests are made.
func httpTime(s *session) time.Duration {
	if s.Quick {
		return s.duration()
	}
	return max(time.Second, s.duration())
}

func (s *session) layersHTTP() (*report.Group, error) {
	g := &report.Group{Axis: alongSizes, Base: httpTCP, Notes: []string{
		fmt.Sprintf("net/http on both sides, unchanged: %d connections that are kept, each with one request under way. Messages are requests.", s.httpLoad(true).Connections),
		loneKernelPair,
	}}
	t := newSheet(nil)
	bed, err := s.bed(s.mtu())
	if err != nil {
		return nil, err
	}
	client, server := bed.Workers()
	g.Conditions = bench.HostConditions()
	for turn := 1; turn <= s.turns(); turn++ {
		for _, over := range []bool{true, false} {
			series := map[bool]string{true: httpVianet, false: g.Base}[over]
			s.step("%s (turn %d of %d)", series, turn, s.turns())
			var r *bench.HTTPResult
			err := bed.Do(s.ctx, func() (err error) {
				r, err = bench.HTTP(s.ctx, client, server, s.httpLoad(over), bed.Opening)
				return err
			})
			if err != nil {
				return nil, fmt.Errorf("%s: %w", series, err)
			}
			at := t.at(series, float64(s.httpLoad(over).Bytes))
			at.put(report.Rate, r.PerSecond)
			at.n += r.Requests
			at.disturb(turn, r.Disturbed)
		}
	}
	return g, t.fill(g, s.at.Group, s.Out)
}

// layersAllReduce starts four ranks, of this program and of MPICH.
func (s *session) layersAllReduce() (*report.Group, error) {
	const ranks, bytes = 4, 8
	g := &report.Group{Axis: alongSizes, Base: mpichRow, Conditions: bench.HostConditions(), Notes: []string{
		fmt.Sprintf("%d ranks in namespaces on a bridge, bound to the CPUs in turn; the mean over the ranks of the time of one operation.", ranks),
		pollingNote,
	}}
	if len(s.RankArgs) == 0 {
		return nil, fmt.Errorf("no arguments with which this program becomes a rank")
	}
	their, err := s.newMPICH(g, mpichNote)
	if err != nil {
		return nil, err
	}
	defer their.close()
	if their.path == "" {
		g.Base = ""
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	t := newSheet(nil)
	for turn := 1; turn <= s.turns(); turn++ {
		for _, r := range []struct {
			name  string
			run   mpich.Run
			count int
		}{
			{mvichRow, mpich.Run{Program: append([]string{self}, s.RankArgs...), Flags: true}, 500},
			{mpichRow, mpich.Run{Program: []string{their.path}}, 10},
		} {
			if r.run.Program[0] == "" || r.name == mpichRow && g.Base == "" {
				continue
			}
			s.step("%s (turn %d of %d)", r.name, turn, s.turns())
			r.run.Names, r.run.Ranks, r.run.MTU, r.run.Min, r.run.Max = []string{"allreduce"}, ranks, s.mtu(), bytes, bytes
			r.run.Warmup = allReduceWarmup
			r.run.Iterations = cmp.Or(map[bool]int{true: 5}[s.Quick], r.count)
			ctx, cancel := context.WithTimeout(s.ctx, mpichTime)
			rows, err := r.run.Measure(ctx)
			cancel()
			if err != nil && r.name == mpichRow && s.ctx.Err() == nil {
				g.Base = "" // ranks that poll on fewer CPUs may take long
				g.Notes = append(g.Notes, fmt.Sprintf(missingNote, mpichRow, turn, err))
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", r.name, err)
			}
			at := t.at(r.name, bytes)
			at.put(report.Operation, rows[0].Mean)
			at.n += int64(r.run.Iterations)
		}
	}
	return g, t.fill(g, s.at.Group, s.Out)
}

// arraysOf are a group's figures as the demo has them.
func arraysOf(g *report.Group) (latency []bench.Latency, bandwidth []bench.Bandwidth) {
	for _, s := range g.Series {
		for _, p := range s.Points {
			value := func(m report.Metric) float64 { return p.Values[m].Median }
			if v := value(report.P50); v > 0 {
				latency = append(latency, bench.Latency{
					Name: s.Name, Bytes: int(p.X), N: p.N, Min: value(report.Min), P50: v,
					P99: value(report.P99), P999: value(report.P999),
					Max: value(report.Max), Avg: value(report.Mean), Stdev: value(report.Stdev), Disturbed: p.Disturbed,
				})
			}
			if v := value(report.Bandwidth); v > 0 {
				rate := value(report.Rate)
				bandwidth = append(bandwidth, bench.Bandwidth{
					Name: s.Name, Bytes: int(p.X), MBps: v, Peak: value(report.Peak), Messages: rate,
					CPUTx: value(report.CPUTx) * rate / 1e6, CPURx: value(report.CPURx) * rate / 1e6, Disturbed: p.Disturbed,
				})
			}
		}
	}
	return latency, bandwidth
}
