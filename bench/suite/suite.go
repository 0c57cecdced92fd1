package suite

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"viaxdp/bench"
	"viaxdp/bench/report"
	"viaxdp/internal/lab/fail"
)

// Config of a run of the suite.
type Config struct {
	Groups   []string      // names, or prefixes of names; none: all but the slow and long ones; All
	Turns    int           // times that all rows of a group are gone through; 0: DefaultTurns, or 1 when quick
	Duration time.Duration // of one measurement; 0: DefaultDuration, or QuickDuration when quick
	Quick    bool          // few points and short measurements: a look whether everything works

	MTU       int    // of the groups that do not say which; 0: DefaultMTU
	Mode      string // how XDP is attached: auto, native, generic
	Hugepages bool   // memory on hugepages, allowed for while it is mapped
	// NoSegmentation has each frame of a VI sent alone, not in GSO packets; vianet, mvich and proxies go on as usual.
	NoSegmentation bool
	Install        bool // install what a group needs of other people's programs, from Debian

	Out     string // directory for the histograms, which exists; empty: none are kept
	Command string // that measures the same again, for the report

	WorkerArgs []string // with which this program becomes a worker: bench.WorkerMain
	GuardArgs  []string // with which it becomes a guard: testbed.GuardMain
	AgentArgs  []string // with which it becomes a Kernel Agent, before --socket PATH: via-xdp agent
	RankArgs   []string // with which it becomes a rank that measures mvich: via-xdp mpibench
	ProxyArgs  []string // with which it becomes a proxy: via-xdp proxy
	Stderr     io.Writer

	// Progress, if not nil, is called before each step.
	Progress func(Progress)
}

// Progress is where a run is.
type Progress struct {
	Group         string
	Number, Total int    // of the group, from 1
	Doing         string // within the group
}

// Defaults of a run.
const (
	DefaultTurns    = 5
	DefaultDuration = bench.DefaultDuration
	QuickDuration   = 20 * time.Millisecond
	DefaultMTU      = 1500
)

// Run measures the groups that cfg names, one after the other. A failed group is missing
// from the report, and the error names it. The others go on, on new beds, unless nothing
// can run here or ctx has ended. Without privilege the error is a *testbed.MissingError.
func Run(ctx context.Context, cfg Config) (*report.Report, error) {
	s := newSession(ctx, cfg)
	chosen, err := s.choose()
	if err != nil {
		return nil, err
	}
	r := &report.Report{Version: report.Version, Started: time.Now(), Command: cfg.Command, Turns: s.turns()}
	var errs []error
	for i, g := range chosen {
		s.at = Progress{Group: g.name, Number: i + 1, Total: len(chosen)}
		s.step("")
		err := fail.Try(func() {
			done := g.run(s)
			done.Name, done.Title = g.name, g.title
			r.Groups = append(r.Groups, *done)
		})
		if err == nil {
			continue
		}
		if ctx.Err() != nil {
			errs = append(errs, context.Cause(ctx))
			break
		}
		at := g.name
		if s.at.Doing != "" {
			at += ": " + s.at.Doing
		}
		errs = append(errs, fmt.Errorf("%s: %w", at, err), s.close())
		if bench.Missing(err) {
			break
		}
	}
	errs = append(errs, s.close())
	r.Took = time.Since(r.Started).Seconds()
	return r, errors.Join(errs...)
}

// choose returns the groups of the run, if all of them can measure for so long.
func (s *session) choose() ([]group, error) {
	chosen, err := choose(s.Groups)
	for _, g := range chosen {
		if d := s.duration(); g.most > 0 && d > g.most {
			err = errors.Join(err, fmt.Errorf("group %s: a measurement of %v: it can be at most %v", g.name, d, g.most))
		}
	}
	return chosen, err
}

// Estimate is about how long Run will take. It fails where Run does not begin.
func Estimate(cfg Config) (time.Duration, error) {
	s := newSession(context.Background(), cfg)
	chosen, err := s.choose()
	if err != nil {
		return 0, err
	}
	sum := time.Duration(0)
	for _, g := range chosen {
		sum += g.turn * time.Duration(s.turns())
	}
	if s.Quick {
		return sum / quickPart, nil
	}
	// Half of the time is that of measurements, the rest opens and closes endpoints.
	return sum/2 + time.Duration(float64(sum)/2*s.duration().Seconds()/DefaultDuration.Seconds()), nil
}

// quickPart is about how many times longer a full turn takes than a quick one.
const quickPart = 4

// session is one run of the suite: its config and the beds that it has made. It belongs
// to one goroutine.
type session struct {
	Config
	ctx  context.Context
	beds map[int]*bench.Bed // by MTU
	at   Progress
	turn string // of the group, for people
}

func newSession(ctx context.Context, cfg Config) *session {
	return &session{Config: cfg, ctx: ctx, beds: map[int]*bench.Bed{}}
}

func (s *session) bedConfig(mtu int) bench.BedConfig {
	return bench.BedConfig{
		MTU: mtu, Mode: s.Mode, Hugepages: s.Hugepages,
		WorkerArgs: s.WorkerArgs, GuardArgs: s.GuardArgs, AgentArgs: s.AgentArgs, Stderr: s.Stderr,
	}
}

// bed returns the bed of an MTU: two pinned workers joined by two pairs. It is made at
// first use and lasts as long as the session.
func (s *session) bed(mtu int) *bench.Bed {
	if b := s.beds[mtu]; b != nil {
		return b
	}
	b := fail.Must(bench.StartBed(s.ctx, s.bedConfig(mtu)))
	s.beds[mtu] = b
	return b
}

// through calls f with a bed of its own, whose pairs lead through forwarders.
func (s *session) through(f func(*bench.Bed)) {
	cfg := s.bedConfig(s.mtu())
	cfg.Through = true
	bed := fail.Must(bench.StartBed(s.ctx, cfg))
	err := fail.Try(func() { f(bed) })
	fail.If(errors.Join(err, bed.Close()))
}

func (s *session) close() error {
	var errs []error
	for _, mtu := range slices.Sorted(maps.Keys(s.beds)) {
		errs = append(errs, s.beds[mtu].Close())
	}
	clear(s.beds)
	return errors.Join(errs...)
}

// turns is how many turns a group has.
func (s *session) turns() int {
	switch {
	case s.Turns > 0:
		return s.Turns
	case s.Quick:
		return 1
	}
	return DefaultTurns
}

// duration is how long one measurement lasts: one row at one point in one turn.
func (s *session) duration() time.Duration {
	switch {
	case s.Duration > 0:
		return s.Duration
	case s.Quick:
		return QuickDuration
	}
	return DefaultDuration
}

// longer is the length of a measurement that needs at least the given time for a
// meaningful result.
func (s *session) longer(least time.Duration) time.Duration {
	if s.Quick {
		return s.duration()
	}
	return max(least, s.duration())
}

// mtu is that of groups without an MTU of their own.
func (s *session) mtu() int { return cmp.Or(s.MTU, DefaultMTU) }

// step reports the next step within the group.
func (s *session) step(format string, args ...any) {
	if s.at.Doing = fmt.Sprintf(format, args...); s.at.Doing != "" {
		s.at.Doing += s.turn
	}
	if s.Progress != nil {
		s.Progress(s.at)
	}
}

// A group is one question and how it is answered.
type group struct {
	name, title string

	slow bool          // runs only when it is named, and for All
	long bool          // runs only when it is named
	turn time.Duration // about how long one takes with the default duration
	most time.Duration // of a measurement; 0: any

	plans *experiment // that it runs; nil: none

	// run measures all rows in each of s.turns() turns, and fails by package fail. The caller sets name and title of
	// its result, and names in the error what was measured.
	run func(*session) *report.Group
}

// groups are all of them, in the order of the report.
func groups() []group {
	return slices.Concat(basicGroups, vibeGroups, opsGroups, transactionGroups, loadGroups, lossGroups, incastGroups, sharingGroups, fabricGroups,
		ablationGroups, layerGroups, proxyGroups, mpiGroups, peerGroups)
}

func namesOf(groups []group) (names []string) {
	for _, g := range groups {
		names = append(names, g.name)
	}
	return names
}

// Group is a group's name and what it is about, in one line.
type Group struct {
	Name  string `json:"name"`
	Title string `json:"title"`
	Slow  bool   `json:"slow,omitempty"` // runs only when it is named, and for All
	Long  bool   `json:"long,omitempty"` // runs only when it is named
}

// Groups lists all groups in the order of the report.
func Groups() []Group {
	var list []Group
	for _, g := range groups() {
		list = append(list, Group{g.name, g.title, g.slow, g.long})
	}
	return list
}

// All is the word for all groups but the long ones.
const All = "all"

// choose returns the groups that words name, each once, in the order of the report;
// without words, all but the slow and long ones. A word is the name of one group, a prefix of
// several names, or All.
func choose(words []string) ([]group, error) {
	all := groups()
	if len(words) == 0 {
		return slices.DeleteFunc(all, func(g group) bool { return g.slow || g.long }), nil
	}
	wanted := map[string]bool{}
	for _, w := range words {
		found := w == All
		if found {
			for _, g := range all {
				wanted[g.name] = wanted[g.name] || !g.long
			}
		}
		exact := slices.ContainsFunc(all, func(g group) bool { return g.name == w })
		for _, g := range all {
			if g.name == w || !exact && w != "" && strings.HasPrefix(g.name, w) {
				wanted[g.name], found = true, true
			}
		}
		if !found {
			return nil, fmt.Errorf("no group %q: there are %s, and %s", w, strings.Join(namesOf(all), ", "), All)
		}
	}
	return slices.DeleteFunc(all, func(g group) bool { return !wanted[g.name] }), nil
}
