package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"viaxdp/internal/base/rundir"
	"viaxdp/internal/lab/testbed"
	"viaxdp/internal/ops/doctor"
	"viaxdp/internal/ops/inspect"
	"viaxdp/internal/ops/tune"
	"viaxdp/internal/ops/undo"
)

func newDoctor(env environment) *cobra.Command {
	var asJSON, fix, back, all, list bool
	var only []string
	cmd := &cobra.Command{
		Use:   "doctor [INTERFACE]",
		Short: "Find what keeps VIs from running or slows them down, and fix it",
		Long: "Checks the host and an interface (or all that are up; all if none is). For each problem it\n" +
			"prints the cause, the consequence and the command that helps. It changes nothing without\n" +
			"--fix, which makes the safe changes and records the previous values; --undo restores them,\n" +
			"also after a crash. Some findings need a decision, and --fix leaves them alone. Exit status\n" +
			"2: VIs cannot run here.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			switch {
			case list && fix:
				return errors.New("--list and --fix: one of them")
			case list && back:
				return errors.New("--list and --undo: one of them")
			case list && asJSON:
				return printJSON(env.stdout, doctor.Checks)
			case list:
				for _, c := range doctor.Checks {
					fmt.Fprintf(env.stdout, "%-14s %s\n", c.ID, c.About)
				}
				return nil
			case fix && back:
				return errors.New("--fix and --undo: one of them")
			case back && len(args) > 0:
				return errors.New("--undo puts back all that --fix has changed: name no INTERFACE")
			case back && len(only) > 0:
				return errors.New("--undo puts back all that --fix has changed: no --only")
			case back:
				return takeBack(env, "doctor", asJSON)
			}
			r, err := examine(args, only)
			if err != nil {
				return err
			}
			var unfixed error // the report tells what is left
			if fix {
				_, unfixed = apply(env, "doctor", r.Steps())
				if r, err = examine(args, only); err != nil {
					return errors.Join(unfixed, err)
				}
			}
			if asJSON {
				err = printJSON(env.stdout, r)
			} else {
				printReport(env.stdout, r, all, paint(env.stdout))
			}
			if f := r.Impossible(); err == nil && f != nil {
				err = testbed.CannotRun(errors.New(strings.TrimPrefix(f.Interface+": "+f.Cause, ": ")))
			}
			return errors.Join(unfixed, err)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&fix, "fix", false, "make the changes that are safe")
	f.BoolVar(&back, "undo", false, "restore what --fix has changed")
	f.BoolVar(&all, "all", false, "show checks without a finding, too")
	f.StringSliceVar(&only, "only", nil, "run these checks only; --list names them")
	f.BoolVar(&list, "list", false, "list the checks")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	checks := []string{}
	for _, c := range doctor.Checks {
		checks = append(checks, c.ID+"\t"+c.About)
	}
	cmd.RegisterFlagCompletionFunc("only", cobra.FixedCompletions(checks, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// examine runs the named checks, or all, on an interface, or on all that are up, or on all if none is.
func examine(args, only []string) (*doctor.Report, error) {
	for _, id := range only {
		if !slices.ContainsFunc(doctor.Checks, func(c doctor.Check) bool { return c.ID == id }) {
			return nil, fmt.Errorf("--only %s: there is no such check; --list names them", id)
		}
	}
	names, gather, down := args, doctor.Gather, false
	if len(names) == 0 {
		gather = doctor.GatherAll
		var err error
		if names, err = inspect.Names(net.FlagUp); err == nil && len(names) == 0 {
			down = true // which is why VIs cannot run
			names, err = inspect.Names(0)
		}
		if err != nil {
			return nil, err
		}
	}
	f, err := gather(names...)
	if err != nil {
		return nil, err
	}
	r := doctor.Examine(f)
	if down { // which one is to be set up is the user's decision
		for i := range r.Findings {
			if r.Findings[i].Interface != "" {
				r.Findings[i].Steps = nil
			}
		}
	}
	if len(only) > 0 {
		r.Findings = slices.DeleteFunc(r.Findings, func(f doctor.Finding) bool { return !slices.Contains(only, f.Check) })
	}
	return r, nil
}

// colors of levels on a terminal.
var colors = map[doctor.Level]string{
	doctor.OK: "32", doctor.Info: "36", doctor.Unknown: "35", doctor.Warning: "33", doctor.Error: "31",
}

// paint returns a function that colors text if w is a terminal and NO_COLOR is not set
// (no-color.org).
func paint(w io.Writer) func(color, s string) string {
	if !isTerminal(w) || os.Getenv("NO_COLOR") != "" {
		return func(_, s string) string { return s }
	}
	return func(color, s string) string { return "\x1b[" + color + "m" + s + "\x1b[0m" }
}

func printReport(w io.Writer, r *doctor.Report, all bool, paint func(color, s string) string) {
	where, fine := "-", 0
	for _, f := range r.Findings {
		if f.Level == doctor.OK && !all {
			fine++
			continue
		}
		if f.Interface != where {
			if where = f.Interface; where == "" {
				fmt.Fprintln(w, "host")
			} else {
				fmt.Fprintln(w, f.Where())
			}
		}
		fmt.Fprintf(w, "  %s %-13s %s\n", paint(colors[f.Level], fmt.Sprintf("%-8s", f.Level)), f.Check, f.Cause)
		for _, l := range []struct{ head, text string }{{"so", f.Consequence}, {"do", f.Command}} {
			if l.text != "" {
				fmt.Fprintf(w, "  %-8s   %s: %s\n", "", l.head, l.text)
			}
		}
	}
	switch fixable := len(r.Steps()); fixable {
	case 0:
	case 1:
		fmt.Fprintln(w, "via-xdp doctor --fix can change one of these, and --undo puts it back")
	default:
		fmt.Fprintf(w, "via-xdp doctor --fix can change %d of these, and --undo puts them back\n", fixable)
	}
	switch fine {
	case 0:
	case 1:
		fmt.Fprintln(w, "1 check found nothing (--all names it)")
	default:
		fmt.Fprintf(w, "%d checks found nothing (--all names them)\n", fine)
	}
}

func newTune(env environment) *cobra.Command {
	var asJSON, back, dry bool
	profile := ""
	cmd := &cobra.Command{
		Use:   "tune [INTERFACE]",
		Short: "Set up host and interface for latency or throughput",
		Long: "Changes settings of the host, and of the interface if one is named, to those of a profile,\n" +
			"and records the previous values; --undo restores them, also after a crash. So does a reboot.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case back && dry:
				return errors.New("--undo and --dry-run: one of them")
			case back && len(args) > 0:
				return errors.New("--undo puts back all that tune has changed: name no INTERFACE")
			case back && profile != "":
				return errors.New("--undo puts back all that tune has changed: no --profile")
			case back:
				return takeBack(env, "tune", asJSON)
			}
			if profile == "" {
				return usageError(cmd, errors.New("--profile latency, --profile throughput or --undo: which one"))
			}
			p, err := tune.Parse(profile)
			if err != nil {
				return err
			}
			f, err := doctor.Gather(args...)
			if err != nil {
				return err
			}
			steps := tune.Steps(p, f, os.DirFS("/"))
			if dry {
				return showSteps(env, steps, asJSON)
			}
			made, err := apply(env, "tune", steps)
			if asJSON {
				err = errors.Join(printJSON(env.stdout, made), err)
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&profile, "profile", "", "latency or throughput")
	f.BoolVar(&back, "undo", false, "restore what tune has changed")
	f.BoolVarP(&dry, "dry-run", "n", false, "print what would be set, and change nothing")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RegisterFlagCompletionFunc("profile", cobra.FixedCompletions([]string{"latency", "throughput"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// showSteps prints what would be set.
func showSteps(env environment, steps []undo.Step, asJSON bool) error {
	if asJSON {
		return printJSON(env.stdout, append([]undo.Step{}, steps...))
	}
	for _, s := range steps {
		fmt.Fprintf(env.stdout, "%s = %s\n", s.Setting, s.Value)
	}
	if len(steps) == 0 {
		fmt.Fprintln(env.stderr, "nothing to change")
	}
	return nil
}

// apply makes changes, records them in the journal of that name, and prints them.
func apply(env environment, journal string, steps []undo.Step) (made []undo.Change, err error) {
	made = []undo.Change{}
	if len(steps) == 0 {
		fmt.Fprintln(env.stderr, "nothing to change")
		return made, nil
	}
	j, err := openJournal(journal)
	if err != nil {
		return made, err
	}
	defer j.Close()
	made, err = j.Apply(steps)
	for _, c := range made {
		fmt.Fprintln(env.stderr, "set", c)
	}
	if err != nil && len(made) > 0 {
		err = fmt.Errorf("%w; via-xdp %s --undo restores what was changed", err, journal)
	}
	return made, refused(err)
}

// takeBack undoes the changes in the journal of that name.
func takeBack(env environment, journal string, asJSON bool) error {
	j, err := openJournal(journal)
	if err != nil {
		return err
	}
	defer j.Close()
	done, err := j.Undo()
	if asJSON {
		if done == nil {
			done = []undo.Undone{}
		}
		return errors.Join(printJSON(env.stdout, done), refused(err))
	}
	for _, u := range done {
		if u.Kept != "" {
			fmt.Fprintf(env.stdout, "left %s: %s\n", u.Setting, u.Kept)
		} else {
			fmt.Fprintf(env.stdout, "put back %s: %s\n", u.Setting, u.Before)
		}
	}
	if err == nil && len(done) == 0 {
		fmt.Fprintln(env.stderr, "nothing to undo")
	}
	return refused(err)
}

func openJournal(name string) (*undo.Journal, error) {
	dir, err := rundir.State()
	if err != nil {
		return nil, testbed.CannotRun(fmt.Errorf("%w, or run it as root (sudo)", err))
	}
	j, err := undo.Open(dir, name, undo.Machine{})
	return j, refused(err)
}

// refused adds the remedy to errors that mean a lack of privilege.
func refused(err error) error {
	if err == nil || !errors.Is(err, os.ErrPermission) || strings.Contains(err.Error(), "cannot run here") {
		return err
	}
	return testbed.CannotRun(fmt.Errorf("%w: run it as root (sudo)", err))
}
