package peers

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"viaxdp/internal/lab/fail"
)

// Rows over VIs by programs in C: our libraries in the place of others'. They attach an XDP program to the pair while
// they run, so they come last.

//go:embed c/pingpong.c
var pingpongSource []byte

// BuildVIA compiles the ping-pong over libvipl in a directory, which [VIARows] takes. The C compiler has to find libvipl:
// make -C cmd/libvipl install, or C_INCLUDE_PATH and LIBRARY_PATH, and LD_LIBRARY_PATH for the program.
func BuildVIA(ctx context.Context, dir string) error {
	from := filepath.Join(dir, "pingpong.c")
	if err := os.WriteFile(from, pingpongSource, 0o600); err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, "cc", "-O2", "-o", filepath.Join(dir, viaPingpong), from, "-lvipl", "-pthread").CombinedOutput()
	if err != nil {
		return fmt.Errorf("cc -lvipl: %w: %s", err, lastLine(string(bytes.TrimSpace(out))))
	}
	return nil
}

const viaPingpong = "via-pingpong"

// provider is libfabric's viaxdp, in FI_PROVIDER_PATH or libfabric's own directory.
const provider = "libviaxdp-fi.so"

// ProviderInstalled reports whether libfabric finds it.
func ProviderInstalled() bool {
	places := append(filepath.SplitList(os.Getenv("FI_PROVIDER_PATH")), "/usr/lib/*/libfabric", "/usr/local/lib/*/libfabric", "/usr/local/lib/libfabric")
	return slices.ContainsFunc(places, func(dir string) bool {
		found, _ := filepath.Glob(filepath.Join(dir, provider))
		return len(found) > 0
	})
}

// VIARows are those that can run here: the ping-pong that BuildVIA has put in a directory, and fi_pingpong over the
// provider viaxdp. missing says what cannot.
func VIARows(dir string) (rows []Row, missing []string) {
	program := Program{Name: viaPingpong, places: dir}
	if program.Installed() {
		own := func(j job, more ...string) command {
			return argv(append([]string{program.path(), j.device, j.portArg(), strconv.Itoa(j.bytes), strconv.Itoa(j.iterations())}, more...)...)
		}
		rows = append(rows, Row{
			Name: "libvipl-pingpong", Program: program, Summary: "a ping-pong in C over libvipl, polling",
			Latency: true, Quantiles: true, minBytes: 1, maxBytes: 65536, polls: true, await: tcp,
			server: func(j job) command { return own(j) },
			client: func(j job) command { return own(j, j.addr.String()) },
			read:   parseVIAPingpong,
		})
	} else {
		missing = append(missing, "libvipl-pingpong: there is no libvipl for the C compiler (make -C cmd/libvipl install)")
	}
	if ProviderInstalled() {
		rows = append(rows,
			pingpongRow("msg", "viaxdp", "fi_pingpong, provider viaxdp, connected endpoints, polling"),
			pingpongRow("rdm", "viaxdp", "fi_pingpong, provider viaxdp, reliable datagrams, polling"))
	} else {
		missing = append(missing, "fi_pingpong over viaxdp: libfabric has no "+provider+" (make -C cmd/libfabric install, or FI_PROVIDER_PATH)")
	}
	return rows, missing
}

// parseVIAPingpong reads the line of the ping-pong over libvipl.
func parseVIAPingpong(out string, _ int) (f Figures) {
	if _, err := fmt.Sscan(out, &f.N, &f.Mean, &f.Min, &f.P50, &f.P99, &f.P999); err != nil {
		fail.If(unreadable(out, "figures"))
	}
	return f
}
