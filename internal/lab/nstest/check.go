package nstest

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Must ends the test by an error.
func Must(t interface {
	Helper()
	Fatal(args ...any)
}, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}

// Check fails the test by an error, and the test goes on.
func Check(t interface {
	Helper()
	Error(args ...any)
}, err error) {
	if err != nil {
		t.Helper()
		t.Error(err)
	}
}

// ErrorIf fails the test if something is wrong, and the test goes on. The arguments are evaluated in either case.
func ErrorIf(t testing.TB, wrong bool, format string, args ...any) {
	if wrong {
		t.Helper()
		t.Errorf(format, args...)
	}
}

// FatalIf is ErrorIf, and ends the test.
func FatalIf(t testing.TB, wrong bool, format string, args ...any) {
	if wrong {
		t.Helper()
		t.Fatalf(format, args...)
	}
}

// WantErr fails the test if what an operation returned is not the error want; nil means success.
func WantErr(t testing.TB, what string, err, want error) {
	if !errors.Is(err, want) {
		t.Helper()
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

// Equal fails the test if a value is not as it should be.
func Equal[V comparable](t testing.TB, what string, got, want V) {
	if got != want {
		t.Helper()
		t.Errorf("%s: %+v, want %+v", what, got, want)
	}
}

// Same is Equal for values with parts, and shows where they differ.
func Same(t testing.TB, what string, got, want any, options ...cmp.Option) {
	if d := cmp.Diff(want, got, options...); d != "" {
		t.Helper()
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

// Err returns the error of a call with one more result.
func Err[A any](_ A, err error) error { return err }

// ErrSays fails the test if there is no error, or if its text does not contain a word.
func ErrSays(t testing.TB, what string, err error, word string) {
	if err == nil || !strings.Contains(err.Error(), word) {
		t.Helper()
		t.Errorf("%s: %v, want an error that says %q", what, err, word)
	}
}
