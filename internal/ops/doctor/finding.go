package doctor

import (
	"regexp"
	"slices"
	"strings"

	"viaxdp/internal/base/termsafe"
	"viaxdp/internal/ops/undo"
)

// Level says how much a finding matters.
type Level string

// The levels, best first.
const (
	OK      Level = "ok"
	Info    Level = "info"    // worth knowing
	Unknown Level = "unknown" // could not be seen from here
	Warning Level = "warning" // it works, slower or less safely than it could
	Error   Level = "error"   // VIs do not work here
)

var levels = []Level{OK, Info, Unknown, Warning, Error}

// Worse reports whether l matters more than other.
func (l Level) Worse(other Level) bool { return slices.Index(levels, l) > slices.Index(levels, other) }

// Finding is what a check says.
type Finding struct {
	Check       string      `json:"check"`
	Interface   string      `json:"interface,omitempty"` // empty: the host
	Level       Level       `json:"level"`
	Cause       string      `json:"cause"`                 // what is so
	Consequence string      `json:"consequence,omitempty"` // what it does to VIs
	Command     string      `json:"command,omitempty"`     // what helps, for a shell
	Steps       []undo.Step `json:"steps,omitempty"`       // the same, for --fix; none: a person decides
}

// A Check is a row of the table. Exactly one of Host and NIC is set.
type Check struct {
	ID    string                          `json:"check"`
	About string                          `json:"about"` // one line for the list of checks
	Host  func(h *Host) []Finding         `json:"-"`
	NIC   func(h *Host, n *NIC) []Finding `json:"-"`
}

// Report is all that was found.
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
		// What is quoted in them comes from programs and interfaces, which others name.
		f.Cause, f.Consequence, f.Command = printable(f.Cause), printable(f.Consequence), printable(f.Command)
		r.Findings = append(r.Findings, f)
	}
}

// printable is a text as one line of a terminal.
func printable(s string) string { return termsafe.Printable(strings.ReplaceAll(s, "\n", "; ")) }

// Where is the finding's interface as a terminal may have it; empty for the host.
func (f *Finding) Where() string { return termsafe.Printable(f.Interface) }

// plain are names that a shell takes as they are.
var plain = regexp.MustCompile(`^[A-Za-z0-9_@%+=.][A-Za-z0-9_@%+=.-]*$`)

// word is the interface's name as a word of a shell's command: the kernel lets a name have any
// byte but a few.
func (n *NIC) word() string {
	if plain.MatchString(n.Name) {
		return n.Name
	}
	return "'" + strings.ReplaceAll(n.Name, "'", `'\''`) + "'"
}

// Impossible tells why VIs cannot run here: an error of the host, or, where no
// interface is without one, of the first. nil: they can.
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

// Steps are what --fix would do: those of warnings and errors.
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
