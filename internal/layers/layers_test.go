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
	"secure":                 {},
	"hugepages":              {},
	"memreg":                 {},
	"bpf":                    {},
	"xdpnic":                 {"internal/comm", "internal/ordered"},
	"xdpnic/xdpnictest":      {"xdpnic", "wire"},
	"kagent":                 {"bpf", "hugepages", "internal/comm", "internal/steer", "lane", "wire", "xdpnic"},
	"kagent/kagenttest":      {"kagent", "wire"},
	"vipl":                   {"hugepages", "internal/names", "internal/ordered", "internal/programs", "internal/rundir", "internal/tsc", "kagent", "kagent/agentclient", "kagent/agentproto", "lane", "memreg", "reliable", "secure", "wire", "xdpnic"},
	"lane":                   {},
	"kagent/keeper":          {"kagent"},
	"kagent/agentproto":      {"bpf", "hugepages", "kagent", "wire", "xdpnic"},
	"kagent/agentclient":     {"bpf", "hugepages", "kagent", "kagent/agentproto", "wire", "xdpnic"},
	"kagent/agentd":          {"internal/comm", "kagent", "kagent/agentproto", "kagent/keeper", "wire", "xdpnic"},
	"vipl/vipltest":          {"vipl"},
	"internal/tsc":           {},
	"internal/comm":          {},
	"internal/crc32c":        {},
	"internal/ordered":       {},
	"internal/names":         {},
	"internal/rundir":        {},
	"internal/programs":      {"internal/comm"},
	"internal/capture":       {"internal/programs", "wire"},
	"internal/pairtest":      {"internal/nstest", "vipl"},
	"internal/memorynic":     {"hugepages", "kagent/kagenttest", "vipl", "xdpnic/xdpnictest"},
	"internal/census":        {"internal/capture", "internal/comm", "internal/programs", "vipl", "xdpnic"},
	"internal/ping":          {"wire"},
	"internal/trace":         {"kagent", "vipl", "xdpnic"},
	"internal/tune":          {"internal/doctor", "internal/undo", "kagent"},
	"internal/inspect":       {"bpf", "internal/testbed", "xdpnic"},
	"internal/doctor":        {"bpf", "internal/comm", "internal/undo", "kagent", "kagent/agentclient", "wire", "xdpnic"},
	"internal/undo":          {"internal/rundir", "internal/thread"},
	"internal/nstest":        {"internal/thread"},
	"internal/thread":        {},
	"internal/await":         {},
	"internal/lag":           {},
	"internal/testsize":      {},
	"internal/steer":         {},
	"internal/support":       {"internal/steer"},
	"internal/testbed":       {"hugepages", "internal/rundir", "internal/thread"},
	"internal/mpirun":        {"internal/testbed", "mvich/pmi"},
	"internal/torture":       {"bpf", "hugepages", "internal/lag", "internal/testbed", "kagent", "kagent/agentclient", "vipl", "wire", "xdpnic"},
	"internal/proxy":         {"vianet"},
	"internal/layers":        {},
	"internal/docs":          {},
	"bench":                  {"bench/floor", "bpf", "hugepages", "internal/testbed", "kagent", "mvich", "vianet", "vipl", "wire", "xdpnic"},
	"bench/floor":            {},
	"bench/mpich":            {"internal/mpirun", "internal/testbed"},
	"bench/peers":            {"internal/testbed"},
	"bench/report":           {"bench"},
	"bench/suite":            {"bench", "bench/floor", "bench/mpich", "bench/peers", "bench/report", "internal/mpirun", "internal/testbed", "memreg", "mvich/mpiapps", "mvich/mpibench"},
	"examples":               {},
	"examples/internal/side": {"vipl"},
	"examples/manyvis":       {"examples/internal/side", "vipl"},
	"examples/notify":        {"examples/internal/side", "vipl"},
	"examples/pingpong":      {"vipl"},
	"examples/rdmaread":      {"examples/internal/side", "vipl"},
	"examples/rdmawrite":     {"examples/internal/side", "vipl"},
	"examples/rod":           {"mvich", "mvich/pmi", "vipl"},
	"examples/stream":        {"examples/internal/side", "vipl"},
	"examples/web":           {"vianet", "vipl"},
	"cmd/via-xdp":            {"bench", "bench/peers", "bench/report", "bench/suite", "bpf", "internal/capture", "internal/census", "internal/doctor", "internal/inspect", "internal/mpirun", "internal/ping", "internal/programs", "internal/proxy", "internal/rundir", "internal/support", "internal/testbed", "internal/thread", "internal/torture", "internal/trace", "internal/tune", "internal/undo", "kagent", "kagent/agentclient", "kagent/agentd", "kagent/keeper", "mvich", "mvich/mpiapps", "mvich/mpibench", "mvich/pmi", "vianet", "vipl", "wire", "xdpnic"},
	"cmd/libvipl":            {"cmd/libvipl/bigstack", "hugepages", "kagent", "vipl", "xdpnic"},
	"cmd/libvipl/bigstack":   {},
	"cmd/libvipl/manpages":   {},
	"vianet":                 {"vipl"},
	"mvich":                  {"vipl"},
	"mvich/pmi":              {},
	"mvich/mpibench":         {"mvich"},
	"mvich/mpiapps":          {"mvich"},
	"vm":                     {"bench", "internal/inspect", "vm/plan"},
	"vm/guest":               {"internal/lag", "internal/thread", "vm/plan"},
	"vm/plan":                {},
}

// pure packages make no system call and need no other module.
var pure = []string{"wire", "reliable", "secure"}

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
