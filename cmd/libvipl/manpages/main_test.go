package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"viaxdp/internal/lab/nstest"
)

func pages(t *testing.T) map[string]string {
	t.Helper()
	var texts [3]string
	for i, name := range []string{"../vipl.h", "../man.txt", "../../../docs/libvipl.md"} {
		b, err := os.ReadFile(name)
		nstest.Must(t, err)
		texts[i] = string(b)
	}
	all, err := render(texts[0], texts[1], texts[2])
	nstest.Must(t, err)
	return all
}

// Each function of the header has a page, and what a page points to is there.
func TestPages(t *testing.T) {
	all := pages(t)
	const functions, others = 49, 2
	if len(all) != functions+others {
		t.Errorf("%d pages, want %d", len(all), functions+others)
	}
	for name, text := range all {
		for line := range strings.Lines(text) {
			if to, ok := strings.CutPrefix(line, ".BR "); ok {
				to, number, _ := strings.Cut(to, " (")
				if _, ok := all[to+"."+number[:1]]; !ok {
					t.Errorf("%s: there is no %s", name, line)
				}
			}
		}
	}
	for _, want := range []string{"VIA_DEVICE", "VIA_NAMES", "VipCQWait", "SA_ONSTACK"} {
		if !strings.Contains(all["vipl.7"], want) {
			t.Errorf("vipl.7 does not tell of %s", want)
		}
	}
	for name, words := range map[string][]string{
		"vipl.7":           {"PKG_CONFIG_PATH", `\-Wl,\-rpath`, "examples/hello.c", "docs/security.md", "docs/agent.md"},
		"VIP_DESCRIPTOR.3": {"CS.SegCount", "DS[0].Remote", "VIP_STATUS_RDMA_PROT_ERROR", "memset(d, 0, sizeof *d);"},
		"VipDisconnect.3":  {"flushes the receives"},
		"VipRecvWait.3":    {"empty queue"},
		"VipPostRecv.3":    {"queue empty", "MaxSegmentsPerDesc"},
	} {
		for _, want := range words {
			if !strings.Contains(all[name], want) {
				t.Errorf("%s does not tell of %s", name, want)
			}
		}
	}
	if s := all["VipPostSend.3"]; !strings.Contains(s, `\fBVIP_DESCRIPTOR *\fP\fIDescriptorPtr\fP\fB,\fP`) {
		t.Errorf("VipPostSend's synopsis:\n%s", s)
	}
}

var codes = regexp.MustCompile(`^VIP_[A-Z_]+(, VIP_[A-Z_]+)*$`)

// What a page of a function says it returns is codes, each with when it does.
func TestReturns(t *testing.T) {
	for name, text := range pages(t) {
		_, returns, _ := strings.Cut(text, "\n.SH RETURN VALUE\n")
		returns, _, _ = strings.Cut(returns, "\n.SH ")
		for line := range strings.Lines(returns) {
			if what, ok := strings.CutPrefix(strings.TrimSpace(line), ".B "); ok && !codes.MatchString(what) {
				t.Errorf("%s returns %q", name, what)
			}
		}
	}
}

var document = regexp.MustCompile(`[\w./-]*\w\.md\b`)

// A page has no Markdown in it, and the documents that it names are in the sources.
func TestNoMarkdown(t *testing.T) {
	for name, text := range pages(t) {
		for _, mark := range []string{"](", "`", "|---"} {
			if strings.Contains(text, mark) {
				t.Errorf("%s has %q in it", name, mark)
			}
		}
		for _, file := range document.FindAllString(strings.ReplaceAll(text, `\-`, "-"), -1) {
			if _, err := os.Stat(filepath.Join("../../..", file)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	for text, want := range map[string]string{
		"see [agent.md](agent.md).":    "see docs/agent.md.\n",
		"the [agent](agent.md#as) has": "the agent (docs/agent.md) has\n",
		"as [above](#devices)":         "as above\n",
		"[guide](../README.md)":        "guide (README.md)\n",
	} {
		if got := roff(text); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
}

// groff has nothing to complain of.
func TestRoff(t *testing.T) {
	if _, err := exec.LookPath("groff"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("needs groff (Debian's package groff-base)")
		}
		t.Skip("needs groff") // which go test ./... must do without
	}
	for name, text := range pages(t) {
		cmd := exec.Command("groff", "-man", "-ww", "-z", "-Tutf8")
		cmd.Stdin = strings.NewReader(text)
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

func TestWrongText(t *testing.T) {
	const header = "VIP_RETURN VipA(int a);\nVIP_RETURN VipB(int a);"
	for text, want := range map[string]string{
		"VipA: does\n= VIP_SUCCESS\n> VipB":  "VipB has no text",
		"VipC: does\n= VIP_SUCCESS\n> VipB":  "VipC is not in the header",
		"VipA\n= VIP_SUCCESS":                "want a name",
		"VipA: does\n= VIP_SUCCESS\n":        "is missing",
		"VipA: does\n> VipB\nIt does a lot.": "is missing",
	} {
		if _, err := render(header, text, ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
