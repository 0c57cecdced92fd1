package main

import (
	"regexp"
	"strings"
	"testing"
)

// bad matches how Memcheck reports wrong accesses of the process, rather than arguments
// of system calls: those lie on Go's stacks, which valgrind does not know.
var bad = regexp.MustCompile(`==\d+== (Invalid|Mismatched|Source and destination|Jump|Process terminating|Argument)`)

// TestValgrind runs programs in Memcheck: the library, its Go half included, reads and
// writes only valid memory of theirs. Go's own memory lies above all that valgrind
// allocates, and is ignored (valgrind warns that the range is large). Undefined values
// are not checked: each goroutine's stack looks undefined to it.
func TestValgrind(t *testing.T) {
	t.Parallel()
	lib := library(t, "valgrind")
	c := compiler{"gcc", "-O1 -g -Wno-maybe-uninitialized"}
	b := newBed(t, 1500)
	in := func(program string, args ...string) []string {
		return append([]string{
			"valgrind", "-q", "--fair-sched=yes", "--undef-value-errors=no",
			"--ignore-ranges=0x2000000000-0x7fffffffffff", "--suppressions=testdata/valgrind.supp", program,
		}, args...)
	}
	clean := func(t *testing.T, out, says string) {
		if bad.MatchString(out) || !strings.Contains(out, says) {
			t.Errorf("it said:\n%s", out)
		}
	}
	for _, name := range []string{"abi", "wrong", "dialects"} {
		t.Run(name, func(t *testing.T) {
			clean(t, b.one(t, in(c.compile(t, lib, name), "server", "via0")...), name+":")
		})
	}
	t.Run("pingpong", func(t *testing.T) {
		program := c.compile(t, lib, "pingpong")
		s := b.start(t, b.a, in(program, "server", "via0", "5")...)
		clean(t, b.start(t, b.b, in(program, "client", "via0", b.a.IPv4.String(), "5")...).finish(t), "32768")
		clean(t, s.finish(t), "")
	})
}
