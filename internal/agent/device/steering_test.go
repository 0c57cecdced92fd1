package device

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/fdstore"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/agent/route"
	"viaxdp/internal/base/steer"
	"viaxdp/internal/base/wire"
	"viaxdp/internal/lab/nstest"
	"viaxdp/xdpnic"
)

// fakeSteered has an indirection table, and no classifier unless rules is set.
type fakeSteered struct {
	rules  bool
	noIPv6 bool // of the rules
	in     map[uint32]steer.Rule

	table  []uint32
	closed int
	off    bool // the classifier, which it then has
}

func (f *fakeSteered) Rules() (map[uint32]steer.Rule, error) { return maps.Clone(f.in), f.lacks() }
func (f *fakeSteered) InsertAt(uint32, steer.Rule) error     { return unix.EOPNOTSUPP }

// lacks is the error of all calls about rules.
func (f *fakeSteered) lacks() error {
	if f.rules {
		return nil
	}
	return unix.EOPNOTSUPP
}

func (f *fakeSteered) Insert(r steer.Rule) (at uint32, err error) {
	if err := f.lacks(); err != nil {
		return 0, err
	}
	if f.noIPv6 && r.IPv6 {
		return 0, unix.EINVAL
	}
	if f.in == nil {
		f.in = make(map[uint32]steer.Rule)
	}
	for _, used := f.in[at]; used; _, used = f.in[at] {
		at++
	}
	f.in[at] = r
	return at, nil
}

func (f *fakeSteered) Delete(at uint32) error {
	delete(f.in, at)
	return f.lacks()
}
func (f *fakeSteered) Table() ([]uint32, error) { return slices.Clone(f.table), nil }
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

// steeredDevice is a device as far as steering knows it.
func steeredDevice(driver string, queues int, nic *fakeSteered) *device {
	d := &device{
		driver: driver, inputs: queues, queues: queues,
		openSteered: func(string) (steered, error) { return nic, nil },
	}
	d.begin(2, nil)
	return d
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
	d := steeredDevice("igb", 2, nic)
	l := newLease(d, 1)
	for _, how := range []kagent.Steering{kagent.SteerByRules, kagent.SteerOff} {
		l.info.Notes = nil
		l.steer(kagent.Config{Port: 4793, Steer: how})
		if !slices.Equal(nic.table, before) || l.info.Steered != "" || len(l.info.Notes) != 1 ||
			!strings.Contains(l.info.Notes[0], "ethtool -L eth0 combined 1") {
			t.Errorf("%v: table %v, %+v", how, nic.table, l.info)
		}
	}
	nstest.ErrorIf(t, strings.Contains(l.info.Notes[0], "ntuple"),
		"a NIC without a classifier is to turn it on: %q", l.info.Notes)
	nic.off, l.info.Notes = true, nil
	l.steer(kagent.Config{Port: 4793, Steer: kagent.SteerByRules})
	nstest.ErrorIf(t, len(l.info.Notes) != 1 || !strings.Contains(l.info.Notes[0], "ethtool -K eth0 ntuple on"), "a classifier that is off: %q", l.info.Notes)
	nic.off = false
	nstest.ErrorIf(t, nic.closed != 2, "closed %d times, want 2: a socket is left", nic.closed)

	l.info.Notes = nil
	l.steer(kagent.Config{Port: 4793, Steer: kagent.SteerByRSS})
	nstest.ErrorIf(t, !slices.Equal(nic.table, []uint32{1, 1, 1, 1}) || l.info.Steered != "rss" || len(l.info.Notes) != 0,
		"table %v, %+v", nic.table, l.info)
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

// A classifier may have no rules for IPv6. The lease has a note then, because frames over IPv6 go to any queue.
func TestSteeringOfIPv4Alone(t *testing.T) {
	l := newLease(steeredDevice("ixgbe", 2, &fakeSteered{rules: true, noIPv6: true}), 1)
	l.steer(kagent.Config{Port: 4793})
	if l.info.Steered != "rules" || len(l.info.Notes) != 1 || !strings.Contains(l.info.Notes[0], "over IPv4 only (invalid argument)") {
		t.Errorf("steered %q, notes %q", l.info.Steered, l.info.Notes)
	}
}

// Each lease has a port of its own where the NIC has rules: the first the interface's, also after the first one has gone. A
// lease without a port has a note.
func TestPortOfEachQueue(t *testing.T) {
	foreign := steer.Rule{Port: 4795, Queue: 7}
	nic := &fakeSteered{rules: true, in: map[uint32]steer.Rule{90: foreign}, table: []uint32{0, 1}}
	d := steeredDevice("ice", 80, nic)
	cfg := kagent.Config{Port: 4793, Steer: kagent.SteerByRSS}
	goes := func(port uint16) int {
		for _, r := range nic.in {
			if r.Port == port && !r.IPv6 {
				return r.Queue
			}
		}
		return -1
	}
	open := func(queue int, port uint16) *lease {
		t.Helper()
		l := newLease(d, queue)
		if l.steer(cfg); l.info.Steered != "rules" || goes(port) != queue || l.info.PortOffset != uint8(port-cfg.Port) || len(l.info.Notes) != 0 {
			t.Errorf("queue %d: port %d goes to %d, steered %q, offset %d, notes %q", queue, port, goes(port), l.info.Steered, l.info.PortOffset, l.info.Notes)
		}
		return l
	}
	refused := func(queue int, why string) {
		t.Helper()
		l := newLease(d, queue)
		defer delete(d.leases, queue)
		if l.steer(cfg); l.info.Steered != "" || l.info.PortOffset != 0 || len(l.info.Notes) != 1 || !strings.Contains(l.info.Notes[0], why) {
			t.Errorf("queue %d: steered %q, offset %d, notes %q, want %q", queue, l.info.Steered, l.info.PortOffset, l.info.Notes, why)
		}
	}
	end := func(l *lease) {
		t.Helper()
		nstest.Must(t, l.unsteer())
		delete(d.leases, l.queueID)
	}
	first, second := open(3, 4793), open(1, 4794)
	third := open(2, 4796) // 4795 is another owner's
	end(first)
	nstest.ErrorIf(t, goes(4793) != -1 || goes(4794) != 1 || goes(4796) != 2, "after the first one's end: %v", nic.in)
	first = open(4, 4793)
	end(second)
	open(1, 4794)
	for queue, port := 6, uint16(4797); port < 4793+wire.Ports; queue, port = queue+1, port+1 {
		open(queue, port)
	}
	refused(70, "queue 4, of another lease, and no port to queue 70 (the 63 ports after 4793")
	end(first)
	end(third)
	nstest.ErrorIf(t, !slices.Equal(nic.table, []uint32{0, 1}) || nic.in[90] != foreign, "table %v, rules %v", nic.table, nic.in)
	cfg.Port = 1<<16 - 2
	for _, l := range d.sortedLeases() {
		end(l)
	}
	open(0, 65534)
	open(1, 65535)
	refused(2, "ports after 65534")
}

// A frame to the port of the second queue arrives there, and a peer learns of the port when it connects.
func TestFrameToQueuePort(t *testing.T) {
	an, bn := nstest.Pair(t, nstest.Options{Queues: 2})
	b := mustOpen(t, bn, native(bn, 0))
	nic := &fakeSteered{rules: true}
	second, a := mustOpen(t, bn, native(bn, 1)), mustOpen(t, an, native(an, 1))
	b.dev.mu.Lock()
	b.dev.driver, b.dev.openSteered = "ice", func(string) (steered, error) { return nic, nil } // a veth needs no steering
	for _, l := range []*Local{b, second} {
		l.lease.steer(kagent.Config{Port: wire.Port})
	}
	b.dev.mu.Unlock()
	if i := second.Info(); i.Steered != "rules" || i.PortOffset != 1 {
		t.Fatalf("steered %q, offset %d, notes %q", i.Steered, i.PortOffset, i.Notes)
	}
	p, err := a.Path(t.Context(), netip.Addr{}, bn.IPv4)
	nstest.Must(t, err)
	num, err := second.NewVI()
	nstest.Must(t, err)
	key := kagent.NewKey()
	nstest.Must(t, second.Enter(num, key, p.Src))
	for _, offset := range []uint8{0, second.Info().PortOffset} {
		p.PortOffset = offset
		nstest.ErrorIf(t, !sendFrame(t, a, second, p, num, key), "a frame to port %d did not come", p.DstPort())
	}
	nstest.Must(t, second.Close())
	nstest.ErrorIf(t, len(nic.in) != 2, "rules after the second one's end: %v", nic.in)
}

// A restarted agent knows what is steered: a second lease does not take it over, and the end of the first one
// restores the NIC.
func TestSteeringRestored(t *testing.T) {
	nic := &fakeSteered{table: []uint32{0, 1, 0, 1}}
	before := slices.Clone(nic.table)
	fdStore := newFakeFDStore()
	agent := func() *device {
		d := steeredDevice("igb", 2, nic)
		d.place = "eth0"
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
	d := steeredDevice("igb", 1, nil)
	d.openSteered = func(string) (steered, error) {
		t.Error("the NIC was asked")
		return nil, unix.EPERM
	}
	l := newLease(d, 0)
	if l.steer(kagent.Config{Port: 1}); len(l.info.Notes) != 0 {
		t.Errorf("%v", l.info.Notes)
	}
}

// A veth in native mode has a note about its own behaviour.
func TestSteeringVeth(t *testing.T) {
	ns, _ := nstest.Pair(t, nstest.Options{Queues: 2})
	cfg := native(ns, 1)
	cfg.Steer = kagent.SteerByRSS
	info := mustOpen(t, ns, cfg).Info()
	if info.Steered != "" || !slices.ContainsFunc(info.Notes, func(n string) bool { return strings.Contains(n, "a veth takes those") }) {
		t.Errorf("%q, %q", info.Steered, info.Notes)
	}
}

// With SteerAll a VI gets frames from all queues, in the one process and in two handles. Its slots are not another lease's, and
// nobody else gets a queue.
func TestAllQueues(t *testing.T) {
	an, bn := nstest.Pair(t, nstest.Options{Queues: 9})
	cfg := native(bn, 2)
	cfg.ArenaBytes = 8 << 20
	cfg.Steer = kagent.SteerAll
	b := mustOpen(t, bn, cfg)
	if i := b.Info(); i.Steered != "all" || i.Queue != 2 || len(i.NIC.ExtraQueues) != 8 {
		t.Fatalf("queue %d and %d, steered %q, notes %q", i.Queue, i.NIC.ExtraQueues, i.Steered, i.Notes)
	}
	for _, queue := range []int{2, 3, kagent.AnyQueue} {
		_, err := openOn(t, bn, native(bn, queue))
		nstest.ErrorIf(t, !errors.Is(err, kagent.ErrQueueInUse) || queue == kagent.AnyQueue && !strings.Contains(err.Error(), "steering off"), "queue %d: %v", queue, err)
		shared := native(bn, queue)
		shared.ShareQueue = true
		if l := mustOpen(t, bn, shared); l.Queue() != b.Queue() {
			t.Errorf("queue %d is another one", queue)
		}
	}
	num, err := b.NewVI()
	nstest.Must(t, err)
	key := kagent.NewKey()
	for queue := range 9 {
		a := mustOpen(t, an, native(an, queue))
		p, err := a.Path(t.Context(), netip.Addr{}, bn.IPv4)
		nstest.Must(t, err)
		if queue == 0 {
			nstest.Must(t, b.Enter(num, key, p.Src))
		}
		nstest.ErrorIf(t, !sendFrame(t, a, b, p, num, key), "the frame on queue %d did not come", queue)
		nstest.ErrorIf(t, sendFrame(t, a, b, p, num, key+1), "queue %d: a frame with the wrong key came", queue)
	}
	nstest.Equal(t, "slots", len(b.dev.demux.Slots()), 9)
	if l, ok := b.dev.status(); !ok || !slices.Equal(l.Leases[0].ExtraQueues, []int{0, 1, 3, 4, 5, 6, 7, 8}) {
		t.Errorf("status %+v", l)
	}
}

// If another program has one of the queues, a handle gets its own, and says why it has no more.
func TestAllQueuesTaken(t *testing.T) {
	t.Parallel() // it waits for the busy queue
	ns, peer := nstest.Pair(t, nstest.Options{Queues: 2})
	defer mustBind(t, ns, 1).Close()
	all := native(ns, kagent.AnyQueue)
	all.Steer = kagent.SteerAll
	l := mustOpen(t, ns, all)
	notes := strings.Join(l.Info().Notes, "\n")
	if l.Info().Queue != 0 || len(l.Info().NIC.ExtraQueues) != 0 || !strings.Contains(notes, "does not receive from the other queues") || !strings.Contains(notes, "queue 1") {
		t.Errorf("%+v", l.Info())
	}
	// Two handles of one process.
	mustOpen(t, peer, native(peer, 0))
	all.Interface = peer.Name
	second := mustOpen(t, peer, all)
	if i := second.Info(); i.Queue != 1 || len(i.NIC.ExtraQueues) != 0 || !strings.Contains(strings.Join(i.Notes, "\n"), "other programs have some of them") {
		t.Errorf("%+v", i)
	}
	// In generic mode a veth has one queue, and nothing to say.
	generic := small(ns)
	generic.Mode, generic.RequireMode, generic.Steer = xdpnic.ModeGeneric, true, kagent.SteerAll
	nstest.Must(t, l.Close())
	if i := mustOpen(t, ns, generic).Info(); len(i.NIC.ExtraQueues) != 0 || i.Queue != 0 {
		t.Errorf("%+v", i)
	}
}

// A handle that may have any queue, and would have all, gets one that is free where another program has the first.
func TestFirstQueueTaken(t *testing.T) {
	t.Parallel()
	ns, _ := nstest.Pair(t, nstest.Options{Queues: 3})
	defer mustBind(t, ns, 0).Close()
	cfg := native(ns, kagent.AnyQueue)
	cfg.Steer = kagent.SteerAll
	i := mustOpen(t, ns, cfg).Info()
	nstest.ErrorIf(t, i.Queue != 1 || len(i.NIC.ExtraQueues) != 0 || !strings.Contains(strings.Join(i.Notes, "\n"), "queue 0"),
		"%+v", i)
}

// An open that would have all queues does not take another one while an open that is under way has the first: it is to wait.
func TestAllQueuesBehindAnOpen(t *testing.T) {
	ns, _ := nstest.Pair(t, nstest.Options{Queues: 3})
	first := mustOpen(t, ns, native(ns, 2))
	d, l := first.dev, &lease{dev: first.dev, anyQueue: true}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.opening[0] = first.lease // as if
	defer delete(d.opening, 0)
	if err := l.open(t.Context(), xdpnic.Config{ExtraQueues: []int{1}}, xdpnic.ModeNative); !errors.Is(err, errOpening) || l.extraErr != nil {
		t.Errorf("%v, without the others: %v", err, l.extraErr)
	}
}

// By default a handle takes all queues of a NIC that has a few and no rules, if they are free.
func TestAllQueuesByDefault(t *testing.T) {
	for name, c := range map[string]struct {
		change func(d *device, cfg *Config, nic *fakeSteered)
		want   []int
	}{
		"no rules":               {func(*device, *Config, *fakeSteered) {}, []int{1, 2}},
		"rules":                  {func(_ *device, _ *Config, nic *fakeSteered) { nic.rules = true }, nil},
		"one queue":              {func(d *device, _ *Config, _ *fakeSteered) { d.inputs = 1 }, nil},
		"many queues":            {func(d *device, _ *Config, _ *fakeSteered) { d.inputs = 5 }, nil},
		"many queues, all":       {func(d *device, cfg *Config, _ *fakeSteered) { d.inputs, cfg.Steer = 5, kagent.SteerAll }, []int{1, 2, 3, 4}},
		"more than there can be": {func(d *device, cfg *Config, _ *fakeSteered) { d.inputs, cfg.Steer = 17, kagent.SteerAll }, nil},
		"rules, all":             {func(_ *device, cfg *Config, nic *fakeSteered) { nic.rules, cfg.Steer = true, kagent.SteerAll }, []int{1, 2}},
		"a queue is named":       {func(_ *device, cfg *Config, _ *fakeSteered) { cfg.Queue = 1 }, nil},
		"a queue is named, all":  {func(_ *device, cfg *Config, _ *fakeSteered) { cfg.Queue, cfg.Steer = 1, kagent.SteerAll }, []int{0, 2}},
		"off":                    {func(_ *device, cfg *Config, _ *fakeSteered) { cfg.Steer = kagent.SteerOff }, nil},
		"table":                  {func(_ *device, cfg *Config, _ *fakeSteered) { cfg.Steer = kagent.SteerByRSS }, nil},
		"veth":                   {func(d *device, _ *Config, _ *fakeSteered) { d.driver = "veth" }, nil},
		"veth, to be shared":     {func(d *device, cfg *Config, _ *fakeSteered) { d.driver, cfg.Processes = "veth", 16 }, []int{1, 2}},
		"a queue is taken":       {func(d *device, _ *Config, _ *fakeSteered) { newLease(d, 2) }, nil},
		"no more than one":       {func(_ *device, cfg *Config, _ *fakeSteered) { cfg.OneQueue, cfg.Steer = true, kagent.SteerAll }, nil},
		"the NIC cannot be asked": {func(d *device, _ *Config, _ *fakeSteered) {
			d.openSteered = func(string) (steered, error) { return nil, unix.EMFILE }
		}, []int{1, 2}},
	} {
		nic := &fakeSteered{}
		d := steeredDevice("virtio_net", 3, nic)
		d.router = route.New(nil, "eth0", 2, 4793)
		cfg := Config{Config: kagent.Config{Queue: kagent.AnyQueue, Port: 4793}}
		c.change(d, &cfg, nic)
		queue := max(cfg.Queue, 0)
		if got := d.extraQueues(&cfg); !slices.Equal(got, c.want) {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		} else if got != nil && cfg.Queue != queue {
			t.Errorf("%s: queue %d, want %d", name, cfg.Queue, queue)
		}
		nstest.ErrorIf(t, nic.rules && len(nic.in) > 0, "%s: rules %v stay", name, nic.in)
	}
}

// On a NIC that steers all frames to a queue, the next process of the user joins that queue, although another one is free, which
// would get none. A process that may not join gets the free queue.
func TestJoinsSteeredQueue(t *testing.T) {
	ns, _ := nstest.Pair(t, nstest.Options{Queues: 2})
	cfg := native(ns, kagent.AnyQueue)
	cfg.Steer, cfg.Processes, cfg.Shared, cfg.Holder = kagent.SteerByRSS, 4, true, kagent.Holder{PID: 1, UID: 60001}
	open := func(cfg Config) *Local {
		t.Helper()
		l := mustOpen(t, ns, cfg)
		handOut(t, l)
		return l
	}
	first := open(cfg)
	d, g := first.dev, first.Group()
	nic := &fakeSteered{table: []uint32{0, 1, 0, 1}}
	s, err := steer.Port(nic, cfg.Port, 0, steer.RSS)
	nstest.Must(t, err)
	d.mu.Lock()
	g.nic, g.steering = nic, s
	d.mu.Unlock()
	nstest.Equal(t, "the queue of another process, to which the port is steered", open(cfg).Info().Queue, 0)
	cfg.Holder.UID++
	nstest.Equal(t, "the queue of another user", open(cfg).Info().Queue, 1)
}

// All processes have room on the queue to which all frames are steered. Where they are not, the queues have it together.
func TestRoomOfSteeredQueue(t *testing.T) {
	for name, c := range map[string]struct {
		change func(d *device, cfg *Config, nic *fakeSteered)
		want   int
	}{
		"rules":    {func(_ *device, _ *Config, nic *fakeSteered) { nic.rules = true }, 1},
		"either":   {func(_ *device, cfg *Config, nic *fakeSteered) { nic.rules, cfg.Steer = true, kagent.SteerByRSS }, 1},
		"table":    {func(_ *device, cfg *Config, _ *fakeSteered) { cfg.Steer = kagent.SteerByRSS }, 15},
		"no rules": {func(*device, *Config, *fakeSteered) {}, 1},
		"off":      {func(_ *device, cfg *Config, nic *fakeSteered) { nic.rules, cfg.Steer = true, kagent.SteerOff }, 1},
		"another has it": {func(d *device, cfg *Config, _ *fakeSteered) {
			cfg.Steer, newLease(d, 2).steering = kagent.SteerByRSS, &steer.Steering{}
		}, 1},
		"one receives": {func(d *device, _ *Config, _ *fakeSteered) { d.inputs = 1 }, 1},
	} {
		nic := &fakeSteered{}
		d := steeredDevice("ice", 8, nic)
		d.router = route.New(nil, "eth0", 2, 4793)
		cfg := Config{Config: kagent.Config{Queue: kagent.AnyQueue, Port: 4793}, Processes: 16, Shared: true}
		c.change(d, &cfg, nic)
		nstest.Equal(t, fmt.Sprintf("%s: room for others", name), d.guests(cfg, false), c.want)
	}
}
