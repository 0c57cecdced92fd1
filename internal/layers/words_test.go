package layers

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"viaxdp/internal/lab/nstest"
)

// privateWords are former terms of this project that the field has other names for;
// docs/glossary.md has the terms.
var privateWords = strings.Fields(`bury census crowd crowded deaf debt debts dice doubt doubts fallen fate grave keeper
	lane lanes lend lends lent nonsense obey party parties passage patience shelf vault voided`)

var camel = regexp.MustCompile(`[A-Z]+(?:[a-z0-9]+|$)|[a-z0-9]+|[A-Z]+`)

// No identifier that is declared has a private word among its parts.
func TestWords(t *testing.T) {
	declared := 0
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" {
			return err
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, path, nil, 0)
		if err != nil {
			return err
		}
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
		return nil
	})
	nstest.Must(t, err)
	if declared < 10_000 {
		t.Errorf("%d identifiers: they were not found", declared)
	}
}
