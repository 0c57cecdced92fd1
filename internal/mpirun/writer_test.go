package mpirun

import (
	"bytes"
	"io"
	"testing"
)

// uncomparable is a writer that Go cannot compare.
type uncomparable struct{ _ []byte }

func (uncomparable) Write(b []byte) (int, error) { return len(b), nil }

// Only outputs that are one take turns: one that nobody reads does not hold another.
func TestOneWriter(t *testing.T) {
	a, b := new(bytes.Buffer), new(bytes.Buffer)
	for _, c := range []struct {
		x, y io.Writer
		want bool
	}{{a, a, true}, {a, b, false}, {uncomparable{}, uncomparable{}, false}, {a, uncomparable{}, false}} {
		if got := oneWriter(c.x, c.y); got != c.want {
			t.Errorf("%T and %T: %v", c.x, c.y, got)
		}
	}
}
