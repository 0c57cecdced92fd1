package names

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/nstest"
)

func put(t *testing.T, path, text string) {
	t.Helper()
	nstest.Must(t, os.WriteFile(path, []byte(text), 0o644))
}

// replace puts a file in the place of another, as editors do.
func replace(t *testing.T, path, text string) {
	t.Helper()
	put(t, path+".new", text)
	nstest.Must(t, os.Rename(path+".new", path))
}

// loads looks a file up and gives the names of 10.0.0.1 in it.
func loads(t *testing.T, f *file) string {
	t.Helper()
	table, err := f.load()
	nstest.Must(t, err)
	name, _ := table.name(entry("10.0.0.1", "").Address)
	return name
}

func TestFileFollowsChanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "names")
	put(t, path, "10.0.0.1 a\n")
	f := &file{path: path, parse: ParseNames}
	if got := loads(t, f); got != "a" {
		t.Fatalf("%q", got)
	}
	put(t, path, "10.0.0.1 b\n") // same size, and perhaps the same time
	if got := loads(t, f); got != "b" {
		t.Errorf("written in place: %q", got)
	}
	replace(t, path, "10.0.0.1 c\n")
	if got := loads(t, f); got != "c" {
		t.Errorf("replaced: %q", got)
	}

	put(t, path, "10.0.0.1 d\noops d\n")
	for range 2 { // it stays wrong
		_, err := f.load()
		if wrong, ok := errors.AsType[*ParseError](err); !ok || wrong.File != path || wrong.Line != 2 ||
			!strings.HasPrefix(err.Error(), path+":2: ") {
			t.Errorf("wrong: %v", err)
		}
	}
	os.Remove(path)
	if _, err := f.load(); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), path) {
		t.Errorf("removed: %v", err)
	}
	f.optional = true
	if got := loads(t, f); got != "" {
		t.Errorf("removed and optional: %q", got)
	}
	put(t, path, "10.0.0.1 e\n")
	if got := loads(t, f); got != "e" {
		t.Errorf("back: %q", got)
	}
}

// A file that has not changed for a while is read once. A file that has just changed is read at every lookup,
// since its stamp may not reveal the next change.
func TestFileReadOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "names")
	for text, wrong := range map[string]bool{"10.0.0.1 a\n": false, "oops": true} {
		written := time.Now()
		put(t, path, text)
		reads := 0
		f := &file{path: path, parse: func(text string) ([]Entry, error) { reads++; return ParseNames(text) }}
		for range 3 {
			if _, err := f.load(); (err != nil) != wrong {
				t.Fatal(err)
			}
		}
		// On a busy machine it may have settled meanwhile.
		if reads != 3 && time.Since(written) < settling/2 {
			t.Errorf("%q, just written: read %d times in 3 lookups", text, reads)
		}
		f.fresh, reads = true, 0 // as if it were old
		for range 3 {
			if _, err := f.load(); (err != nil) != wrong {
				t.Fatal(err)
			}
		}
		if reads != 0 {
			t.Errorf("%q, old: read again", text)
		}
		replace(t, path, text) // only the inode differs
		if _, err := f.load(); (err != nil) != wrong || reads != 1 {
			t.Errorf("%q, replaced: read %d times, want 1; %v", text, reads, err)
		}
	}

	now := time.Now()
	s := stamp{change: syscall.NsecToTimespec(now.UnixNano())}
	if s.settled(now.Add(settling)) || !s.settled(now.Add(settling+time.Millisecond)) || s.settled(now.Add(-time.Hour)) {
		t.Error("a stamp settles when the time after the change is over, and not before")
	}
}

// What is no regular file is refused before it is opened: a pipe without a
// writer would hold the program.
func TestFileKinds(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	nstest.Must(t, unix.Mkfifo(pipe, 0o644))
	large := filepath.Join(dir, "large")
	put(t, large, "")
	nstest.Must(t, os.Truncate(large, MaxBytes+1))
	for path, reason := range map[string]string{
		dir: "not a regular file", pipe: "not a regular file", "/dev/zero": "not a regular file", large: "at most",
	} {
		f := &file{path: path, optional: true, parse: ParseNames}
		if _, err := f.load(); err == nil || !strings.Contains(err.Error(), reason) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want %q", path, err, reason)
		}
	}
	for _, path := range []string{"", os.DevNull} {
		f := &file{path: path, parse: ParseNames}
		if got := loads(t, f); got != "" {
			t.Errorf("%q: %q", path, got)
		}
	}
	// A size that stat does not report, as for files in /proc, is found on reading.
	nstest.Must(t, os.Truncate(large, MaxBytes))
	if _, err := (&file{path: large, parse: ParseNames}).load(); err == nil || !strings.Contains(err.Error(), large+":1: line of") {
		t.Errorf("zeros: %v", err)
	}
}
