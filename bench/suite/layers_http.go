package suite

import (
	"errors"
	"fmt"
	"time"

	"viaxdp/bench"
	"viaxdp/bench/report"
	"viaxdp/internal/testbed"
)

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
	t := newSheet(nil)
	for turn := 1; turn <= s.turns(); turn++ {
		for _, vianet := range []bool{true, false} {
			s.step("%s (turn %d of %d)", httpSeries(vianet), turn, s.turns())
			if err := s.measureHTTP(bed, t, vianet, float64(s.httpLoad(vianet).Bytes), turn); err != nil {
				return nil, err
			}
		}
	}
	return g, t.fill(g, s.at.Group, s.Out)
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
	t := newSheet(nil)
	if err := errors.Join(s.faultyHTTP(bed, t), bed.Close()); err != nil {
		return nil, err
	}
	if err := t.fill(g, s.at.Group, s.Out); err != nil {
		return nil, err
	}
	nameFaults(g, someFaults())
	return g, nil
}

// faultyHTTP makes the requests of all turns, without a fault and with each.
func (s *session) faultyHTTP(bed *bench.Bed, t *sheet) error {
	for turn := 1; turn <= s.turns(); turn++ {
		for i, f := range someFaults() {
			f.faults.Seed = uint64(turn)
			for _, vianet := range []bool{true, false} {
				s.step("%s, %s (turn %d of %d)", httpSeries(vianet), f.name, turn, s.turns())
				bed.SetFaults(vianet, f.faults)
				err := s.measureHTTP(bed, t, vianet, float64(i), turn)
				bed.SetFaults(vianet, testbed.Faults{})
				if err != nil {
					return fmt.Errorf("%s: %w", f.name, err)
				}
			}
		}
	}
	return nil
}
