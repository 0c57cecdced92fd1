package testsize

import (
	"testing"
	"time"
)

// failing is a test that panics with itself where another ends.
type failing struct{ testing.TB }

func (failing) Helper()                 {}
func (failing) Logf(string, ...any)     {}
func (f failing) Fatalf(string, ...any) { panic(f) }

// ends reports whether do ends its test.
func ends(t *testing.T, do func(testing.TB)) (ended bool) {
	defer func() { ended = recover() == failing{t} }()
	do(failing{t})
	return false
}

// CI tests every case, except where the race detector runs.
func TestEvery(t *testing.T) {
	t.Setenv("CI", "true")
	cases := []int{1, 2, 3}
	if n := len(Some(cases, 2)); Every() == testing.Short() || Every() != (n == 3) {
		t.Errorf("in CI: %v, %d of 3 cases", Every(), n)
	}
	t.Setenv("CI", "")
	if n := len(Some(cases, 2)); Every() || n != 2 {
		t.Errorf("outside of CI: %v, %d of 3 cases", Every(), n)
	}
}

// The variable counts where it is set, and one that makes no sense ends the test.
func TestSizes(t *testing.T) {
	const variable = "VIA_SIZE_OF_A_TEST"
	want := 20
	if testing.Short() {
		want = 10
	}
	if n := Number(t, variable, 10, 20); n != want {
		t.Errorf("%d, want %d", n, want)
	}
	t.Setenv(variable, "1000")
	if n := Number(t, variable, 10, 20); n != 1000 {
		t.Errorf("%d, want 1000", n)
	}
	t.Setenv(variable, "3m")
	if d := Duration(t, variable, time.Second, time.Hour); d != 3*time.Minute {
		t.Errorf("%v, want 3m", d)
	}
	for _, bad := range []string{"0", "-1", "many", "1.5", "0s", "-3s"} {
		t.Setenv(variable, bad)
		if !ends(t, func(t testing.TB) { Number(t, variable, 1, 2) }) {
			t.Errorf("%q is a number", bad)
		}
		if !ends(t, func(t testing.TB) { Duration(t, variable, 1, 2) }) {
			t.Errorf("%q is a time", bad)
		}
	}
}

// A seed can be repeated, and is another one each time else.
func TestSeed(t *testing.T) {
	t.Setenv("VIA_SEED", "")
	if a, b := Seed(t), Seed(t); a == b {
		t.Errorf("%d twice", a)
	}
	t.Setenv("VIA_SEED", "18446744073709551615")
	if n := Seed(t); n != 1<<64-1 {
		t.Errorf("%d", n)
	}
	t.Setenv("VIA_SEED", "-1")
	if !ends(t, func(t testing.TB) { Seed(t) }) {
		t.Error("-1 is a seed")
	}
}
