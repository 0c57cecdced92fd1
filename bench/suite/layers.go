package suite

import (
	"context"
	"fmt"
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
		return time.Duration(2*s.turns()) * (time.Second + httpTime(s))
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

// pollingNote is of ranks that may be more than CPUs.
const pollingNote = "Where there are fewer CPUs than ranks those of mvich sleep while they wait, and MPICH's poll, as either does when nobody says otherwise."

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

// layersAllReduce starts four ranks, of this program and of MPICH.
func (s *session) layersAllReduce() (*report.Group, error) {
	const ranks, bytes = 4, 8
	g := &report.Group{Axis: alongSizes, Base: mpichRow, Conditions: bench.HostConditions(), Notes: []string{
		fmt.Sprintf("%d ranks in namespaces on a bridge, bound to the CPUs in turn; the mean over the ranks of the time of one operation.", ranks),
		pollingNote,
	}}
	ours, err := s.rankProgram()
	if err != nil {
		return nil, err
	}
	their, err := s.newMPICH(g, mpichNote)
	if err != nil {
		return nil, err
	}
	defer their.close()
	if their.path == "" {
		g.Base = ""
	}
	t := newSheet(nil)
	for turn := 1; turn <= s.turns(); turn++ {
		for _, r := range []struct {
			name  string
			run   mpich.Run
			count int
		}{
			{mvichRow, mpich.Run{Program: ours, Flags: true}, 500},
			{mpichRow, mpich.Run{Program: []string{their.path}}, 10},
		} {
			if r.name == mpichRow && g.Base == "" {
				continue
			}
			s.step("%s (turn %d of %d)", r.name, turn, s.turns())
			r.run.Names, r.run.Min, r.run.Max = []string{"allreduce"}, bytes, bytes
			r.run.Ranks, r.run.MTU = ranks, s.mtu()
			r.run.Warmup, r.run.Iterations = allReduceWarmup, s.iterations(r.count)
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
