package suite

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"viaxdp/bench"
	"viaxdp/bench/mpich"
	"viaxdp/bench/report"
	"viaxdp/internal/lab/testbed"
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
	return s.gather(g, s.turns(), func(t *sheet, turn int) error {
		for _, p := range parts {
			if err := s.measurePart(g, t, p, turn); err != nil {
				return err
			}
			err := s.theirMessages(their, t, p, turn)
			if s.ctx.Err() != nil {
				return context.Cause(s.ctx)
			}
			if err != nil { // the other rows stand without it
				their.path = ""
				g.Notes = append(g.Notes, fmt.Sprintf(missingNote, mpichRow, turn, err))
			}
		}
		return nil
	}, parts...)
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

const (
	httpVianet = "net/http over vianet"
	httpTCP    = "net/http over TCP"
)

// httpSeries is the series of one of the two networks.
func httpSeries(vianet bool) string {
	if vianet {
		return httpVianet
	}
	return httpTCP
}

// httpLoad is what HTTP is measured with.
func (s *session) httpLoad(vianet bool) bench.HTTPLoad {
	return bench.HTTPLoad{Vianet: vianet, Bytes: 1024, Connections: 16, Duration: httpTime(s)}
}

// httpTime is how long requests are made.
func httpTime(s *session) time.Duration {
	if s.Quick {
		return s.duration()
	}
	return max(time.Second, s.duration())
}

// measureHTTP makes requests in one turn, and puts the figures at x of their series.
func (s *session) measureHTTP(bed *bench.Bed, t *sheet, vianet bool, x float64, turn int) error {
	series := httpSeries(vianet)
	client, server := bed.Workers()
	var r *bench.HTTPResult
	err := bed.Do(s.ctx, func() (err error) {
		r, err = bench.HTTP(s.ctx, client, server, s.httpLoad(vianet), bed.Opening)
		return err
	})
	if err != nil {
		return fmt.Errorf("%s: %w", series, err)
	}
	at := t.at(series, x)
	at.put(report.Rate, r.PerSecond)
	at.n += r.Requests
	at.disturb(turn, r.Disturbed)
	return nil
}

func (s *session) layersHTTP() (*report.Group, error) {
	g := &report.Group{Axis: alongSizes, Base: httpTCP, Conditions: bench.HostConditions(), Notes: []string{
		fmt.Sprintf("net/http on both sides, unchanged: %d connections that are kept, each with one request under way. Messages are requests.", s.httpLoad(true).Connections),
		loneKernelPair,
	}}
	bed, err := s.bed(s.mtu())
	if err != nil {
		return nil, err
	}
	return s.gather(g, s.turns(), func(t *sheet, turn int) error {
		for _, vianet := range []bool{true, false} {
			s.step("%s (turn %d of %d)", httpSeries(vianet), turn, s.turns())
			if err := s.measureHTTP(bed, t, vianet, float64(s.httpLoad(vianet).Bytes), turn); err != nil {
				return err
			}
		}
		return nil
	})
}

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
	g, err = s.gather(g, s.turns(), func(t *sheet, turn int) error {
		for i, f := range someFaults() {
			f.faults.Seed = uint64(turn)
			for _, vianet := range []bool{true, false} {
				s.step("%s, %s (turn %d of %d)", httpSeries(vianet), f.name, turn, s.turns())
				t.at(httpSeries(vianet), float64(i)).label = f.name
				bed.SetFaults(vianet, f.faults)
				err := s.measureHTTP(bed, t, vianet, float64(i), turn)
				bed.SetFaults(vianet, testbed.Faults{})
				if err != nil {
					return fmt.Errorf("%s: %w", f.name, err)
				}
			}
		}
		return nil
	})
	if err = errors.Join(err, bed.Close()); err != nil {
		return nil, err
	}
	return g, nil
}

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
}, lossyRankGroup}

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
