package memorynic

import "fmt"

// T is what Open needs of a test.
type T interface {
	Helper()
	Error(args ...any)
	Errorf(format string, args ...any)
	Fatal(args ...any)
	Failed() bool
	Cleanup(func())
}

// Example is a T for an example function, which has none. What goes wrong panics.
type Example struct{ cleanups []func() }

// End does what a test does at its end.
func (e *Example) End() {
	for i := len(e.cleanups) - 1; i >= 0; i-- {
		e.cleanups[i]()
	}
}

// Cleanup has f called by End.
func (e *Example) Cleanup(f func()) { e.cleanups = append(e.cleanups, f) }

// Error, Errorf and Fatal panic.
func (e *Example) Error(args ...any)                 { panic(fmt.Sprint(args...)) }
func (e *Example) Errorf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
func (e *Example) Fatal(args ...any)                 { panic(fmt.Sprint(args...)) }

// Failed is false: what fails does not go on.
func (e *Example) Failed() bool { return false }

// Helper does nothing.
func (e *Example) Helper() {}
