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
type failing struct {
	testing.TB
	said string
}

type ended struct{}

func (f *failing) Helper() {}

func (f *failing) Fatalf(format string, args ...any) {
	f.said = fmt.Sprintf(format, args...)
	panic(ended{})
}

// of is what ends a test that does f; empty: nothing does.
func of(f func(t testing.TB)) string {
	t := &failing{}
	func() {
		defer func() {
			if r := recover(); r != nil && r != (ended{}) {
				panic(r)
			}
		}()
		f(t)
	}()
	return t.said
}

// A condition that becomes true late is waited for; one that never does ends the test
// after a minute.
func TestAwait(t *testing.T) {
	errNot := errors.New("not yet")
	for _, c := range []struct {
		after time.Duration
		comes bool
	}{{0, true}, {WaitLimit - time.Second, true}, {WaitLimit + time.Second, false}} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			ok := func() bool { return time.Since(start) >= c.after }
			if Comes(ok) != c.comes {
				t.Errorf("after %v: comes %t", c.after, !c.comes)
			}
		})
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			said := of(func(t testing.TB) { Until(t, "it", func() bool { return time.Since(start) >= c.after }) })
			if (said == "") != c.comes || !c.comes && !strings.HasPrefix(said, "it: ") {
				t.Errorf("after %v: %q", c.after, said)
			}
		})
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			said := of(func(t testing.TB) {
				Succeeds(t, "it", func() error {
					if time.Since(start) >= c.after {
						return nil
					}
					return errNot
				})
			})
			if (said == "") != c.comes || !c.comes && !strings.Contains(said, errNot.Error()) {
				t.Errorf("after %v: %q", c.after, said)
			}
		})
	}
}
