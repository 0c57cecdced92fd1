package peers

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
)

// A Program is one of other people's programs.
type Program struct {
	Name    string // of the executable
	Package string // that has it in Debian and its descendants

	version []string // a command of the same package that tells its version
	places  string   // where it may be beside PATH, with *; the last one is taken
}

var programs = []Program{
	{Name: "sockperf", Package: "sockperf", version: []string{"sockperf", "--version"}},
	{Name: "iperf3", Package: "iperf3", version: []string{"iperf3", "--version"}},
	{Name: "fi_pingpong", Package: "libfabric-bin", version: []string{"fi_info", "--version"}},
	{Name: "ucx_perftest", Package: "ucx-utils", version: []string{"ucx_info", "-v"}},
}

// Programs lists all of them.
func Programs() []Program { return slices.Clone(programs) }

// elsewhere is where the program is beside PATH; empty: nowhere.
func (p Program) elsewhere() string {
	if p.places == "" {
		return ""
	}
	found, _ := filepath.Glob(filepath.Join(p.places, p.Name)) // the pattern is a good one
	if len(found) == 0 {
		return ""
	}
	return found[len(found)-1]
}

// Installed says whether the program is found on PATH, or where else it may be.
func (p Program) Installed() bool {
	if p.elsewhere() != "" {
		return true
	}
	_, err := exec.LookPath(p.Name)
	return err == nil
}

// Missing lists the programs that are not installed.
func Missing() []Program {
	return slices.DeleteFunc(Programs(), Program.Installed)
}

var versionNumber = regexp.MustCompile(`\d+(\.\d+)+`)

// Version is the number of the installed version, or "?" if the program does
// not tell one.
func (p Program) Version(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, p.version[0], p.version[1:]...).Output()
	if err != nil {
		return "?"
	}
	if v := versionNumber.Find(out); v != nil {
		return string(v)
	}
	return "?"
}

// find returns the program of a name that is in the table.
func find(name string) Program {
	for _, p := range programs {
		if p.Name == name {
			return p
		}
	}
	panic(fmt.Sprintf("peers: no program %q in the table", name))
}
