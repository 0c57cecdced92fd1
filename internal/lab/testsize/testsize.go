// Package testsize scales a test: little work with -short, some by default, every case
// in CI, and any amount by an environment variable.
package testsize

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"
)

// Every reports whether to test every case, and not only representative ones: in CI, where CI is true, unless with -short.
func Every() bool { return os.Getenv("CI") == "true" && !testing.Short() }

// Some returns all cases if Every is true, else the first n, which should be the representative ones.
func Some[T any](cases []T, n int) []T {
	if Every() {
		return cases
	}
	return cases[:n]
}

// Number is the value of the variable, at least 1. If it is not set, Number is some, or
// short with -short.
func Number(t testing.TB, variable string, short, some int) int {
	t.Helper()
	return of(t, variable, short, some, func(s string) (int, bool) {
		n, err := strconv.Atoi(s)
		return n, err == nil && n > 0
	})
}

// Duration is Number for a time.
func Duration(t testing.TB, variable string, short, some time.Duration) time.Duration {
	t.Helper()
	return of(t, variable, short, some, func(s string) (time.Duration, bool) {
		d, err := time.ParseDuration(s)
		return d, err == nil && d > 0
	})
}

// Seed is VIA_SEED, to repeat a run, or else a new seed each time. The log of a failed
// test has it.
func Seed(t testing.TB) uint64 {
	t.Helper()
	const variable = "VIA_SEED"
	any := rand.Uint64()
	seed := of(t, variable, any, any, func(s string) (uint64, bool) {
		n, err := strconv.ParseUint(s, 10, 64)
		return n, err == nil
	})
	t.Logf("%s=%d", variable, seed)
	return seed
}

func of[T any](t testing.TB, variable string, short, some T, read func(string) (T, bool)) T {
	t.Helper()
	s := os.Getenv(variable)
	if s == "" {
		if testing.Short() {
			return short
		}
		return some
	}
	v, ok := read(s)
	if !ok {
		t.Fatalf("%s=%q is none: want one like %v", variable, s, some)
	}
	return v
}
