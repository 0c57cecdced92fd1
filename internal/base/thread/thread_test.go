package thread

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// What has a thread of its own for a while may leave that in another namespace: it is never the main one.
func TestOwnThread(t *testing.T) {
	var wait sync.WaitGroup
	over := make(chan struct{})
	for range 64 {
		running := make(chan struct{})
		wait.Go(func() {
			Run(func() {
				if unix.Gettid() == unix.Getpid() {
					t.Error("it has the main thread")
				}
				close(running)
				<-over
			})
		})
		<-running
	}
	close(over)
	wait.Wait()
}

// In passes errors on, and runs nothing where there is no namespace to enter.
func TestIn(t *testing.T) {
	here, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(here.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	if ns, err := Netns(); err != nil || ns != [2]uint64{st.Dev, st.Ino} {
		t.Errorf("Netns: %v, %v, want %d and %d", ns, err, st.Dev, st.Ino)
	}
	if os.Geteuid() == 0 { // setns(2) takes CAP_SYS_ADMIN even for one's own
		boom := errors.New("boom")
		if err := In(int(here.Fd()), func() error { return boom }); err != boom {
			t.Errorf("%v, want %v", err, boom)
		}
		if err := In(int(here.Fd()), func() error { runtime.Goexit(); return nil }); err == nil {
			t.Error("no error, and the function did not return")
		}
		ran := false
		if err := In(int(here.Fd()), func() error { ran = true; return nil }); err != nil || !ran {
			t.Errorf("ran %v, %v", ran, err)
		}
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if err := In(int(null.Fd()), func() error { t.Error("it ran outside"); return nil }); !errors.Is(err, unix.EINVAL) {
		t.Errorf("%v, want EINVAL", err)
	}
}
