package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"viaxdp/bpf"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/reliable"
	"viaxdp/internal/lab/nstest"
	"viaxdp/mvich"
	"viaxdp/vianet"
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
	for section, stats := range map[string]any{"Ranks": mvich.Stats{}, "Sockets": vianet.Stats{}} {
		for _, f := range reflect.VisibleFields(reflect.TypeOf(stats)) {
			if f.Type.Kind() != reflect.Int { // which is how things are now
				all[section] = append(all[section], f.Name)
			}
		}
	}
	(&xdpnic.Stats{}).Each(func(c xdpnic.Counter) { all["Queue"] = append(all["Queue"], c.Name) })
	bpf.Counters{}.Each(func(name string, _ uint64) { all["Demux program"] = append(all["Demux program"], name) })
	return all
}

// counterRows are the rows of the document's tables.
func counterRows(t *testing.T) []row { return rowsOf(t, countersDoc, "counter") }

func (r row) counter() string { return strings.Trim(r.cells["counter"], "`") }

// The document has each counter of the code once, in the code's order, and no
// other.
func TestCountersAreListed(t *testing.T) {
	listed := map[string][]string{}
	for _, r := range counterRows(t) {
		listed[r.section] = append(listed[r.section], r.counter())
		if r.cells["meaning"] == "" || r.cells["moves when"] == "" {
			t.Errorf("%s:%d: %s has no meaning, or does not say when it moves", countersDoc, r.line, r.counter())
		}
	}
	code := countersOf()
	for section, names := range code {
		if !slices.Equal(listed[section], names) {
			t.Errorf("%s: section %s lists\n%v, the code has\n%v", countersDoc, section, listed[section], names)
		}
	}
	for section := range listed {
		nstest.ErrorIf(t, code[section] == nil, "%s: section %s is of nothing in the code", countersDoc, section)
	}
}

var testName = regexp.MustCompile("`([a-z/]+)\\.(Test[A-Za-z0-9]+)`")

// Each row names an existing test that checks the counter, itself or by a helper of its package's
// tests, or says why there is none.
func TestCountersHaveTests(t *testing.T) {
	packages := map[string]codeOf{}
	for _, r := range counterRows(t) {
		named := testName.FindAllStringSubmatch(r.cells["test"], -1)
		why, none := strings.CutPrefix(r.cells["test"], "none: ")
		if none == (len(named) == 1 && r.cells["test"] == named[0][0]) || none && why == "" {
			t.Errorf("%s:%d: %s names neither one test nor a reason: %q", countersDoc, r.line, r.counter(), r.cells["test"])
		}
		for _, m := range named {
			pkg, test := m[1], m[2]
			if packages[pkg] == nil {
				packages[pkg] = parseCode(t, pkg)
			}
			switch code := packages[pkg]; {
			case code[test] == nil:
				t.Errorf("%s:%d: package %s has no %s", countersDoc, r.line, pkg, test)
			case pkg+"."+test == readsTheList:
			case !code.looks(test, plainName(r.counter())):
				t.Errorf("%s:%d: %s of package %s does not look at %s", countersDoc, r.line, test, pkg, r.counter())
			}
		}
	}
}

// readsTheList is the test that takes the names of its counters from the document.
const readsTheList = "torture.TestCountersMove"

// plainName is a name without what differs between the document and the code.
func plainName(s string) string { return strings.ToLower(strings.ReplaceAll(s, "_", "")) }

// body is the content of functions and methods of one name: fields and texts, in the form of
// plainName, and the names of what they call.
type body struct {
	words map[string]bool
	calls []string
}

// codeOf are the functions and methods of a package's tests by name.
type codeOf map[string]*body

// looks reports whether a function, or one that it calls, contains a word.
func (c codeOf) looks(name, word string) bool {
	f := c[name]
	return f.words[word] || slices.ContainsFunc(f.calls, func(g string) bool { return c[g] != nil && c[g].words[word] })
}

// parseCode reads the tests in a package's folder.
func parseCode(t *testing.T, pkg string) codeOf {
	t.Helper()
	var names []string
	for _, floor := range []string{"", "internal/base/", "internal/agent/", "internal/ops/", "internal/lab/"} {
		found, err := filepath.Glob("../../" + floor + pkg + "/*_test.go")
		nstest.Must(t, err)
		names = append(names, found...)
	}
	code := codeOf{}
	for _, name := range names {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		nstest.Must(t, err)
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Body == nil {
				continue
			}
			b := code[fn.Name.Name]
			if b == nil {
				b = &body{words: map[string]bool{}}
				code[fn.Name.Name] = b
			}
			b.read(fn.Body)
		}
	}
	return code
}

func (b *body) read(n ast.Node) {
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BasicLit:
			b.words[plainName(strings.Trim(n.Value, `"`))] = true
		case *ast.KeyValueExpr:
			if k, ok := n.Key.(*ast.Ident); ok {
				b.words[plainName(k.Name)] = true
			}
		case *ast.SelectorExpr:
			b.words[plainName(n.Sel.Name)] = true
		case *ast.CallExpr:
			switch f := n.Fun.(type) {
			case *ast.Ident:
				b.calls = append(b.calls, f.Name)
			case *ast.SelectorExpr: // a call of a method is no look at a field of that name
				b.calls = append(b.calls, f.Sel.Name)
				b.read(f.X)
				for _, a := range n.Args {
					b.read(a)
				}
				return false
			}
		}
		return true
	})
}
