package suite

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"viaxdp/bench/peers"
	"viaxdp/bench/report"
	"viaxdp/internal/lab/fail"
)

// peerGroups measure other people's programs beside a VI and the kernel's TCP.
var peerGroups = []group{{
	slow: true, name: "peers", title: "Other people's programs on the same machine",
	turn: 41 * time.Second, run: (*session).peers,
}}

// peersNotes explain how to read the figures.
var peersNotes = []string{
	"Other people's programs run on a veth pair of the same MTU without an XDP program, in processes pinned to the same two CPUs; " +
		"all rows are gone through in each turn.",
	"All latencies are half of a round trip. fi_pingpong tells no median: its mean stands in that column, and the name says so. " +
		"With reliable datagrams (rdm) it counts the time of connecting, too, which a short run shows.",
	"In each turn, other programs measure for a second at least, those of this suite for the time of a measurement.",
	"Programs that end in -spin, fi_pingpong, libvipl-pingpong and ucx_perftest poll; the others sleep. " +
		"A message of iperf3 is a block that it writes, which TCP may join with others.",
}

// A contest is rows of ours and rows of programs on two beds of one MTU.
type contest struct {
	part
	programs []peers.Row
}

// peersContests, with rows over VIs, are at the session's MTU, and at the largest of a veth pair for
// streams of long messages, which TCP's offloads carry whole at any MTU.
func peersContests(s *session, via []peers.Row) []contest {
	ours := plain(delivery, tcpSpin)
	list := []contest{{
		part:     exchange(ours, fewer(s.Quick, []int{64, 65536}, 64)),
		programs: slices.Concat(peers.Rows(), via),
	}}
	list[0].mtu = s.mtu()
	if s.Quick || s.mtu() == largestMTU {
		return list
	}
	long := exchange(ours, []int{65536}).named(largestMTU)
	long.latency = false
	return append(list, contest{
		part:     long,
		programs: slices.DeleteFunc(peers.Rows(), func(r peers.Row) bool { return !r.Bandwidth }),
	})
}

// largestMTU is that of a veth pair.
const largestMTU = 65535

// series is the name of a program's row in the report.
func (c contest) series(s *session, r peers.Row) string {
	name := r.Name
	if r.Latency && !r.Quantiles {
		name += " (mean)"
	}
	if c.mtu != s.mtu() {
		name += mtuSuffix(c.mtu)
	}
	return name
}

// peers runs the group. A program that fails is not run again at that size; the others
// go on.
func (s *session) peers() *report.Group {
	if s.Install {
		s.step("installing what is missing")
		fail.If(peers.Install(s.ctx, s.Stderr))
	}
	dir := fail.Must(os.MkdirTemp("", "via-xdp-peers-"))
	defer os.RemoveAll(dir)
	_ = peers.BuildVIA(s.ctx, dir) // what is missing then has a note
	via, missing := peers.VIARows(dir)
	contests := peersContests(s, via)
	var parts []part
	for _, c := range contests {
		parts = append(parts, c.part)
	}
	g := &report.Group{Axis: alongSizes, Base: delivery, Notes: slices.Clone(peersNotes)}
	for _, r := range contests[0].programs {
		g.Notes = append(g.Notes, r.Name+": "+r.Summary+".")
	}
	g.Notes = append(g.Notes, versions(s.ctx, peers.Programs())...)
	for _, what := range missing {
		g.Notes = append(g.Notes, "No figures of "+what+".")
	}
	return s.gather(g, s.turns(), func(t *sheet) {
		for _, c := range contests {
			s.measurePart(g, t, c.part)
			bed := fail.Must(peers.Start(c.mtu))
			defer bed.Close()
			for _, r := range c.programs {
				series := c.series(s, r)
				if !r.Program.Installed() {
					s.attempt(g, t, series, func() {
						fail.With("%s is not installed (Debian's package %s; --install fetches it)", r.Program.Name, r.Program.Package)
					})
					continue
				}
				for _, bytes := range c.sizes {
					s.attempt(g, t, series+" at "+sizeName(bytes), func() {
						s.step("%s, %s", series, sizeName(bytes))
						got := fail.Must(bed.Measure(s.ctx, r, bytes, s.longer(time.Second)))
						t.at(series, float64(bytes)).told(got)
					})
				}
			}
		}
	}, parts...)
}

// attempt measures with other people's programs at a place. If that fails, the group gets a note, and the place is
// left out from then on; the others go on.
func (s *session) attempt(g *report.Group, t *sheet, place string, measure func()) {
	if t.left[place] {
		return
	}
	err := fail.Try(measure)
	fail.If(context.Cause(s.ctx))
	if err != nil {
		t.left[place] = true
		if t.turn > 1 {
			place += fmt.Sprintf(" from turn %d on", t.turn)
		}
		g.Notes = append(g.Notes, fmt.Sprintf("No figures of %s: %v.", place, err))
	}
}

// told takes the figures of one turn that a program has reported; the others are 0.
func (g *gathered) told(got peers.Figures) {
	for m, v := range map[report.Metric]float64{
		report.Min: got.Min, report.P50: cmp.Or(got.P50, got.Mean), report.Mean: got.Mean, report.P99: got.P99, report.P999: got.P999,
		report.Bandwidth: got.MBps, report.Rate: got.Messages,
	} {
		if v > 0 {
			g.put(m, v)
		}
	}
	g.n += got.N
	g.disturb(got.Disturbed)
}

// versions is a note with the versions of the programs.
func versions(ctx context.Context, programs []peers.Program) []string {
	var list []string
	for _, p := range programs {
		if p.Installed() {
			list = append(list, p.Name+" "+p.Version(ctx))
		}
	}
	if len(list) == 0 {
		return nil
	}
	return []string{"Versions: " + strings.Join(list, ", ") + "."}
}
