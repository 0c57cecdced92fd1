package report

import (
	"bytes"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"viaxdp/internal/lab/nstest"
)

func TestMarkdown(t *testing.T) {
	r := sample()
	withHistograms(t, r, t.TempDir())
	var buf bytes.Buffer
	nstest.Must(t, r.WriteMarkdown(&buf, "benchmarks"))
	golden(t, "benchmarks.md", buf.Bytes())
}

var embedded = regexp.MustCompile(`!\[[^\]]*\]\(([^)]*)\)`)

// The document embeds the plots that are written, and no others.
func TestMarkdownEmbedsPlots(t *testing.T) {
	dir := t.TempDir()
	for _, histograms := range []bool{true, false} {
		r := sample()
		if histograms {
			withHistograms(t, r, dir)
		}
		files, err := r.WritePlots(dir)
		nstest.Must(t, err)
		var buf bytes.Buffer
		nstest.Must(t, r.WriteMarkdown(&buf, "a/b"))
		var got, want []string
		for _, m := range embedded.FindAllStringSubmatch(buf.String(), -1) {
			got = append(got, m[1])
		}
		for _, f := range files {
			want = append(want, "a/b/"+filepath.Base(f))
		}
		if len(want) == 0 || !slices.Equal(got, want) {
			t.Errorf("embedded: %q, written: %q", got, want)
		}
	}
}

// Every link within the document leads to a heading.
func TestMarkdownLinks(t *testing.T) {
	var buf bytes.Buffer
	nstest.Must(t, sample().WriteMarkdown(&buf, ""))
	var headings []string
	for line := range strings.Lines(buf.String()) {
		if h, ok := strings.CutPrefix(line, "## "); ok {
			headings = append(headings, anchor(h))
		}
	}
	links := regexp.MustCompile(`\]\(#([^)]*)\)`).FindAllStringSubmatch(buf.String(), -1)
	if len(links) != len(headings) {
		t.Errorf("%d links to %d headings", len(links), len(headings))
	}
	for _, l := range links {
		if !slices.Contains(headings, l[1]) {
			t.Errorf("no heading for #%s", l[1])
		}
	}
}

// If nothing loses and nothing was disturbed, the document says both.
func TestMarkdownOfNothing(t *testing.T) {
	var buf bytes.Buffer
	nstest.Must(t, (&Report{Command: "via-xdp bench --turns 7 peers"}).WriteMarkdown(&buf, ""))
	for _, want := range []string{"No point was disturbed.", "\nvia-xdp bench --turns 7 peers\n"} {
		if !strings.Contains(buf.String(), want) {
			t.Errorf("no %q in\n%s", want, &buf)
		}
	}
}

func TestEscape(t *testing.T) {
	for in, want := range map[string]string{
		"a|b":            `a\|b`,
		"<b> [1] `x`\n":  "&lt;b> \\[1\\] \\`x\\`",
		"fi_pingpong":    `fi\_pingpong`,
		"2.04 \\* and *": `2.04 \* and \*`,
	} {
		if got := escape(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}
