package device

import (
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/fdstore"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/steer"
	"viaxdp/internal/lab/nstest"
	"viaxdp/xdpnic"
)

// fakeSteered has an indirection table and no classifier.
type fakeSteered struct {
	table  []uint32
	closed int
	off    bool // the classifier, which it then has
}

func (f *fakeSteered) Rules() (map[uint32]steer.Rule, error) { return nil, unix.EOPNOTSUPP }
func (f *fakeSteered) Insert(steer.Rule) (uint32, error)     { return 0, unix.EOPNOTSUPP }
func (f *fakeSteered) InsertAt(uint32, steer.Rule) error     { return unix.EOPNOTSUPP }
func (f *fakeSteered) Delete(uint32) error                   { return unix.EOPNOTSUPP }
func (f *fakeSteered) Table() ([]uint32, error)              { return slices.Clone(f.table), nil }
func (f *fakeSteered) SetTable(t []uint32) error {
	if len(t) == 0 {
		t = []uint32{0, 1, 0, 1}
	}
	f.table = slices.Clone(t)
	return nil
}
func (f *fakeSteered) RulesOff() bool { return f.off }
func (f *fakeSteered) Close() error   { f.closed++; return nil }

// fakeFDStore keeps values and no files.
type fakeFDStore struct {
	mu   sync.Mutex
	kept map[string][]byte
}

func newFakeFDStore() *fakeFDStore { return &fakeFDStore{kept: make(map[string][]byte)} }

func (v *fakeFDStore) Put(key string, value []byte, _ ...int) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.kept[key] = value
	return nil
}

func (v *fakeFDStore) Delete(key string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.kept, key)
	return nil
}

// all is a copy of what is kept.
func (v *fakeFDStore) all() map[string][]byte {
	v.mu.Lock()
	defer v.mu.Unlock()
	return maps.Clone(v.kept)
}

// newLease is a lease as far as steering knows it.
func newLease(d *device, queue int) *lease {
	l := &lease{dev: d, queueID: queue, info: kagent.Info{Interface: "eth0", Mode: xdpnic.ModeZeroCopy}}
	d.leases[queue] = l
	return l
}

// The table is changed only if that is allowed, for the first lease, and restored with it. A lease that gets no
// steering has a note.
func TestSteering(t *testing.T) {
	nic := &fakeSteered{table: []uint32{0, 1, 0, 1}}
	before := slices.Clone(nic.table)
	d := &device{
		driver: "igb", inputs: 2, leases: make(map[int]*lease),
		openSteered: func(string) (steered, error) { return nic, nil },
	}
	l := newLease(d, 1)
	for _, how := range []kagent.Steering{kagent.SteerByRules, kagent.SteerOff} {
		l.info.Notes = nil
		l.steer(kagent.Config{Port: 4793, Steer: how})
		if !slices.Equal(nic.table, before) || l.info.Steered != "" || len(l.info.Notes) != 1 ||
			!strings.Contains(l.info.Notes[0], "ethtool -L eth0 combined 1") {
			t.Errorf("%v: table %v, %+v", how, nic.table, l.info)
		}
	}
	if strings.Contains(l.info.Notes[0], "ntuple") {
		t.Errorf("a NIC without a classifier is to turn it on: %q", l.info.Notes)
	}
	nic.off, l.info.Notes = true, nil
	l.steer(kagent.Config{Port: 4793, Steer: kagent.SteerByRules})
	if len(l.info.Notes) != 1 || !strings.Contains(l.info.Notes[0], "ethtool -K eth0 ntuple on") {
		t.Errorf("a classifier that is off: %q", l.info.Notes)
	}
	nic.off = false
	if nic.closed != 2 {
		t.Errorf("closed %d times, want 2: a socket is left", nic.closed)
	}

	l.info.Notes = nil
	l.steer(kagent.Config{Port: 4793, Steer: kagent.SteerByRSS})
	if !slices.Equal(nic.table, []uint32{1, 1, 1, 1}) || l.info.Steered != "rss" || len(l.info.Notes) != 0 {
		t.Errorf("table %v, %+v", nic.table, l.info)
	}
	second := newLease(d, 0)
	second.steer(kagent.Config{Port: 4793, Steer: kagent.SteerByRSS})
	if !slices.Equal(nic.table, []uint32{1, 1, 1, 1}) || len(second.info.Notes) != 1 || !strings.Contains(second.info.Notes[0], "queue 1, of another lease") {
		t.Errorf("second lease: table %v, %v", nic.table, second.info.Notes)
	}
	if err := second.unsteer(); err != nil || !slices.Equal(nic.table, []uint32{1, 1, 1, 1}) {
		t.Errorf("the second lease has undone the first one's: %v, %v", nic.table, err)
	}
	if err := l.unsteer(); err != nil || !slices.Equal(nic.table, before) || nic.closed != 3 {
		t.Errorf("undone: table %v, closed %d, %v", nic.table, nic.closed, err)
	}
}

// A restarted agent knows what is steered: a second lease does not take it over, and the end of the first one
// restores the NIC.
func TestSteeringRestored(t *testing.T) {
	nic := &fakeSteered{table: []uint32{0, 1, 0, 1}}
	before := slices.Clone(nic.table)
	fdStore := newFakeFDStore()
	agent := func() *device {
		d := &device{
			driver: "igb", inputs: 2, place: "eth0",
			openSteered: func(string) (steered, error) { return nic, nil },
		}
		d.begin(2, fdStore)
		return d
	}
	first := newLease(agent(), 1)
	first.steer(kagent.Config{Port: 4793, Steer: kagent.SteerByRSS})
	nstest.Must(t, first.keep(nil, -1))

	entry := fdstore.Entry{Key: leaseKey("eth0", 1), Value: fdStore.all()[leaseKey("eth0", 1)], Files: []*os.File{nil}}
	var r leaseRecord
	nstest.Must(t, json.Unmarshal(entry.Value, &r))
	d := agent()
	d.restoreLeases(&kept{leases: map[*fdstore.Entry]leaseRecord{&entry: r}})
	second := newLease(d, 0)
	second.steer(kagent.Config{Port: 4793, Steer: kagent.SteerByRSS})
	if !slices.Equal(nic.table, []uint32{1, 1, 1, 1}) || len(second.info.Notes) != 1 || !strings.Contains(second.info.Notes[0], "queue 1, of another lease") {
		t.Errorf("second lease after a restart: table %v, %v", nic.table, second.info.Notes)
	}
	if err := d.leases[1].unsteer(); err != nil || !slices.Equal(nic.table, before) || nic.closed != 1 {
		t.Errorf("the first lease's end: table %v, closed %d, %v", nic.table, nic.closed, err)
	}

	// Without descriptors for the NIC the lease is restored, and a note lists what stays changed.
	d = agent()
	entry.Files = []*os.File{nil}
	d.openSteered = func(string) (steered, error) { return nil, unix.EMFILE }
	d.restoreLeases(&kept{leases: map[*fdstore.Entry]leaseRecord{&entry: r}})
	if l := d.leases[1]; l == nil || l.steering != nil || !slices.ContainsFunc(l.info.Notes, func(n string) bool { return strings.Contains(n, "stays steered to queue 1") }) {
		t.Errorf("the NIC could not be opened: %+v", l)
	}
}

// With one queue there is nothing to steer.
func TestSteeringOneQueue(t *testing.T) {
	d := &device{driver: "igb", inputs: 1, leases: make(map[int]*lease), openSteered: func(string) (steered, error) {
		t.Error("the NIC was asked")
		return nil, unix.EPERM
	}}
	l := newLease(d, 0)
	if l.steer(kagent.Config{Port: 1}); len(l.info.Notes) != 0 {
		t.Errorf("%v", l.info.Notes)
	}
}

// A veth in native mode has a note about its own behaviour.
func TestSteeringVeth(t *testing.T) {
	ns, _ := nstest.Pair(t, nstest.Options{Queues: 2})
	cfg := small(ns)
	cfg.Mode, cfg.Queue, cfg.Steer = xdpnic.ModeNative, 1, kagent.SteerByRSS
	info := mustOpen(t, ns, cfg).Info()
	if info.Steered != "" || !slices.ContainsFunc(info.Notes, func(n string) bool { return strings.Contains(n, "a veth takes those") }) {
		t.Errorf("%q, %q", info.Steered, info.Notes)
	}
}
