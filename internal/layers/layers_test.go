// Package layers tests the floors: which package may import which.
package layers

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"viaxdp/internal/lab/nstest"
)

const module = "viaxdp"

// allowed lists for each package what it may import of this module, in code
// that is not a test. A package that is not listed is a failure: a new one
// states its place here.
var allowed = map[string][]string{
	"internal/base/wire":         {"internal/base/crc32c"},
	"internal/base/reliable":     {},
	"internal/base/secure":       {},
	"hugepages":                  {},
	"memreg":                     {},
	"bpf":                        {"internal/base/fds"},
	"xdpnic":                     {"internal/base/termsafe", "internal/base/ordered"},
	"xdpnic/xdpnictest":          {"xdpnic", "internal/base/gso", "internal/base/wire"},
	"internal/agent/kagent":      {"bpf", "hugepages", "internal/base/steer", "internal/base/wire", "xdpnic"},
	"internal/agent/connmgr":     {"internal/agent/kagent", "internal/base/ration", "internal/base/wire"},
	"internal/agent/route":       {"internal/agent/kagent", "internal/base/ration", "internal/base/wire"},
	"internal/agent/ctrlport":    {"internal/agent/connmgr", "internal/agent/kagent", "internal/base/fds", "internal/base/termsafe", "internal/base/wire"},
	"internal/agent/device":      {"bpf", "hugepages", "internal/agent/connmgr", "internal/agent/ctrlport", "internal/agent/fdstore", "internal/agent/kagent", "internal/agent/route", "internal/base/fds", "internal/base/shmlink", "internal/base/steer", "internal/base/termsafe", "internal/base/thread", "internal/base/wire", "xdpnic"},
	"internal/agent/provider":    {"bpf", "hugepages", "internal/agent/kagent", "internal/base/gso", "internal/base/secure", "xdpnic"},
	"internal/agent/kagenttest":  {"internal/agent/connmgr", "internal/agent/kagent", "internal/base/wire"},
	"vipl":                       {"hugepages", "internal/agent/agentclient", "internal/agent/device", "internal/agent/agentproto", "internal/agent/kagent", "internal/agent/provider", "internal/base/fds", "internal/base/gso", "internal/base/names", "internal/base/ordered", "internal/base/programs", "internal/base/reliable", "internal/base/rundir", "internal/base/secure", "internal/base/shmlink", "internal/base/thread", "internal/base/tsc", "internal/base/wire", "memreg", "xdpnic"},
	"internal/base/gso":          {"internal/base/thread"},
	"internal/base/shmlink":      {},
	"internal/agent/fdstore":     {"internal/base/fds", "internal/base/rundir"},
	"internal/agent/agentproto":  {"internal/base/fds", "bpf", "hugepages", "internal/agent/kagent", "internal/base/wire", "xdpnic"},
	"internal/agent/agentclient": {"internal/base/fds", "internal/base/rundir", "internal/base/thread", "bpf", "hugepages", "internal/agent/kagent", "internal/agent/agentproto", "internal/base/wire", "xdpnic"},
	"internal/agent/agentd":      {"internal/agent/device", "internal/base/fds", "internal/base/termsafe", "internal/base/thread", "internal/base/rundir", "internal/agent/kagent", "internal/agent/agentproto", "internal/agent/fdstore", "internal/base/wire", "xdpnic"},
	"vipl/vipltest":              {"vipl"},
	"internal/base/tsc":          {},
	"internal/base/termsafe":     {},
	"internal/base/fds":          {},
	"internal/base/ration":       {},
	"internal/base/crc32c":       {},
	"internal/base/ordered":      {},
	"internal/base/names":        {},
	"internal/base/rundir":       {},
	"internal/base/programs":     {"internal/base/fds", "internal/base/termsafe", "internal/base/rundir"},
	"internal/ops/capture":       {"internal/base/programs", "internal/base/wire"},
	"internal/lab/pairtest":      {"internal/lab/nstest", "vipl"},
	"internal/lab/openmpi":       {"internal/lab/testbed"},
	"internal/lab/cprogram":      {"internal/agent/agentclient", "internal/lab/await", "internal/lab/nstest"},
	"internal/lab/memorynic":     {"hugepages", "internal/agent/kagent", "internal/agent/kagenttest", "internal/agent/provider", "internal/base/wire", "internal/lab/nstest", "vipl", "xdpnic/xdpnictest"},
	"internal/lab/fail":          {},
	"internal/lab/fabric":        {"hugepages", "internal/agent/kagent", "internal/agent/kagenttest", "internal/agent/provider", "internal/lab/fail", "vipl", "xdpnic/xdpnictest"},
	"internal/ops/status":        {"internal/ops/capture", "internal/base/fds", "internal/base/termsafe", "internal/base/programs", "vipl", "xdpnic"},
	"internal/ops/ping":          {"internal/base/wire"},
	"internal/ops/trace":         {"internal/agent/device", "internal/agent/kagent", "internal/agent/provider", "vipl", "xdpnic"},
	"internal/ops/tune":          {"internal/ops/doctor", "internal/ops/undo", "internal/agent/kagent"},
	"internal/ops/inspect":       {"bpf", "internal/lab/testbed", "xdpnic"},
	"internal/ops/doctor":        {"bpf", "internal/base/termsafe", "internal/ops/undo", "internal/agent/kagent", "internal/agent/agentclient", "internal/base/wire", "xdpnic"},
	"internal/ops/undo":          {"internal/base/termsafe", "internal/base/rundir", "internal/base/thread"},
	"internal/lab/nstest":        {"internal/base/thread", "internal/lab/veth"},
	"internal/base/thread":       {},
	"internal/lab/await":         {},
	"internal/lab/schedlat":      {},
	"internal/lab/testsize":      {},
	"internal/base/steer":        {},
	"internal/ops/support":       {"internal/base/steer"},
	"internal/lab/testbed":       {"hugepages", "internal/base/rundir", "internal/base/thread", "internal/lab/fail", "internal/lab/veth"},
	"internal/lab/veth":          {"internal/base/thread"},
	"internal/ops/mpirun":        {"internal/lab/testbed", "mvich/pmi"},
	"internal/lab/torture":       {"bpf", "hugepages", "internal/agent/agentclient", "internal/agent/agentd", "internal/agent/device", "internal/agent/kagent", "internal/agent/kagenttest", "internal/agent/provider", "internal/base/gso", "internal/base/wire", "internal/lab/fail", "internal/lab/schedlat", "internal/lab/testbed", "internal/lab/veth", "vianet", "vipl", "xdpnic", "xdpnic/xdpnictest"},
	"internal/ops/proxy":         {"vianet"},
	"internal/layers":            {},
	"internal/docs":              {},
	"bench":                      {"internal/lab/fail", "bpf", "hugepages", "internal/lab/testbed", "internal/agent/kagent", "vianet", "vipl", "internal/base/wire", "xdpnic"},
	"bench/mpich":                {"internal/lab/fail", "internal/ops/mpirun", "internal/lab/openmpi", "internal/lab/testbed"},
	"bench/peers":                {"internal/lab/fail", "internal/lab/testbed"},
	"bench/report":               {"internal/lab/fail", "bench", "internal/base/termsafe"},
	"bench/suite":                {"internal/lab/fail", "bench", "bench/mpich", "bench/peers", "bench/report", "internal/lab/fabric", "internal/lab/openmpi", "internal/lab/testbed", "mvich/mpibench"},
	"examples":                   {},
	"examples/internal/side":     {"vipl"},
	"examples/manyvis":           {"examples/internal/side", "vipl"},
	"examples/notify":            {"examples/internal/side", "vipl"},
	"examples/pingpong":          {"vipl"},
	"examples/rdmaread":          {"examples/internal/side", "vipl"},
	"examples/rdmawrite":         {"examples/internal/side", "vipl"},
	"examples/rod":               {"mvich", "mvich/pmi", "vipl"},
	"examples/stream":            {"examples/internal/side", "vipl"},
	"examples/web":               {"vianet", "vipl"},
	"cmd/via-xdp":                {"bench", "bench/peers", "bench/report", "bench/suite", "bpf", "internal/ops/capture", "internal/ops/status", "internal/ops/doctor", "internal/ops/inspect", "internal/ops/mpirun", "internal/ops/ping", "internal/base/programs", "internal/ops/proxy", "internal/base/rundir", "internal/ops/support", "internal/lab/testbed", "internal/base/termsafe", "internal/base/thread", "internal/lab/torture", "internal/ops/trace", "internal/ops/tune", "internal/ops/undo", "internal/agent/kagent", "internal/agent/agentclient", "internal/agent/agentd", "internal/agent/fdstore", "mvich", "mvich/mpiapps", "mvich/mpibench", "mvich/pmi", "vianet", "vipl", "internal/base/wire", "xdpnic"},
	"cmd/libvipl":                {"cmd/libvipl/bigstack", "hugepages", "internal/agent/kagent", "vipl", "xdpnic"},
	"cmd/libfabric":              {},
	"cmd/libvipl/bigstack":       {},
	"cmd/libvipl/manpages":       {},
	"vianet":                     {"internal/base/thread", "vipl"},
	"mvich":                      {"mvich/pmi", "vipl"},
	"mvich/pmi":                  {},
	"mvich/mpibench":             {"mvich"},
	"mvich/mpiapps":              {"mvich"},
	"internal/lab/vm":            {"bench", "internal/lab/fail", "internal/ops/inspect", "internal/lab/vm/plan"},
	"internal/lab/vm/guest":      {"internal/lab/fail", "internal/lab/schedlat", "internal/base/thread", "internal/lab/veth", "internal/lab/vm/plan"},
	"internal/lab/vm/plan":       {},
}

// floors are the floors of the repository, from the ground up, each with the folders on it. A
// package belongs to the longest folder that it is in, and imports none from above.
var floors = [][]string{
	{"internal/base"},                        // what the library stands on
	{"bpf", "hugepages", "memreg", "xdpnic"}, // the kernel's face: programs, memory, rings
	{"internal/agent"},                       // interfaces, connections, the agent
	{"vipl"},                                 // VIs
	{"mvich", "vianet"},                      // messages and sockets over them
	{"internal/lab"},                         // beds, faults, helpers of tests
	{"internal/ops"},                         // what operators run
	{"bench"},                                // measurements
	{"cmd", "examples", "internal/lab/vm"},   // programs
	{"internal/layers", "internal/docs"},     // these tests, of no floor
}

// floor is the floor of a package, -1 if it has none.
func floor(pkg string) int {
	at, longest := -1, 0
	for n, folders := range floors {
		for _, f := range folders {
			if (pkg == f || strings.HasPrefix(pkg, f+"/")) && len(f) > longest {
				at, longest = n, len(f)
			}
		}
	}
	return at
}

// What the table allows leads down, or stays on a floor.
func TestFloors(t *testing.T) {
	for pkg, imports := range allowed {
		nstest.ErrorIf(t, floor(pkg) < 0, "%s is on no floor", pkg)
		for _, imp := range imports {
			nstest.ErrorIf(t, floor(imp) > floor(pkg), "%s imports %s from a floor above", pkg, imp)
		}
	}
}

// pure packages make no system call and need no other module.
var pure = []string{"internal/base/wire", "internal/base/reliable", "internal/base/secure", "internal/agent/connmgr"}

type listed struct {
	ImportPath string
	Imports    []string
	Standard   bool
}

func TestLayers(t *testing.T) {
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports", module+"/...").Output()
	nstest.FatalIf(t, err != nil, "go list: %v", err)
	dec := json.NewDecoder(strings.NewReader(string(out)))
	seen := 0
	for {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		seen++
		name := strings.TrimPrefix(p.ImportPath, module+"/")
		may, ok := allowed[name]
		if !ok {
			t.Errorf("package %s has no place in the layers: add it to the table", name)
			continue
		}
		for _, imp := range p.Imports {
			if own, ok := strings.CutPrefix(imp, module+"/"); ok {
				nstest.ErrorIf(t, !slices.Contains(may, own), "%s imports %s", name, own)
				continue
			}
			if slices.Contains(pure, name) && (strings.Contains(imp, ".") || imp == "syscall" || imp == "os" || imp == "net") {
				t.Errorf("%s is pure and imports %s", name, imp)
			}
		}
	}
	nstest.ErrorIf(t, seen < 10, "go list knows only %d packages: the rule was not tested", seen)
}

// goFiles calls f for each Go file of the repository.
func goFiles(t *testing.T, mode parser.Mode, f func(path string, fset *token.FileSet, file *ast.File)) {
	t.Helper()
	files := 0
	nstest.Must(t, filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" {
			return err
		}
		files++
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, nil, mode)
		if err == nil {
			f(path, fset, file)
		}
		return err
	}))
	nstest.ErrorIf(t, files < 100, "%d files: they were not found", files)
}

// Only files whose names end in _unsafe bypass Go's types, and cmd/libvipl, which is
// half in C.
func TestUnsafe(t *testing.T) {
	found := 0
	goFiles(t, parser.ImportsOnly, func(path string, _ *token.FileSet, f *ast.File) {
		name := strings.TrimSuffix(strings.TrimSuffix(path, ".go"), "_test")
		for _, i := range f.Imports {
			if i.Path.Value != `"unsafe"` {
				continue
			}
			found++
			nstest.ErrorIf(t, !strings.HasSuffix(name, "_unsafe") && filepath.Dir(path) != "../../cmd/libvipl",
				"%s imports unsafe: what needs it belongs in a file *_unsafe.go", path)
		}
	})
	nstest.ErrorIf(t, found < 10, "%d files import unsafe: they were not found", found)
}

// asCI is how .ci/run finds a target.
var asCI = regexp.MustCompile(`(?m)^func (Fuzz[A-Z][A-Za-z0-9_]*)\(`)

// .ci/run finds the fuzz targets by their text, and go test -fuzz succeeds without a target. So every match
// must be a target that is built, and every target must match. Each has a corpus, with which go test tries
// it at any time.
func TestFuzzTargets(t *testing.T) {
	targets := 0
	goFiles(t, parser.SkipObjectResolution, func(path string, _ *token.FileSet, f *ast.File) {
		text, err := os.ReadFile(path)
		nstest.Must(t, err)
		found := map[string]bool{}
		for _, m := range asCI.FindAllSubmatch(text, -1) {
			found[string(m[1])] = true
		}
		here := len(found)
		for _, decl := range f.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || !isTarget(fn) {
				continue
			}
			here++
			nstest.ErrorIf(t, !found[fn.Name.Name], "%s: .ci/run does not find %s", path, fn.Name.Name)
			if corpus, err := os.ReadDir(filepath.Join(filepath.Dir(path), "testdata", "fuzz", fn.Name.Name)); len(corpus) == 0 {
				t.Errorf("%s: no corpus of %s is committed: %v", path, fn.Name.Name, err)
			}
			delete(found, fn.Name.Name)
			targets++
		}
		for name := range found {
			t.Errorf("%s: %s is no fuzz target", path, name)
		}
		if built, err := build.Default.MatchFile(filepath.Split(path)); here > 0 && (err != nil || !built || !strings.HasSuffix(path, "_test.go")) {
			t.Errorf("%s: its fuzz targets are not built by go test (%v)", path, err)
		}
	})
	nstest.ErrorIf(t, targets == 0, "no fuzz targets were found")
}

// .ci/run must not go on without its check of what the race detector leaves out, if go list fails since a package
// was moved.
func TestRacedIsChecked(t *testing.T) {
	script, err := os.ReadFile("../../.ci/run")
	nstest.Must(t, err)
	head, _, found := strings.Cut(string(script), "# go test with flags of packages")
	nstest.FatalIf(t, !found || !strings.Contains(head, "raced() {"), "raced was not found in .ci/run")
	bash, err := exec.LookPath("bash")
	if err != nil {
		nstest.Lacks(t, "there is no bash")
	}
	path := filepath.Join(t.TempDir(), "run")
	for list, want := range map[string]bool{"echo viaxdp/vipl": true, `[ "$2" != -f ] && echo viaxdp/vipl`: false} {
		nstest.Must(t, os.WriteFile(path, []byte(head+"go() { "+list+"; }\npackages=$(raced)\n"), 0o600))
		out, err := exec.Command(bash, path).CombinedOutput()
		nstest.ErrorIf(t, (err == nil) != want, "go list is %q: %v, want success %v\n%s", list, err, want, out)
	}
}

// isTarget reports whether fn is a fuzz target, not a helper of one.
func isTarget(fn *ast.FuncDecl) bool {
	if fn.Recv != nil || !strings.HasPrefix(fn.Name.Name, "Fuzz") || len(fn.Type.Params.List) != 1 {
		return false
	}
	star, ok := fn.Type.Params.List[0].Type.(*ast.StarExpr)
	if !ok {
		return false
	}
	sel, ok := star.X.(*ast.SelectorExpr)
	return ok && sel.Sel.Name == "F"
}

// privateWords are former terms of this project that the field has other names for;
// docs/glossary.md has the terms.
var privateWords = strings.Fields(`bury census crowd crowded deaf debt debts dice doubt doubts fallen fate grave keeper
	lane lanes lend lends lent nonsense obey party parties passage patience shelf vault voided`)

var camel = regexp.MustCompile(`[A-Z]+(?:[a-z0-9]+|$)|[a-z0-9]+|[A-Z]+`)

// No identifier that is declared has a private word among its parts.
func TestWords(t *testing.T) {
	declared := 0
	goFiles(t, 0, func(_ string, fset *token.FileSet, f *ast.File) {
		check := func(names ...*ast.Ident) {
			for _, id := range names {
				declared++
				for _, part := range camel.FindAllString(id.Name, -1) {
					if slices.Contains(privateWords, strings.ToLower(part)) {
						t.Errorf("%v: %s: take the field's word for %q (docs/glossary.md)", fset.Position(id.Pos()), id.Name, part)
					}
				}
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				check(n.Name)
			case *ast.TypeSpec:
				check(n.Name)
			case *ast.Field:
				check(n.Names...)
			case *ast.ValueSpec:
				check(n.Names...)
			}
			return true
		})
	})
	nstest.ErrorIf(t, declared < 10_000, "%d identifiers: they were not found", declared)
}

// A reader of ARCHITECTURE.md's tables finds each function in the file
// that is named with it: the steps of a message, and where goroutines start.
func TestWhereThingsAre(t *testing.T) {
	text, err := os.ReadFile("../../ARCHITECTURE.md")
	nstest.Must(t, err)
	quoted := regexp.MustCompile("`([^`]+)`")
	found := 0
	for _, row := range tableRows(string(text), "| # | step | where |", "| goroutine | one per | started in | ends with |") {
		file, source := "", ""
		for _, q := range quoted.FindAllStringSubmatch(row[2], -1) {
			name := q[1]
			switch ext := path.Ext(name); {
			case ext == ".go" || ext == ".c":
				if path.Dir(name) == "." {
					name = path.Join(path.Dir(file), name) // beside the one before
				}
				b, err := os.ReadFile(filepath.Join("../..", name))
				if err != nil {
					t.Errorf("%s: %v", row[0], err)
				}
				file, source = name, string(b)
			case strings.Contains(name, "/"): // a package
			default:
				found++
				_, method, isMethod := strings.Cut(name, ".")
				if !isMethod {
					method = name
				}
				if !regexp.MustCompile(`(?m)^func (\([^)]*\) )?` + regexp.QuoteMeta(method) + `\b`).MatchString(source) {
					t.Errorf("%s: %s is not in %s", row[0], name, file)
				}
			}
		}
	}
	nstest.ErrorIf(t, found < 40, "%d functions in the tables: they are not read", found)
}

// tableRows are the rows of the Markdown tables with these heads, by cells.
func tableRows(text string, heads ...string) (rows [][]string) {
	for _, head := range heads {
		_, body, _ := strings.Cut(text, head+"\n")
		for _, line := range strings.Split(body, "\n")[1:] {
			if !strings.HasPrefix(line, "|") {
				break
			}
			cells := strings.Split(strings.Trim(line, "| "), "|")
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			rows = append(rows, cells)
		}
	}
	return rows
}
