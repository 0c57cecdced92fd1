package docs

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"viaxdp/internal/lab/nstest"
)

const mvichDoc = "../../docs/mvich.md"

var mpiName = regexp.MustCompile(`^MPIX?_[A-Z][A-Za-z_]*$`)

// Each name of MPI in the table has one row, with Go names that are in package mvich, or a note
// on what there is instead; Go names in the note exist, too.
func TestMPI(t *testing.T) {
	s := loadPackage(t, "mvich")
	listed := map[string]bool{}
	for _, r := range rowsOf(t, mvichDoc, "MPI") {
		for _, name := range strings.Split(strings.TrimSuffix(r.cells["MPI"], " and the like"), ", ") {
			if !mpiName.MatchString(name) || listed[name] {
				t.Errorf("%s:%d: %q is no name of MPI, or has a row already", mvichDoc, r.line, name)
			}
			listed[name] = true
		}
		names := quoted.FindAllStringSubmatch(r.cells["Go"], -1)
		switch {
		case len(names) == 0 && r.cells["Go"] != "none":
			t.Errorf("%s:%d: %s has no Go name", mvichDoc, r.line, r.cells["MPI"])
		case len(names) == 0 && r.cells["note"] == "":
			t.Errorf("%s:%d: %s is none, without a reason", mvichDoc, r.line, r.cells["MPI"])
		}
		names = append(names, quoted.FindAllStringSubmatch(r.cells["note"], -1)...)
		for _, m := range names {
			if first := m[1][:1]; first == strings.ToUpper(first) && s.find(m[1]) == nil {
				t.Errorf("%s:%d: package mvich has no %s", mvichDoc, r.line, m[1])
			}
		}
	}
	if len(listed) < 100 {
		t.Errorf("%d names of MPI have a row: the table was not found", len(listed))
	}
}

// The document names each function and method of package mvich that programs call.
func TestMPINamesAll(t *testing.T) {
	named := map[string]bool{}
	text, err := os.ReadFile(mvichDoc)
	nstest.Must(t, err)
	for line := range strings.Lines(string(text)) {
		for _, m := range quoted.FindAllStringSubmatch(line, -1) {
			named[strings.TrimPrefix(m[1], "mvich.")] = true
		}
	}
	for name := range loadPackage(t, "mvich").docs {
		typ, _, _ := strings.Cut(name, ".")
		if !named[name] && typ != "RankError" && typ != "Protocol" && typ != "Launcher" { // whose methods are called for them
			t.Errorf("%s does not name %s", mvichDoc, name)
		}
	}
}
