package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"viaxdp/bench/report"
	"viaxdp/bench/suite"
	"viaxdp/internal/lab/testbed"
)

// suiteFlags are those of a run of the reference suite.
type suiteFlags struct {
	cfg  suite.Config
	out  string // directory
	json jsonFile
}

func (s *suiteFlags) add(f *pflag.FlagSet) {
	s.cfg = suite.Config{
		Mode: "generic", Hugepages: true,
		WorkerArgs: []string{workerCommand}, GuardArgs: []string{guardCommand},
		RankArgs: []string{"mpibench"}, ProxyArgs: []string{"proxy"},
		AgentArgs: []string{"agent", "--config", os.DevNull, "--no-fdstored"},
	}
	f.IntVar(&s.cfg.Turns, "turns", 0, fmt.Sprintf("times that all rows of a group are gone through (default %d, or 1 with --quick)", suite.DefaultTurns))
	f.DurationVar(&s.cfg.Duration, "duration", 0, fmt.Sprintf("time of one measurement (default %v, or %v with --quick)", suite.DefaultDuration, suite.QuickDuration))
	f.BoolVar(&s.cfg.Quick, "quick", false, "few sizes and short measurements: to see whether everything works")
	f.IntVar(&s.cfg.MTU, "mtu", suite.DefaultMTU, fmt.Sprintf("MTU of the pairs, %d to %d, for groups that do not say which", testbed.MinMTU, testbed.MaxMTU))
	f.StringVar(&s.cfg.Mode, "mode", s.cfg.Mode, modeHelp+"; on veth, generic is the faster one")
	f.BoolFunc("segmentation", "long messages of VIs leave as packets of several frames, in generic mode (default true); vianet, mvich and proxies always use them", func(v string) (err error) {
		on, err := strconv.ParseBool(v)
		s.cfg.NoSegmentation = !on
		return err
	})
	f.BoolVar(&s.cfg.Hugepages, "hugepages", s.cfg.Hugepages, "allow for surplus hugepages while memory is mapped")
	f.BoolVar(&s.cfg.Install, "install", false, "install other people's programs that are missing, from Debian")
	f.StringVar(&s.out, "out", "", "`directory` for report.json, histograms and plots (default bench-results/<time>)")
	s.json.flag(f, "write the report also to this `file`; - for standard output, the table then goes to standard error")
}

// resultsDir has a directory for each run without a flag that says where to write.
const resultsDir = "bench-results"

func newBench(env environment) *cobra.Command {
	s := &suiteFlags{}
	cmd := &cobra.Command{
		Use:   "bench [flags] [GROUP...]",
		Short: "Run the reference suite: everything measured beside everything",
		Long: "Measures between two namespaces of this machine, group by group, with all rows of a\n" +
			"group in turn; writes report.json, histograms and plots, and prints tables. A GROUP\n" +
			"is a name or the beginning of names; without one all but the slow and long ones are run.\n" +
			"Nothing of the namespaces stays behind. Needs root.\n\n" +
			"The columns are perftest's, but MB are 10^6 bytes. Times are one way, half of a round\n" +
			"trip, unless a group says otherwise; t_typical is the median. A stream is measured in\n" +
			"rounds, each until the receiver has everything: BW average is that of all of them, BW\n" +
			"peak that of the best.\n\n" +
			"With the group loss the report has an array of that name, an element for each fault:\n" +
			"fault, goodput_ratio (to the lossless stream on the same path), pingpong_p99_us (of\n" +
			"whole round trips), spurious_ratio (frames sent again that had arrived, of all sent);\n" +
			"and the same three of kernel TCP in the objects tcp (cubic) and tcp_bbr (where the\n" +
			"kernel has it, and not with --quick).\n\n" +
			"With the group incast there is an array of that name, an element for each number of\n" +
			"senders: senders, goodput_ratio (of all, to one alone on the same path), fairness\n" +
			"(Jain's index of their shares), least_share (the least by the greatest), resent_ratio\n" +
			"and dropped_ratio (frames sent again, and those counted as dropped, of all sent),\n" +
			"unnamed_frames (missing, and counted by nobody; null for TCP); and the same of kernel\n" +
			"TCP in the object tcp.\n\nGroups:\n" + groupsHelp("  "),
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := s.run(cmd, env, args)
			if r == nil {
				return err
			}
			return errors.Join(err, s.show(env, r))
		},
	}
	s.add(cmd.Flags())
	cmd.AddCommand(newBenchList(env), newBenchCompare(env), newBenchDoc(env))
	return cmd
}

// check refuses what cannot be measured, or written. What was not set has its default.
func (s *suiteFlags) check(f *pflag.FlagSet) error {
	errs := []error{checkMTU(s.cfg.MTU), checkMode(s.cfg.Mode), s.json.check(), checkDirectory("--out", s.out)}
	if f.Changed("turns") {
		errs = append(errs, within("--turns", s.cfg.Turns, 1, math.MaxInt))
	}
	if f.Changed("duration") {
		errs = append(errs, lasting("--duration", s.cfg.Duration))
	}
	return errors.Join(errs...)
}

// run measures and keeps the report. When a group fails, the report has those
// before it, or is nil if there is none.
func (s *suiteFlags) run(cmd *cobra.Command, env environment, groups []string) (*report.Report, error) {
	r, err := s.measure(cmd, env, groups)
	if r == nil {
		return nil, err
	}
	return r, errors.Join(err, writeFile(filepath.Join(s.out, reportName), r.Write))
}

// reportName is the report's in its directory.
const reportName = "report.json"

// renew measures groups again and puts them into the report at path, even those of a
// run that has failed.
func (s *suiteFlags) renew(cmd *cobra.Command, env environment, path string, groups []string) (*report.Report, error) {
	r, err := readReport(path)
	if err != nil {
		return nil, err
	}
	if !cmd.Flags().Changed("turns") {
		s.cfg.Turns = r.Turns
	}
	if err := r.Renewable(s.cfg.Turns); err != nil {
		return nil, fmt.Errorf("--turns: %w", err)
	}
	if s.out != "" && filepath.Clean(s.out) != filepath.Dir(path) {
		return nil, fmt.Errorf("--out: the histograms of groups that are measured again lie beside those of %s: leave it out", path)
	}
	s.out = filepath.Dir(path)
	by, err := s.measure(cmd, env, groups)
	if by == nil {
		return nil, err
	}
	r.Renew(by)
	return r, errors.Join(err, replaceFile(path, r.Write))
}

// measure is run without keeping anything but histograms.
func (s *suiteFlags) measure(cmd *cobra.Command, env environment, groups []string) (*report.Report, error) {
	cfg := s.cfg
	cfg.Groups, cfg.Stderr, cfg.Command = groups, env.stderr, commandLine(withoutPlaces(env.args))
	estimate, err := suite.Estimate(cfg)
	fresh := s.out == ""
	if fresh {
		s.out = filepath.Join(resultsDir, time.Now().Format("20060102-150405"))
	}
	if err := errors.Join(err, s.check(cmd.Flags())); err != nil {
		return nil, err
	}
	if err := s.makeDirectory(fresh); err != nil {
		return nil, err
	}
	cfg.Out = s.out
	fmt.Fprintf(env.stderr, "via-xdp: this takes about %s; the results go to %s\n", roughly(estimate), s.out)
	progress := newProgress(env.stderr)
	cfg.Progress = func(p suite.Progress) {
		if progress.w == nil && p.Doing == "" {
			fmt.Fprintf(env.stderr, "via-xdp: group %d of %d: %s\n", p.Number, p.Total, p.Group)
			return
		}
		progress.line("%d/%d %s: %s", p.Number, p.Total, p.Group, p.Doing)
	}
	r, err := env.actions.suite(cmd.Context(), cfg)
	progress.done()
	if r == nil || len(r.Groups) == 0 {
		if os.Remove(s.out) == nil && filepath.Dir(s.out) == resultsDir { // they go if nothing is in them
			os.Remove(resultsDir)
		}
		return nil, err
	}
	return r, err
}

// makeDirectory makes the one for the results. A fresh one is of this run alone: runs that begin at the same time, as those
// of several hosts in a shared home directory, have a number behind it.
func (s *suiteFlags) makeDirectory(fresh bool) error {
	if !fresh {
		return os.MkdirAll(s.out, 0o755)
	}
	err := os.MkdirAll(filepath.Dir(s.out), 0o755)
	if err == nil {
		err = os.Mkdir(s.out, 0o755)
	}
	for base, n := s.out, 2; errors.Is(err, fs.ErrExist); n++ {
		s.out = fmt.Sprintf("%s-%d", base, n)
		err = os.Mkdir(s.out, 0o755)
	}
	return err
}

// show prints the tables and writes the plots.
func (s *suiteFlags) show(env environment, r *report.Report) error {
	err := s.json.write(env, r.WriteTable, r.Write)
	_, plots := r.WritePlots(s.out)
	return errors.Join(err, plots)
}

func newBenchList(env environment) *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the groups",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if asJSON {
				return printJSON(env.stdout, suite.Groups())
			}
			_, err := fmt.Fprintln(env.stdout, groupsHelp(""))
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func groupsHelp(indent string) string {
	var b strings.Builder
	for _, g := range suite.Groups() {
		title := g.Title
		if g.Slow {
			title += " (slow: only when it is named)"
		}
		if g.Long {
			title += " (long: only when it is named, and not for all)"
		}
		fmt.Fprintf(&b, "%s%-18s %s\n", indent, g.Name, title)
	}
	fmt.Fprintf(&b, "%s%-18s %s", indent, suite.All, "All but the long ones")
	return b.String()
}

func newBenchCompare(env environment) *cobra.Command {
	var fail float64
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "compare A.json B.json",
		Short: "Set two reports against each other",
		Long: "Prints all figures that both reports have, and B's by A's. A * marks those that differ\n" +
			"by more than the spread of the turns of both.",
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !(fail >= 0) { // NaN is neither
				return fmt.Errorf("--fail %v: want percent, 0 or more", fail)
			}
			var r [2]*report.Report
			for i, path := range args {
				var err error
				if r[i], err = readReport(path); err != nil {
					return err
				}
			}
			c := report.Compare(r[0], r[1])
			write := c.WriteTable
			if asJSON {
				write = c.WriteJSON
			}
			if err := write(env.stdout); err != nil {
				return err
			}
			if cmd.Flags().Changed("fail") && c.WorseThan(fail) {
				return fmt.Errorf("%s is worse than %s by more than %g %%", args[1], args[0], fail)
			}
			return nil
		},
	}
	cmd.Flags().Float64Var(&fail, "fail", 0, "fail if a marked figure other than max, mean, stdev, peak or frames hit is worse by more than that `percent`age")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func newBenchDoc(env environment) *cobra.Command {
	s := &suiteFlags{}
	var from, docs string
	cmd := &cobra.Command{
		Use:   "doc [flags] [GROUP...]",
		Short: "Run the suite and write benchmarks.md with its plots",
		Long: "Runs the suite as bench does and writes benchmarks.md with its plots. With --from and no\n" +
			"GROUP nothing is measured. With --from and groups these are measured again, and take the\n" +
			"place of the report's, in its file, too: the page says so, with the time, in each of them.",
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkDirectory("--docs", docs); err != nil {
				return err
			}
			histograms := filepath.Dir(from)
			var r *report.Report
			var err error
			switch {
			case from == "":
				r, err = s.run(cmd, env, args)
				histograms = s.out
			case len(args) > 0:
				r, err = s.renew(cmd, env, from, args)
			default:
				r, err = readReport(from)
			}
			if err != nil {
				return err
			}
			return errors.Join(s.json.keep(env, r.Write), writeDocument(r, histograms, docs))
		},
	}
	s.add(cmd.Flags())
	cmd.Flags().StringVar(&from, "from", "", "take this `report`, and measure only the groups that are named")
	cmd.Flags().StringVar(&docs, "docs", "docs", "`directory` for benchmarks.md and benchmarks/*.svg")
	return cmd
}

// writeDocument writes benchmarks.md and its plots.
func writeDocument(r *report.Report, histograms, docs string) error {
	const name = "benchmarks"
	if _, err := r.WriteDocumentPlots(histograms, filepath.Join(docs, name)); err != nil {
		return err
	}
	return writeFile(filepath.Join(docs, name+".md"), func(w io.Writer) error { return r.WriteMarkdown(w, name) })
}

func readReport(path string) (*report.Report, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r, err := report.Read(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

// withoutPlaces leaves out the flags that say where results go: they are directories of
// the user. It keeps all flags that affect the measurement.
func withoutPlaces(args []string) []string {
	var kept []string
	for i := 0; i < len(args); i++ {
		switch name, _, joined := strings.Cut(args[i], "="); name {
		case "--out", "--docs", "--json":
			if !joined {
				i++ // the value
			}
		default:
			kept = append(kept, args[i])
		}
	}
	return kept
}

// commandLine is what a shell takes to run the program with these arguments.
func commandLine(args []string) string {
	words := []string{"via-xdp"}
	for _, a := range args {
		if a == "" || strings.ContainsAny(a, " \t\n'\"\\$`*?[]{}()<>|&;#~!") {
			a = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
		words = append(words, a)
	}
	return strings.Join(words, " ")
}

// roughly formats an estimate in rounded units.
func roughly(d time.Duration) string {
	if d < time.Minute {
		return fmt.Sprintf("%.0f seconds", max(d.Round(5*time.Second), 5*time.Second).Seconds())
	}
	return fmt.Sprintf("%.0f min", d.Minutes())
}
