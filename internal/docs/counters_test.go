package docs

import (
	"bufio"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"viaxdp/bpf"
	"viaxdp/kagent"
	"viaxdp/mvich"
	"viaxdp/reliable"
	"viaxdp/vipl"
	"viaxdp/xdpnic"
)

const countersDoc = "../../docs/counters.md"

// countersOf are the names of the code's counters by the document's sections.
func countersOf() map[string][]string {
	fields := func(v any) (names []string) {
		for _, f := range reflect.VisibleFields(reflect.TypeOf(v)) {
			names = append(names, f.Name)
		}
		return names
	}
	all := map[string][]string{
		"Engine":                fields(vipl.Counters{}),
		"Connection management": fields(kagent.Counters{}),
		"Reliable sender":       fields(reliable.SenderStats{}),
		"Reliable receiver":     fields(reliable.ReceiverStats{}),
	}
	for _, f := range reflect.VisibleFields(reflect.TypeOf(mvich.Stats{})) {
		if f.Type.Kind() == reflect.Uint64 { // the others are how things are now
			all["Ranks"] = append(all["Ranks"], f.Name)
		}
	}
	(&xdpnic.Stats{}).Each(func(c xdpnic.Counter) { all["Queue"] = append(all["Queue"], c.Name) })
	bpf.Counters{}.Each(func(name string, _ uint64) { all["Demux program"] = append(all["Demux program"], name) })
	return all
}

// A counterRow is one row of the document's tables.
type counterRow struct {
	section, name, meaning, moves, test string
	line                                int
}

func counterRows(t *testing.T) (rows []counterRow) {
	t.Helper()
	f, err := os.Open(countersDoc)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	section := ""
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		text := lines.Text()
		if head, ok := strings.CutPrefix(text, "## "); ok {
			section = head
		}
		if !strings.HasPrefix(text, "| `") {
			continue
		}
		cells := strings.Split(strings.Trim(text, "|"), "|")
		if len(cells) != 4 {
			t.Errorf("%s:%d: %d cells, not 4", countersDoc, n, len(cells))
			continue
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		rows = append(rows, counterRow{section, strings.Trim(cells[0], "`"), cells[1], cells[2], cells[3], n})
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return rows
}

// The document has each counter of the code once, in the code's order, and none
// else.
func TestCountersAreListed(t *testing.T) {
	listed := map[string][]string{}
	for _, r := range counterRows(t) {
		listed[r.section] = append(listed[r.section], r.name)
		if r.meaning == "" || r.moves == "" {
			t.Errorf("%s:%d: %s has no meaning, or does not say when it moves", countersDoc, r.line, r.name)
		}
	}
	code := countersOf()
	for section, names := range code {
		if !slices.Equal(listed[section], names) {
			t.Errorf("%s: section %s lists\n%v, the code has\n%v", countersDoc, section, listed[section], names)
		}
	}
	for section := range listed {
		if code[section] == nil {
			t.Errorf("%s: section %s is of nothing in the code", countersDoc, section)
		}
	}
}

var testName = regexp.MustCompile("`([a-z/]+)\\.(Test[A-Za-z0-9]+)`")

// Each row names a test that there is, of a package whose tests look at the counter, or says why
// there is none.
func TestCountersHaveTests(t *testing.T) {
	tests, words := map[string]map[string]bool{}, map[string]map[string]bool{}
	for _, r := range counterRows(t) {
		named := testName.FindAllStringSubmatch(r.test, -1)
		why, none := strings.CutPrefix(r.test, "none: ")
		if none == (len(named) == 1 && r.test == named[0][0]) || none && why == "" {
			t.Errorf("%s:%d: %s names neither one test nor a reason: %q", countersDoc, r.line, r.name, r.test)
		}
		for _, m := range named {
			if tests[m[1]] == nil {
				tests[m[1]], words[m[1]] = testsOf(t, m[1])
			}
			if looks := strings.ToLower(strings.ReplaceAll(r.name, "_", "")); m[2] != "TestCountersMove" && !words[m[1]][looks] {
				t.Errorf("%s:%d: no test of package %s looks at %s", countersDoc, r.line, m[1], r.name)
			}
			if !tests[m[1]][m[2]] {
				t.Errorf("%s:%d: package %s has no %s", countersDoc, r.line, m[1], m[2])
			}
		}
	}
}

// testsOf are the names of the tests in a package's folder, and all names and texts in their
// code: lower case, without underscores.
func testsOf(t *testing.T, pkg string) (found, used map[string]bool) {
	t.Helper()
	names, err := filepath.Glob("../../" + pkg + "/*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	found, used = map[string]bool{}, map[string]bool{}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, b, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			name := ""
			switch n := n.(type) {
			case *ast.Ident:
				name = n.Name
			case *ast.BasicLit:
				name = strings.Trim(n.Value, `"`)
			}
			used[strings.ToLower(strings.ReplaceAll(name, "_", ""))] = true
			return true
		})
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil {
				found[fn.Name.Name] = true
			}
		}
	}
	return found, used
}
