package report

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"maps"
	"path"
	"reflect"
	"slices"
	"strings"
	"time"

	"viaxdp/bench"
)

// WriteMarkdown writes the report as a document: how it was measured and
// what loses, a section for each group with its tables and plots, and what was disturbed.
// A report of the whole suite is written briefly: see featured. plotDir is the
// directory of the plots of WriteDocumentPlots as seen from the document, with
// slashes; empty for the same one.
func (r *Report) WriteMarkdown(w io.Writer, plotDir string) error {
	out := bufio.NewWriter(w)
	d := document{out, r, plotDir, r.brief()}
	d.head()
	for g := range each(r.Groups) {
		if !d.brief || g.isFeatured() {
			d.group(g)
		}
	}
	if d.brief {
		d.others()
	}
	d.disturbed()
	return out.Flush()
}

// document is being written.
type document struct {
	out     io.Writer
	report  *Report
	plotDir string
	brief   bool
}

func (d document) printf(format string, args ...any) { fmt.Fprintf(d.out, format, args...) }

func (d document) head() {
	d.printf(`# Benchmarks

Measured by via-xdp's reference suite on %s, in %s, with %d turns. All rows of a
group are gone through in each turn, so that a machine that drifts does so for
all; figures are the medians of the turns. Latencies are one way, half of a round
trip, and MB are 10^6 bytes, unless a group says otherwise. The command that
measured this (via-xdp bench doc takes the same flags, and writes this page):

`+"```sh\n%s\n```\n", minute(d.report.Started),
		time.Duration(d.report.Took*float64(time.Second)).Round(time.Second), d.report.Turns, oneLine(d.report.Command))
	d.printf("\n%s\n", rowsNote)
	d.printf("\n[Conditions](#conditions)")
	link := func(heading string) { d.printf(" · [%s](#%s)", escape(heading), anchor(heading)) }
	link(lossesHeading)
	for g := range each(d.report.Groups) {
		if !d.brief || g.isFeatured() {
			link(g.Name)
		}
	}
	if d.brief {
		link(othersHeading)
	}
	link("Disturbed")
	d.printf("\n")
	d.conditions()
	d.losses()
}

const rowsNote = `Rows called vi- are via-xdp's, and poll unless they end in -wait. raw-afxdp is the floor, the rings below with
nothing above them, and raw-afxdp-copy the same with the content copied out, as a receive must. tcp- and udp- are the
kernel's: -spin polls, -block sleeps in system calls, -net is Go's package net. mvich and vianet are the messages and
the sockets above VIs, mpich-tcp is MPICH over the kernel's TCP. The others are other people's programs.`

// minute formats a point in time for the document.
func minute(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 MST") }

// conditions has a row for each set of them.
func (d document) conditions() {
	d.printf("\n## Conditions\n\n")
	t := markdown{{"groups", "kernel", "CPUs", "model", "hypervisor", "pinned to", "interface", "MTU", "XDP mode", "frame bytes", "memory", "polling", "via-xdp"}}
	var sets []bench.Conditions
	var groups [][]string
	for g := range each(d.report.Groups) {
		at := 0
		for at < len(sets) && !reflect.DeepEqual(sets[at], g.Conditions) {
			at++
		}
		if at == len(sets) {
			sets, groups = append(sets, g.Conditions), append(groups, nil)
		}
		groups[at] = append(groups[at], g.Name)
	}
	for i, c := range sets {
		row := []string{strings.Join(groups[i], ", "), c.Kernel, known(c.CPUs), cpuModel(c), hypervisor(c),
			pinned(c), c.Interface, fmt.Sprint(c.MTU), c.Mode, known(c.FrameBytes), c.Hugepages, c.Polling, c.Version}
		for j, cell := range row {
			row[j] = cmp.Or(oneLine(cell), "-")
		}
		t = append(t, row)
	}
	t.write(d.out)
}

// known returns a number of conditions, empty if it is not known.
func known(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

// cpuModel and hypervisor are what a report says of them, if it does.
func cpuModel(c bench.Conditions) string {
	if c.CPUModel == "" {
		return "not said"
	}
	return oneLine(c.CPUModel)
}

func hypervisor(c bench.Conditions) string {
	switch {
	case c.Hypervisor:
		return "yes"
	case c.CPUModel == "":
		return "not said"
	}
	return "no"
}

func (d document) group(g *Group) {
	d.printf("\n## %s\n\n%s.\n", escape(g.Name), escape(strings.TrimSuffix(oneLine(g.Title), ".")))
	if !g.Renewed.IsZero() {
		d.printf("\nMeasured again, in a run of its own, on %s.\n", minute(g.Renewed))
	}
	if len(g.Notes) > 0 {
		d.printf("\n")
	}
	for _, n := range g.Notes {
		d.printf("- %s\n", escape(n))
	}
	if g.wholeTrips() {
		d.printf("\n%s\n", wholeTripsNote)
	}
	for _, f := range families {
		for _, m := range f.drawn(g) {
			if !d.brief || slices.Contains(featured[g.Name].tables, f.nameOf(m)) {
				d.figures(g, m)
			}
		}
	}
	for _, p := range g.documentPictures(d.brief) {
		d.printf("\n![%s](%s)\n", escape(p.alt), path.Join(d.plotDir, p.file))
	}
}

// figures is the table of a metric: medians, and in brackets their ratio to the
// base; a row for each series and a column for each X, or a row for each point
// where the series have few X in common.
func (d document) figures(g *Group, m Metric) {
	q := quantityOf(m)
	d.printf("\n%s", escape(q.heading()))
	if g.Base != "" {
		d.printf(" (x %s)", escape(g.Base))
	}
	d.printf("\n\n")
	show := func(s *Series, p *Point) string {
		text := round(p.median(m) / q.per)
		if r := g.ratio(s, p, m); finite(r) {
			text += " (" + fixed(r, 2) + ")"
		}
		if len(p.Disturbed) > 0 {
			text += " †"
		}
		return text
	}
	if !g.shared() {
		t := markdown{{"", orNone(g.Axis.Name), q.title}}
		for _, block := range g.blocks() {
			for _, c := range block {
				t = append(t, []string{lineName(c.Name, m), g.at(c.Point), show(c.Series, c.Point)})
			}
		}
		t.write(d.out)
		return
	}
	xs := g.xs()
	head := []string{g.Axis.Name}
	for _, x := range xs {
		head = append(head, g.column(x))
	}
	t := markdown{head}
	for s := range each(g.Series) {
		row := []string{lineName(s.Name, m)}
		for _, x := range xs {
			if p := s.At(x); p != nil {
				row = append(row, show(s, p))
			} else {
				row = append(row, "")
			}
		}
		t = append(t, row)
	}
	t.write(d.out)
}

// column is how an X is called: as the first point there is.
func (g *Group) column(x float64) string {
	for c := range g.cells() {
		if c.X == x {
			return g.at(c.Point)
		}
	}
	return plain(x)
}

// markdown is a table with a head. Columns of figures stand right, others left.
type markdown [][]string

func (t markdown) write(w io.Writer) {
	for i, row := range t {
		var line strings.Builder
		line.WriteString("|")
		for _, c := range row {
			line.WriteString(" " + escape(c) + " |")
		}
		fmt.Fprintln(w, line.String())
		if i == 0 {
			fmt.Fprintln(w, t.rule())
		}
	}
}

// rule is the line under the head, which says where columns stand.
func (t markdown) rule() string {
	rule := "|"
	for i := range t[0] {
		figures := len(t) > 1
		for _, row := range t[1:] {
			figures = figures && (row[i] == "" || row[i][0] >= '0' && row[i][0] <= '9')
		}
		if figures {
			rule += "---:|"
		} else {
			rule += "---|"
		}
	}
	return rule
}

// escape keeps a text from meaning something in Markdown, and on its line. What
// is escaped already stays as it is.
var escaper = strings.NewReplacer("|", `\|`, "<", "&lt;", "`", "\\`", "[", `\[`, "]", `\]`, "_", `\_`, `\*`, `\*`, "*", `\*`)

func escape(s string) string { return escaper.Replace(oneLine(s)) }

// anchor is what a heading is called in a link.
func anchor(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r > 127:
			return r
		}
		return -1
	}, strings.ToLower(oneLine(s)))
}

// wholeSuite is the number of groups from which on a document is brief.
const wholeSuite = 20

// featured lists the groups that a brief document shows, each for a question of users:
// the figures that have a table there, and the plots, by the ends of their files' names.
// Each other group gets one line; the report has the figures of all.
var featured = map[string]struct{ tables, plots []string }{
	pingpongGroup:       {[]string{"latency"}, []string{"latency", "percentiles"}},            // how fast is one message?
	"window":            {[]string{"bandwidth"}, []string{"bandwidth"}},                       // how fast are many?
	"vibe-vis":          {[]string{"latency"}, []string{"latency"}},                           // what do open VIs cost?
	loadGroup:           {nil, []string{"latency", "percentiles-vi-reliable-delivery"}},       // what is the latency under load?
	LossGroup:           {[]string{"goodput"}, []string{"goodput", "latency"}},                // what does a lossy network cost?
	"abl-mtu":           {[]string{"latency", "bandwidth"}, []string{"latency", "bandwidth"}}, // which MTU?
	"abl-packing":       {[]string{"bandwidth"}, []string{"bandwidth"}},                       // what does packing give?
	"abl-secure":        {[]string{"latency", "bandwidth"}, []string{"bandwidth"}},            // what does encryption cost?
	"layers-messages":   {[]string{"latency", "bandwidth"}, []string{"latency", "bandwidth"}}, // sockets beside Go's?
	"layers-osu":        {[]string{string(OSULatency), string(OSUBandwidth)}, nil},            // mvich beside MPICH?
	"layers-http":       {[]string{"bandwidth"}, nil},                                         // HTTP?
	"layers-loss-proxy": {[]string{"bandwidth"}, []string{"bandwidth"}},                       // programs behind a proxy?
	"peers":             {[]string{"latency"}, nil},                                           // beside libfabric, UCX, sockperf?
	IncastGroup:         {[]string{"goodput"}, []string{"goodput"}},                           // several senders?
}

// Featured are the names of the groups that a brief document shows.
func Featured() []string { return slices.Sorted(maps.Keys(featured)) }

const othersHeading = "The other groups"

// brief reports whether a document of the report is to be brief.
func (r *Report) brief() bool { return len(r.Groups) >= wholeSuite }

func (g *Group) isFeatured() bool {
	_, ok := featured[g.Name]
	return ok
}

// documentPictures are the plots of the group that a document embeds.
func (g *Group) documentPictures(brief bool) []picture {
	list := g.pictures()
	if !brief {
		return list
	}
	return slices.DeleteFunc(list, func(p picture) bool {
		name := strings.TrimSuffix(strings.TrimPrefix(p.file, slug(g.Name)+"-"), ".svg")
		return !slices.Contains(featured[g.Name].plots, name)
	})
}

// others lists the groups that are not featured.
func (d document) others() {
	d.printf("\n## %s\n\nThe report that the command writes has their figures, and `bench` prints their tables.\n\n", othersHeading)
	t := markdown{{"group", "what it measures"}}
	for g := range each(d.report.Groups) {
		if !g.isFeatured() {
			t = append(t, []string{g.Name, g.Title})
		}
	}
	t.write(d.out)
}

// disturbed says of each group how many points were disturbed.
func (d document) disturbed() {
	d.printf("\n## Disturbed\n\n")
	var counts []string
	for g := range each(d.report.Groups) {
		if n := len(g.footnotes()); n > 0 {
			counts = append(counts, fmt.Sprintf("%s %d", escape(g.Name), n))
		}
	}
	if len(counts) == 0 {
		d.printf("No point was disturbed.\n")
		return
	}
	d.printf("Points during which something else ran on the CPUs, by group; their figures have a cross: %s.\n", strings.Join(counts, ", "))
}
