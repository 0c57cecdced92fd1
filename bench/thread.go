package bench

import "runtime"

// thread runs functions one after the other on one goroutine, which may be
// locked to an operating system thread.
type thread struct{ work chan func() }

func newThread(locked bool) *thread {
	t := &thread{work: make(chan func())}
	go func() {
		if locked {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
		}
		for f := range t.work {
			f()
		}
	}()
	return t
}

func (t *thread) do(f func()) {
	done := make(chan struct{})
	t.work <- func() { defer close(done); f() }
	<-done
}

func (t *thread) end() { close(t.work) }
