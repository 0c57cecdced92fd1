// Package docs compares documents with the code that they are about.
package docs

import (
	"bufio"
	"go/ast"
	"go/constant"
	"go/doc"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
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

const (
	viplDoc = "../../docs/vipl.md"

	operations = 41 // of VIPL
)

// row is a row of a table; cells are by the heads of their columns.
type row struct {
	section string
	line    int
	cells   map[string]string
}

func (r row) vipl() string { return strings.Trim(r.cells["VIPL"], "`") }

// rows reads the tables of docs/vipl.md that have a column VIPL.
func rows(t *testing.T) []row { return rowsOf(t, viplDoc, "VIPL") }

// rowsOf reads the tables of a document that have a certain column.
func rowsOf(t *testing.T, document, column string) (all []row) {
	t.Helper()
	f, err := os.Open(document)
	nstest.Must(t, err)
	defer f.Close()
	section, heads := "", []string(nil)
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		text := lines.Text()
		if head, ok := strings.CutPrefix(text, "## "); ok {
			section = head
		}
		if !strings.HasPrefix(text, "|") {
			heads = nil
			continue
		}
		cells := strings.Split(strings.Trim(text, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		switch {
		case heads == nil:
			heads = cells
		case len(cells) != len(heads):
			t.Errorf("%s:%d: %d cells, not %d", document, n, len(cells), len(heads))
		case !strings.HasPrefix(cells[0], "---") && slices.Contains(heads, column):
			r := row{section, n, map[string]string{}}
			for i, h := range heads {
				r.cells[h] = cells[i]
			}
			all = append(all, r)
		}
	}
	nstest.Must(t, lines.Err())
	return all
}

// source is a package as its files say.
type source struct {
	types *types.Package
	docs  map[string]string // comments of functions and methods: "OpenNIC", "VI.PostSend"
}

func load(t *testing.T) source { return loadPackage(t, "vipl") }

func loadPackage(t *testing.T, path string) source {
	t.Helper()
	fset := token.NewFileSet()
	names, err := filepath.Glob("../../" + path + "/*.go")
	nstest.Must(t, err)
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, name, nil, parser.ParseComments)
		nstest.Must(t, err)
		files = append(files, f)
	}
	// Imports are not loaded: types of imported packages may stay unknown.
	conf := types.Config{Importer: nothing{}, Error: func(error) {}}
	s := source{docs: map[string]string{}}
	s.types, _ = conf.Check("viaxdp/"+path, fset, files, nil)

	d, err := doc.NewFromFiles(fset, files, "viaxdp/"+path)
	nstest.Must(t, err)
	for _, f := range d.Funcs {
		s.docs[f.Name] = f.Doc
	}
	for _, typ := range d.Types {
		for _, f := range typ.Funcs {
			s.docs[f.Name] = f.Doc
		}
		for _, m := range typ.Methods {
			s.docs[typ.Name+"."+m.Name] = m.Doc
		}
	}
	return s
}

// nothing imports no package.
type nothing struct{}

func (nothing) Import(path string) (*types.Package, error) {
	p := types.NewPackage(path, path[strings.LastIndex(path, "/")+1:])
	p.MarkComplete()
	return p, nil
}

// find looks for an exported name, or for a field or method of an exported type.
func (s source) find(name string) types.Object {
	name, member, isMember := strings.Cut(name, ".")
	o := s.types.Scope().Lookup(name)
	if o == nil || !o.Exported() || !isMember {
		return o
	}
	m, _, _ := types.LookupFieldOrMethod(types.NewPointer(o.Type()), false, s.types, member)
	if m == nil || !m.Exported() {
		return nil
	}
	return m
}

var quoted = regexp.MustCompile("`([^`]+)`")

// Every Go name in the tables is in package vipl, and constants have the value
// of the table.
func TestNames(t *testing.T) {
	s := load(t)
	for _, r := range rows(t) {
		names := quoted.FindAllStringSubmatch(r.cells["Go"], -1)
		switch {
		case len(names) == 0 && r.cells["Go"] != "none":
			t.Errorf("%s:%d: %s has no Go name", viplDoc, r.line, r.vipl())
		case len(names) == 0 && r.cells["note"] == "":
			t.Errorf("%s:%d: %s is none, without a reason", viplDoc, r.line, r.vipl())
		}
		for _, m := range names {
			o := s.find(m[1])
			if o == nil {
				t.Errorf("%s:%d: package vipl has no %s", viplDoc, r.line, m[1])
				continue
			}
			if want, ok := r.cells["value"]; ok {
				checkValue(t, r, o, want)
			}
		}
		for _, m := range quoted.FindAllStringSubmatch(r.cells["note"], -1) {
			if ast.IsExported(m[1]) && !strings.HasPrefix(m[1], "VIP") && s.find(m[1]) == nil {
				t.Errorf("%s:%d: package vipl has no %s", viplDoc, r.line, m[1])
			}
		}
	}
}

func checkValue(t *testing.T, r row, o types.Object, text string) {
	t.Helper()
	want, err := strconv.ParseInt(text, 0, 64)
	if err != nil {
		t.Errorf("%s:%d: %v", viplDoc, r.line, err)
		return
	}
	c, ok := o.(*types.Const)
	if !ok {
		t.Errorf("%s:%d: %s is no constant", viplDoc, r.line, o.Name())
		return
	}
	if got, ok := constant.Int64Val(c.Val()); !ok || got != want {
		t.Errorf("%s:%d: %s is %v, not %s", viplDoc, r.line, o.Name(), c.Val(), text)
	}
}

var isOperation = regexp.MustCompile(`\bis (Vip[A-Z][A-Za-z]*)\b`)

// Each VIPL operation has one row, and the doc comment of the row's Go function names
// the operation. No function of package vipl claims an operation without a row.
func TestOperations(t *testing.T) {
	s := load(t)
	listed := map[string]string{} // operation: Go name
	for _, r := range rows(t) {
		if r.section != "Operations" {
			continue
		}
		name := strings.Trim(r.cells["Go"], "`")
		if other, ok := listed[r.vipl()]; ok {
			t.Errorf("%s:%d: %s is %s and %s", viplDoc, r.line, r.vipl(), other, name)
		}
		listed[r.vipl()] = name
		m := isOperation.FindStringSubmatch(s.docs[name])
		if m == nil || m[1] != r.vipl() {
			t.Errorf("%s:%d: the comment of %s does not say that it is %s", viplDoc, r.line, name, r.vipl())
		}
	}
	nstest.ErrorIf(t, len(listed) != operations, "%d operations are listed, of %d", len(listed), operations)
	for name, text := range s.docs {
		if m := isOperation.FindStringSubmatch(text); m != nil && listed[m[1]] != name {
			t.Errorf("%s says that it is %s; the table says %q", name, m[1], listed[m[1]])
		}
	}
}

// All constants of VIPL's enumerations have a row: none of ours of those types
// is left out.
func TestConstants(t *testing.T) {
	s := load(t)
	listed := map[string]bool{}
	for _, r := range rows(t) {
		for _, m := range quoted.FindAllStringSubmatch(r.cells["Go"], -1) {
			listed[m[1]] = true
		}
	}
	enumerations := []string{"Return", "Control", "Status", "ReliabilityLevel", "State", "ResourceCode", "ErrorCode"}
	for _, name := range s.types.Scope().Names() {
		c, ok := s.types.Scope().Lookup(name).(*types.Const)
		if !ok || !c.Exported() || listed[name] {
			continue
		}
		if typ, ok := c.Type().(*types.Named); ok && slices.Contains(enumerations, typ.Obj().Name()) {
			t.Errorf("%s has no row for %s", viplDoc, name)
		}
	}
}

const mvichDoc = "../../docs/mvich.md"

var mpiName = regexp.MustCompile(`^MPIX?_[A-Z][A-Za-z_]*$`)

// Each name of MPI in the table has one row, with Go names that are in package mvich, or a note
// on what there is instead; Go names in the note exist, too.
func TestMPI(t *testing.T) {
	s := loadPackage(t, "mvich")
	listed := map[string]bool{}
	for _, r := range rowsOf(t, mvichDoc, "MPI") {
		for _, name := range strings.Split(strings.TrimSuffix(r.cells["MPI"], " and the like"), ", ") {
			nstest.ErrorIf(t, !mpiName.MatchString(name) || listed[name],
				"%s:%d: %q is no name of MPI, or has a row already", mvichDoc, r.line, name)
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
	nstest.ErrorIf(t, len(listed) < 100, "%d names of MPI have a row: the table was not found", len(listed))
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
