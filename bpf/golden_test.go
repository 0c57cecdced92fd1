package bpf

import (
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"viaxdp/internal/lab/nstest"
)

var update = flag.Bool("update", false, "write the frames of testdata again")

// golden lists the frames of verdicts that are also kept as files.
var golden = map[string]string{
	"ipv4-data.hex":        "IPv4",
	"ipv6-data.hex":        "IPv6",
	"vlan-data.hex":        "802.1Q, IPv4",
	"control.hex":          "connection management",
	"arp.hex":              "ARP",
	"ipv4-fragment.hex":    "first fragment",
	"header-short.hex":     "header short on IPv4",
	"other-version.hex":    "another version",
	"stale-generation.hex": "former generation",
	"wrong-key.hex":        "wrong key, last byte",
	"wrong-peer.hex":       "wrong peer",
}

// The frames in testdata get the verdict of their line in README.md, from the program in the kernel. They pin the
// wire format: a changed builder of the tests would be detected.
func TestGolden(t *testing.T) {
	lines := readmeLines(t)
	d := loadTestDemux(t)
	for file, name := range golden {
		path := filepath.Join("testdata", file)
		frame := frameNamed(t, name)
		if *update {
			nstest.Must(t, os.WriteFile(path, []byte(dump(frame)), 0o644))
		}
		b := readFrame(t, path)
		if diff := cmp.Diff(frame, b); diff != "" {
			t.Errorf("%s: the test's frame is another (-test +file):\n%s", file, diff)
		}
		action, counter := run(t, d, b, 0)
		verdict := map[uint32]string{xdpPass: "pass", xdpDrop: "drop", xdpRedirect: "redirect"}[action]
		if got := strings.TrimSpace(verdict + " " + counter); got != lines[file] {
			t.Errorf("%s: %q, README.md says %q", file, got, lines[file])
		}
		delete(lines, file)
	}
	for file := range lines {
		t.Errorf("README.md speaks of %s, which no test knows", file)
	}
}

func frameNamed(t *testing.T, name string) []byte {
	for _, v := range verdicts {
		if v.name == name {
			return v.frame
		}
	}
	t.Fatalf("no frame %q", name)
	return nil
}

// readmeLines reads the table of testdata/README.md: file to verdict.
func readmeLines(t *testing.T) map[string]string {
	text, err := os.ReadFile("testdata/README.md")
	nstest.Must(t, err)
	lines := map[string]string{}
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, "|")
		if len(cells) >= 4 && strings.Contains(cells[1], ".hex") {
			lines[strings.Trim(cells[1], " `")] = strings.TrimSpace(cells[2])
		}
	}
	return lines
}

// dump writes a frame as text2pcap(1) reads it.
func dump(b []byte) string {
	var s strings.Builder
	for at := 0; at < len(b); at += 16 {
		fmt.Fprintf(&s, "%04x  % x\n", at, b[at:min(at+16, len(b))])
	}
	return s.String()
}

func readFrame(t *testing.T, path string) []byte {
	text, err := os.ReadFile(path)
	nstest.Must(t, err)
	var b []byte
	for line := range strings.Lines(string(text)) {
		_, bytes, _ := strings.Cut(line, "  ")
		part, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(bytes), " ", ""))
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		b = append(b, part...)
	}
	return b
}
