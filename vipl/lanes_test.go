package vipl_test

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/kagent"
	"viaxdp/lane"
)

// The program at the other end of a lane never answers the bell: sending goes on,
// although the bell could block, and so does leaving the lane. When that program
// has gone, the bell stays until the last connection is.
func TestDeafNeighbour(t *testing.T) {
	n := newMemoryNet(t, memoryConfig{})
	fd, err := unix.MemfdCreate("lane", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	end := &kagent.LaneEnd{ID: 1, Memory: os.NewFile(uintptr(fd), "lane")}
	if err := end.Memory.Truncate(lane.Size); err != nil {
		t.Fatal(err)
	}
	mem, err := unix.Mmap(fd, 0, lane.Size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(mem) })
	far, err := lane.New(mem, 1)
	if err != nil {
		t.Fatal(err)
	}
	var fars [2]int
	for i, f := range []**os.File{&end.Wake, &end.Bell} {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		*f, fars[i] = os.NewFile(uintptr(fds[0]), "bell"), fds[1]
		if f == &end.Bell {
			if err := unix.SetNonblock(fds[0], false); err != nil {
				t.Fatal(err)
			}
		}
	}
	bell := end.Bell
	send, leave, err := n.a.EnterLane(end)
	if err != nil {
		t.Fatal(err)
	}

	far.Sleep(true)
	sent := make(chan int)
	go func() {
		buf := make([]byte, lane.MaxFrame)
		for i := range 2000 { // many times what the socket takes
			if ok := send(64); !ok {
				sent <- i
				return
			}
			far.Receive(buf)
		}
		sent <- 2000
	}()
	select {
	case i := <-sent:
		if i != 2000 {
			t.Errorf("frame %d was not sent", i)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("a full bell has stopped who sends")
	}

	// One that is gone, which the port has noticed when its reading ended.
	for _, fd := range fars {
		_ = unix.Close(fd)
	}
	if !send(64) {
		t.Error("a lane whose bell is gone takes no frames")
	}
	open := func() bool {
		raw, err := bell.SyscallConn()
		return err == nil && raw.Control(func(uintptr) {}) == nil
	}
	time.Sleep(20 * time.Millisecond) // a bell closed too early would be by now
	if !open() {
		t.Error("the bell has been closed while a connection uses it")
	}
	leave()
	for start := time.Now(); open(); time.Sleep(time.Millisecond) {
		if time.Since(start) > 20*time.Second {
			t.Fatal("the bell is still open")
		}
	}
}
