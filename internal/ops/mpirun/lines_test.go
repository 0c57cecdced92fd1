package mpirun

import (
	"bytes"
	"io"
	"strings"
	"sync"
	"testing"
)

// Whatever ranks write, in whatever parts, comes out as whole lines with their prefixes, each rank's in order and
// nothing lost; a line that is too long comes in several.
func FuzzLines(f *testing.F) {
	f.Add([]byte("one\ntwo"), []byte("a\n\nb\n"), uint16(2), byte(3))
	f.Add([]byte("\n"), []byte{}, uint16(1), byte(1))
	f.Add([]byte("a|b\r\n\x1b[2J"), []byte("|\n|"), uint16(5), byte(255))
	f.Fuzz(func(t *testing.T, a, b []byte, part uint16, times byte) {
		if times == 255 && len(a) > 0 { // rarely, as it takes long
			a, part = bytes.Repeat(a, 2*longest/len(a)+1), max(part, 1<<12)
		}
		var out bytes.Buffer
		l := newLines(&out, new(sync.Mutex))
		texts := [2][]byte{a, b}
		ranks := [2]*line{l.of("0|").(*line), l.of("1|").(*line)}
		for rest := texts; len(rest[0])+len(rest[1]) > 0; {
			for i, r := range ranks {
				n := min(int(part)+1, len(rest[i]))
				if got, err := r.Write(rest[i][:n]); got != n || err != nil {
					t.Fatalf("%d of %d bytes, %v", got, n, err)
				}
				rest[i] = rest[i][n:]
			}
		}
		var got [2]strings.Builder
		for _, r := range ranks {
			if err := r.end(); err != nil {
				t.Fatal(err)
			}
		}
		for line := range strings.Lines(out.String()) {
			switch {
			case strings.HasPrefix(line, "0|") && strings.HasSuffix(line, "\n"):
				got[0].WriteString(line[2:])
			case strings.HasPrefix(line, "1|") && strings.HasSuffix(line, "\n"):
				got[1].WriteString(line[2:])
			default:
				t.Fatalf("a line of nobody: %q", line)
			}
		}
		for i, text := range texts {
			want, have := string(text), got[i].String()
			if len(want) > 0 && !strings.HasSuffix(want, "\n") {
				want += "\n"
			}
			long := false
			for line := range strings.Lines(want) {
				long = long || len(line) > longest
			}
			if long { // where it was cut depends on the parts that it came in
				want, have = strings.ReplaceAll(want, "\n", ""), strings.ReplaceAll(have, "\n", "")
			}
			if want != have {
				t.Fatalf("rank %d wrote %d bytes and %d came", i, len(want), len(have))
			}
		}
	})
}

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
