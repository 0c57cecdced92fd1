// Package layers holds the rule of who may import whom.
package layers

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "viaxdp"

// allowed lists for each package what it may import of this module, in code
// that is not a test. A package that is not listed is a failure: a new one
// states its place here.
var allowed = map[string][]string{
	"wire":                   {"internal/crc32c"},
	"reliable":               {},
	"hugepages":              {},
	"memreg":                 {},
	"bpf":                    {},
	"xdpnic":                 {"internal/ordered"},
	"xdpnic/xdpnictest":      {"xdpnic", "wire"},
	"kagent":                 {"bpf", "hugepages", "wire", "xdpnic"},
	"kagent/kagenttest":      {"kagent", "wire"},
	"vipl":                   {"hugepages", "internal/names", "internal/ordered", "internal/tsc", "kagent", "memreg", "reliable", "wire", "xdpnic"},
	"vipl/vipltest":          {"vipl"},
	"internal/tsc":           {},
	"internal/crc32c":        {},
	"internal/ordered":       {},
	"internal/names":         {},
	"internal/nstest":        {},
	"internal/testbed":       {"hugepages"},
	"internal/torture":       {"bpf", "hugepages", "internal/testbed", "kagent", "vipl", "xdpnic"},
	"internal/layers":        {},
	"internal/docs":          {},
	"bench":                  {"bpf", "hugepages", "internal/testbed", "kagent", "vipl", "wire", "xdpnic"},
	"bench/peers":            {"internal/testbed"},
	"bench/report":           {"bench"},
	"bench/suite":            {"bench", "bench/peers", "bench/report", "memreg"},
	"examples":               {},
	"examples/internal/side": {"vipl"},
	"examples/manyvis":       {"examples/internal/side", "vipl"},
	"examples/notify":        {"examples/internal/side", "vipl"},
	"examples/pingpong":      {"vipl"},
	"examples/rdmaread":      {"examples/internal/side", "vipl"},
	"examples/rdmawrite":     {"examples/internal/side", "vipl"},
	"examples/stream":        {"examples/internal/side", "vipl"},
	"cmd/via-xdp":            {"bench", "bench/peers", "bench/report", "bench/suite", "bpf", "internal/testbed", "internal/torture", "kagent", "vipl", "xdpnic"},
	"vianet":                 {"vipl"},
	"mvich":                  {"vipl"},
	"mvich/pmi":              {},
	"mvich/mpibench":         {"mvich"},
}

// pure packages make no system call and need no other module.
var pure = []string{"wire", "reliable"}

type listed struct {
	ImportPath string
	Imports    []string
	Standard   bool
}

func TestLayers(t *testing.T) {
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports", module+"/...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
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
				if !slices.Contains(may, own) {
					t.Errorf("%s imports %s", name, own)
				}
				continue
			}
			if slices.Contains(pure, name) && (strings.Contains(imp, ".") || imp == "syscall" || imp == "os" || imp == "net") {
				t.Errorf("%s is pure and imports %s", name, imp)
			}
		}
	}
	if seen < 10 {
		t.Errorf("go list knows only %d packages: the rule was not tested", seen)
	}
}
