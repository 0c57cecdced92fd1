package device

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/bpf"
	"viaxdp/hugepages"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/steer"
	"viaxdp/xdpnic"
)

// carrierTime is how long Open waits for the carrier to come back: some
// drivers take the link down to attach a program.
const carrierTime = 2 * time.Second

// busyTime is how long Open tries again while the queue is busy; changed by tests.
var busyTime = xdpnic.DefaultBusyTimeout

// lease is one queue of a device: its socket, the socket's slot in the XSKMAP,
// the memory. Guarded by device.mu; queue, slot, socket and arena do not change.
type lease struct {
	dev     *device
	queueID int
	slot    int
	queue   *xdpnic.Queue
	arena   *hugepages.Arena
	info    kagent.Info
	since   time.Time
	refs    int
	holder  kagent.Holder // Config.Holder
	memory  *os.File      // of a queue that was handed out: its memory, until it is taken; else nil
	vis     viList

	linkLeft   func() // OnLinkLeft's; nil: none
	linksTaken bool   // TakeLinks was called

	nic      steered // while steering
	steering *steer.Steering
}

// who names the process that has the queue.
func (l *lease) who() string {
	if h := l.holder; h != (kagent.Holder{}) {
		return fmt.Sprintf("process %d (%s) of user %d", h.PID, h.Comm, h.UID)
	}
	return "this process"
}

func (l *lease) String() string {
	return fmt.Sprintf("open in %s since %s in %v mode", l.who(), l.since.Format(time.TimeOnly), l.info.Mode)
}

// errOpening: the queue, or the mode, may be free when the opens that are under way have ended.
var errOpening = errors.New("other programs are just opening queues")

// lease takes a queue. Nobody else waits for what it waits for: it gives up d.mu to make the
// memory, while the queue is busy, which it then has reserved, and until the link is back. An
// open that others have reserved the queue of, or the mode, waits for them. All of it ends with
// ctx. Caller holds d.mu, and a reference to d, and is on a thread of the interface's namespace.
func (d *device) lease(ctx context.Context, cfg kagent.Config) (_ *lease, err error) {
	l := &lease{dev: d, refs: 1, since: time.Now(), holder: cfg.Holder}
	link, err := d.router.Link()
	if err != nil {
		return nil, err
	}
	until := time.Now().Add(busyTime)
	busy, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	// No memory for a program that is refused anyway.
	for {
		steps, _ := d.steps(cfg)
		if err = d.allInUse(cfg.Queue, steps); !errors.Is(err, errOpening) || !d.awaitReservation(busy) {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	d.mu.Unlock()
	nic, err := l.newArena(cfg, link.MTU)
	d.mu.Lock()
	if err != nil {
		return nil, err
	}
	for {
		if err = l.climb(ctx, until, cfg, nic, link); !errors.Is(err, errOpening) || !d.awaitReservation(busy) {
			break
		}
	}
	if err == nil {
		if link.Up {
			err = d.awaitCarrier(ctx)
		}
		if err != nil {
			return nil, errors.Join(err, l.release())
		}
		return l, nil
	}
	if d.idle() && d.linger.time == 0 {
		err = errors.Join(err, d.detach())
	}
	return nil, errors.Join(err, l.arena.Close())
}

// climb opens the queue in the best mode that there is, and leases it. A busy queue is tried
// again until the given time. Caller holds d.mu, which is given up meanwhile.
func (l *lease) climb(ctx context.Context, until time.Time, cfg kagent.Config, nic xdpnic.Config, link kagent.Link) error {
	d := l.dev
	if d.router.Removed() { // another interface may have its number
		return kagent.ErrGone
	}
	nic.BusyTimeout = max(time.Until(until), time.Nanosecond)
	steps, passed := d.steps(cfg)
	attempts := slices.Clone(passed)
	if err := d.allInUse(cfg.Queue, steps); err != nil {
		return err
	}
	var failed reasons
	for _, mode := range steps {
		err := d.otherMode(mode) // by now
		if err == nil {
			err = l.open(ctx, nic, mode)
		}
		attempts = append(attempts, xdpnic.Attempt{Mode: mode, Err: err})
		if err == nil {
			l.describe(cfg, link, mode, attempts)
			l.steer(cfg)
			d.unreserve(l)
			d.leases[l.queueID] = l
			return nil
		}
		if errors.Is(err, kagent.ErrQueueInUse) || errors.Is(err, unix.EBUSY) || errors.Is(err, kagent.ErrGone) || kagent.Unavailable(err) {
			return reasons{err} // no mode helps
		}
		failed = append(failed, fmt.Errorf("%v mode: %w", mode, err))
	}
	switch {
	case len(steps) > 0:
		// What was passed over for an open that is under way may be tried after it.
		for _, a := range passed {
			if errors.Is(a.Err, errOpening) {
				failed = append(failed, fmt.Errorf("%v mode: %w", a.Mode, a.Err))
			}
		}
	case len(passed) > 0:
		failed = append(failed, fmt.Errorf("%v mode: %w", cfg.Mode, passed[0].Err))
	default:
		failed = append(failed, fmt.Errorf("no data path is %v", cfg.Mode))
	}
	return failed
}

// newArena makes the memory, and the part of the queue's configuration that
// all modes have in common.
func (l *lease) newArena(cfg kagent.Config, mtu int) (xdpnic.Config, error) {
	nic, err := xdpnic.Config{
		Ifindex: l.dev.key.index, QueueID: max(cfg.Queue, 0), Require: true,
		ChunkSize: cfg.ChunkSize, RxChunks: cfg.RxChunks, TxChunks: cfg.TxChunks,
	}.WithDefaults()
	if err != nil {
		return nic, err
	}
	const ethernet = 14 + 4 // header and one VLAN tag
	nic.MultiBuffer = !cfg.SingleBuffer && mtu+ethernet > nic.ChunkSize-xdpnic.PacketHeadroom-nic.Headroom
	pool := nic.PoolBytes()
	if pool > cfg.ArenaBytes {
		return nic, fmt.Errorf("an arena of %d bytes does not hold the %d bytes of the chunks: "+
			"take a larger one, or fewer chunks", cfg.ArenaBytes, pool)
	}
	l.arena, err = hugepages.New(hugepages.Config{
		Size: cfg.ArenaBytes, Policy: cfg.Hugepages, Reserve: pool, Shared: cfg.Shared,
	})
	if err != nil {
		return nic, err
	}
	nic.Memory, nic.QueueID = l.arena.Bytes(), cfg.Queue
	return nic, nil
}

// open tries one mode, and leaves the queue reserved. When it fails it leaves nothing
// behind but perhaps the program on the interface, for the next mode to use.
func (l *lease) open(ctx context.Context, nic xdpnic.Config, mode xdpnic.Mode) error {
	d := l.dev
	queues, err := d.candidates(nic.QueueID, mode)
	if err != nil {
		return err
	}
	if err := d.attach(attachMode(mode)); err != nil {
		return err
	}
	nic.Mode = mode
	open := func(nic xdpnic.Config) (*xdpnic.Queue, error) { return l.openReserved(ctx, nic) }
	if err := l.openQueue(nic, queues, open); err != nil {
		return err
	}
	if err := d.demux.Register(l.slot, l.queue.FD()); err != nil {
		d.unreserve(l)
		return errors.Join(err, l.queue.Close())
	}
	return nil
}

// openReserved opens a queue without d.mu, which the caller holds, and leaves it reserved
// unless it fails.
func (l *lease) openReserved(ctx context.Context, nic xdpnic.Config) (q *xdpnic.Queue, err error) {
	d := l.dev
	// Others may have taken the queue while this one tried another.
	if other := d.leases[nic.QueueID]; other != nil {
		return nil, fmt.Errorf("%w: queue %d is %v: %w", kagent.ErrQueueInUse, nic.QueueID, other, unix.EBUSY)
	}
	if other := d.opening[nic.QueueID]; other != nil {
		return nil, fmt.Errorf("%w: queue %d, for %v: %w", errOpening, nic.QueueID, other.who(), unix.EBUSY)
	}
	if l.slot, err = d.freeSlot(); err != nil {
		return nil, err
	}
	d.reserve(l)
	d.mu.Unlock()
	q, err = xdpnic.OpenContext(ctx, nic)
	d.mu.Lock()
	if err == nil && d.router.Removed() {
		err = errors.Join(kagent.ErrGone, q.Close())
	}
	if err != nil {
		d.unreserve(l)
		return nil, err
	}
	return q, nil
}

// opener is xdpnic.Open.
type opener func(xdpnic.Config) (*xdpnic.Queue, error)

// openQueue takes the first of queues that can be had: without frames of several
// chunks, if none can be had with them and any refuses those. The error is a reason
// against the mode, where a queue has one, rather than that another one is busy.
func (l *lease) openQueue(nic xdpnic.Config, queues []int, open opener) error {
	errs := l.tryQueues(nic, queues, open)
	if nic.MultiBuffer && slices.ContainsFunc(errs, func(err error) bool {
		return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL)
	}) {
		// A kernel before 6.6 knows no frames of several chunks, and a driver
		// may know none in zero-copy mode (xp_assign_dev, net/xdp/xsk_buff_pool.c).
		nic.MultiBuffer = false
		errs = l.tryQueues(nic, queues, open)
	}
	if len(errs) == 0 {
		return nil
	}
	if i := slices.IndexFunc(errs, func(err error) bool { return !errors.Is(err, unix.EBUSY) }); i >= 0 {
		return errs[i]
	}
	return errs[len(errs)-1]
}

// tryQueues opens the first of queues that can be had; else it says of each why not.
func (l *lease) tryQueues(nic xdpnic.Config, queues []int, open opener) (errs []error) {
	wait := nic.BusyTimeout
	for i, q := range queues {
		l.queueID, nic.QueueID = q, q
		if nic.BusyTimeout = wait; i < len(queues)-1 {
			nic.BusyTimeout = -1 // rather the next one than wait
		}
		var err error
		if l.queue, err = open(nic); err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return errs
}

func (l *lease) describe(cfg kagent.Config, link kagent.Link, mode xdpnic.Mode, attempts []xdpnic.Attempt) {
	d := l.dev
	l.info = kagent.Info{
		Interface: link.Name, Index: link.Index, Driver: d.driver, Bus: d.bus,
		Queue: l.queueID, Queues: d.queues, MTU: link.MTU,
		Mode: mode, Attempts: attempts,
		NIC: l.queue.Info(), Arena: l.arena.Info(), MaxVIs: cfg.MaxVIs, Port: cfg.Port,
	}
	note := func(text string) { l.info.Notes = append(l.info.Notes, text) }
	if !link.Up {
		note("the interface has no carrier, or is down")
	}
	if d.driver == "veth" && !mode.Generic() {
		note("a veth receives in native mode only while its peer has an XDP program too, or generic receive offload")
	}
}

// awaitCarrier gives up d.mu until the interface can send again; the error is that of ctx.
// Caller holds d.mu.
func (d *device) awaitCarrier(ctx context.Context) error {
	r := d.router
	d.mu.Unlock()
	defer d.mu.Lock()
	look := time.NewTicker(2 * time.Millisecond)
	defer look.Stop()
	for end := time.Now().Add(carrierTime); time.Now().Before(end); {
		if link, err := r.Link(); err != nil || link.Up {
			return nil
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// release gives up one reference; the last one gives the queue back, in the
// order in which frames stop: map entries, what is to be sent, link, socket,
// memory. To take the program off has many drivers set up their rings anew, and
// drop what is on them. Caller holds d.mu, which is given up while frames are sent: until
// then the queue is reserved.
func (l *lease) release() error {
	if l.refs--; l.refs > 0 {
		return nil
	}
	d := l.dev
	delete(d.leases, l.queueID)
	// The slot of a queue that was handed out is empty when its holder is dead.
	errs := []error{l.unsteer(), d.demux.Evict(l.slot), d.closeShmLinks(l.queueID)}
	if l.queue != nil {
		d.reserve(l)
		d.mu.Unlock()
		// An error here is about frames that nobody waits for any more.
		_ = l.queue.Drain()
		d.mu.Lock()
		d.unreserve(l)
	}
	if d.idle() && d.linger.time == 0 {
		errs = append(errs, d.detach())
	}
	if l.memory != nil {
		errs = append(errs, l.memory.Close())
		l.memory = nil
	}
	if l.queue == nil {
		return errors.Join(append(errs, l.unkeep())...)
	}
	errs = append(errs, l.queue.Close(), l.arena.Close())
	return errors.Join(errs...)
}

// entry is what the demux program must know of a VI of this lease.
func (l *lease) entry(key uint64) bpf.VIEntry {
	return bpf.VIEntry{Slot: uint32(l.slot), Queue: uint32(l.queueID), Key: key}
}

// reasons are several errors in one line.
type reasons []error

func (r reasons) Error() string {
	var texts []string
	for _, err := range r {
		texts = append(texts, err.Error())
	}
	return strings.Join(texts, "; ")
}

func (r reasons) Unwrap() []error { return r }
