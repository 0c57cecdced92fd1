// Package termsafe makes names and texts of other programs safe for a terminal.
package termsafe

import (
	"fmt"
	"os"
	"strings"
	"unicode"
)

// Name returns the name of a process, safe for a terminal, or "" if the process has ended. A
// program may set any bytes as its name.
func Name(pid int) string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return Printable(strings.TrimSuffix(string(b), "\n"))
}

// Printable replaces everything in s that a terminal could interpret by question marks, as ps
// does.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
}
