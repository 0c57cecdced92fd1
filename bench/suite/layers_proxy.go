package suite

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"viaxdp/bench"
	"viaxdp/bench/peers"
	"viaxdp/bench/report"
	"viaxdp/internal/testbed"
)

// proxyGroups are what programs that know nothing of VIs gain or lose by proxies.
var proxyGroups = []group{{
	slow: true, name: "layers-proxy", title: "Redis and PostgreSQL: directly over TCP, and through two proxies",
	cost: proxyCost, run: (*session).layersProxy,
}}

// proxyRows are the ways to a server.
var proxyRows = []struct {
	name string
	way  peers.Way
}{
	{"TCP, no proxy", peers.Direct},
	{"two proxies, TCP between", peers.ThroughTCP},
	{"two proxies, VIA between", peers.ThroughVIA},
}

// proxyTime is how long a load generator asks.
func proxyTime(s *session) time.Duration {
	if s.Quick {
		return s.duration()
	}
	return max(time.Second, s.duration())
}

// proxyTurns are fewer than others': a chain takes longer to start than to measure.
func proxyTurns(s *session) int { return min(s.turns(), 3) }

// chainStart is about what a chain takes to start and to end.
const chainStart = time.Second

func proxyCost(s *session) (sum time.Duration) {
	for _, loads := range s.installedLoads() {
		turn := chainStart + time.Duration(len(loads))*(proxyTime(s)+200*time.Millisecond)
		sum += time.Duration(proxyTurns(s)*len(proxyRows)) * turn
	}
	return sum
}

// installedLoads are those that can run, by the server that they are for; when quick one
// of Redis, which starts in no time.
func (s *session) installedLoads() map[peers.Service][]peers.Load {
	loads := map[peers.Service][]peers.Load{}
	for _, l := range peers.Loads() {
		if l.Installed() && !(s.Quick && (l.Service != peers.Redis || len(loads[l.Service]) > 0)) {
			loads[l.Service] = append(loads[l.Service], l)
		}
	}
	return loads
}

// layersProxy has load generators ask by each way.
func (s *session) layersProxy() (*report.Group, error) {
	g := &report.Group{
		Axis: report.Axis{Name: "load"}, Base: proxyRows[0].name, Conditions: bench.HostConditions(),
		Notes: []string{
			"Client and server are other people's programs, in two namespaces joined by a veth pair that is new for each way and server; " +
				"the client and its proxy are bound to one CPU, the server and its proxy to the other.",
			"Messages are requests; times are those of whole requests, as the client tells them: redis-benchmark in steps of 8 us, pgbench only their mean, which stands in the column of the median, too.",
			"The same two proxies with TCP between them tell what proxies cost by themselves.",
		},
	}
	g.Conditions.Interface, g.Conditions.MTU = testbed.StarInterface, s.mtu()
	loads := s.installedLoads()
	for _, l := range peers.Loads() {
		for _, p := range l.Missing() {
			note := fmt.Sprintf("No figures of %s: %s is not installed (Debian's package %s).", l.Service, p.Name, p.Package)
			if !slices.Contains(g.Notes, note) {
				g.Notes = append(g.Notes, note)
			}
		}
	}
	t := newSheet(nil)
	for turn := 1; turn <= proxyTurns(s); turn++ {
		for _, service := range []peers.Service{peers.Redis, peers.PostgreSQL} {
			for _, row := range proxyRows {
				if len(loads[service]) == 0 {
					continue
				}
				err := s.askThrough(t, row.name, row.way, service, loads[service], turn)
				if s.ctx.Err() != nil {
					return nil, context.Cause(s.ctx)
				}
				if err != nil && row.way == peers.Direct { // the others stand without it
					delete(loads, service)
					g.Notes = append(g.Notes, fmt.Sprintf(missingNote, service, turn, err))
					continue
				}
				if err != nil {
					return nil, fmt.Errorf("%s, %s: %w", service, row.name, err)
				}
			}
		}
	}
	g.Notes = append(g.Notes, loadVersions(s.ctx, loads)...)
	if err := t.fill(g, s.at.Group, s.Out); err != nil {
		return nil, err
	}
	all := peers.Loads()
	for i := range g.Series {
		for j := range g.Series[i].Points {
			p := &g.Series[i].Points[j]
			p.Label = all[int(p.X)].Name
		}
	}
	return g, nil
}

// askThrough measures all loads of a server by one way in one turn.
func (s *session) askThrough(t *sheet, series string, way peers.Way, service peers.Service, loads []peers.Load, turn int) error {
	s.step("%s, %s (turn %d of %d)", service, series, turn, proxyTurns(s))
	c, err := peers.StartChain(s.ctx, peers.ChainConfig{ProxyArgs: s.ProxyArgs, MTU: s.mtu()}, way, service)
	if err != nil {
		return err
	}
	defer c.Close()
	for _, l := range loads {
		s.step("%s, %s (turn %d of %d)", l.Name, series, turn, proxyTurns(s))
		r, err := c.Measure(s.ctx, l, proxyTime(s))
		if err != nil {
			return err
		}
		x := slices.IndexFunc(peers.Loads(), func(o peers.Load) bool { return o.Name == l.Name })
		at := t.at(series, float64(x))
		at.put(report.Rate, r.PerSecond)
		for m, v := range map[report.Metric]float64{report.P50: cmp.Or(r.P50, r.Mean), report.Mean: r.Mean, report.P99: r.P99} {
			if v > 0 {
				at.put(m, v)
			}
		}
		at.n += r.N
		at.disturb(turn, nil)
	}
	return nil
}

// loadVersions is a note of what was measured with.
func loadVersions(ctx context.Context, loads map[peers.Service][]peers.Load) []string {
	var list []string
	for _, service := range []peers.Service{peers.Redis, peers.PostgreSQL} {
		if l := loads[service]; len(l) > 0 {
			p := l[0].Programs
			list = append(list, fmt.Sprintf("%s %s", service, p[len(p)-1].Version(ctx)))
		}
	}
	if len(list) == 0 {
		return nil
	}
	return []string{"Versions: " + strings.Join(list, ", ") + "."}
}
