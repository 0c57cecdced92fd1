package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"viaxdp/internal/inspect"
)

// untar reads the names and the text of an archive.
func untar(t *testing.T, r io.Reader) map[string]string {
	t.Helper()
	zip, err := gzip.NewReader(r)
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string]string)
	for tr := tar.NewReader(zip); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		files[h.Name] = string(b)
	}
}

func TestReportCommand(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("VIA_RUNTIME_DIR", filepath.Join(dir, "proc"))
	result := filepath.Join(dir, "pingpong.json")
	if err := os.WriteFile(result, []byte(`{"peer":"192.0.2.17"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, log bytes.Buffer
	env := environment{stdout: &out, stderr: &log, actions: actions{
		inspect: func(name string, try bool) (inspect.Interface, error) {
			if try {
				t.Error("a report tried modes, which resets links")
			}
			return inspect.Interface{Name: name, MAC: "52:54:00:12:34:56"}, nil
		},
	}}
	file := filepath.Join(dir, "r.tar.gz")
	env.args = []string{"report", "lo", "-o", file, "--result", result}
	if status := run(t.Context(), env); status != exitFine {
		t.Fatalf("status %d: %s", status, &log)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	files := untar(t, f)
	all := ""
	for _, name := range []string{"version", "host/proc/version", "nic/lo/sysfs", "nic/lo/info.json", "programs.json", "results/pingpong.json"} {
		text := files["via-xdp-report/"+name]
		if text == "" {
			t.Errorf("no %s", name)
		}
		all += text
	}
	for _, secret := range []string{"192.0.2.17", "52:54:00:12:34:56"} {
		if strings.Contains(all, secret) {
			t.Errorf("the report has %s", secret)
		}
	}
	if i, _ := f.Stat(); i.Mode().Perm() != 0o600 {
		t.Errorf("the report has mode %v", i.Mode())
	}

	// A file that is there stays, an interface that is not is an error, and a
	// report that fails leaves no half.
	if status := run(t.Context(), env); status == exitFine {
		t.Error("a report was overwritten")
	}
	env.args = []string{"report", "no-such-nic", "-o", file + "2"}
	if status := run(t.Context(), env); status == exitFine {
		t.Error("a report of no interface")
	}
	if _, err := os.Stat(file + "2"); err == nil {
		t.Error("half a report is there")
	}
	other := filepath.Join(t.TempDir(), filepath.Base(result))
	if err := os.WriteFile(other, []byte("another one"), 0o600); err != nil {
		t.Fatal(err)
	}
	env.args = []string{"report", "lo", "-o", "-", "--result", result, "--result", other}
	if status := run(t.Context(), env); status != exitFine {
		t.Errorf("to standard output: status %d", status)
	}
	files = untar(t, &out)
	if len(files) < 10 || files["via-xdp-report/results/pingpong.json"] == "" || files["via-xdp-report/results/2-pingpong.json"] != "another one" {
		t.Errorf("two results of one name: %d files, %q", len(files), files["via-xdp-report/results/2-pingpong.json"])
	}
}
