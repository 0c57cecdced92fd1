package layers

import (
	"go/types"
	"strings"
	"testing"

	"golang.org/x/tools/go/packages"

	"viaxdp/internal/lab/nstest"
)

// A program can name all types that the packages it imports use: no exported declaration has
// a type of internal/.
func TestAPINamesNoInternalType(t *testing.T) {
	pkgs, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedImports | packages.NeedTypes | packages.NeedExportFile, Dir: "../..",
	}, "./bpf", "./hugepages", "./memreg", "./mvich", "./vianet", "./vipl", "./xdpnic")
	nstest.Must(t, err)
	declared := 0
	for _, p := range pkgs {
		if len(p.Errors) > 0 {
			t.Fatal(p.Errors[0])
		}
		scope := p.Types.Scope()
		for _, name := range scope.Names() {
			o := scope.Lookup(name)
			if !o.Exported() {
				continue
			}
			declared++
			foreign := func(typ *types.TypeName) {
				if typ.Pkg() != nil && strings.HasPrefix(typ.Pkg().Path(), module+"/internal/") {
					t.Errorf("%s.%s: %s.%s is in an exported declaration", p.Name, name, typ.Pkg().Name(), typ.Name())
				}
			}
			named, isNamed := o.Type().(*types.Named)
			if _, isType := o.(*types.TypeName); !isType || !isNamed {
				namedTypes(o.Type(), foreign)
				continue
			}
			namedTypes(named.Underlying(), foreign)
			for m := range named.Methods() {
				if m.Exported() {
					declared++
					namedTypes(m.Type(), foreign)
				}
			}
		}
	}
	nstest.ErrorIf(t, declared < 300, "%d exported declarations: they were not found", declared)
}

// namedTypes calls f for each named type in t that a program can see: fields and methods that are not exported, and
// what a named type is made of, are left out.
func namedTypes(t types.Type, f func(*types.TypeName)) {
	switch t := types.Unalias(t).(type) {
	case *types.Named:
		f(t.Obj())
		for arg := range t.TypeArgs().Types() {
			namedTypes(arg, f)
		}
	case *types.Map:
		namedTypes(t.Key(), f)
		namedTypes(t.Elem(), f)
	case interface{ Elem() types.Type }: // pointers, slices, arrays, channels
		namedTypes(t.Elem(), f)
	case *types.Signature:
		for param := range t.TypeParams().TypeParams() {
			namedTypes(param.Constraint(), f)
		}
		for _, list := range []*types.Tuple{t.Params(), t.Results()} {
			for v := range list.Variables() {
				namedTypes(v.Type(), f)
			}
		}
	case *types.Struct:
		for field := range t.Fields() {
			if field.Exported() || field.Embedded() {
				namedTypes(field.Type(), f)
			}
		}
	case *types.Interface:
		for m := range t.ExplicitMethods() {
			if m.Exported() {
				namedTypes(m.Type(), f)
			}
		}
		for e := range t.EmbeddedTypes() {
			namedTypes(e, f)
		}
	case *types.Union:
		for term := range t.Terms() {
			namedTypes(term.Type(), f)
		}
	}
}
