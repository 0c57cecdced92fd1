package layers

import (
	"go/ast"
	"go/token"
	"go/types"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/tools/go/packages"

	"viaxdp/internal/lab/nstest"
)

// unlocked are fields of the port and of a connection that no lock guards: they never change once the object is
// shared, or have a guard of their own.
var unlocked = map[string]string{
	"port.mu": "the lock", "port.nic": "", "port.mem": "", "port.now": "", "port.zeroCopy": "", "port.silence": "",
	"port.id": "set before the handle is returned", "poller.cpuTime": "", "poller.sleeping": "a channel",
	"poller.roused": "a channel", "poller.closed": "a channel", "poller.stopped": "a wait group", "conn.vi": "", "conn.loop": "",
	"conn.key": "", "conn.peer": "", "conn.template": "", "conn.payload": "", "conn.inChunk": "", "conn.inPack": "",
	"conn.secure": "", "conn.overhead": "", "conn.bare": "", "conn.packs": "",
	"ending.signal": "guards itself", "conn.sender": "the pointer is set by newConn", "conn.source": "set by newConn",
}

// constructors work on objects that no other goroutine has yet, so they need no lock.
var constructors = []string{"newPort", "newConn"}

// takesIf are functions that return true with the lock held.
var takesIf = []string{"TryLock", "lockReady"}

// Each access to the engine's state happens under the port's lock. The test follows the control flow of every
// function. It checks that the lock is held at each access, and at each call of a function that needs the lock.
// A function may leave that to its callers, but not an exported function, a goroutine or a handler. The test
// also finds functions that take the lock twice.
func TestLocks(t *testing.T) {
	p := loadEngine(t)
	a := &lockAnalysis{info: p.TypesInfo, guarded: map[types.Object]bool{}, funcs: map[types.Object]*lockFunc{}}
	for _, name := range append([]string{"port", "conn"}, parts...) {
		s := p.Types.Scope().Lookup(name).Type().Underlying().(*types.Struct)
		for i := range s.NumFields() {
			f := s.Field(i)
			if _, free := unlocked[name+"."+f.Name()]; free || isAtomic(f.Type()) {
				if name == "port" && f.Name() == "mu" {
					a.mu = f
				}
				continue
			}
			if !slices.Contains(parts, typeName(f.Type())) { // a part's own fields are looked at
				a.guarded[f] = true
			}
		}
	}
	nstest.ErrorIf(t, len(a.guarded) < 90, "%d guarded fields: they were not found", len(a.guarded))
	for _, file := range p.Syntax {
		for _, d := range file.Decls {
			if d, ok := d.(*ast.FuncDecl); ok && d.Body != nil && !slices.Contains(constructors, d.Name.Name) {
				o := p.TypesInfo.Defs[d.Name]
				a.function(o, d.Body, o.Exported() && exportedMethod(o))
			}
		}
	}
	a.propagate()
	roots, locked := 0, 0
	for _, o := range slices.SortedFunc(maps.Keys(a.funcs), func(x, y types.Object) int { return int(x.Pos() - y.Pos()) }) {
		f := a.funcs[o]
		if f.root {
			roots++
		}
		if f.needs == nil {
			continue
		}
		locked++
		if f.root {
			t.Errorf("%v: %s needs the port's lock: %s", p.Fset.Position(f.needs.at), o.Name(), f.needs.what)
		}
	}
	for _, c := range a.heldCalls {
		if g := a.funcs[c.callee]; g != nil && g.takes {
			t.Errorf("%v: %s is called with the port's lock held, and takes it", p.Fset.Position(c.at), c.callee.Name())
		}
	}
	nstest.ErrorIf(t, roots < 60 || locked < 80,
		"%d functions without callers, %d that need the lock: they were not found", roots, locked)
}

// exportedMethod reports whether a function is none of a type that is not exported.
func exportedMethod(o types.Object) bool {
	recv := o.(*types.Func).Signature().Recv()
	if recv == nil {
		return true
	}
	t := recv.Type()
	if p, ok := t.(*types.Pointer); ok {
		t = p.Elem()
	}
	return ast.IsExported(typeName(t))
}

func typeName(t types.Type) string {
	if n, ok := t.(*types.Named); ok {
		return n.Obj().Name()
	}
	return ""
}

// isAtomic reports whether fields of type t are read and written without a lock.
func isAtomic(t types.Type) bool {
	n, ok := t.(*types.Named)
	if !ok || n.Obj().Pkg() == nil {
		return false
	}
	return n.Obj().Pkg().Path() == "sync/atomic" || n.Obj().Pkg().Name() == "ordered"
}

type lockNeed struct {
	at   token.Pos
	what string
}

type lockCall struct {
	callee types.Object
	at     token.Pos
}

// lockFunc is what one function does with the lock.
type lockFunc struct {
	root  bool       // no function calls it with the lock
	needs *lockNeed  // it accesses the state without taking the lock
	takes bool       // it takes the lock, when called without
	calls []lockCall // calls while the lock is not taken
}

type lockAnalysis struct {
	info      *types.Info
	mu        types.Object
	guarded   map[types.Object]bool
	funcs     map[types.Object]*lockFunc
	heldCalls []lockCall // calls while a function itself holds the lock
}

// function follows a function. The lock counts as taken where the function itself has taken it.
func (a *lockAnalysis) function(o types.Object, body *ast.BlockStmt, root bool) {
	w := &lockWalk{lockAnalysis: a, f: &lockFunc{root: root}}
	a.funcs[o] = w.f
	w.block(body.List, false)
}

// propagate passes the needs of functions to those that call them without the lock.
func (a *lockAnalysis) propagate() {
	for changed := true; changed; {
		changed = false
		for _, f := range a.funcs {
			for _, c := range f.calls {
				g := a.funcs[c.callee]
				if g == nil {
					continue
				}
				if f.needs == nil && g.needs != nil {
					f.needs, changed = &lockNeed{c.at, "it calls " + c.callee.Name() + ": " + g.needs.what}, true
				}
				if !f.takes && g.takes {
					f.takes, changed = true, true
				}
			}
		}
	}
}

type lockWalk struct {
	*lockAnalysis
	f        *lockFunc
	released bool // it has released its caller's lock
}

// block follows statements and returns whether the lock is held behind them, and whether control gets there.
func (w *lockWalk) block(list []ast.Stmt, held bool) (after, ends bool) {
	for _, s := range list {
		if held, ends = w.stmt(s, held); ends {
			return held, true
		}
	}
	return held, false
}

func (w *lockWalk) stmt(s ast.Stmt, held bool) (after, ends bool) {
	switch s := s.(type) {
	case nil:
	case *ast.BlockStmt:
		return w.block(s.List, held)
	case *ast.LabeledStmt:
		return w.stmt(s.Stmt, held)
	case *ast.IfStmt:
		held, _ = w.stmt(s.Init, held)
		w.expr(s.Cond, held)
		then, otherwise := held, held
		if takes, negated := w.takesIf(s.Cond); takes && negated {
			otherwise = true
		} else if takes {
			then = true
		}
		a, aEnds := w.block(s.Body.List, then)
		b, bEnds := w.stmt(s.Else, otherwise)
		switch {
		case aEnds:
			return b, bEnds
		case bEnds:
			return a, false
		}
		return a && b, false
	case *ast.ForStmt:
		held, _ = w.stmt(s.Init, held)
		w.expr(s.Cond, held)
		after, _ := w.block(s.Body.List, held)
		w.stmt(s.Post, after)
		return held, s.Cond == nil && !hasBreak(s.Body)
	case *ast.RangeStmt:
		w.expr(s.X, held)
		w.block(s.Body.List, held)
	case *ast.SwitchStmt:
		held, _ = w.stmt(s.Init, held)
		w.expr(s.Tag, held)
		return w.clauses(s.Body, held)
	case *ast.TypeSwitchStmt:
		return w.clauses(s.Body, held)
	case *ast.SelectStmt:
		return w.clauses(s.Body, held)
	case *ast.ReturnStmt:
		for _, e := range s.Results {
			w.expr(e, held)
		}
		return held, true
	case *ast.BranchStmt:
		return held, s.Tok != token.FALLTHROUGH
	case *ast.GoStmt:
		w.expr(s.Call, false)
	case *ast.DeferStmt:
		if !w.isLock(s.Call, "Unlock") {
			w.expr(s.Call, held)
		}
	case *ast.ExprStmt:
		call, ok := s.X.(*ast.CallExpr)
		switch {
		case ok && w.isLock(call, "Lock"):
			if !held && !w.released {
				w.f.takes = true
			}
			return true, false
		case ok && w.isLock(call, "Unlock"):
			w.released = w.released || !held
			return false, false
		}
		w.expr(s.X, held)
	default:
		ast.Inspect(s, func(n ast.Node) bool {
			if e, ok := n.(ast.Expr); ok {
				w.expr(e, held)
				return false
			}
			return true
		})
	}
	return held, false
}

// clauses follows the clauses of a switch or select. Behind it the lock is held if it is behind each of them.
func (w *lockWalk) clauses(body *ast.BlockStmt, held bool) (after, ends bool) {
	after, ends = true, true
	hasDefault := false
	for _, c := range body.List {
		var list []ast.Stmt
		switch c := c.(type) {
		case *ast.CaseClause:
			hasDefault = hasDefault || c.List == nil
			for _, e := range c.List {
				w.expr(e, held)
			}
			list = c.Body
		case *ast.CommClause:
			hasDefault = true
			w.stmt(c.Comm, held)
			list = c.Body
		}
		if h, e := w.block(list, held); !e || hasBreak(&ast.BlockStmt{List: list}) {
			after, ends = after && h, false
		}
	}
	if !hasDefault {
		after, ends = after && held, false
	}
	return after, ends
}

// expr looks at the accesses and calls in an expression.
func (w *lockWalk) expr(e ast.Expr, held bool) {
	if e == nil {
		return
	}
	ast.Inspect(e, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit: // it runs later, without the lock
			w.function(types.NewFunc(n.Pos(), nil, "a function", nil), n.Body, true)
			return false
		case *ast.CallExpr:
			if f, ok := n.Fun.(*ast.SelectorExpr); ok && isIdent(f.X, "slices") { // this calls its arguments
				for _, arg := range n.Args {
					if lit, ok := arg.(*ast.FuncLit); ok {
						w.block(lit.Body.List, held)
						continue
					}
					w.expr(arg, held)
				}
				return false
			}
		case *ast.Ident:
			o := w.info.Uses[n]
			switch f, isFunc := o.(*types.Func); {
			case isFunc && held:
				w.heldCalls = append(w.heldCalls, lockCall{f.Origin(), n.Pos()})
			case isFunc:
				w.f.calls = append(w.f.calls, lockCall{f.Origin(), n.Pos()})
			case w.guarded[o] && !held && w.f.needs == nil:
				w.f.needs = &lockNeed{n.Pos(), "it accesses " + o.Name()}
			}
		}
		return true
	})
}

func isIdent(e ast.Expr, name string) bool {
	id, ok := e.(*ast.Ident)
	return ok && id.Name == name
}

func (w *lockWalk) isLock(call *ast.CallExpr, method string) bool {
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || f.Sel.Name != method {
		return false
	}
	x, ok := f.X.(*ast.SelectorExpr)
	return ok && w.info.Uses[x.Sel] == w.mu
}

// takesIf reports whether a condition takes the lock: where it is true or, negated, where it is false.
func (w *lockWalk) takesIf(cond ast.Expr) (takes, negated bool) {
	ast.Inspect(cond, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.UnaryExpr:
			if n.Op == token.NOT {
				if t, _ := w.takesIf(n.X); t {
					takes, negated = true, true
					return false
				}
			}
		case *ast.CallExpr:
			if f, ok := n.Fun.(*ast.SelectorExpr); ok && slices.Contains(takesIf, f.Sel.Name) {
				takes = true
			}
		}
		return true
	})
	return takes, negated
}

// hasBreak reports whether a statement leaves the loop, switch or select with the given body.
func hasBreak(body *ast.BlockStmt) (found bool) {
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit, *ast.ForStmt, *ast.RangeStmt, *ast.SwitchStmt, *ast.SelectStmt, *ast.TypeSwitchStmt:
			return false
		case *ast.BranchStmt:
			found = found || n.Tok == token.BREAK
		}
		return true
	})
	return found
}

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
		nstest.FatalIf(t, o == nil, "vipl has no type %s", name)
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
