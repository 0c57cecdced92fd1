package device

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"viaxdp/bpf"
	"viaxdp/internal/agent/connmgr"
	"viaxdp/internal/agent/ctrlport"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/agent/route"
	"viaxdp/internal/base/wire"
	"viaxdp/xdpnic"
)

// deviceKey names an interface of this machine, and the port on it.
type deviceKey struct {
	netnsDev, netnsIno uint64
	index              int
	port               uint16
	removed            uint64 // 0: the interface is there; else so many had gone with it: see markRemoved
}

// registry holds the devices that this process has open, so that several opens
// of one interface share one program, one VI table, one control port.
var registry = struct {
	mu      sync.Mutex
	devices map[deviceKey]*device
	removed uint64 // devices whose interface has gone
}{devices: make(map[deviceKey]*device)}

// device is what all Locals of one interface share.
type device struct {
	key  deviceKey // removed is changed under registry.mu, too
	refs int       // guarded by registry.mu

	mu       sync.Mutex // guards what follows; never held while a queue, or the link, is waited for
	up       bool
	router   *route.Router
	manager  *connmgr.Manager
	numbers  *kagent.Numbers
	demux    *bpf.Demux
	watch    *route.Watch
	maxVIs   int
	driver   string
	bus      string
	queues   int // queues that a socket can be bound to, and then receives and sends
	inputs   int // queues that frames come in on
	attached bool
	mode     bpf.Mode // how the program is attached
	leases   map[int]*lease
	opening  map[int]*lease // queues that are reserved while they are opened or drained, without mu
	changed  chan struct{}  // closed when a reservation ends; nil: nobody waits for that
	udp      *ctrlport.UDP
	fdStore  *deviceStore             // nil: nobody keeps anything
	place    string                   // in the descriptor store
	shmLinks map[[2]int]*shmLinkFiles // by their queues, the lower one first
	linger   lingerer                 // guarded by mu, as all of this

	halfLinks map[*shmLinkFiles]bool // those that only one side still has, see leaveLink

	openSteered func(name string) (steered, error) // nil: that of the interface; for tests
}

// singleBufferMTU is the greatest MTU that every driver takes in native mode
// with a program for single buffers: a page less headroom, Ethernet header and
// the kernel's skb_shared_info (veth: 3506, drivers/net/veth.c).
const singleBufferMTU = 3498

// acquire finds or makes the device of an interface in the calling thread's
// namespace, and sets it up if it is not. On success the caller holds d.mu.
func acquire(cfg kagent.Config) (*device, error) {
	nic, err := netlink.LinkByName(cfg.Interface)
	if err != nil {
		return nil, linkError(cfg.Interface, err)
	}
	var ns unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &ns); err != nil {
		return nil, &kagent.OpError{Op: "open", Link: cfg.Interface, Err: err, Hint: "is /proc mounted?"}
	}
	key := deviceKey{netnsDev: ns.Dev, netnsIno: ns.Ino, index: nic.Attrs().Index, port: cfg.Port}
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
	if d.up && d.router.Removed() { // another one has its number
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
		// Whoever opens it meanwhile waits for d.mu and sets it up anew.
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
func (d *device) setUp(cfg kagent.Config, nic *netlink.LinkAttrs) (err error) {
	fail := func(op string, err error) error {
		return errors.Join(&kagent.OpError{Op: op, Link: cfg.Interface, Err: err, CannotRun: !errors.Is(err, unix.ENOMEM)}, d.takeDown())
	}
	d.begin(cfg)
	d.place = fmt.Sprintf("%s:%d:%d", nic.Name, nic.Index, cfg.Port)
	nl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fail("netlink", err)
	}
	d.router = route.New(nl, nic.Name, nic.Index, cfg.Port)
	if d.watch, err = route.NewWatch(d.router, d.onRemove); err != nil {
		return fail("watch", err)
	}
	d.describe(nic)

	d.udp, err = ctrlport.Listen(nic.Name, cfg.Port, d.router.Own)
	if errors.Is(err, unix.EADDRINUSE) {
		return errors.Join(&kagent.OpError{
			Op: "open", Link: cfg.Interface, Err: err,
			Hint: fmt.Sprintf("another via-xdp program%s holds the control port %d of this interface: "+
				"stop it, or take another interface or port", ctrlport.HolderOf(cfg.Port), cfg.Port),
		}, d.takeDown())
	}
	if err != nil {
		return fail("control port", err)
	}
	d.manage(cfg.Port)
	// A program for single buffers is faster, and in generic mode takes frames of
	// any length: the kernel joins their pieces before, and cuts them to chunks
	// after. A driver's pages may be too short for the MTU.
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

// begin is the first part of setting up. Caller holds d.mu.
func (d *device) begin(cfg kagent.Config) {
	d.leases, d.opening = make(map[int]*lease), make(map[int]*lease)
	d.maxVIs, d.fdStore = cfg.MaxVIs, newDeviceStore(cfg.FDStore)
	d.numbers = kagent.NewNumbers(cfg.MaxVIs)
}

// manage starts connection management on d.udp.
func (d *device) manage(port uint16) {
	udp := d.udp
	d.router.Nudge = func(from, to netip.Addr) error {
		// Of an exchange that nobody knows: receivers ignore it.
		confirm, err := (&wire.CM{Type: wire.CMConfirm, ID: kagent.NewKey()}).Append(nil)
		if err != nil {
			return err
		}
		return udp.Send(confirm, from, netip.AddrPortFrom(to, port))
	}
	d.manager = connmgr.NewManager(udp, port)
	d.manager.Reprobe = d.router.Reprobe
}

// describe asks the driver. An interface that knows no ethtool, as lo, has no
// driver and the queues that the kernel made.
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
		// A socket can have a queue that only sends, but then receives nothing; and
		// one that only receives, but then the kernel leaves what it is given on the
		// ring, and says nothing (__xsk_generic_xmit, net/xdp/xsk.c).
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
	errs = append(errs, d.forget())
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

// attach puts the program on the interface in the way that mode needs, which is
// one for all leases: steps sees to that. A program that somebody has taken off
// comes back for all. Caller holds d.mu.
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

// idle reports whether no queue is leased or reserved. Caller holds d.mu.
func (d *device) idle() bool { return len(d.leases) == 0 && len(d.opening) == 0 }

// reserve keeps l's queue from others until unreserve. Caller holds d.mu.
func (d *device) reserve(l *lease) { d.opening[l.queueID] = l }

// unreserve ends a reservation, and wakes all who wait for one to end. Caller holds d.mu.
func (d *device) unreserve(l *lease) {
	delete(d.opening, l.queueID)
	if d.changed != nil {
		close(d.changed)
		d.changed = nil
	}
}

// awaitReservation gives up d.mu until a reservation ends, and reports whether one has
// before ctx did. Caller holds d.mu.
func (d *device) awaitReservation(ctx context.Context) bool {
	if len(d.opening) == 0 {
		return ctx.Err() == nil
	}
	if d.changed == nil {
		d.changed = make(chan struct{})
	}
	changed := d.changed
	d.mu.Unlock()
	defer d.mu.Lock()
	select {
	case <-changed:
		return true
	case <-ctx.Done():
		return false
	}
}

// otherMode is why a mode is not tried while other queues need another one; nil: it can
// be. It may change where only reservations are in the way. Caller holds d.mu.
func (d *device) otherMode(m xdpnic.Mode) error {
	switch {
	case d.idle() || attachMode(m) == d.mode:
		return nil
	case len(d.leases) == 0:
		return fmt.Errorf("not tried: %w in %v mode", errOpening, d.mode)
	}
	return fmt.Errorf("not tried: this process has the program attached in %v mode for another queue", d.mode)
}

// steps are the data paths to try, best first, and those that are passed over,
// with the reason. Caller holds d.mu.
func (d *device) steps(cfg kagent.Config) (steps []xdpnic.Mode, passed []xdpnic.Attempt) {
	ladder := xdpnic.Ladder(cfg.Mode, cfg.RequireMode)
	pass := func(m xdpnic.Mode, reason string) {
		passed = append(passed, xdpnic.Attempt{Mode: m, Err: errors.New("not tried: " + reason)})
	}
	if len(ladder) > 0 && ladder[0] == xdpnic.ModeZeroCopy && cfg.NoZeroCopy != nil {
		ladder = ladder[1:]
		passed = append(passed, xdpnic.Attempt{Mode: xdpnic.ModeZeroCopy, Err: fmt.Errorf("not tried: %w", cfg.NoZeroCopy)})
	}
	lingers := d.idle() && d.attached && cfg.Linger > 0
	if lingers || !d.idle() {
		for _, m := range ladder {
			err := d.otherMode(m)
			if lingers && attachMode(m) != d.mode {
				err = fmt.Errorf("not tried: this process has the program attached in %v mode and keeps it until %v after its last queue was closed",
					d.mode, d.linger.time)
			}
			if err != nil {
				passed = append(passed, xdpnic.Attempt{Mode: m, Err: err})
			} else {
				steps = append(steps, m)
			}
		}
		return steps, passed
	}
	// A queue past the first exists in native mode only.
	if cfg.Mode == xdpnic.ModeAuto && d.driver == "veth" && cfg.Queue <= 0 {
		// Measured on kernel 6.18, 64 bytes one way: 1.06 us generic, 1.47 native.
		if cfg.NoZeroCopy == nil {
			pass(xdpnic.ModeZeroCopy, "veth has no zero-copy")
		}
		pass(xdpnic.ModeNative, "on veth, generic mode has the lower latency")
		return []xdpnic.Mode{xdpnic.ModeGeneric, xdpnic.ModeNative}, passed
	}
	return ladder, passed
}

// candidates are the queues to try for a mode, free ones only. Caller holds
// d.mu.
func (d *device) candidates(want int, mode xdpnic.Mode) ([]int, error) {
	n := d.queues
	oneQueue := mode.Generic() && d.driver == "veth"
	if oneQueue {
		n = 1
	}
	if want >= 0 {
		switch l, opening := d.leases[want], d.opening[want]; {
		case want >= d.inputs:
			return nil, fmt.Errorf("there is no queue %d: the interface has %d", want, d.inputs)
		case want >= d.queues:
			return nil, fmt.Errorf("queue %d receives and does not send: take one of the first %d, or give the interface more to send (ethtool -L)", want, d.queues)
		case want >= n:
			return nil, fmt.Errorf("in generic mode all frames of a veth come in on queue 0: take that, or native mode")
		case l != nil:
			return nil, fmt.Errorf("%w: queue %d is %v: end that program, or take any queue that is free", kagent.ErrQueueInUse, want, l)
		case opening != nil:
			return nil, fmt.Errorf("%w: %w: queue %d, for %v", kagent.ErrQueueInUse, errOpening, want, opening.who())
		}
		return []int{want}, nil
	}
	var free []int
	var held []string
	var reserved bool
	for q := range n {
		switch l, opening := d.leases[q], d.opening[q]; {
		case l != nil:
			held = append(held, fmt.Sprintf("queue %d is %v", q, l))
		case opening != nil:
			reserved = true
			held = append(held, fmt.Sprintf("queue %d is being opened for %v", q, opening.who()))
		default:
			free = append(free, q)
		}
	}
	if len(free) == 0 && reserved {
		return nil, fmt.Errorf("%w: %w: %s", kagent.ErrQueueInUse, errOpening, strings.Join(held, ", "))
	}
	if len(free) == 0 {
		remedy := "end one of them, or give the interface more queues (ethtool -L)"
		switch {
		case oneQueue && d.queues > 1:
			remedy = fmt.Sprintf("in generic mode a veth has this one; open all programs in native mode, which has all %d, or end it", d.queues)
		case n == 1:
			remedy = "end that program, or give the interface more queues"
		}
		return nil, fmt.Errorf("%w: %s: %s", kagent.ErrQueueInUse, strings.Join(held, ", "), remedy)
	}
	return free, nil
}

// allInUse is the error when no mode has a free queue. Caller holds d.mu.
func (d *device) allInUse(want int, steps []xdpnic.Mode) (err error) {
	for _, m := range steps {
		if _, err = d.candidates(want, m); !errors.Is(err, kagent.ErrQueueInUse) {
			return nil
		}
	}
	return err
}

// freeSlot finds a slot of the XSKMAP. Caller holds d.mu.
func (d *device) freeSlot() (int, error) {
	for s := range bpf.DefaultMaxSockets {
		if d.slotFree(s) {
			return s, nil
		}
	}
	return 0, fmt.Errorf("all %d socket slots are in use", bpf.DefaultMaxSockets)
}

// slotFree tells whether no lease has the slot, or will have it. Caller holds d.mu.
func (d *device) slotFree(slot int) bool {
	for _, all := range []map[int]*lease{d.leases, d.opening} {
		for _, l := range all {
			if l.slot == slot {
				return false
			}
		}
	}
	return true
}

func (d *device) sortedLeases() []*lease {
	var all []*lease
	for _, l := range d.leases {
		all = append(all, l)
	}
	slices.SortFunc(all, func(a, b *lease) int { return a.queueID - b.queueID })
	return all
}

// linkError says which interfaces there are when the one asked for is not.
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

// genericMode stands for all modes whose program is attached in generic mode.
const genericMode = xdpnic.ModeGeneric

// attachMode is how the program must be attached for a data path.
func attachMode(m xdpnic.Mode) bpf.Mode {
	if m.Generic() {
		return bpf.Generic
	}
	return bpf.Native
}
