// Package fail lets a sequence of steps end at its first error. [If], [Must] and [With] leave it by a panic, and
// [Catch], which the functions defer that return an error, gives that error back:
//
//	func measure() (n int, err error) {
//		defer fail.Catch(&err)
//		conn := fail.Must(dial())
//		defer fail.Closing(&err, conn.Close)
//		fail.If(send(conn))
//		return receive(conn), nil
//	}
//
// It is for code that stops whatever happens, as measurements and test beds do. Such a panic must not leave its
// package, nor its goroutine.
package fail

import (
	"errors"
	"fmt"
)

type failure struct{ error }

// If fails with an error, if there is one.
func If(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// With fails with an error that [fmt.Errorf] makes.
func With(format string, args ...any) { If(fmt.Errorf(format, args...)) }

// Wrap is If with an error that begins with what it was about.
func Wrap(err error, format string, args ...any) {
	if err != nil {
		With("%s: %w", fmt.Sprintf(format, args...), err)
	}
}

// Must is If for a function with a result.
func Must[T any](v T, err error) T {
	If(err)
	return v
}

// Catch sets err to the error with which the function has failed. Other panics go on.
func Catch(err *error) {
	switch r := recover().(type) {
	case nil:
	case failure:
		*err = r.error
	default:
		panic(r)
	}
}

// Try calls f and returns the error with which it has failed.
func Try(f func()) (err error) {
	defer Catch(&err)
	f()
	return nil
}

// During calls f. If that fails, the error begins with what it was about.
func During(what string, f func()) { Wrap(Try(f), "%s", what) }

// Closing adds the error of closing something to err. If the function has failed, that error alone is returned.
func Closing(err *error, close func() error) { *err = errors.Join(*err, close()) }
