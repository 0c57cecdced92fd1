package layers

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"viaxdp/internal/lab/nstest"
)

// Only files whose names end in _unsafe bypass Go's types, and cmd/libvipl, which is
// half in C.
func TestUnsafe(t *testing.T) {
	const root = "../.."
	found := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		name := strings.TrimSuffix(strings.TrimSuffix(path, ".go"), "_test")
		for _, i := range f.Imports {
			if i.Path.Value != `"unsafe"` {
				continue
			}
			found++
			if !strings.HasSuffix(name, "_unsafe") && filepath.Dir(path) != filepath.Join(root, "cmd/libvipl") {
				t.Errorf("%s imports unsafe: what needs it belongs in a file *_unsafe.go", path)
			}
		}
		return nil
	})
	nstest.Must(t, err)
	if found < 10 {
		t.Errorf("%d files import unsafe: they were not found", found)
	}
}
