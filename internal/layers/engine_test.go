package layers

import (
	"go/ast"
	"go/token"
	"go/types"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/tools/go/packages"

	"viaxdp/internal/lab/nstest"
)

// engine returns package vipl with its types.
var engine = sync.OnceValues(func() (*packages.Package, error) {
	pkgs, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedImports | packages.NeedSyntax | packages.NeedTypes | packages.NeedTypesInfo,
		Dir:  "../../vipl",
	}, ".")
	if err != nil {
		return nil, err
	}
	if len(pkgs[0].Errors) > 0 {
		return nil, pkgs[0].Errors[0]
	}
	return pkgs[0], nil
})

func loadEngine(t *testing.T) *packages.Package {
	t.Helper()
	p, err := engine()
	nstest.Must(t, err)
	return p
}

// parts are the types that hold the state of the port and of a connection.
var parts = strings.Fields(`readyList coalescer connBatch loopback shmLinks keptFrames sealBuffer viTable doorbell
	longFrames receiver reorderBuffer ackList connAck pollPause poller shares iface connRDMA refusal ending
	gsoSender gsoReceiver connGSO`)

// A part's fields are changed in its own file only; the rest of the engine calls its methods.
func TestParts(t *testing.T) {
	p := loadEngine(t)
	home := map[types.Object]string{} // a field: the file of its type
	isPart := map[types.Type]bool{}
	for _, name := range parts {
		o := p.Types.Scope().Lookup(name)
		if o == nil {
			t.Fatalf("vipl has no type %s", name)
		}
		isPart[o.Type()] = true
		s := o.Type().Underlying().(*types.Struct)
		for i := range s.NumFields() {
			home[s.Field(i)] = p.Fset.Position(o.Pos()).Filename
		}
	}
	changes := 0
	for _, file := range p.Syntax {
		name := p.Fset.Position(file.Pos()).Filename
		if filepath.Base(name) == "watch_unsafe.go" { // it gives out the addresses of counters
			continue
		}
		changed := func(e ast.Expr) {
			for {
				switch x := e.(type) {
				case *ast.IndexExpr:
					e = x.X
				case *ast.StarExpr:
					e = x.X
				case *ast.ParenExpr:
					e = x.X
				case *ast.SelectorExpr:
					field := p.TypesInfo.Uses[x.Sel]
					if file, ok := home[field]; ok && !isPart[field.Type()] {
						if changes++; file != name {
							t.Errorf("%v: %s is changed outside of %s", p.Fset.Position(x.Pos()), x.Sel.Name, filepath.Base(file))
						}
						return
					}
					e = x.X
				default:
					return
				}
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.AssignStmt:
				for _, e := range n.Lhs {
					changed(e)
				}
			case *ast.IncDecStmt:
				changed(n.X)
			case *ast.UnaryExpr:
				if n.Op == token.AND {
					changed(n.X)
				}
			case *ast.CallExpr:
				if f, ok := n.Fun.(*ast.SelectorExpr); ok && strings.Contains(" Store Add Swap CompareAndSwap ", " "+f.Sel.Name+" ") {
					changed(f.X)
				}
			}
			return true
		})
	}
	nstest.ErrorIf(t, changes < 100, "%d changes of parts: they were not found", changes)
}

// The port's struct stays short: new state belongs to a part.
func TestPortIsShort(t *testing.T) {
	p := loadEngine(t)
	o := p.Types.Scope().Lookup("port")
	if n := o.Type().Underlying().(*types.Struct).NumFields(); n > 25 {
		t.Errorf("port has %d fields, at most 25", n)
	}
}
