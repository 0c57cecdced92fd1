package device

import (
	"encoding/json"
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/fdstore"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/fds"
	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
)

// One side's operations on its bell do not affect the other side: neither can make the other one block.
func TestShmLinkBells(t *testing.T) {
	d := new(device)
	d.begin(2, nil)
	defer func() { nstest.Check(t, d.closeShmLinks(0)) }()
	a, errA := d.shmLink([2]int{0, 1}, 0)
	b, errB := d.shmLink([2]int{0, 1}, 1)
	nstest.Must(t, errors.Join(errA, errB))
	defer a.Close()
	defer b.Close()
	nstest.ErrorIf(t, a.ID != b.ID || a.Side == b.Side, "ends %d/%d and %d/%d", a.ID, a.Side, b.ID, b.Side)
	of := func(e *kagent.ShmLinkEnd) (wake, bell int) {
		t.Helper()
		dups, err := fds.DupAll([]*os.File{e.Memory, e.Wake, e.Bell})
		nstest.Must(t, err)
		_ = unix.Close(dups[0])
		t.Cleanup(func() { _, _ = unix.Close(dups[1]), unix.Close(dups[2]) })
		return dups[1], dups[2]
	}
	wakeA, bellA := of(a)
	wakeB, bellB := of(b)

	for _, fd := range []int{wakeB, bellB} {
		nstest.Must(t, nstest.Err(unix.FcntlInt(uintptr(fd), unix.F_SETFL, 0)))
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
	nstest.FatalIf(t, !errors.Is(err, unix.EAGAIN), "ringing without end: %v", err)
	nstest.WantErr(t, "ringing at a side that has rung without end", unix.Send(bellA, []byte{1}, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL), nil)
	_ = a.Wake.SetReadDeadline(time.Now().Add(waitLimit))
	if n, err := a.Wake.Read(make([]byte, 16)); n == 0 || err != nil {
		t.Errorf("hearing it: %d bytes, %v", n, err)
	}

	// Nor do descriptors come along, where the kernel can refuse them.
	if on, err := unix.GetsockoptInt(wakeA, unix.SOL_SOCKET, unix.SO_PASSRIGHTS); err == nil && on != 0 {
		t.Error("the other side can send descriptors")
	}
}

// keptLink is a descriptor store's entry for a link: one with both sides, or one that is left to a side.
// Programs have its bells until the test ends.
func keptLink(t *testing.T, charged [2]bool, left int) fdstore.Entry {
	t.Helper()
	f, err := newShmLink([2]int{0, 1})
	nstest.Must(t, err)
	f.charged, f.left = charged, left
	programs, err := fds.DupAll(f.bells[:])
	nstest.Must(t, err)
	t.Cleanup(func() { fds.Close(programs...) })
	files := []*os.File{f.memory, f.bells[0], f.bells[1]}
	if left != both {
		_ = f.bells[left].Close()
		files = []*os.File{f.memory, f.bells[1-left]}
	}
	value, err := json.Marshal(linkRecord{f.id, f.pair, f.charged, f.left})
	nstest.Must(t, err)
	return fdstore.Entry{Key: linkKey("eth0:1:4793", f.id), Value: value, Files: files}
}

// An agent that is out of descriptors stores a link all the same.
func TestKeepLinkWithoutDescriptors(t *testing.T) {
	fdStore := newFakeFDStore()
	d := &device{place: "eth0:1:4793"}
	d.begin(2, fdStore)
	f, err := newShmLink([2]int{0, 1})
	nstest.Must(t, err)
	defer func() { nstest.Check(t, f.close()) }()
	nstest.WithDescriptors(t, 0, func() { d.keepLink(f) })
	nstest.Equal(t, "entries", len(fdStore.all()), 1)
}

// A link is restored for those of its queues that are restored, and charged to the sides that were charged;
// invalid links are dropped.
func TestRestoreLinks(t *testing.T) {
	for name, tc := range map[string]struct {
		kept   fdstore.Entry
		leases []int
		live   bool // both sides get the link
		n      [2]int
		fails  bool
	}{
		"both":                     {kept: keptLink(t, [2]bool{true, true}, both), leases: []int{0, 1}, live: true, n: [2]int{1, 1}},
		"one has it":               {kept: keptLink(t, [2]bool{false, true}, both), leases: []int{0, 1}, live: true, n: [2]int{0, 1}},
		"the other is not there":   {kept: keptLink(t, [2]bool{true, true}, both), leases: []int{1}, n: [2]int{0, 1}},
		"the holder is not there":  {kept: keptLink(t, [2]bool{true, false}, both), leases: []int{1}},
		"nobody is there":          {kept: keptLink(t, [2]bool{true, true}, both)},
		"left to one":              {kept: keptLink(t, [2]bool{true, false}, 0), leases: []int{0, 1}, n: [2]int{1, 0}},
		"left to who is not there": {kept: keptLink(t, [2]bool{true, false}, 0), leases: []int{1}},
		"a bell too few":           {kept: keptLink(t, [2]bool{true, false}, 0), leases: []int{0}, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.fails {
				_ = tc.kept.Files[1].Close()
				tc.kept.Files = tc.kept.Files[:1]
			}
			fdStore := newFakeFDStore()
			fdStore.kept[tc.kept.Key] = tc.kept.Value
			d := &device{place: "eth0:1:4793"}
			d.begin(2, fdStore)
			for _, q := range tc.leases {
				newLease(d, q)
			}
			nic := fdstore.Entry{Key: nicKey(d.place), Value: []byte("{}")}
			k, _, err := sortEntries(d.place, []fdstore.Entry{nic, tc.kept})
			nstest.FatalIf(t, err != nil || len(k.bad) > 0 || len(k.shmLinks) != 1, "%+v, %v", k, err)
			d.mu.Lock()
			err = d.restoreLinks(k.shmLinks)
			d.mu.Unlock()
			tc.kept.Close()
			nstest.ErrorIf(t, (err != nil) != tc.fails || (d.shmLinks[[2]int{0, 1}] != nil) != tc.live,
				"%v, links %v, want one: %v", err, d.shmLinks, tc.live)
			var n [2]int
			for q, l := range d.leases {
				n[q] = (&Local{dev: d, lease: l}).OnLinkLeft(func() {})
			}
			if d.mu.Lock(); n != tc.n {
				t.Errorf("charged are %v links, want %v", n, tc.n)
			}
			nstest.Equal(t, "links that are kept", len(fdStore.all()), min(n[0]+n[1], 1))
			d.mu.Unlock()
			for _, q := range tc.leases {
				d.mu.Lock()
				delete(d.leases, q)
				nstest.Check(t, d.closeShmLinks(q))
				d.mu.Unlock()
			}
			await.Until(t, "nothing is kept", func() bool { return len(fdStore.all()) == 0 })
			nstest.ErrorIf(t, len(d.shmLinks)+len(d.halfLinks) > 0, "at the end there are %v, %v", d.shmLinks, d.halfLinks)
		})
	}
	another := keptLink(t, [2]bool{true, true}, both)
	another.Key += "0" // nothing would delete it when the link ends
	nic := fdstore.Entry{Key: nicKey("eth0:1:4793"), Value: []byte("{}")}
	k, _, err := sortEntries("eth0:1:4793", []fdstore.Entry{nic, another})
	nstest.ErrorIf(t, err != nil || len(k.bad) != 1 || len(k.shmLinks) > 0, "under the key of another link: %+v, %v", k, err)
	another.Close()
	for _, value := range []string{`{"Queues":[1,0],"Left":-1}`, `{"Queues":[0,1],"Left":2}`, `{"Queues":[-1,1]}`, `{"Left":-2}`, `?`} {
		if r, err := readLink(&fdstore.Entry{Value: []byte(value)}); err == nil {
			t.Errorf("%s is %+v", value, r)
		}
	}
}
