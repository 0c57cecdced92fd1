package report

import (
	"bytes"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"viaxdp/internal/lab/nstest"
)

// A report of many groups shows those that are featured and lists the others,
// each once; it embeds the plots that are written for it, and no others.
func TestBrief(t *testing.T) {
	r := sample()
	dir := t.TempDir()
	withHistograms(t, r, dir)
	var plainNames []string
	for i := len(r.Groups); i < wholeSuite; i++ {
		g := r.Groups[0]
		g.Name = fmt.Sprintf("plain-%d", i)
		plainNames = append(plainNames, g.Name)
		r.Groups = append(r.Groups, g)
	}
	files, err := r.WriteDocumentPlots(dir, filepath.Join(dir, "plots"))
	nstest.Must(t, err)
	var page bytes.Buffer
	nstest.Must(t, r.WriteMarkdown(&page, "plots"))
	var embeds, written []string
	for _, m := range embedded.FindAllStringSubmatch(page.String(), -1) {
		embeds = append(embeds, filepath.Base(m[1]))
	}
	for _, f := range files {
		written = append(written, filepath.Base(f))
	}
	if len(written) == 0 || !slices.Equal(embeds, written) {
		t.Errorf("embedded: %q, written: %q", embeds, written)
	}
	for _, name := range plainNames {
		if n := strings.Count(page.String(), "| "+name+" |"); n == 0 {
			t.Errorf("%s is not listed", name)
		}
		if strings.Contains(page.String(), "## "+name+"\n") {
			t.Errorf("%s has a section", name)
		}
	}
	shown := 0
	for i := range r.Groups {
		g := &r.Groups[i]
		if section := strings.Contains(page.String(), "\n## "+g.Name+"\n"); section != g.isFeatured() {
			t.Errorf("%s: section %v, featured %v", g.Name, section, g.isFeatured())
		}
		if g.isFeatured() {
			shown++
		}
	}
	if shown == 0 {
		t.Error("the sample has no featured group")
	}
	if strings.Contains(page.String(), "<details>") {
		t.Error("a brief page has figures aside")
	}
}
