// Package await has a test wait for what comes about by itself: in the kernel, in
// another process, on another goroutine.
package await

import (
	"testing"
	"time"
)

// WaitLimit is how long a test waits for what must come about. It bounds a test that
// fails, on a machine that others keep busy, and is no promise.
const WaitLimit = time.Minute

// pause is the time between two looks.
const pause = time.Millisecond

// Comes looks until ok, and reports whether it came to that within WaitLimit. It looks
// at least once.
func Comes(ok func() bool) bool {
	for end := time.Now().Add(WaitLimit); !ok(); time.Sleep(pause) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// Until looks until ok, and ends the test where it does not come to that. what says
// what the test has waited for.
func Until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	if !Comes(ok) {
		t.Fatalf("%s: not within %v", what, WaitLimit)
	}
}

// Succeeds calls f until it returns no error, and ends the test with its last one
// where it does not come to that.
func Succeeds(t testing.TB, what string, f func() error) {
	t.Helper()
	var err error
	if !Comes(func() bool { err = f(); return err == nil }) {
		t.Fatalf("%s: not within %v: %v", what, WaitLimit, err)
	}
}

// Undisturbed does a test of a setting of the whole machine again until it succeeds,
// and ends the calling test with its last error where it does not come to that: tests
// of other packages change the setting at the same time, but not always, while what is
// wrong with the test is wrong every time.
func Undisturbed(t testing.TB, test func() error) {
	t.Helper()
	for end := time.Now().Add(WaitLimit); ; time.Sleep(2 * time.Second) {
		err := test()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
		t.Log(err)
	}
}
