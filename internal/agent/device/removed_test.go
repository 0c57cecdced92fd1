package device

import (
	"errors"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/agent/route"
	"viaxdp/internal/base/steer"
	"viaxdp/internal/lab/nstest"
	"viaxdp/xdpnic"
)

// An interface that was removed and is back with its old index is a new one, also if no read happened
// meanwhile. The state of the old one is gone, waiting calls end, and the new one is opened beside it. The
// descriptor store keeps nothing of the old one, and its end removes nothing of the new one.
func TestNumberComesBack(t *testing.T) {
	an, _ := nstest.Pair(t, nstest.Options{})
	fdStore := newFakeFDStore()
	cfg := small(an)
	cfg.Mode, cfg.Shared, cfg.FDStore = xdpnic.ModeGeneric, true, fdStore
	old := mustOpen(t, an, cfg)
	num, err := old.NewVI()
	nstest.Must(t, err)
	handOut(t, old)
	told, entered, busy := make(chan kagent.Link, 100), make(chan struct{}, 100), make(chan struct{})
	first := true
	old.Watch(func(l kagent.Link) {
		if told <- l; !first {
			entered <- struct{}{}
			<-busy
		}
		first = false
	})
	gone := make(chan struct{})
	old.OnGone(func() { close(gone) })
	ln, err := old.Listen(kagent.Address{Disc: []byte("listens")})
	nstest.Must(t, err)
	waits := make(chan error, 2)
	go func() { waits <- nstest.Err(old.Wait(t.Context(), kagent.Address{Disc: []byte("waits")})) }()
	go func() { waits <- nstest.Err(ln.Wait(t.Context())) }()

	h := an.Netlink()
	nic := an.Link(t)
	nstest.Must(t, h.LinkSetMTU(nic, 1400))
	<-entered // the watcher is busy from now on
	an.MoveAway(t)(false)
	close(busy)
	select {
	case <-gone:
	case <-time.After(waitLimit):
		t.Fatal("the removal is not reported")
	}
	var last kagent.Link
	for len(told) > 0 {
		last = <-told
	}
	nstest.ErrorIf(t, !last.Gone || last.Name != an.Name || last.Queue != old.Info().Queue, "told at the end: %+v", last)
	for range 2 {
		if err := <-waits; !errors.Is(err, kagent.ErrGone) || errors.Is(err, kagent.ErrClosed) {
			t.Errorf("a waiting call returned %v", err)
		}
	}
	nstest.ErrorIf(t, !old.Link().Gone, "the old one is %+v", old.Link())
	nstest.Equal(t, "things that are kept of the interface that went", len(fdStore.all()), 0)
	late := false
	old.OnGone(func() { late = true })
	nstest.ErrorIf(t, !late, "a later watcher is not notified")

	fresh := mustOpen(t, an, cfg)
	if l := fresh.Link(); l.Gone || l.Index != old.Info().Index {
		t.Errorf("the new one is %+v", l)
	}
	nstest.Must(t, nstest.Err(fresh.NewVI()))
	handOut(t, fresh)
	nstest.Equal(t, "interfaces in the status, of which one has the old queue still", len(LocalStatus().NICs), 2)
	before := len(fdStore.all())
	old.FreeVI(num)
	nstest.Check(t, old.Close())
	if n := len(fdStore.all()); n != before || n != 3 {
		t.Errorf("%d things are kept of the new one, and %d were", n, before)
	}
	nstest.ErrorIf(t, !fresh.demux.Attached(), "the end of the old one has taken the program off the new one")
}

// The steering of a removed interface is gone with it: that of a new interface of its name is not changed.
func TestSteeringGone(t *testing.T) {
	nl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	nstest.Must(t, err)
	defer nl.Close()
	nic := &fakeSteered{table: []uint32{0, 1, 0, 1}}
	d := &device{
		driver: "igb", inputs: 2, leases: make(map[int]*lease), router: route.New(nl, "eth0", 1, 4793),
		openSteered: func(string) (steered, error) { return nic, nil },
	}
	l := newLease(d, 1)
	l.steer(kagent.Config{Port: 4793, Steer: steer.RSS})
	nstest.FatalIf(t, l.steering == nil, "nothing is steered")
	d.router = route.New(nl, "eth0", 1<<30, 4793)
	if err := l.unsteer(); err != nil || nic.table[0] != 1 || nic.closed != 1 || l.steering != nil {
		t.Errorf("table %v, closed %d, %v", nic.table, nic.closed, err)
	}
}

// An interface that is removed while it is opened is no lack of the machine: a program may open it when it is back.
func TestRemovedDuringOpen(t *testing.T) {
	an, _ := nstest.Pair(t, nstest.Options{})
	cfg := small(an)
	var err error
	cfg.Config, err = cfg.Config.WithDefaults()
	nstest.Must(t, err)
	link := an.Link(t)
	an.Remove(t)
	nstest.Must(t, an.Do(func() error {
		d := &device{key: deviceKey{index: an.Index}}
		d.mu.Lock()
		defer d.mu.Unlock()
		err := d.setUp(cfg, link.Attrs())
		nstest.ErrorIf(t, !errors.Is(err, unix.ENODEV) || kagent.Unavailable(err),
			"%v (unavailable: %v), want ENODEV", err, kagent.Unavailable(err))
		return nil
	}))
}
