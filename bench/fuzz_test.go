package bench

import (
	"math/big"
	"strings"
	"testing"
	"time"
	"unicode"
)

// For any output of the kernel: a CPU has a name of one line that occurs in it, and times
// are those in it or 0, and never negative.
func FuzzSystem(f *testing.F) {
	f.Add("model name\t: AMD EPYC  7763 64-Core\nflags\t\t: fpu hypervisor\n")
	f.Add("CPU implementer\t: 0x41\nCPU part\t: 0xd0c\n")
	f.Add("cpu  1 2 3 4 5 6 7 99 0 0\ncpu0 1 2 3 4 5 6 7 8\n")
	f.Add("cpu  1 2 3 4 5 6 7 9223372036854775807 0 0\n")
	f.Add("123456789 -9223372036854775808 12\n")
	f.Fuzz(func(t *testing.T, text string) {
		model, hypervisor := cpuModel(text)
		if model != strings.Join(strings.Fields(model), " ") || hypervisor && !strings.Contains(text, "hypervisor") {
			t.Fatalf("CPU %q, hypervisor %v", model, hypervisor)
		}
		for _, word := range strings.Fields(model) {
			if word != "implementer" && word != "part" && !strings.Contains(text, word) {
				t.Fatalf("CPU %q: where does %q stand?", model, word)
			}
		}
		first, _, _ := strings.Cut(text, "\n")
		for _, c := range []struct {
			what string
			got  time.Duration
			want *big.Int
		}{
			{"waited", waitIn([]byte(text)), numberAt(strings.Fields(text), 1, 1)},
			{"stolen", stolenIn([]byte(text)), numberAt(strings.Fields(first), 8, int64(10*time.Millisecond))},
		} {
			if c.got < 0 || c.want == nil && c.got != 0 || c.want != nil && c.want.Cmp(big.NewInt(int64(c.got))) != 0 {
				t.Fatalf("%s %d, want %v", c.what, c.got, c.want)
			}
		}
	})
}

// numberAt is a field in such units as a duration has room for it, or nil.
func numberAt(fields []string, at int, unit int64) *big.Int {
	if len(fields) <= at || strings.IndexFunc(strings.TrimPrefix(fields[at], "+"), func(r rune) bool { return r > unicode.MaxASCII || !unicode.IsDigit(r) }) >= 0 {
		return nil
	}
	n, ok := new(big.Int).SetString(fields[at], 10)
	if !ok || !n.Mul(n, big.NewInt(unit)).IsInt64() {
		return nil
	}
	return n
}
