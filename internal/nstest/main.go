package nstest

import (
	"fmt"
	"os"
	"testing"
)

// Main is TestMain of a test program that is also programs of its tests: with the
// name of one as its first argument it is that one, whose error ends it with status 1.
func Main(m *testing.M, programs map[string]func() error) {
	if len(os.Args) > 1 && programs[os.Args[1]] != nil {
		if err := programs[os.Args[1]](); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}
