package layers

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"viaxdp/internal/lab/nstest"
)

// A program can name all types that the packages it imports use: no exported declaration has
// a type of internal/.
func TestAPINamesNoInternalType(t *testing.T) {
	declared := 0
	for _, pkg := range []string{"bpf", "hugepages", "memreg", "mvich", "vianet", "vipl", "xdpnic"} {
		files, err := filepath.Glob("../../" + pkg + "/*.go")
		nstest.Must(t, err)
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			fset := token.NewFileSet()
			f, err := parser.ParseFile(fset, name, nil, 0)
			nstest.Must(t, err)
			internal := map[string]bool{}
			for _, imp := range f.Imports {
				path, _ := strconv.Unquote(imp.Path.Value)
				if strings.HasPrefix(path, module+"/internal/") {
					internal[path[strings.LastIndex(path, "/")+1:]] = true
				}
			}
			check := func(e ast.Node) {
				ast.Inspect(e, func(n ast.Node) bool {
					if field, ok := n.(*ast.Field); ok && len(field.Names) > 0 && !anyExported(field.Names) && isStructField(e) {
						return false
					}
					if sel, ok := n.(*ast.SelectorExpr); ok {
						if x, ok := sel.X.(*ast.Ident); ok && internal[x.Name] {
							t.Errorf("%v: %s.%s is in an exported declaration", fset.Position(sel.Pos()), x.Name, sel.Sel.Name)
						}
					}
					return true
				})
			}
			for _, d := range f.Decls {
				switch d := d.(type) {
				case *ast.FuncDecl:
					if d.Name.IsExported() && (d.Recv == nil || exportedReceiver(d.Recv.List[0].Type)) {
						declared++
						check(d.Type)
					}
				case *ast.GenDecl:
					for _, spec := range d.Specs {
						switch s := spec.(type) {
						case *ast.TypeSpec:
							if s.Name.IsExported() {
								declared++
								check(s.Type)
							}
						case *ast.ValueSpec:
							if anyExported(s.Names) && s.Type != nil {
								declared++
								check(s.Type)
							}
						}
					}
				}
			}
		}
	}
	nstest.ErrorIf(t, declared < 300, "%d exported declarations: they were not found", declared)
}

func anyExported(names []*ast.Ident) bool {
	for _, n := range names {
		if n.IsExported() {
			return true
		}
	}
	return false
}

// isStructField reports whether fields in e can be hidden: those of structures and interfaces
// can, parameters cannot.
func isStructField(e ast.Node) bool {
	switch e.(type) {
	case *ast.StructType, *ast.InterfaceType:
		return true
	}
	return false
}

func exportedReceiver(e ast.Expr) bool {
	for {
		switch x := e.(type) {
		case *ast.StarExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.Ident:
			return x.IsExported()
		default:
			return false
		}
	}
}
