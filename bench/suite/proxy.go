package suite

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"viaxdp/bench/peers"
	"viaxdp/bench/report"
)

// proxyGroups are what programs that know nothing of VIs gain or lose by proxies.
var proxyGroups = []group{{
	slow: true, name: "layers-proxy", title: "Redis and PostgreSQL: directly over TCP, and through two proxies",
	turn: 14 * time.Second,
	run:  func(s *session) (*report.Group, error) { return s.askByAllWays(s.allServed(), proxyNotes) },
}, {
	slow: true, name: "layers-loss-proxy", title: "Redis, directly over TCP and through two proxies, when the network loses frames",
	turn: 8 * time.Second,
	run:  func(s *session) (*report.Group, error) { return s.askByAllWays(s.servedUnderLoss(), lossyProxyNotes) },
}}

const (
	boundNote   = "the client and its proxy are bound to one CPU, the server and its proxy to the other."
	proxiesNote = "The same two proxies with TCP between them tell what proxies cost by themselves."
	timesNote   = "Messages are requests; times are those of whole requests, as the client tells them"
)

var proxyNotes = []string{
	"Client and server are other people's programs, in two namespaces joined by a veth pair that is new for each way and server; " + boundNote,
	timesNote + ": redis-benchmark in steps of 8 us, pgbench only their mean, which stands in the column of the median, too.",
	proxiesNote,
}

var lossyProxyNotes = []string{
	"Client and server are other people's programs, in two namespaces joined by a bridge whose ports lose a share of the frames, each by itself; " +
		"without a loss it is the same way. Their interfaces segment nothing, as a wire would have it, and " + boundNote + " Between a program and its proxy nothing is lost.",
	timesNote + ", in steps of 8 us. Frames hit are those that the bridge has lost, of all that came to it.",
	proxiesNote,
}

// proxyRows are the ways to a server.
var proxyRows = []struct {
	name string
	way  peers.Way
}{
	{"TCP, no proxy", peers.Direct},
	{"two proxies, TCP between", peers.ThroughTCP},
	{"two proxies, VIA between", peers.ThroughVIA},
}

// proxyTurns are fewer than others': a chain takes longer to start than to measure.
func proxyTurns(s *session) int { return min(s.turns(), 3) }

// served is what is asked of a server on one network, in each way: loads, and where they stand
// among the points.
type served struct {
	service peers.Service
	lossy   bool
	loss    float64
	time    time.Duration // of a load
	points  []servedPoint
}

type servedPoint struct {
	x     int
	label string
	load  peers.Load
}

// allServed is each load on a pair of its own; when quick one of Redis, which starts in no time.
func (s *session) allServed() (list []served) {
	for _, service := range []peers.Service{peers.Redis, peers.PostgreSQL} {
		v := served{service: service, time: s.longer(time.Second)}
		for x, l := range peers.Loads() {
			if l.Service == service && !(s.Quick && (service != peers.Redis || len(v.points) > 0)) {
				v.points = append(v.points, servedPoint{x, l.Name, l})
			}
		}
		if len(v.points) > 0 {
			list = append(list, v)
		}
	}
	return list
}

// lossyLoad is many connections, since one alone of TCP takes a fifth of a second for a loss.
const lossyLoad = "redis GET, 1 KiB, 16 connections"

// servedUnderLoss is a load without a loss and with one. It counts requests, of which TCP makes a
// fifth with losses: they are fewer.
func (s *session) servedUnderLoss() (list []served) {
	for _, l := range peers.Loads() {
		if l.Name != lossyLoad {
			continue
		}
		for x, loss := range []float64{0, 0.01} {
			v := served{service: l.Service, lossy: true, loss: loss, time: s.longer(time.Second)}
			if loss > 0 {
				v.time /= 4
			}
			v.points = []servedPoint{{x, l.Name + ", " + lossName(loss), l}}
			list = append(list, v)
		}
	}
	return list
}

// askByAllWays has load generators ask by each way.
func (s *session) askByAllWays(list []served, notes []string) (*report.Group, error) {
	g := &report.Group{Axis: report.Axis{Name: "load"}, Base: proxyRows[0].name, Conditions: s.starConditions(), Notes: slices.Clone(notes)}
	there := map[peers.Service]peers.Load{}
	for i := range list {
		v := &list[i]
		v.points = slices.DeleteFunc(v.points, func(p servedPoint) bool {
			for _, missing := range p.load.Missing() {
				note := fmt.Sprintf("No figures of %s: %s is not installed (Debian's package %s).", v.service, missing.Name, missing.Package)
				if !slices.Contains(g.Notes, note) {
					g.Notes = append(g.Notes, note)
				}
			}
			return !p.load.Installed()
		})
	}
	failed := map[peers.Service]bool{}
	g, err := s.gather(g, proxyTurns(s), func(t *sheet, turn int) error {
		for _, v := range list {
			for _, row := range proxyRows {
				if len(v.points) == 0 || failed[v.service] {
					continue
				}
				err := s.askThrough(t, row.name, row.way, v, turn)
				switch {
				case s.ctx.Err() != nil:
					return context.Cause(s.ctx)
				case err != nil && row.way == peers.Direct: // the others stand without it
					failed[v.service] = true
					g.Notes = append(g.Notes, fmt.Sprintf(missingNote, v.service, turn, err))
				case err != nil:
					return fmt.Errorf("%s, %s: %w", v.service, row.name, err)
				default:
					there[v.service] = v.points[0].load
				}
			}
		}
		return nil
	})
	if err == nil {
		g.Notes = append(g.Notes, loadVersions(s.ctx, there)...)
	}
	return g, err
}

// askThrough measures all loads of a server by one way in one turn.
func (s *session) askThrough(t *sheet, series string, way peers.Way, v served, turn int) error {
	s.step("%s, %s (turn %d of %d)", v.service, series, turn, proxyTurns(s))
	c, err := peers.StartChain(s.ctx, peers.ChainConfig{ProxyArgs: s.ProxyArgs, MTU: s.mtu(), Lossy: v.lossy, Loss: v.loss}, way, v.service)
	if err != nil {
		return err
	}
	defer c.Close()
	for _, p := range v.points {
		s.step("%s, %s (turn %d of %d)", p.label, series, turn, proxyTurns(s))
		r, err := c.Measure(s.ctx, p.load, v.time)
		if err != nil {
			return err
		}
		at := t.at(series, float64(p.x))
		at.label = p.label
		at.put(report.Rate, r.PerSecond)
		for m, value := range map[report.Metric]float64{report.P50: cmp.Or(r.P50, r.Mean), report.Mean: r.Mean, report.P99: r.P99} {
			if value > 0 {
				at.put(m, value)
			}
		}
		if v.lossy {
			taken, lost, err := c.Counts()
			if err != nil {
				return err
			}
			at.put(report.FaultRatio, float64(lost)/float64(max(taken, 1)))
		}
		at.n += r.N
		at.disturb(turn, nil)
	}
	return nil
}

// loadVersions is a note of what was measured with, by a load of each server.
func loadVersions(ctx context.Context, loads map[peers.Service]peers.Load) []string {
	var list []string
	for _, service := range slices.Sorted(maps.Keys(loads)) {
		p := loads[service].Programs
		list = append(list, fmt.Sprintf("%s %s", service, p[len(p)-1].Version(ctx)))
	}
	if len(list) == 0 {
		return nil
	}
	return []string{"Versions: " + strings.Join(list, ", ") + "."}
}
