package device

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"viaxdp/bpf"
	"viaxdp/internal/agent/connmgr"
	"viaxdp/internal/agent/ctrlport"
	"viaxdp/internal/agent/fdstore"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/agent/route"
	"viaxdp/internal/base/fds"
	"viaxdp/internal/base/thread"
	"viaxdp/internal/base/wire"
	"viaxdp/xdpnic"
)

// deviceKey identifies an interface of this machine, and the port on it.
type deviceKey struct {
	netns   [2]uint64
	index   int
	port    uint16
	removed uint64 // else its number in the count of removed ones: see markRemoved
}

// keyOf returns the key of an interface in the calling thread's namespace.
func keyOf(index int, port uint16) (deviceKey, error) {
	ns, err := thread.Netns()
	return deviceKey{netns: ns, index: index, port: port}, err
}

// registry has the devices that this process has open, so that several opens of one interface share one
// program, one VI table, one control port.
var registry = struct {
	mu      sync.Mutex
	devices map[deviceKey]*device
	removed uint64 // devices whose interface has gone
}{devices: make(map[deviceKey]*device)}

// device is what all Locals of one interface share.
type device struct {
	key  deviceKey // removed is changed under registry.mu, too
	refs int       // guarded by registry.mu

	mu       sync.Mutex // guards the fields below; never held while waiting for a queue or the link
	up       bool
	router   *route.Router
	manager  *connmgr.Manager
	numbers  *kagent.Numbers
	demux    *bpf.Demux
	watch    *route.Watch
	maxVIs   int
	driver   string
	bus      string
	queues   int // queues that both receive and send, to which a socket can be bound
	inputs   int // queues that receive
	attached bool
	mode     bpf.Mode       // how the program is attached
	leases   map[int]*lease // by id
	groups   map[int]*Group // queues that processes share
	opening  map[int]*lease // queues that are reserved while they are opened or drained, without mu
	wanted   map[int]*lease // queues that an open asks for by number, while it allocates its memory without mu
	changed  chan struct{}  // closed when a reservation ends; nil: there is no waiter
	udp      *ctrlport.UDP
	fdStore  *deviceStore             // nil: there is no store
	place    string                   // in the descriptor store
	shmLinks map[[2]int]*shmLinkFiles // by their queues, the lower one first
	linger   lingerer                 // guarded by mu, as are the other fields

	halfLinks map[*shmLinkFiles]bool // links that only one side still has, see leaveLink

	openSteered func(name string) (steered, error) // nil: that of the interface; for tests
}

// singleBufferMTU is the greatest MTU that every driver takes in native mode
// with a program for single buffers: a page less headroom, Ethernet header and
// the kernel's skb_shared_info (veth: 3506, drivers/net/veth.c).
const singleBufferMTU = 3498

// acquire returns the device of an interface in the calling thread's namespace. It creates the device and
// sets it up if necessary. On success the caller holds d.mu.
func acquire(cfg Config) (*device, error) {
	nic, err := netlink.LinkByName(cfg.Interface)
	if err != nil {
		return nil, linkError(cfg.Interface, err)
	}
	key, err := keyOf(nic.Attrs().Index, cfg.Port)
	if err != nil {
		return nil, &kagent.OpError{Op: "open", Link: cfg.Interface, Err: err, Hint: "is /proc mounted?"}
	}
	registry.mu.Lock()
	d := registry.devices[key]
	if d == nil {
		d = &device{key: key}
		registry.devices[key] = d
	}
	d.refs++
	registry.mu.Unlock()

	d.mu.Lock()
	if err := d.stopLinger(cfg, nic.Attrs().MTU); err != nil {
		return nil, errors.Join(&kagent.OpError{Op: "open", Link: cfg.Interface, Err: err}, d.release())
	}
	if d.up && d.router.Removed() { // another interface has its index
		if err := errors.Join(d.markRemoved(), d.release()); err != nil {
			return nil, &kagent.OpError{Op: "open", Link: cfg.Interface, Err: err}
		}
		return acquire(cfg)
	}
	switch {
	case !d.up:
		err = d.setUp(cfg, nic.Attrs())
	case d.maxVIs != cfg.MaxVIs:
		err = &kagent.OpError{Op: "open", Link: cfg.Interface, Err: fmt.Errorf(
			"this process has the interface open with %d VIs, not %d", d.maxVIs, cfg.MaxVIs)}
	default:
		d.describe(nic.Attrs()) // it may have more queues by now
	}
	if err != nil {
		return nil, errors.Join(err, d.release())
	}
	return d, nil
}

// release gives up one reference and d.mu. The last one takes the device down.
func (d *device) release() error {
	if d.startLinger() {
		d.mu.Unlock()
		return nil
	}
	return d.drop()
}

// drop is release without lingering.
func (d *device) drop() error {
	registry.mu.Lock()
	d.refs--
	last := d.refs == 0
	registry.mu.Unlock()
	var err error
	if last {
		// A concurrent open waits for d.mu, and then sets the device up again.
		err = d.takeDown()
	}
	d.mu.Unlock()
	registry.mu.Lock()
	if d.refs == 0 && registry.devices[d.key] == d {
		delete(registry.devices, d.key)
	}
	registry.mu.Unlock()
	return err
}

// setUp opens everything but a queue. Caller holds d.mu.
func (d *device) setUp(cfg Config, nic *netlink.LinkAttrs) (err error) {
	fail := func(op string, err error) error {
		cannot := !fds.Short(err) && !route.IsGone(err)
		return errors.Join(&kagent.OpError{Op: op, Link: cfg.Interface, Err: err, CannotRun: cannot}, d.takeDown())
	}
	d.begin(cfg.MaxVIs, cfg.FDStore)
	d.place = fmt.Sprintf("%s:%d:%d", nic.Name, nic.Index, cfg.Port)
	if op, err := d.observe(nic, cfg.Port); err != nil {
		return fail(op, err)
	}
	d.udp, err = ctrlport.Listen(nic.Name, cfg.Port, d.router.Own)
	if errors.Is(err, unix.EADDRINUSE) {
		return errors.Join(&kagent.OpError{
			Op: "open", Link: cfg.Interface, Err: err,
			Hint: fmt.Sprintf("another via-xdp program%s holds the control port %d of this interface: "+
				"stop it, take another interface or port, or open both through an agent (via-xdp agent, or VIA_AGENT=auto for both)", ctrlport.HolderOf(cfg.Port, nic.Index), cfg.Port),
		}, d.takeDown())
	}
	if err != nil {
		return fail("control port", err)
	}
	d.manage(cfg.Port, connmgr.NewManager)
	// A program for single buffers is faster, and in generic mode takes frames of any length: the kernel
	// joins their pieces before the program, and divides them into chunks after it. In native mode a driver's
	// pages may be too short for the MTU.
	first, _ := d.steps(cfg)
	generic := len(first) > 0 && first[0].Generic()
	d.linger.mtu = nic.MTU
	d.demux, err = bpf.LoadDemux(bpf.Config{
		Port: cfg.Port, MaxVIs: cfg.MaxVIs, SingleBuffer: generic || nic.MTU <= singleBufferMTU,
	})
	if err != nil {
		return fail("open", err)
	}
	d.up = true
	return d.keep()
}

// begin is the first part of setUp. Caller holds d.mu.
func (d *device) begin(maxVIs int, store fdstore.Store) {
	d.leases, d.opening, d.wanted = make(map[int]*lease), make(map[int]*lease), make(map[int]*lease)
	d.groups, d.shmLinks, d.halfLinks = make(map[int]*Group), make(map[[2]int]*shmLinkFiles), make(map[*shmLinkFiles]bool)
	d.maxVIs, d.fdStore = maxVIs, newDeviceStore(store)
	d.numbers = kagent.NewNumbers(maxVIs)
}

// observe is the second part: it reads the interface from the kernel, and watches it. op is the
// operation that failed. Caller holds d.mu, and is on a thread of the interface's namespace.
func (d *device) observe(nic *netlink.LinkAttrs, port uint16) (op string, err error) {
	nl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return "netlink", err
	}
	d.router = route.New(nl, nic.Name, nic.Index, port)
	if d.watch, err = route.NewWatch(d.router, d.onRemove); err != nil {
		return "watch", err
	}
	d.describe(nic)
	return "", nil
}

// manage starts connection management on d.udp, by start.
func (d *device) manage(port uint16, start func(connmgr.Transport, uint16) *connmgr.Manager) {
	udp := d.udp
	d.router.Nudge = func(from, to netip.Addr) error {
		// The ID belongs to no exchange, so receivers ignore the message.
		confirm, err := (&wire.CM{Type: wire.CMConfirm, ID: kagent.NewKey(), Cookie: kagent.NewKey()}).Append(nil)
		if err != nil {
			return err
		}
		return udp.Nudge(confirm, from, netip.AddrPortFrom(to, port))
	}
	d.manager = start(udp, port)
	d.manager.Reprobe = d.router.Reprobe
}

// describe queries the driver. An interface without ethtool, such as lo, has no driver and the queues that
// the kernel created.
func (d *device) describe(nic *netlink.LinkAttrs) {
	d.driver, d.bus = "", ""
	d.inputs = max(nic.NumRxQueues, 1)
	d.queues = max(min(nic.NumRxQueues, nic.NumTxQueues), 1)
	e, err := ethtool.NewEthtool()
	if err != nil {
		return
	}
	defer e.Close()
	if info, err := e.DriverInfo(nic.Name); err == nil {
		d.driver, d.bus = info.Driver, info.BusInfo
	}
	if c, err := e.GetChannels(nic.Name); err == nil {
		// A socket on a queue that only sends receives nothing. On a queue that only receives,
		// the kernel leaves frames on the TX ring and reports no error (__xsk_generic_xmit,
		// net/xdp/xsk.c).
		if n := int(c.CombinedCount + min(c.RxCount, c.TxCount)); n > 0 {
			d.queues, d.inputs = n, int(c.CombinedCount+c.RxCount)
		}
	}
}

// takeDown undoes setUp. Caller holds d.mu, and there are no leases.
func (d *device) takeDown() error {
	var errs []error
	if d.manager != nil {
		errs = append(errs, d.manager.Close())
	} else if d.udp != nil {
		errs = append(errs, d.udp.Close())
	}
	if d.demux != nil {
		errs = append(errs, d.demux.Close())
	}
	errs = append(errs, d.fdStore.Delete(nicKey(d.place)))
	if d.watch != nil {
		errs = append(errs, d.watch.Close())
	}
	if d.router != nil {
		d.router.Close()
	}
	d.up, d.attached = false, false
	d.manager, d.demux, d.router, d.watch, d.numbers, d.udp, d.fdStore = nil, nil, nil, nil, nil, nil, nil
	return errors.Join(errs...)
}

// attach attaches the program as mode requires. All leases use the same way; steps ensures that.
// A program that another process has detached is attached again for all leases. Caller holds
// d.mu.
func (d *device) attach(mode bpf.Mode) error {
	if d.attached && d.mode == mode && d.demux.Attached() {
		return nil
	}
	if err := d.detach(); err != nil {
		return err
	}
	if err := d.demux.Attach(d.key.index, mode); err != nil {
		return err
	}
	d.attached, d.mode = true, mode
	return d.keep()
}

func (d *device) detach() error {
	if !d.attached {
		return nil
	}
	d.attached = false
	return errors.Join(d.demux.Detach(), d.keep())
}

func (d *device) sortedLeases() []*lease {
	return slices.SortedFunc(maps.Values(d.leases), func(a, b *lease) int {
		return cmp.Or(a.queueID-b.queueID, a.partition-b.partition)
	})
}

// linkError returns an error that lists the interfaces, for one that does not exist.
func linkError(name string, err error) error {
	e := &kagent.OpError{Op: "open", Link: name, Err: err}
	if all, err := net.Interfaces(); err == nil {
		var names []string
		for _, i := range all {
			names = append(names, i.Name)
		}
		e.Hint = "interfaces of this network namespace: " + strings.Join(names, ", ")
	}
	return e
}

// attachMode returns how the program must be attached for a data path.
func attachMode(m xdpnic.Mode) bpf.Mode {
	if m.Generic() {
		return bpf.Generic
	}
	return bpf.Native
}

// lingerer keeps a device up for a time after its last lease: see Config.Linger. Meanwhile it holds one of
// the device's references. Guarded by device.mu.
type lingerer struct {
	time  time.Duration // the longest that an Open has asked for
	mtu   int           // of the interface when the program was loaded
	timer *time.Timer   // nil: the device does not linger
}

// startLinger passes the caller's reference to the lingerer, if it is the last one and the program is
// attached. Caller holds d.mu.
func (d *device) startLinger() bool {
	registry.mu.Lock()
	last := d.refs == 1
	registry.mu.Unlock()
	if l := &d.linger; !last || l.time == 0 || l.timer != nil || !d.up || !d.attached || d.key.removed > 0 {
		return false
	}
	var timer *time.Timer
	timer = time.AfterFunc(d.linger.time, func() {
		d.mu.Lock()
		if d.linger.timer != timer { // an Open has come first
			d.mu.Unlock()
			return
		}
		_ = d.endLinger() // no caller is left to return the error to
	})
	d.linger.timer = timer
	return true
}

// endLinger takes the device down, unless it was opened meanwhile. Caller holds d.mu, which
// endLinger releases.
func (d *device) endLinger() error {
	d.linger.timer.Stop()
	d.linger.timer = nil
	return d.drop()
}

// stopLinger ends lingering for an Open, which has a reference of its own. It takes the device down if the
// program must not be kept. Caller holds d.mu.
func (d *device) stopLinger(cfg Config, mtu int) (err error) {
	l := &d.linger
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
		registry.mu.Lock()
		d.refs--
		registry.mu.Unlock()
		if cfg.Linger == 0 || l.mtu != mtu { // the MTU determines which frames the program takes
			err = d.takeDown()
			l.time = 0
		}
	}
	l.time = max(l.time, cfg.Linger)
	return err
}

// SetLinger is Config.Linger for a queue that Restore has returned.
func (l *Local) SetLinger(t time.Duration) {
	l.dev.mu.Lock()
	defer l.dev.mu.Unlock()
	l.dev.linger.time = max(l.dev.linger.time, t)
}

// EndLinger takes down all interfaces without a queue that only linger.
func EndLinger() error {
	registry.mu.Lock()
	all := slices.Collect(maps.Values(registry.devices))
	registry.mu.Unlock()
	var errs []error
	for _, d := range all {
		d.mu.Lock()
		if d.linger.timer == nil {
			d.mu.Unlock()
			continue
		}
		errs = append(errs, d.endLinger())
	}
	return errors.Join(errs...)
}

// A removed interface never returns. A new one may reuse its name or index, and the same one gets
// its index again when it comes back from another network namespace. So whatever would block it
// is released at once: the control port, the program, the descriptor store's entries. The rest
// stays until the Locals are closed.

// onRemove is called by a device's watch when the interface is gone.
func (d *device) onRemove(w *route.Watch) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.watch == w { // else the device was taken down
		// No caller is left to return an error to, and the interface's state is gone anyway.
		_ = d.markRemoved()
		if d.linger.timer != nil {
			d.linger.timer.Reset(0) // in the timer's goroutine, since this one is the watch's
		}
	}
}

// markRemoved makes room for another interface of the same name and index. Caller holds d.mu.
func (d *device) markRemoved() error {
	if d.key.removed > 0 {
		return nil
	}
	registry.mu.Lock()
	if registry.devices[d.key] == d {
		delete(registry.devices, d.key)
	}
	registry.removed++
	d.key.removed = registry.removed
	registry.devices[d.key] = d // for LocalStatus
	registry.mu.Unlock()
	return errors.Join(d.manager.CloseWith(kagent.ErrGone), d.detach(), d.fdStore.clear())
}

// OnGone has f called once, when the interface has been removed and nothing blocks a new one any more, unless
// Close comes first.
func (l *Local) OnGone(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.watch.OnGone(l, f)
	}
}
