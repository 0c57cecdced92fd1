package testbed

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"bufio"
	"fmt"

	"viaxdp/internal/nstest"
)

// guardOn runs the guard's loop over an in-memory allowance.
func guardOn(t *testing.T, pages *int, fail error) (say func(string) string, end func() error) {
	t.Helper()
	ours, theirs := net.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- guard(theirs, func(n int) (func() error, error) {
			if fail != nil {
				return nil, fail
			}
			*pages += n
			return func() error { *pages -= n; return nil }, nil
		})
	}()
	lines := bufio.NewScanner(ours)
	say = func(line string) string {
		fmt.Fprintln(ours, line)
		lines.Scan()
		return lines.Text()
	}
	end = func() error {
		ours.Close()
		return <-done
	}
	return say, end
}

func TestGuardRaisesAndRestores(t *testing.T) {
	pages := 5
	say, end := guardOn(t, &pages, nil)
	for _, step := range []struct {
		line, answer string
		pages        int
	}{
		{"raise 10", "ok", 15},
		{"raise 7", "ok", 22},
		{"restore", "ok", 5},
		{"restore", "ok", 5},
		{"raise x", `strconv.Atoi: parsing "x": invalid syntax`, 5},
		{"nonsense", `unknown word "nonsense"`, 5},
		{"raise 3", "ok", 8},
	} {
		if got := say(step.line); got != step.answer || pages != step.pages {
			t.Errorf("%s: answer %q, %d pages; want %q, %d", step.line, got, pages, step.answer, step.pages)
		}
	}
	// The end of the connection is the death of the parent.
	if err := end(); err != nil || pages != 5 {
		t.Errorf("afterwards %d pages, %v", pages, err)
	}
}

func TestGuardPassesErrorsOn(t *testing.T) {
	pages := 0
	say, end := guardOn(t, &pages, errors.New("no\nhugepages"))
	if got := say("raise 1"); got != "no; hugepages" {
		t.Errorf("got %q", got)
	}
	if err := end(); err != nil {
		t.Error(err)
	}
}

// What could not be taken back is tried again.
func TestGuardRestoresAgain(t *testing.T) {
	ours, theirs := net.Pipe()
	done := make(chan error, 1)
	pages, failures := 0, 2
	go func() {
		done <- guard(theirs, func(n int) (func() error, error) {
			pages += n
			return func() error {
				if n == 5 && failures > 0 {
					failures--
					return errors.New("locked")
				}
				pages -= n
				return nil
			}, nil
		})
	}()
	lines := bufio.NewScanner(ours)
	for _, step := range [][2]string{{"raise 3", "ok"}, {"raise 5", "ok"}, {"restore", "locked"}, {"restore", "locked"}} {
		fmt.Fprintln(ours, step[0])
		if lines.Scan(); lines.Text() != step[1] {
			t.Errorf("%s: answer %q, want %q", step[0], lines.Text(), step[1])
		}
	}
	ours.Close()
	if err := <-done; err != nil || pages != 0 {
		t.Errorf("afterwards %d pages, %v", pages, err)
	}
}

// A guard process that is killed while pages are raised leaves its work to its
// parent.
func TestKilledGuard(t *testing.T) {
	nstest.Require(t)
	before := allowance(t)
	g, err := StartGuard([]string{asGuard})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Raise(2); err != nil {
		t.Fatal(err)
	}
	if now := allowance(t); now < 2 {
		t.Errorf("the allowance is %d after raising it by 2", now)
	}
	if err := unix.Kill(g.child.cmd.Process.Pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-g.child.exited
	if err := g.Close(); err == nil {
		t.Error("the death of the guard went unnoticed")
	}
	allowanceIs(t, before)
}

func TestLower(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pages")
	for _, c := range []struct {
		before string
		n      int
		after  string
	}{{"7\n", 3, "4"}, {"2\n", 3, "0"}} {
		if err := os.WriteFile(file, []byte(c.before), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := lower(file, c.n); err != nil {
			t.Fatal(err)
		}
		// A setting of the kernel is written as a whole; a file keeps its end.
		if got, _ := os.ReadFile(file); string(got[:1]) != c.after {
			t.Errorf("%q less %d is %q", c.before, c.n, got)
		}
	}
}
