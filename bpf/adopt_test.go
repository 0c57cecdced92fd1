package bpf

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/nstest"
)

// copies duplicates a Demux's descriptors, as passing them to a process does.
func copies(t *testing.T, d *Demux) Descriptors {
	t.Helper()
	fds, ok := d.Descriptors()
	if !ok {
		t.Fatal("no descriptors")
	}
	var list []int
	for _, fd := range fds.List() {
		c, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		nstest.Must(t, err)
		list = append(list, c)
	}
	c, err := DescriptorsOf(list)
	nstest.Must(t, err)
	return c
}

// Program, table and link outlive the Demux that made them, and work for the one
// that takes over.
func TestAdoptDemux(t *testing.T) {
	a, _ := nstest.Pair(t, nstest.Options{})
	first := loadTestDemux(t)
	within(t, a, func() error { return first.Attach(a.Index, Generic) })
	fds := copies(t, first)

	// As a process that is killed: the descriptors close, nothing is undone.
	first.vis.close()
	first.closed = true
	for _, c := range []interface{ Close() error }{first.link, first.Program, first.Sockets, first.Queues, first.counters} {
		nstest.Must(t, c.Close())
	}
	d, err := AdoptDemux(fds, a.Index)
	nstest.Must(t, err)
	within(t, a, func() error { return expectAttached(a, "via_demux", Generic) })
	found := 0
	d.EachVI(func(num uint32, e VIEntry) {
		found++
		want := testTable[num]
		want.Peer = want.Peer.Unmap()
		if e != want {
			t.Errorf("VI %#x: %+v, want %+v", num, e, want)
		}
	})
	if found != len(testTable) {
		t.Errorf("%d VIs in the table, want %d", found, len(testTable))
	}
	if s := d.Slots(); len(s) != 1 || s[0] != slotSocket {
		t.Errorf("slots %v, want %d", s, slotSocket)
	}
	if action, _ := run(t, d, good4().bytes(), 0); action != xdpRedirect {
		t.Errorf("action %d, want redirect", action)
	}
	for range 2 {
		nstest.Check(t, d.Evict(slotSocket))
	}
	if action, _ := run(t, d, good4().bytes(), 0); action != xdpDrop {
		t.Errorf("action %d with an empty slot, want drop", action)
	}
	nstest.Check(t, d.Close())
	within(t, a, func() error { return expectAttached(a, "", Generic) })
}

// Descriptors of other objects are an error, and are closed.
func TestAdoptDemuxRefuses(t *testing.T) {
	d := loadTestDemux(t)
	good := copies(t, d)
	swapped := good
	swapped.Sockets, swapped.Queues = good.Queues, good.Sockets
	file, err := unix.MemfdCreate("no program", 0)
	nstest.Must(t, err)
	wrong := copies(t, d)
	unix.Close(wrong.Program)
	wrong.Program = file
	for name, fds := range map[string]Descriptors{"maps swapped": swapped, "no program": wrong} {
		if _, err := AdoptDemux(fds, 1); err == nil {
			t.Errorf("%s: no error", name)
		}
		for _, fd := range fds.List() {
			if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); !errors.Is(err, unix.EBADF) {
				t.Errorf("%s: descriptor %d: %v, want it closed", name, fd, err)
			}
		}
	}
	if _, err := DescriptorsOf(make([]int, 4)); err == nil {
		t.Error("4 descriptors: no error")
	}
}
