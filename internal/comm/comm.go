// Package comm shows what other programs call themselves.
package comm

import (
	"fmt"
	"os"
	"strings"
	"unicode"
)

// Name is the name of a process as a terminal may have it; empty when it is gone. Every program
// gives itself any bytes as a name.
func Name(pid int) string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return Printable(strings.TrimSuffix(string(b), "\n"))
}

// Printable is a text without what a terminal would obey: in its place are question marks, as ps
// has them.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
}
