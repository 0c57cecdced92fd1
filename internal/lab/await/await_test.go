package await

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// failing is a test that notes how it was ended.
type failing struct{ testing.TB }

type ended string

func (failing) Helper() {}

func (failing) Fatalf(format string, args ...any) { panic(ended(fmt.Sprintf(format, args...))) }

// of is what ends a test that does f; empty: nothing does.
func of(f func(t testing.TB)) (said string) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case ended:
			said = string(r)
		default:
			panic(r)
		}
	}()
	f(failing{})
	return ""
}

// A condition that becomes true late is waited for; one that never does ends the test
// after a minute.
func TestAwait(t *testing.T) {
	errNot := errors.New("not yet")
	for _, c := range []struct {
		after time.Duration
		comes bool
	}{{0, true}, {WaitLimit - time.Second, true}, {WaitLimit + time.Second, false}} {
		for says, wait := range map[string]func(t testing.TB, ok func() bool){
			"it: not within": func(t testing.TB, ok func() bool) { Until(t, "it", ok) },
			errNot.Error(): func(t testing.TB, ok func() bool) {
				Succeeds(t, "it", func() error {
					if ok() {
						return nil
					}
					return errNot
				})
			},
		} {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				said := of(func(t testing.TB) { wait(t, func() bool { return time.Since(start) >= c.after }) })
				if (said == "") != c.comes || !c.comes && !strings.Contains(said, says) {
					t.Errorf("after %v: %q", c.after, said)
				}
			})
		}
	}
}
