package fdstore

import (
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A sign of life ends with the last who has it. What its holder writes to it is not read:
// when the pipe is full there is nothing more to do.
func TestSignOfLife(t *testing.T) {
	fds := make([]int, 2)
	if err := unix.Pipe2(fds, unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	ours := os.NewFile(uintptr(fds[0]), "alive")
	defer ours.Close()
	dead := make(chan struct{})
	go func() {
		defer close(dead)
		AwaitDeath(ours)
	}()
	full := func() (n int) {
		for b := make([]byte, 1); ; n++ {
			switch _, err := unix.Write(fds[1], b); {
			case errors.Is(err, unix.EAGAIN):
				return n
			case err != nil:
				t.Fatal(err)
			}
		}
	}
	if full() == 0 {
		t.Error("nothing can be written")
	}
	time.Sleep(10 * time.Millisecond) // for one that would read
	if n := full(); n > 0 {
		t.Errorf("%d bytes were read", n)
	}
	select {
	case <-dead:
		t.Error("dead by what it has written")
	default:
	}
	if IsDead(ours) {
		t.Error("dead, and has its end")
	}
	unix.Close(fds[1])
	select {
	case <-dead:
	case <-time.After(time.Minute):
		t.Fatal("nobody has noticed the end")
	}
	if !IsDead(ours) {
		t.Error("not dead")
	}
}

// Whoever waits is released by closing the file.
func TestSignOfLifeClosed(t *testing.T) {
	ours, theirs, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	over := make(chan struct{})
	go func() {
		defer close(over)
		AwaitDeath(ours)
	}()
	if err := ours.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-over:
	case <-time.After(time.Minute):
		t.Fatal("still waiting")
	}
	if !IsDead(ours) {
		t.Error("not dead, and closed")
	}
}
