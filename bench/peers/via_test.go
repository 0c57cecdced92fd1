package peers

import (
	"context"
	"strings"
	"testing"

	"viaxdp/internal/lab/nstest"
)

// Where there is neither library, there are no rows, but what to do.
func TestVIARowsMissing(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	t.Setenv("FI_PROVIDER_PATH", dir)
	nstest.ErrorIf(t, BuildVIA(context.Background(), dir) == nil, "built without a compiler")
	rows, missing := VIARows(dir)
	for _, r := range rows { // a provider that is installed is found, too
		if !strings.HasSuffix(r.Name, "-viaxdp") {
			t.Errorf("a row %s", r.Name)
		}
	}
	if len(missing) == 0 || !strings.Contains(missing[0], "make -C cmd/libvipl install") {
		t.Errorf("missing: %q", missing)
	}
	program(t, dir, "cc", "echo vipl.h: No such file or directory >&2; exit 1")
	nstest.ErrSays(t, "without the header", BuildVIA(context.Background(), dir), "vipl.h: No such file")
	program(t, dir, viaPingpong, ":")
	program(t, dir, provider, ":")
	if rows, missing = VIARows(dir); len(rows) != 3 || len(missing) > 0 {
		t.Errorf("%d rows, missing %q", len(rows), missing)
	}
}

func TestParseVIA(t *testing.T) {
	row := Row{read: parseVIAPingpong}
	f, err := row.parse("30000 3.250 2.100 3.000 5.500 9.750\n", 64)
	if want := (Figures{N: 30000, Mean: 3.25, Min: 2.1, P50: 3, P99: 5.5, P999: 9.75}); err != nil || f.N != want.N || f.Mean != want.Mean || f.Min != want.Min || f.P50 != want.P50 || f.P99 != want.P99 || f.P999 != want.P999 {
		t.Errorf("%+v, %v", f, err)
	}
	for _, text := range []string{"", "some text", "1 2 3", "0 0 0 0 0 0"} {
		if f, err := row.parse(text, 64); err == nil {
			t.Errorf("%q is %+v", text, f)
		}
	}
}
