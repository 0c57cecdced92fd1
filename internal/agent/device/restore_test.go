package device

import (
	"net/netip"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"viaxdp/internal/agent/fdstore"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/fds"
	"viaxdp/internal/lab/nstest"
	"viaxdp/xdpnic"
)

// An invalid record does not cause the loss of others of its interface. An invalid record of the interface
// itself does, and the memory of its queues is returned.
func TestBadRecords(t *testing.T) {
	const place = "via0:7:4793"
	entry := func(key, value string, files ...*os.File) fdstore.Entry {
		return fdstore.Entry{Key: key, Value: []byte(value), Files: files}
	}
	r, w, err := os.Pipe()
	nstest.Must(t, err)
	defer r.Close()
	defer w.Close()
	good := []fdstore.Entry{
		entry(nicKey(place), `{"Index":7,"Port":4793}`),
		entry(leaseKey(place, 2), `{"Queue":2,"Slot":1,"Tag":"eA==","Info":{"Info":{"Arena":{"Size":4096}}}}`, r, w),
		entry(viKey(place, 9), `{"Queue":2}`),
	}
	bad := []fdstore.Entry{
		entry(leaseKey(place, 3), `{"Queue":`), entry(leaseKey(place, 4), `{"Queue":4}`), entry(leaseKey(place, 5), `{"Queue":2}`, r),
		entry("vi/"+place+"/none", `{}`), entry(viKey(place, 3), `[]`), entry("listen/"+place+"/1", `[]`), entry("odd/"+place, ``),
	}
	k, nic, err := sortEntries(place, append(bad, good...))
	nstest.ErrorIf(t, err != nil || nic.Index != 7 || len(k.leases) != 1 || len(k.vis) != 1 || len(k.listens) != 0, "%+v, %+v, %v", k, nic, err)
	for _, i := range bad {
		nstest.ErrorIf(t, k.bad[i.Key] == nil, "nothing against %s", i.Key)
	}
	nstest.ErrorIf(t, len(k.bad) != len(bad), "against %d records: %v", len(k.bad), k.bad)
	good[0].Value = []byte(`{"Index":"seven"}`)
	if k, _, err = sortEntries(place, good); err == nil {
		t.Error("an interface without its record")
	}
	lost := k.lost()
	if len(lost) != 1 || lost[0].Local != nil || string(lost[0].Tag) != "x" || lost[0].Alive != r || lost[0].Memory != w || lost[0].Size != 4096+4*4096 { // the memory, and a page of each ring
		t.Errorf("lost: %+v", lost)
	}
	nstest.ErrorIf(t, len(good[1].Files) != 0, "the files are those of two")
}

// A member of a shared queue whose files cannot be duplicated leaves no group without members. The next one makes
// the group.
func TestResumeMemberWithoutFiles(t *testing.T) {
	files := func() (all []*os.File) {
		for range 3 { // sign of life, memory, socket
			f, err := os.Open(os.DevNull)
			nstest.Must(t, err)
			t.Cleanup(func() { f.Close() })
			all = append(all, f)
		}
		return all
	}
	r := leaseRecord{Info: (&kagent.Info{}).Message(), Group: &kagent.QueueMessage{}}
	d := new(device)
	d.begin(16, newFakeFDStore())
	for _, closed := range []int{1, 2} {
		entry := fdstore.Entry{Files: files()}
		nstest.Must(t, entry.Files[closed].Close())
		if err := d.resumeMember(&lease{dev: d}, r, &entry); err == nil || len(d.groups) != 0 {
			t.Errorf("file %d closed: %v, groups %v, want an error and none", closed, err, d.groups)
		}
	}
	l := &lease{dev: d}
	nstest.Must(t, d.resumeMember(l, r, &fdstore.Entry{Files: files()}))
	defer fds.CloseFiles(append(l.sockets, l.group.memory)...)
	nstest.ErrorIf(t, len(d.groups) != 1 || l.group.members[0] != l, "groups %v, want one with the lease", d.groups)
}

// An interface is restored when descriptors are free again, if some were short for a moment.
func TestRestoreShortOfDescriptors(t *testing.T) {
	an, _ := nstest.Pair(t, nstest.Options{})
	fdStore := newFakeFDStore()
	cfg := small(an)
	cfg.Mode, cfg.Shared, cfg.FDStore = xdpnic.ModeGeneric, true, fdStore
	l := mustOpen(t, an, cfg)
	handOut(t, l)
	key := l.dev.key
	objects, ok := l.demux.Descriptors()
	nstest.FatalIf(t, !ok, "the program has no descriptors")
	kept := fdStore.all()
	forget := func(d *device) { // replaces the device as if its agent were dead; nil: by none
		registry.mu.Lock()
		defer registry.mu.Unlock()
		if delete(registry.devices, key); d != nil {
			registry.devices[key] = d
		}
	}
	forget(nil)
	defer forget(l.dev)
	file := func(fd int) *os.File {
		f, err := fds.DupFile(fd, "kept")
		nstest.Must(t, err)
		return f
	}
	for _, free := range []int{0, 3, 8, 12} {
		var entries []fdstore.Entry
		for key, value := range kept {
			e := fdstore.Entry{Key: key, Value: value}
			switch kind, _, _ := strings.Cut(key, "/"); kind {
			case "nic":
				nstest.Must(t, l.dev.udp.Control(func(fd uintptr) { e.Files = append(e.Files, file(int(fd))) }))
				for _, fd := range objects.List() {
					e.Files = append(e.Files, file(fd))
				}
			case "lease":
				r, w, err := os.Pipe()
				nstest.Must(t, err)
				defer w.Close()
				e.Files = append(e.Files, r)
			}
			entries = append(entries, e)
		}
		done := make(chan []Restored, 1)
		nstest.WithDescriptors(t, free, func() {
			go func() {
				var all []Restored
				nstest.Check(t, an.Do(func() (err error) { all, err = Restore(fdStore, entries); return err }))
				done <- all
			}()
			time.Sleep(3 * shortPause) // Restore fails, and tries again
		})
		all := <-done
		nstest.FatalIf(t, len(all) != 1 || all[0].Local == nil || len(fdStore.all()) != len(kept), "%d descriptors: restored %+v, kept %v", free, all, fdStore.all())
		fds.CloseFiles(all[0].Alive)
		// The next round begins with the same entries.
		nstest.Check(t, all[0].Local.dev.fdStore.clear())
		nstest.Check(t, all[0].Local.Close())
		for key, value := range kept {
			nstest.Must(t, fdStore.Put(key, value))
		}
	}
}

// The entries of an interface are restored unchanged, for any name of the interface and any additional entries
// of an agent of another version, or of another program. Those are an error, or belong to this interface, too.
func FuzzKept(f *testing.F) {
	f.Add("eth0", "vi/eth0/10001", []byte(`{"Queue":1,"Peer":"10.0.0.1","Grave":{"VI":3}}`), uint32(0x10001), 3)
	f.Add("eth0.5@x", "lease/eth0.5@x/0", []byte(`{"Queue":-1,"Info":{}}`), uint32(0), 0)
	f.Add("via%d", "nic/via%d", []byte(`{"Index":1,"MaxVIs":-1}`), uint32(0xffffffff), 63)
	f.Add("a b", "vi/a b/", []byte(`null`), uint32(7), 1)
	f.Add("eth0", "shmlink/eth0/0000000000000001", []byte(`{"ID":1,"Queues":[0,1],"Charged":[true,false],"Left":-1}`), uint32(7), 1)
	f.Add("eth0", "shmlink/eth0/0000000000000001", []byte(`{"ID":1,"Queues":[0,0],"Left":7}`), uint32(7), 1)
	f.Fuzz(func(t *testing.T, name, key string, value []byte, num uint32, queue int) {
		if name == "" || strings.Contains(name, "/") || !utf8.ValidString(name) {
			return // no interface is called so, or none that could be written down
		}
		fdStore := newFakeFDStore()
		nic := nicRecord{Index: 5, Port: 4793, MaxVIs: 64, Attached: true}
		lease := leaseRecord{Queue: queue, Slot: 2, Tag: value, Info: (&kagent.Info{Interface: name}).Message()}
		vi := viRecord{Queue: queue, Peer: netip.MustParseAddr("fe80::1"), PeerReset: &PeerReset{VI: num}}
		for k, r := range map[string]any{nicKey(name): nic, leaseKey(name, queue): lease, viKey(name, num): vi} {
			if err := newDeviceStore(fdStore).put(k, r); err != nil {
				t.Skip(err)
			}
		}
		var kept []fdstore.Entry
		for key, value := range fdStore.all() {
			kept = append(kept, fdstore.Entry{Key: key, Value: value, Files: []*os.File{nil}})
		}
		k, gotNIC, err := sortEntries(name, kept)
		if err != nil || k.nic == nil || gotNIC != nic || len(k.leases) != 1 || !reflect.DeepEqual(k.vis, map[uint32]viRecord{num: vi}) {
			t.Fatalf("%+v, %+v: %v", k, gotNIC, err)
		}
		for _, r := range k.leases {
			nstest.FatalIf(t, r.Queue != queue || r.Slot != 2 || string(r.Tag) != string(value) || r.Info.Restore().Interface != name, "the lease is %+v", r)
		}
		k, _, err = sortEntries(name, append(kept, fdstore.Entry{Key: key, Value: value, Files: []*os.File{nil}}))
		nstest.FatalIf(t, err == nil && (k.nic == nil || len(k.leases) > 2 || len(k.vis) > 2 || len(k.shmLinks) > 1), "%q, %q: %+v", key, value, k)
	})
}
