package device

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/bpf"
	"viaxdp/hugepages"
	"viaxdp/internal/agent/kagent"
	"viaxdp/xdpnic"
)

// How a queue is opened (device.lease), with d.mu unless stated otherwise:
//
//  1. steps: the modes to try, best first; modes that conflict with other queues are skipped
//  2. newArena: the memory, without d.mu; of the opens that ask for the same queue, one at a time
//  3. climb: each mode until one is available
//     candidates: the queues that are free
//     device.attach: the program, as the mode requires
//     openReserved: the socket, without d.mu; the queue is reserved meanwhile
//     bpf.Demux.Register: the socket into its slot of the XSKMAP
//  4. describe, steer: notes for the user, the NIC's rule
//  5. awaitCarrier: without d.mu

// carrierTime is how long Open waits for the carrier to come back: some
// drivers take the link down to attach a program.
const carrierTime = 2 * time.Second

// busyTime is how long Open tries again while the queue is busy; changed by tests. The kernel frees a queue in a
// worker, which waits for an RCU grace period and for rtnl_lock after the last socket is closed (xp_release_deferred,
// net/xdp/xsk_buff_pool.c). Usually that takes 25 ms, and on an overloaded machine 2.6 s.
var busyTime = 5 * time.Second

// errOpening: the queue, or the mode, may be free when the opens that are under way have ended.
var errOpening = errors.New("other programs are just opening queues")

// lease takes a queue. It releases d.mu whenever it waits, so that other opens do not wait with
// it: while it allocates the memory; while the queue, which it has reserved, is busy; and until
// the link is back. If another open has reserved the queue, or the mode, lease waits for it. ctx
// ends each of these waits. Caller holds d.mu, and a reference to d, and is on a thread of the
// interface's namespace.
func (d *device) lease(ctx context.Context, cfg Config) (_ *lease, err error) {
	l := &lease{dev: d, refs: 1, since: time.Now(), holder: cfg.Holder, sealed: cfg.Sealed}
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
	l.anyQueue = cfg.Queue == kagent.AnyQueue
	extra := d.extraQueues(&cfg)
	later := room{d.guests(cfg, extra != nil), extra} // if the queue turns out not to be a zero-copy one
	if steps, _ := d.steps(cfg); len(steps) == 0 || steps[0] != xdpnic.ModeZeroCopy {
		l.room, later = later, room{}
	}
	if cfg.Queue >= 0 {
		d.wanted[cfg.Queue] = l
	}
	d.mu.Unlock()
	nic, err := l.newArena(cfg, link.MTU)
	l.room = later
	d.mu.Lock()
	if cfg.Queue >= 0 {
		delete(d.wanted, cfg.Queue)
		d.announce()
	}
	if err != nil {
		return nil, err
	}
	for {
		if err = l.climb(ctx, until, cfg, &nic, link); !errors.Is(err, errOpening) || !d.awaitReservation(busy) {
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

// climb opens the queue in the best available mode, and leases it. It retries a busy queue until the given
// time. Caller holds d.mu, which is released meanwhile.
func (l *lease) climb(ctx context.Context, until time.Time, cfg Config, nic *xdpnic.Config, link kagent.Link) error {
	d := l.dev
	if d.router.Removed() { // another interface may have its index
		return kagent.ErrGone
	}
	nic.BusyTimeout = max(time.Until(until), time.Nanosecond)
	steps, passed := d.steps(cfg)
	attempts := slices.Clone(passed)
	if err := d.allInUse(cfg.Queue, steps); err != nil {
		return err
	}
	var failed reasons
	long := nic.MultiBuffer // by the MTU; in generic mode also for GSO packets, which no other mode receives
	for _, mode := range steps {
		if mode != xdpnic.ModeZeroCopy {
			l.makeRoom(cfg, nic)
		}
		nic.MultiBuffer = long || !cfg.SingleBuffer && mode.Generic() && nic.ChunkSize == xdpnic.MaxChunk
		err := d.otherMode(mode) // by now
		if err == nil {
			err = l.open(ctx, *nic, mode)
		}
		attempts = append(attempts, xdpnic.Attempt{Mode: mode, Err: err})
		if err == nil {
			l.describe(cfg.Config, link, mode, attempts)
			l.steer(cfg.Config)
			d.unreserve(l)
			d.leases[l.id()] = l
			return nil
		}
		if errors.Is(err, kagent.ErrQueueInUse) || errors.Is(err, unix.EBUSY) || errors.Is(err, kagent.ErrGone) || kagent.Unavailable(err) {
			return reasons{err} // no other mode helps
		}
		failed = append(failed, fmt.Errorf("%v mode: %w", mode, err))
	}
	switch {
	case len(steps) > 0:
		// A mode that was skipped because of an open under way may be tried after that open.
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

// newArena makes the memory, and the part of the queue's configuration that is the same for all modes.
func (l *lease) newArena(cfg Config, mtu int) (xdpnic.Config, error) {
	config := func(chunk int) (xdpnic.Config, error) {
		return xdpnic.Config{
			Ifindex: l.dev.key.index, QueueID: max(cfg.Queue, 0), Require: true,
			ChunkSize: chunk, RxChunks: cfg.RxChunks, TxChunks: cfg.TxChunks,
		}.WithDefaults()
	}
	nic, err := config(cfg.ChunkSize)
	if err != nil {
		return nic, err
	}
	if cfg.ChunkSize == 0 && !cfg.SingleBuffer {
		// GSO packets of peers take fewer chunks, and fewer of their frames lie in two.
		if long, err := config(xdpnic.MaxChunk); err == nil && long.PoolBytes() <= cfg.ArenaBytes/2 {
			nic = long
		}
	}
	const ethernet = 14 + 4 // header and one VLAN tag
	nic.MultiBuffer = !cfg.SingleBuffer && mtu+ethernet > nic.ChunkSize-xdpnic.PacketHeadroom-nic.Headroom
	pool := nic.PoolBytes()
	if pool > cfg.ArenaBytes {
		return nic, fmt.Errorf("an arena of %d bytes does not hold the %d bytes of the chunks: "+
			"take a larger one, or fewer chunks", cfg.ArenaBytes, pool)
	}
	if !l.room.none() && l.allocateRoom(cfg, &nic) == nil {
		return nic, nil
	}
	return nic, l.allocate(cfg, &nic, cfg.ArenaBytes)
}

// allocate makes the memory of a queue. The pool of chunks is reserved in it.
func (l *lease) allocate(cfg Config, nic *xdpnic.Config, size int) error {
	a, err := hugepages.New(hugepages.Config{
		Size: size, Policy: cfg.Hugepages, Reserve: nic.PoolBytes(), Shared: cfg.Shared,
	})
	if err == nil {
		l.arena = a
		nic.Memory, nic.QueueID = a.Bytes(), cfg.Queue
	}
	return err
}

// allocateRoom is allocate with l.room, in addition to what the program asked for. A queue without
// room is better than none, so it is tried once.
func (l *lease) allocateRoom(cfg Config, nic *xdpnic.Config) (err error) {
	wide := *nic
	wide.Memory, wide.Rings = nil, xdpnic.Rings{}
	if wide.ExtraQueues = l.room.extra; wide.ExtraQueues != nil {
		defer func() { l.extraErr = err }()
	}
	if l.room.guests > 0 {
		wide.Sharing = xdpnic.Sharing{Guests: l.room.guests, RxChunks: guestRxChunks, RxRing: guestRxRing, TxChunks: guestTxChunks}
	}
	l.room = room{}
	if wide, err = wide.WithDefaults(); err != nil {
		return err
	}
	if err = l.allocate(cfg, &wide, cfg.ArenaBytes+wide.PoolBytes()-nic.PoolBytes()); err == nil {
		*nic = wide
	}
	return err
}

// makeRoom replaces memory for a zero-copy queue by memory with room, if that
// has not been tried: processes do not share a zero-copy queue, and it has no others beside it. Caller holds d.mu, which
// is released meanwhile.
func (l *lease) makeRoom(cfg Config, nic *xdpnic.Config) {
	if l.room.none() {
		return
	}
	old := l.arena
	l.dev.mu.Unlock()
	if l.allocateRoom(cfg, nic) == nil {
		_ = old.Close() // nothing was allocated from it
	}
	l.dev.mu.Lock()
}

// open tries one mode, and leaves the queue reserved. If it fails, it may leave the program attached, for the
// next mode to use.
func (l *lease) open(ctx context.Context, nic xdpnic.Config, mode xdpnic.Mode) error {
	d := l.dev
	nic.Mode = mode
	if mode == xdpnic.ModeZeroCopy || mode.Generic() && d.driver == "veth" {
		nic.ExtraQueues = nil // the NIC is to steer, or there is one queue
	}
	if l.anyQueue && len(nic.ExtraQueues) == 0 {
		nic.QueueID = kagent.AnyQueue // not the first of all
	}
	queues, err := d.candidates(nic.QueueID, mode)
	if err != nil {
		return err
	}
	if err := d.attach(attachMode(mode)); err != nil {
		return err
	}
	open := func(nic xdpnic.Config) (*xdpnic.Queue, error) { return l.openReserved(ctx, nic) }
	err = l.openQueue(ctx, nic, queues, open)
	if err != nil && len(nic.ExtraQueues) > 0 {
		l.extraErr, nic.ExtraQueues = err, nil
		if l.anyQueue {
			if queues, err = d.candidates(kagent.AnyQueue, mode); err != nil {
				return err
			}
		}
		err = l.openQueue(ctx, nic, queues, open)
	}
	if err != nil {
		return err
	}
	if err := l.register(); err != nil {
		d.unreserve(l)
		return errors.Join(err, l.queue.Close())
	}
	return nil
}

// openReserved opens a queue without d.mu, which the caller holds, and leaves it reserved
// unless it fails.
func (l *lease) openReserved(ctx context.Context, nic xdpnic.Config) (q *xdpnic.Queue, err error) {
	d := l.dev
	// Another open may have taken the queue while this one tried another.
	l.extra = nic.ExtraQueues
	for _, queue := range l.queues() {
		if other := d.holderOf(queue); other != nil {
			return nil, fmt.Errorf("%w: queue %d is %v: %w", kagent.ErrQueueInUse, queue, other, unix.EBUSY)
		}
		if other := d.opening[queue]; other != nil {
			return nil, fmt.Errorf("%w: queue %d, for %v: %w", errOpening, queue, other.who(), unix.EBUSY)
		}
	}
	if l.slot, err = d.freeSlots(l.width()); err != nil {
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

// awaitCarrier releases d.mu and waits until the interface can send again. The error is that of
// ctx. Caller holds d.mu.
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

// idle reports whether no queue is leased or reserved. Caller holds d.mu.
func (d *device) idle() bool { return len(d.leases) == 0 && len(d.opening) == 0 }

// reserve reserves l's queues until unreserve. Caller holds d.mu.
func (d *device) reserve(l *lease) {
	for _, queue := range l.queues() {
		d.opening[queue] = l
	}
}

// unreserve ends a reservation, and wakes the opens that wait for one to end. Caller holds d.mu.
func (d *device) unreserve(l *lease) {
	for _, queue := range l.queues() {
		if d.opening[queue] == l {
			delete(d.opening, queue)
		}
	}
	d.announce()
}

// announce wakes the opens that wait for a change of reservations or groups. Caller holds d.mu.
func (d *device) announce() {
	if d.changed != nil {
		close(d.changed)
		d.changed = nil
	}
}

// awaitReservation releases d.mu and waits until a reservation, or an allocation for a queue, ends. It reports whether
// one ended before ctx. Caller holds d.mu.
func (d *device) awaitReservation(ctx context.Context) bool {
	if len(d.opening)+len(d.wanted) == 0 {
		return ctx.Err() == nil
	}
	return d.awaitChange(ctx)
}

// awaitChange releases d.mu and waits for announce. It reports whether that came before the end of ctx. Caller holds d.mu.
func (d *device) awaitChange(ctx context.Context) bool {
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

// otherMode returns why a mode is not tried while other queues need another one; nil: it can be. The result
// may change if only reservations are in the way. Caller holds d.mu.
func (d *device) otherMode(m xdpnic.Mode) error {
	switch {
	case d.idle() || attachMode(m) == d.mode:
		return nil
	case len(d.leases) == 0:
		return fmt.Errorf("not tried: %w in %v mode", errOpening, d.mode)
	}
	return fmt.Errorf("not tried: this process has the program attached in %v mode for another queue", d.mode)
}

// steps returns the data paths to try, best first, and those that are skipped, with the reason. Caller holds
// d.mu.
func (d *device) steps(cfg Config) (steps []xdpnic.Mode, passed []xdpnic.Attempt) {
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
	// Queues other than the first exist in native mode only.
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

// freeSlots returns the first of n free slots of the XSKMAP that follow each other. Caller holds d.mu.
func (d *device) freeSlots(n int) (int, error) {
	free := 0
	for s := range bpf.DefaultMaxSockets {
		if free++; !d.slotFree(s) {
			free = 0
		}
		if free == n {
			return s - n + 1, nil
		}
	}
	return 0, fmt.Errorf("all %d socket slots are in use", bpf.DefaultMaxSockets)
}

// slotFree reports whether no lease has or has reserved the slot. Caller holds d.mu.
func (d *device) slotFree(slot int) bool {
	for _, all := range []map[int]*lease{d.leases, d.opening} {
		for _, l := range all {
			if slot >= l.slot && slot < l.slot+l.width() {
				return false
			}
		}
	}
	return true
}

// reasons joins several errors in one line.
type reasons []error

func (r reasons) Error() string {
	var texts []string
	for _, err := range r {
		texts = append(texts, err.Error())
	}
	return strings.Join(texts, "; ")
}

func (r reasons) Unwrap() []error { return r }
