package mvich

import (
	"errors"
	"math/big"
	"strings"
	"testing"
)

// Whatever the environment and a program want, they get settings that a world can work with, the environment's where
// the program says nothing; or an error that says which variable, and what it may be.
func FuzzSettings(f *testing.F) {
	for _, c := range []struct{ threshold, spin string }{
		{"", ""}, {"100", "0"}, {"262144", "1099511627776"}, {"262145", ""}, {"-1", "20"}, {"5000", "-9223372036854775808"},
		{"many", "many"}, {"+7", "9223372036854775807"}, {"", "99999999999999999999"}, {"0x10", "1_0"},
	} {
		f.Add(c.threshold, c.spin, uint8(0), DefaultCredits, DefaultRegistered)
	}
	f.Add("", "", uint8(7), 4, -1)
	f.Add("100", "5", uint8(7), 256, int(^uint(0)>>1))
	f.Fuzz(func(t *testing.T, threshold, spin string, which uint8, credits, other int) {
		if strings.ContainsRune(threshold+spin, 0) {
			return // no environment has it
		}
		t.Setenv(ThresholdVariable, threshold)
		t.Setenv(SpinVariable, spin)
		var opts []Option
		for bit, o := range []Option{WithCredits(credits), WithThreshold(other), WithSpin(other), WithRegistered(other), WithUnexpected(other)} {
			if which>>bit&1 == 1 {
				opts = append(opts, o)
			}
		}
		s, err := makeSettings(opts)
		wantThreshold, ok1 := numeric(threshold, 1<<18)
		wantSpin, ok2 := numeric(spin, 1<<40)
		if !ok1 || !ok2 {
			name := SpinVariable
			if !ok1 {
				name = ThresholdVariable
			}
			if !errors.Is(err, ErrSettings) || !strings.Contains(err.Error(), name+"=") || !strings.Contains(err.Error(), "want a number, 0 to ") {
				t.Fatalf("%q, %q: %v", threshold, spin, err)
			}
			return
		}
		if err != nil {
			if !errors.Is(err, ErrSettings) || which == 0 {
				t.Fatal(err)
			}
			return
		}
		if threshold != "" && which&2 == 0 && s.threshold != wantThreshold || spin != "" && which&4 == 0 && s.spin != wantSpin {
			t.Fatalf("%q, %q: %+v", threshold, spin, s)
		}
		s.settle(which&128 != 0)
		if s.threshold < 0 || s.threshold > 1<<18 || s.spin < 0 || 1<<16*s.spin < s.spin || s.registered < 0 || s.unexpected < 0 {
			t.Fatalf("%+v", s)
		}
		if v := s.vbufSize(); v < headerSize+s.threshold || v%64 != 0 || v > 1<<19 {
			t.Fatalf("vbufs of %d bytes for %d", v, s.threshold)
		}
		if s.credits < 4 || s.credits > 256 || s.reserve() < 1 || s.noopAt() < 2 || s.noopAt() > s.credits-s.reserve() {
			t.Fatalf("%d credits, %d in reserve, noops from %d", s.credits, s.reserve(), s.noopAt())
		}
	})
}

// numeric reads a variable that is at most so much; one that is not set is good, too.
func numeric(text string, most int64) (int, bool) {
	if text == "" {
		return 0, true
	}
	n, ok := new(big.Int).SetString(text, 10)
	if !ok || n.Sign() < 0 || n.Cmp(big.NewInt(most)) > 0 {
		return 0, false
	}
	return int(n.Int64()), true
}

// Whatever another rank says of its place is one that is said again the same, or an error; and nobody is crowded by
// ranks of other machines, or alone on a processor of his own.
func FuzzPlace(f *testing.F) {
	f.Add(here().String())
	f.Add("machine/3")
	f.Add("/-1")
	f.Add("a/b/0x1")
	f.Add("m/+_f")
	f.Fuzz(func(t *testing.T, s string) {
		p, err := parsePlace(s)
		if err != nil {
			return
		}
		again, err := parsePlace(p.String())
		if err != nil || again.machine != p.machine || again.cpus.Cmp(p.cpus) != 0 {
			t.Fatalf("%q is %v, and that is %v, %v", s, p, again, err)
		}
		own := here()
		if p.machine != own.machine && oversubscribed(own, []place{p, p}) || oversubscribed(p, nil) {
			t.Fatalf("%q crowds", s)
		}
	})
}

// Whatever another rank has published, it is an address and a place that are published again the same, or an error.
func FuzzRecord(f *testing.F) {
	w := &World{}
	f.Add("10.0.0.1,token,machine/f," + w.terms())
	f.Add("fe80::1%eth0,,/0," + w.terms())
	f.Add("10.0.0.1,t,m/-1," + w.terms())
	f.Add("10.0.0.1,t,m/ff,little-endian/int64/vbuf=1/credits=1")
	f.Fuzz(func(t *testing.T, s string) {
		a, at, err := w.parseRecord(s)
		if err != nil {
			return
		}
		if !a.addr.IsValid() || at.cpus.Sign() < 0 {
			t.Fatalf("%+v, %+v", a, at)
		}
		one := w.record(a, at)
		b, there, err := w.parseRecord(one)
		if err != nil || w.record(b, there) != one {
			t.Fatalf("%q is published as %q, and read as %+v, %+v, %v", s, one, b, there, err)
		}
		alone := oversubscribed(at, nil)
		if more := oversubscribed(at, []place{{machine: at.machine, cpus: new(big.Int)}}); alone && !more {
			t.Fatalf("%q: crowded by one rank, and not by two", s)
		}
	})
}
