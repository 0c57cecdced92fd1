package device

import (
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/fds"
)

// What one side of a link does to its bell is nothing to the other side: neither
// can make the other one wait.
func TestShmLinkBells(t *testing.T) {
	d := new(device)
	defer func() {
		if err := d.closeShmLinks(0); err != nil {
			t.Error(err)
		}
	}()
	a, errA := d.shmLink(0, 1)
	b, errB := d.shmLink(1, 0)
	if errA != nil || errB != nil {
		t.Fatal(errA, errB)
	}
	defer a.Close()
	defer b.Close()
	if a.ID != b.ID || a.Side == b.Side {
		t.Errorf("ends %d/%d and %d/%d", a.ID, a.Side, b.ID, b.Side)
	}
	of := func(e *kagent.ShmLinkEnd) (wake, bell int) {
		t.Helper()
		dups, err := fds.DupAll([]*os.File{e.Memory, e.Wake, e.Bell})
		if err != nil {
			t.Fatal(err)
		}
		_ = unix.Close(dups[0])
		t.Cleanup(func() { _, _ = unix.Close(dups[1]), unix.Close(dups[2]) })
		return dups[1], dups[2]
	}
	wakeA, bellA := of(a)
	wakeB, bellB := of(b)

	for _, fd := range []int{wakeB, bellB} {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFL, 0); err != nil {
			t.Fatal(err)
		}
	}
	for _, fd := range []int{wakeA, bellA} {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0); err != nil || flags&unix.O_NONBLOCK == 0 {
			t.Fatalf("the other side has made a bell of ours block: flags %#x, %v", flags, err)
		}
	}

	// B rings without end: A hears it, and nothing that A does waits.
	var err error
	for range 1 << 20 {
		if err = unix.Send(bellB, []byte{1}, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL); err != nil {
			break
		}
	}
	if !errors.Is(err, unix.EAGAIN) {
		t.Fatalf("ringing without end: %v", err)
	}
	if err := unix.Send(bellA, []byte{1}, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL); err != nil {
		t.Errorf("ringing at who has rung without end: %v", err)
	}
	_ = a.Wake.SetReadDeadline(time.Now().Add(waitLimit))
	if n, err := a.Wake.Read(make([]byte, 16)); n == 0 || err != nil {
		t.Errorf("hearing it: %d bytes, %v", n, err)
	}

	// Nor do descriptors come along, where the kernel can refuse them.
	if on, err := unix.GetsockoptInt(wakeA, unix.SOL_SOCKET, unix.SO_PASSRIGHTS); err == nil && on != 0 {
		t.Error("the other side can send descriptors")
	}
}
