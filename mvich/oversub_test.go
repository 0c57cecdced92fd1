package mvich

import (
	"errors"
	"math/big"
	"testing"
	"time"
)

// Ranks are crowded where they are more than all processors that they may use, on one machine.
func TestOversubscribed(t *testing.T) {
	at := func(machine string, cpus int64) place { return place{machine, big.NewInt(cpus)} }
	for name, test := range map[string]struct {
		own    place
		others []place
		want   bool
	}{
		"alone":                 {at("a", 1), nil, false},
		"one each":              {at("a", 1), []place{at("a", 2)}, false},
		"both on any of two":    {at("a", 3), []place{at("a", 3)}, false},
		"both on one":           {at("a", 1), []place{at("a", 1)}, true},
		"four on two":           {at("a", 1), []place{at("a", 2), at("a", 1), at("a", 2)}, true},
		"three on any of two":   {at("a", 3), []place{at("a", 3), at("a", 3)}, true},
		"on machines":           {at("a", 1), []place{at("b", 1), at("c", 1)}, false},
		"processors not known":  {at("a", 0), []place{at("a", 0)}, false},
		"another machine's CPU": {at("a", 1), []place{at("a", 1), at("b", 2)}, true},
	} {
		if got := oversubscribed(test.own, test.others); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// A place says where it is, and polls are as many as it allows.
func TestPlace(t *testing.T) {
	t.Setenv(SpinVariable, "")
	own := here()
	if own.machine == "" || own.cpus.Sign() <= 0 {
		t.Errorf("%v", own)
	}
	got, err := parsePlace(own.String())
	if err != nil || got.machine != own.machine || got.cpus.Cmp(own.cpus) != 0 {
		t.Errorf("%v is %v: %v", own, got, err)
	}
	for _, s := range []string{"", "machine", "machine/", "machine/xyz", "machine/-1"} {
		if p, err := parsePlace(s); !errors.Is(err, ErrSettings) {
			t.Errorf("%q is %v: %v", s, p, err)
		}
	}
	for _, test := range []struct {
		options        []Option
		oversubscribed bool
		want           int
	}{{nil, false, DefaultSpin}, {nil, true, 0}, {[]Option{WithSpin(7)}, true, 7}, {[]Option{WithSpin(0)}, false, 0}} {
		s, err := makeSettings(test.options)
		if err != nil {
			t.Fatal(err)
		}
		if s.settle(test.oversubscribed); s.spin != test.want {
			t.Errorf("%d options, crowded %v: %d polls", len(test.options), test.oversubscribed, s.spin)
		}
	}
}

// Polls that were in vain get fewer, down to none, unless what came soon after shows that they would have paid; never
// more than the settings say. All are tried now and then.
func TestLearn(t *testing.T) {
	w := &World{set: settings{spin: 1000}, spin: 1000}
	for range 20 {
		w.learn(time.Millisecond)
	}
	if w.spin != 0 {
		t.Errorf("%d polls after long sleeps", w.spin)
	}
	if w.learn(time.Microsecond); w.spin < leastSpin {
		t.Errorf("%d polls after a short sleep", w.spin)
	}
	before := w.spin
	if w.learn(time.Microsecond); w.spin != 2*before {
		t.Errorf("%d polls after another one, %d before", w.spin, before)
	}
	for range 20 {
		w.learn(time.Microsecond)
	}
	if w.spin != 1000 {
		t.Errorf("%d polls after short sleeps", w.spin)
	}
	tries := 0
	for range 5 * spinRetry {
		if w.learn(time.Millisecond); w.spin == 1000 {
			tries++
		}
	}
	if tries != 5 {
		t.Errorf("%d full tries in %d long sleeps", tries, 5*spinRetry)
	}
	w.set.spin, w.spin = 0, 0
	for range 2 * spinRetry {
		if w.learn(time.Microsecond); w.spin != 0 {
			t.Errorf("%d polls where there are to be none", w.spin)
		}
	}
}
