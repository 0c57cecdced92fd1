// Package await has a test wait for asynchronous events: in the kernel, in another
// process, on another goroutine.
package await

import (
	"testing"
	"time"
)

// WaitLimit is how long a test waits for a condition. It bounds a failing test on a
// busy machine, and is no promise.
const WaitLimit = time.Minute

// pause is the time between two checks.
const pause = time.Millisecond

// Comes calls ok until it returns true, at least once, and reports whether it did
// within WaitLimit.
func Comes(ok func() bool) bool {
	for end := time.Now().Add(WaitLimit); !ok(); time.Sleep(pause) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// Until calls ok until it returns true, and ends the test if it does not within
// WaitLimit. what describes the condition.
func Until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	if !Comes(ok) {
		t.Fatalf("%s: not within %v", what, WaitLimit)
	}
}

// Succeeds calls f until it returns no error. If that takes longer than WaitLimit, it
// ends the test with f's last error.
func Succeeds(t testing.TB, what string, f func() error) {
	t.Helper()
	var err error
	if !Comes(func() bool { err = f(); return err == nil }) {
		t.Fatalf("%s: not within %v: %v", what, WaitLimit, err)
	}
}

// Undisturbed repeats a test of a machine-wide setting until it succeeds. If it never
// does within WaitLimit, it ends the calling test with the last error. Tests of other
// packages change the setting at the same time, but not always, while a real failure
// recurs every time.
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
