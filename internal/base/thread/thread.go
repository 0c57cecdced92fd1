// Package thread runs functions on separate threads, for state of a thread and not of the process: network namespace, CPUs,
// scheduling class. A Yielder lets other threads have the CPU of one that polls.
package thread

import (
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// Run runs f on a thread that ends with f, so that f may change the thread's state,
// and returns when f returns. Goroutines that f starts run on other threads.
//
// f never runs on the main thread, which the runtime keeps when its goroutine ends
// and which /proc/self shows. If the goroutine is on the main thread, Run blocks
// that thread until f has run on another one.
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

// Go starts f on such a thread, and returns once f runs.
func Go(f func()) {
	runs := make(chan struct{})
	go Run(func() {
		close(runs)
		f()
	})
	<-runs
}

// Netns returns device and inode of the calling thread's network namespace.
func Netns() ([2]uint64, error) {
	var ns unix.Stat_t
	err := unix.Stat("/proc/thread-self/ns/net", &ns)
	return [2]uint64{ns.Dev, ns.Ino}, err
}

// In runs f like Run, in the network namespace of a file descriptor. Sockets and
// files that f opens stay usable everywhere. It returns the error of f, or that of
// setns(2) if it cannot enter the namespace.
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
