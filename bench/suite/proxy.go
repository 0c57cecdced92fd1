package suite

import (
	"fmt"
	"slices"
	"time"

	"viaxdp/bench/peers"
	"viaxdp/bench/report"
	"viaxdp/internal/lab/fail"
)

// proxyGroups measure what proxies cost or gain for programs without support for VIs.
var proxyGroups = []group{{
	slow: true, name: "layers-proxy", title: "Redis and PostgreSQL: directly over TCP, and through two proxies",
	turn: 14 * time.Second,
	run:  func(s *session) *report.Group { return s.askByAllWays(s.allServed(), proxyNotes) },
}, {
	slow: true, name: "layers-loss-proxy", title: "Redis, directly over TCP and through two proxies, when the network loses frames",
	turn: 8 * time.Second,
	run:  func(s *session) *report.Group { return s.askByAllWays(s.servedUnderLoss(), lossyProxyNotes) },
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
func proxyTurns(s *session) int { return min(s.turns(), mostProxyTurns) }

const mostProxyTurns = 3

// served is loads of a server on one network, and where each stands among the points.
type served struct {
	service peers.Service
	lossy   bool
	loss    float64
	time    time.Duration // of a load
	loads   []peers.Load
	xs      []int
	suffix  string // of the points' labels
}

// allServed is each load on a pair of its own; when quick one of Redis, which starts in no time.
func (s *session) allServed() (list []served) {
	for _, service := range []peers.Service{peers.Redis, peers.PostgreSQL} {
		v := served{service: service, time: s.longer(time.Second)}
		for x, l := range peers.Loads() {
			if l.Service == service && !(s.Quick && (service != peers.Redis || len(v.loads) > 0)) {
				v.loads, v.xs = append(v.loads, l), append(v.xs, x)
			}
		}
		list = append(list, v)
	}
	return list
}

// lossyLoad is many connections, since one alone of TCP takes a fifth of a second for a loss.
const lossyLoad = "redis GET, 1 KiB, 16 connections"

// servedUnderLoss is a load without a loss and with one. It counts requests. With losses TCP
// makes a fifth of them, so there are fewer.
func (s *session) servedUnderLoss() []served {
	loads := slices.DeleteFunc(peers.Loads(), func(l peers.Load) bool { return l.Name != lossyLoad })
	whole := served{service: peers.Redis, lossy: true, time: s.longer(time.Second), loads: loads, xs: []int{0}, suffix: ", " + lossless}
	lossy := whole
	lossy.loss, lossy.time, lossy.xs, lossy.suffix = 0.01, whole.time/4, []int{1}, ", "+lossName(0.01)
	return []served{whole, lossy}
}

// askByAllWays has load generators ask by each way.
func (s *session) askByAllWays(list []served, notes []string) *report.Group {
	g := &report.Group{Axis: report.Axis{Name: "load"}, Base: proxyRows[0].name, Conditions: s.starConditions(2), Notes: slices.Clone(notes)}
	var programs []peers.Program // the last one of each load prints the server's version
	for i := range list {
		for _, l := range list[i].loads {
			for _, missing := range l.Missing() {
				note := fmt.Sprintf("No figures of %s: %s is not installed (Debian's package %s).", list[i].service, missing.Name, missing.Package)
				if !slices.Contains(g.Notes, note) {
					g.Notes = append(g.Notes, note)
				}
			}
			if !l.Installed() { // as its others
				list[i].loads = nil
				break
			}
			programs = append(programs, l.Programs[len(l.Programs)-1])
		}
	}
	if turns := proxyTurns(s); turns < s.turns() {
		g.Notes = append(g.Notes, fmt.Sprintf("This group has %d turns: a way to a server takes longer to start than to measure.", turns))
	}
	g.Notes = append(g.Notes, versions(s.ctx, slices.CompactFunc(programs, func(a, b peers.Program) bool { return a.Name == b.Name }))...)
	return s.gather(g, proxyTurns(s), func(t *sheet) {
		for _, v := range list {
			for _, row := range proxyRows {
				ask := func() { s.askThrough(t, row.name, row.way, v) }
				switch {
				case len(v.loads) == 0 || t.left[string(v.service)]:
				case row.way == peers.Direct: // other services stand without it
					s.attempt(g, t, string(v.service), ask)
				default:
					ask()
				}
			}
		}
	})
}

// askThrough measures all loads of a server by one way in one turn.
func (s *session) askThrough(t *sheet, series string, way peers.Way, v served) {
	s.step("%s, %s", v.service, series)
	c := fail.Must(peers.StartChain(s.ctx, peers.ChainConfig{ProxyArgs: s.ProxyArgs, MTU: s.mtu(), Lossy: v.lossy, Loss: v.loss}, way, v.service))
	defer c.Close()
	for i, l := range v.loads {
		label := l.Name + v.suffix
		s.step("%s, %s", label, series)
		r := fail.Must(c.Measure(s.ctx, l, v.time))
		at := t.at(series, float64(v.xs[i]))
		at.label = label
		at.told(r)
		if v.lossy {
			taken, lost, err := c.Counts()
			fail.If(err)
			at.put(report.FaultRatio, float64(lost)/float64(max(taken, 1)))
		}
	}
}
