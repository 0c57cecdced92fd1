// Package testsize says how much of something a test does: little with -short, some by
// default, as much as one likes by a variable of the environment.
package testsize

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"
)

// Number is what the variable says, a number of at least 1; unless it is set, some, or
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

// Seed is what VIA_SEED says, to repeat a run; else another one each time. It is in the
// log of a test that fails.
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
