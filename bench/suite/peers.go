package suite

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"viaxdp/bench/peers"
	"viaxdp/bench/report"
)

// peerGroups measure other people's programs beside a VI and the kernel's TCP.
var peerGroups = []group{{
	slow: true, name: "peers", title: "Other people's programs on the same machine",
	turn: 41 * time.Second, run: (*session).peers,
}}

// peersNotes are what a reader must know to read the figures right.
var peersNotes = []string{
	"Other people's programs run on a veth pair of the same MTU without an XDP program, in processes pinned to the same two CPUs; " +
		"all rows are gone through in each turn.",
	"All latencies are half of a round trip. fi_pingpong tells no median: its mean stands in that column, and the name says so. " +
		"With reliable datagrams (rdm) it counts the time of connecting, too, which a short run shows.",
	"Other programs measure for a second at least, those of this suite for the time of a measurement, five times.",
	"Programs that end in -spin, fi_pingpong and ucx_perftest poll; the others sleep. " +
		"A message of iperf3 is a block that it writes, which TCP may join with others.",
}

// A contest is rows of ours and rows of programs on two beds of one MTU.
type contest struct {
	part
	programs []peers.Row
}

// peersContests are at the session's MTU, and at the largest of a veth pair for
// streams of long messages, which TCP's offloads carry whole at any MTU.
func peersContests(s *session) []contest {
	ours := plain(delivery, tcpSpin)
	list := []contest{{
		part:     exchange(ours, fewer(s.Quick, []int{64, 65536}, 64)),
		programs: peers.Rows(),
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

// peers runs the group.
func (s *session) peers() (*report.Group, error) {
	if s.Install {
		s.step("installing what is missing")
		if err := peers.Install(s.ctx, s.Stderr); err != nil {
			return nil, err
		}
	}
	contests := peersContests(s)
	var parts []part
	for _, c := range contests {
		parts = append(parts, c.part)
	}
	g := &report.Group{Axis: alongSizes, Base: delivery, Notes: slices.Clone(peersNotes)}
	f := &field{session: s, beds: map[int]*peers.Bed{}}
	defer f.close()
	g, err := s.gather(g, s.turns(), func(t *sheet, turn int) error {
		for _, c := range contests {
			if err := s.measurePart(g, t, c.part, turn); err != nil {
				return err
			}
			if err := f.theirs(t, c, turn); err != nil {
				return err
			}
		}
		return nil
	}, parts...)
	if err != nil {
		return nil, err
	}
	g.Notes = append(append(g.Notes, summaries(contests)...), versions(s.ctx, peers.Programs())...)
	for _, l := range f.left {
		g.Notes = append(g.Notes, l.String())
	}
	return g, nil
}

// summaries say what each row of a program is.
func summaries(contests []contest) (notes []string) {
	for _, r := range contests[0].programs {
		notes = append(notes, r.Name+": "+r.Summary+".")
	}
	return notes
}

// field is the state of a run of the group.
type field struct {
	*session
	beds map[int]*peers.Bed // by MTU
	left []leftOut
}

// leftOut is a program's row that is not measured any more, and why.
type leftOut struct {
	series string
	bytes  int // 0: at all sizes
	turn   int
	reason string
}

func (l leftOut) String() string {
	s := "No figures of " + l.series
	if l.bytes > 0 {
		s += " at " + sizeName(l.bytes)
	}
	if l.turn > 1 {
		s += fmt.Sprintf(" from turn %d on", l.turn)
	}
	return s + ": " + l.reason + "."
}

// theirs measures the programs in one turn. A program that fails is left out
// from then on, at that size; the others go on.
func (f *field) theirs(t *sheet, c contest, turn int) error {
	for _, r := range c.programs {
		series := c.series(f.session, r)
		if !r.Program.Installed() {
			f.leave(leftOut{series: series, reason: fmt.Sprintf(
				"%s is not installed (Debian's package %s; --install fetches it)", r.Program.Name, r.Program.Package)})
			continue
		}
		for _, bytes := range c.sizes {
			if f.out(series, bytes) {
				continue
			}
			bed, err := f.bed(c.mtu)
			if err != nil {
				return err
			}
			f.step("%s, %s (turn %d of %d)", series, sizeName(bytes), turn, f.turns())
			figures, err := bed.Measure(f.ctx, r, bytes, f.longer(time.Second))
			var why *peers.RowError
			switch {
			case errors.As(err, &why):
				f.leave(leftOut{series, bytes, turn, why.Err.Error()})
			case err != nil:
				return err
			default:
				addProgram(t, r, series, bytes, turn, figures)
			}
		}
	}
	return nil
}

// bed is the place for programs with an MTU.
func (f *field) bed(mtu int) (*peers.Bed, error) {
	if b := f.beds[mtu]; b != nil {
		return b, nil
	}
	b, err := peers.Start(mtu)
	if err != nil {
		return nil, err
	}
	f.beds[mtu] = b
	return b, nil
}

func (f *field) close() {
	for _, b := range f.beds {
		b.Close()
	}
}

// leave notes a row that is left out, once.
func (f *field) leave(l leftOut) {
	if !f.out(l.series, l.bytes) {
		f.left = append(f.left, l)
	}
}

func (f *field) out(series string, bytes int) bool {
	return slices.ContainsFunc(f.left, func(l leftOut) bool { return l.series == series && l.bytes == bytes })
}

// addProgram takes the figures of one turn; those that a program does not tell are 0.
func addProgram(t *sheet, r peers.Row, series string, bytes, turn int, got peers.Figures) {
	at := t.at(series, float64(bytes))
	typical := got.P50
	if !r.Quantiles {
		typical = got.Mean
	}
	for _, v := range []struct {
		metric report.Metric
		value  float64
	}{
		{report.Min, got.Min}, {report.P50, typical}, {report.Mean, got.Mean}, {report.P99, got.P99}, {report.P999, got.P999},
		{report.Bandwidth, got.MBps}, {report.Rate, got.Messages},
	} {
		if v.value > 0 {
			at.put(v.metric, v.value)
		}
	}
	at.n += got.N
	at.disturb(turn, got.Disturbed)
}

// versions is a note of what was measured with.
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
