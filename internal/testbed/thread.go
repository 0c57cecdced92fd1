package testbed

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// onThread runs f on a thread that ends with it, whatever f has made of it. The main thread would
// not end, and /proc/self is what it is: where f comes to be on it, it is held until f has run on
// another one.
func onThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			onThread(f)
			runtime.UnlockOSThread()
			return
		}
		f()
	}()
	<-done
}

// goOnThread is onThread in goroutines, all of which there are when it returns: f runs.
func goOnThread(f func()) {
	runs := make(chan struct{})
	go onThread(func() {
		close(runs)
		f()
	})
	<-runs
}
