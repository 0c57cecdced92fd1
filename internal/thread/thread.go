// Package thread runs functions on threads of their own, for what belongs to a
// thread and not to the process: network namespace, CPUs, scheduling class.
package thread

import (
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// Run runs f on a thread that ends with it, whatever f has made of it, and
// returns when f has. Goroutines that f starts run elsewhere.
//
// f never has the main thread: the runtime keeps that when its goroutine ends,
// and /proc/self is what it is. Where f comes to be on it, it is held until f
// has run on another one.
func Run(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			Run(f)
			runtime.UnlockOSThread()
			return
		}
		f()
	}()
	<-done
}

// Go begins f on such a thread; f runs when it returns.
func Go(f func()) {
	runs := make(chan struct{})
	go Run(func() {
		close(runs)
		f()
	})
	<-runs
}

// In runs f like Run, in the network namespace that a file descriptor stands
// for. Sockets and files that f opens stay usable everywhere. Its errors are
// those of f, and that the namespace cannot be entered (setns(2)).
func In(netns int, f func() error) error {
	err := errors.New("the function in the network namespace did not return") // runtime.Goexit
	Run(func() {
		if e := unix.Setns(netns, unix.CLONE_NEWNET); e != nil {
			err = fmt.Errorf("enter network namespace: %w", e)
			return
		}
		err = f()
	})
	return err
}
