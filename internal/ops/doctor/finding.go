package doctor

import (
	"regexp"
	"slices"
	"strings"

	"viaxdp/internal/base/termsafe"
	"viaxdp/internal/ops/undo"
)

// Level is the severity of a finding.
type Level string

// The levels, best first.
const (
	OK      Level = "ok"
	Info    Level = "info"    // worth knowing
	Unknown Level = "unknown" // could not be determined
	Warning Level = "warning" // it works, slower or less safely than it could
	Error   Level = "error"   // VIs do not work here
)

var levels = []Level{OK, Info, Unknown, Warning, Error}

// Worse reports whether l matters more than other.
func (l Level) Worse(other Level) bool { return slices.Index(levels, l) > slices.Index(levels, other) }

// Finding is the result of a check.
type Finding struct {
	Check       string      `json:"check"`
	Interface   string      `json:"interface,omitempty"` // empty: the host
	Level       Level       `json:"level"`
	Cause       string      `json:"cause"`                 // the fact
	Consequence string      `json:"consequence,omitempty"` // its effect on VIs
	Command     string      `json:"command,omitempty"`     // what helps, for a shell
	Steps       []undo.Step `json:"steps,omitempty"`       // the same, for --fix; none: a person has to decide
}

// A Check is a row of the table. Exactly one of Host and NIC is set.
type Check struct {
	ID    string                          `json:"check"`
	About string                          `json:"about"` // one line for the list of checks
	Host  func(h *Host) []Finding         `json:"-"`
	NIC   func(h *Host, n *NIC) []Finding `json:"-"`
}

// Report is the result of all checks.
type Report struct {
	Facts    *Facts    `json:"facts"`
	Findings []Finding `json:"findings"`
}

// Examine runs all checks of the table.
func Examine(f *Facts) *Report {
	r := &Report{Facts: f}
	for _, c := range Checks {
		if c.Host != nil {
			r.add(c.ID, "", c.Host(&f.Host))
		}
	}
	for i := range f.NICs {
		n := &f.NICs[i]
		for _, c := range Checks {
			if c.NIC != nil {
				r.add(c.ID, n.Name, c.NIC(&f.Host, n))
			}
		}
	}
	return r
}

func (r *Report) add(id, nic string, found []Finding) {
	for _, f := range found {
		f.Check, f.Interface = id, nic
		// They quote names of programs and interfaces, which other users choose.
		f.Cause, f.Consequence, f.Command = printable(f.Cause), printable(f.Consequence), printable(f.Command)
		r.Findings = append(r.Findings, f)
	}
}

// printable is s as one line that is safe for a terminal.
func printable(s string) string { return termsafe.Printable(strings.ReplaceAll(s, "\n", "; ")) }

// Where is the finding's interface, safe for a terminal; empty for the host.
func (f *Finding) Where() string { return termsafe.Printable(f.Interface) }

// plain matches names that need no quotes in a shell.
var plain = regexp.MustCompile(`^[A-Za-z0-9_@%+=.][A-Za-z0-9_@%+=.-]*$`)

// word is the interface's name as a word of a shell command. The kernel allows almost any byte
// in a name.
func (n *NIC) word() string {
	if plain.MatchString(n.Name) {
		return n.Name
	}
	return "'" + strings.ReplaceAll(n.Name, "'", `'\''`) + "'"
}

// Impossible returns why VIs cannot run here: an error of the host, or, if every interface has
// an error, that of the first one. nil: they can.
func (r *Report) Impossible() *Finding {
	bad := map[string]*Finding{}
	for i := range r.Findings {
		f := &r.Findings[i]
		if f.Level == Error && bad[f.Interface] == nil {
			bad[f.Interface] = f
		}
	}
	if f := bad[""]; f != nil {
		return f
	}
	for i := range r.Facts.NICs {
		if bad[r.Facts.NICs[i].Name] == nil {
			return nil
		}
	}
	if len(r.Facts.NICs) > 0 {
		return bad[r.Facts.NICs[0].Name]
	}
	return nil
}

// Steps are the changes that --fix would make: those of warnings and errors.
func (r *Report) Steps() []undo.Step {
	var all []undo.Step
	for _, f := range r.Findings {
		if f.Level.Worse(Unknown) {
			all = append(all, f.Steps...)
		}
	}
	return all
}

func ok(cause string) []Finding { return []Finding{{Level: OK, Cause: cause}} }

func one(l Level, cause, consequence, command string, steps ...undo.Step) []Finding {
	return []Finding{{Level: l, Cause: cause, Consequence: consequence, Command: command, Steps: steps}}
}
