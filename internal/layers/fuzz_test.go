package layers

import (
	"bytes"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// asCI is how .ci/run finds a target.
var asCI = regexp.MustCompile(`(?m)^func (Fuzz[A-Z][A-Za-z0-9_]*)\(`)

// .ci/run finds the fuzz targets by their text, and go test -fuzz succeeds without a target. So every match
// must be a target that is built, and every target must match. Each has a corpus, with which go test tries
// it at any time.
func TestFuzzTargets(t *testing.T) {
	targets := 0
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(text, []byte("*testing.F")) && !asCI.Match(text) {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, text, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		found := map[string]bool{}
		for _, m := range asCI.FindAllSubmatch(text, -1) {
			found[string(m[1])] = true
		}
		for _, decl := range f.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || !isTarget(fn) {
				continue
			}
			if !found[fn.Name.Name] {
				t.Errorf("%s: .ci/run does not find %s", path, fn.Name.Name)
			}
			if corpus, err := os.ReadDir(filepath.Join(filepath.Dir(path), "testdata", "fuzz", fn.Name.Name)); len(corpus) == 0 {
				t.Errorf("%s: no corpus of %s is committed: %v", path, fn.Name.Name, err)
			}
			delete(found, fn.Name.Name)
			targets++
		}
		for name := range found {
			t.Errorf("%s: %s is no fuzz target", path, name)
		}
		if built, err := build.Default.MatchFile(filepath.Split(path)); err != nil || !built || !strings.HasSuffix(path, "_test.go") {
			t.Errorf("%s: its fuzz targets are not built by go test (%v)", path, err)
		}
		return nil
	})
	if err != nil || targets == 0 {
		t.Fatalf("%d targets: %v", targets, err)
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
