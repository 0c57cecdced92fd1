package device

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/hugepages"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/fds"
	"viaxdp/internal/base/steer"
	"viaxdp/xdpnic"
)

// Processes of one user share a queue: package xdpnic says how their sockets do. Here a group is such a queue, and
// each process has a lease of its own with its own slot in the XSKMAP, VIs, listeners and shared-memory links. The
// first process opens the queue, with room for the others. Others join while no queue is free.
//
// A lease of a group keeps a duplicate of the program's socket. When the program has gone, its chunks are reclaimed
// through it. The memory stays until the last process has gone, since all of it is one UMEM.

// Group is a queue that processes share. Its fields are guarded by device.mu, and its methods may be called concurrently.
type Group struct {
	queue    int
	uid      uint32
	sealed   bool           // of all members: see Config.Sealed
	of       xdpnic.Handout // of the first process
	arena    hugepages.Info
	info     kagent.Info // of the first process
	memory   *os.File
	members  map[int]*lease // by partition, until they are reclaimed
	ending   bool           // TakeMemory was called for the last one: no process joins
	nic      steered        // while steering
	steering *steer.Steering

	reclaiming sync.Mutex // held by reclaim, not under device.mu
}

// Chunks and RX ring of a process that joins. With 256 RX chunks it takes some GSO packets at a time, and the ring holds a
// message of an unreliable VI of any length, as vipl.DefaultRxChunks does.
const (
	guestRxChunks = 256
	guestRxRing   = 1024
	guestTxChunks = 256
)

// id is a lease's key in the device's maps and in the descriptor store. It is the number of the queue, unless other
// processes share it.
func (l *lease) id() int { return l.queueID + l.partition<<partitionShift }

const partitionShift = 16

// guests returns how many processes may join the first one of a queue. The queues of an interface together have room for
// cfg.Processes. wide: the lease has all queues. Caller holds d.mu and is
// on a thread of the interface's namespace.
func (d *device) guests(cfg Config, wide bool) int {
	if cfg.Processes <= 1 || !cfg.Shared {
		return 0
	}
	queues := d.queues
	if steps, _ := d.steps(cfg); wide || d.driver == "veth" && len(steps) > 0 && steps[0].Generic() || d.willSteerAll(cfg) {
		queues = 1 // that receives
	}
	return min((cfg.Processes+queues-1)/queues-1, xdpnic.MaxGuests)
}

// holderOf returns a lease of a queue; nil: the queue is free. Caller holds d.mu.
func (d *device) holderOf(queue int) *lease {
	if l := d.leases[queue]; l != nil {
		return l
	}
	for _, l := range d.sortedLeases() {
		if slices.Contains(l.extra, queue) {
			return l
		}
	}
	for _, g := range d.groups {
		for _, part := range slices.Sorted(maps.Keys(g.members)) {
			if l := g.members[part]; slices.Contains(l.queues(), queue) {
				return l
			}
		}
	}
	return nil
}

// newGroup makes the group of a lease that has opened its queue for several processes, and is handed out. Caller holds d.mu.
func (l *lease) newGroup(h xdpnic.Handout, sealed bool) (err error) {
	g := &Group{
		queue: l.queueID, uid: l.holder.UID, sealed: sealed, of: h, arena: l.arena.Info(), info: l.info,
		members: map[int]*lease{0: l},
	}
	if g.memory, err = fds.DupFile(l.arena.FD(), "umem"); err != nil {
		return err
	}
	g.nic, g.steering, l.nic, l.steering = l.nic, l.steering, nil, nil
	l.group = g
	l.dev.groups[g.queue] = g
	return nil
}

// Group returns the queue that the handle's process shares with others, or could; nil: it has a queue of its own.
func (l *Local) Group() *Group { return l.lease.group }

// Memory is that of the queue; it is open until the last process has gone.
func (g *Group) Memory() *os.File { return g.memory }

// PinnedBytes is the memory that the queue takes whatever the number of its processes: the UMEM, and the rings that are
// common.
func (g *Group) PinnedBytes() int {
	return g.arena.Size + g.info.NIC.RingBytes() - g.info.NIC.SocketRingBytes()
}

// mayJoinLater reports whether a queue to join, or a free one, is to be expected: one of the user's is just being opened or
// handed out, or its last process is being reclaimed. Caller holds d.mu.
func (d *device) mayJoinLater(cfg Config) bool {
	for _, l := range d.opening {
		if l.holder.UID == cfg.Holder.UID {
			return true
		}
	}
	for _, g := range d.groups {
		if g.uid == cfg.Holder.UID && g.member() == nil {
			return true
		}
	}
	for _, l := range d.leases {
		if l.group == nil && l.queue != nil && l.holder.UID == cfg.Holder.UID && l.queue.Info().Sharing.Guests > 0 {
			return true
		}
	}
	return false
}

// errNoGroup: no queue of the user has room for one more process.
var errNoGroup = errors.New("no queue can be shared")

// join makes a lease of a queue that processes of the same user share. The error says why there is none. Caller holds
// d.mu, and is on a thread of the interface's namespace.
func (d *device) join(cfg Config) (*lease, error) {
	why := errNoGroup
	for _, queue := range slices.Sorted(maps.Keys(d.groups)) {
		g := d.groups[queue]
		if cfg.Queue != kagent.AnyQueue && cfg.Queue != queue && !slices.Contains(g.of.Config.ExtraQueues, cfg.Queue) {
			continue
		}
		if err := g.admits(cfg); err != nil {
			why = fmt.Errorf("%w: queue %d: %w", errNoGroup, queue, err)
			continue
		}
		return d.joinGroup(g, cfg)
	}
	return nil, why
}

// joinSteered joins a group to whose queue the NIC steers all frames, since any other queue gets none. nil: there is
// no such group that the process may join. While an open of the same user is under way, which may end with such a group, it waits.
// Caller is as for join.
func (d *device) joinSteered(ctx context.Context, cfg Config) *lease {
	for cfg.Queue == kagent.AnyQueue && cfg.Processes > 1 && !cfg.Alone && d.inputs > 1 {
		for _, g := range d.groups {
			if g.steering == nil || g.steering.How != steer.RSS || g.admits(cfg) != nil {
				continue
			}
			if l, err := d.joinGroup(g, cfg); err == nil {
				return l
			}
		}
		if d.driver == "veth" || !d.mayJoinLater(cfg) || !d.awaitChange(ctx) {
			break // a veth is not steered
		}
	}
	return nil
}

// admits returns why a process may not join.
func (g *Group) admits(cfg Config) error {
	room := 1 + g.of.Config.Sharing.Guests
	switch {
	case g.uid != cfg.Holder.UID:
		return fmt.Errorf("processes of user %d share it, and could read the frames of others", g.uid)
	case g.sealed != cfg.Sealed:
		return errors.New("processes with and without a pre-shared key do not share a queue")
	case g.ending:
		return errors.New("its last process has just ended")
	case len(g.members) >= room:
		return fmt.Errorf("it has room for %d processes (setting processes of the agent)", room)
	case !slices.Contains(xdpnic.Ladder(cfg.Mode, cfg.RequireMode), g.info.Mode):
		return fmt.Errorf("it is open in %v mode", g.info.Mode)
	}
	return nil
}

func (d *device) joinGroup(g *Group, cfg Config) (_ *lease, err error) {
	l := &lease{dev: d, refs: 1, since: time.Now(), holder: cfg.Holder, queueID: g.queue, extra: g.of.Config.ExtraQueues, group: g}
	for g.members[l.partition] != nil {
		l.partition++
	}
	member := g.member()
	if member == nil {
		return nil, fmt.Errorf("%w: queue %d: its last process is being reclaimed", errNoGroup, g.queue)
	}
	if l.slot, err = d.freeSlots(l.width()); err != nil {
		return nil, err
	}
	mem, unmap, err := g.mapMemory()
	if err != nil {
		return nil, err
	}
	l.unmap = unmap
	undo := func(err error) error {
		if l.queue != nil {
			err = errors.Join(err, l.queue.Close())
		}
		return errors.Join(err, unmap())
	}
	if err := fds.WithAll(member.sockets, func(all []int) (err error) {
		l.queue, err = xdpnic.Join(all[0], g.of, mem, l.partition, all[1:]...)
		return err
	}); err != nil {
		return nil, undo(err)
	}
	if err := l.register(); err != nil {
		return nil, undo(err)
	}
	l.info = g.info
	l.info.NIC = l.queue.Info()
	l.info.Arena = g.arena
	shared := fmt.Sprintf("queue %d is shared with other processes of user %d", g.queue, g.uid)
	if !slices.Contains(g.info.Notes, shared) { // Restore may have them from one that has joined
		l.info.Notes = append(slices.Clip(g.info.Notes), shared)
	}
	g.members[l.partition] = l
	d.leases[l.id()] = l
	return l, nil
}

// member returns a process by whose socket others can join; nil: all are being reclaimed.
func (g *Group) member() *lease {
	for _, m := range g.members {
		if m.sockets != nil {
			return m
		}
	}
	return nil
}

// mapMemory maps the UMEM.
func (g *Group) mapMemory() (mem []byte, unmap func() error, err error) {
	err = fds.With(g.memory, func(fd int) (err error) {
		mem, err = unix.Mmap(fd, 0, g.arena.Size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		return os.NewSyscallError("mmap", err)
	})
	return mem, func() error { return unix.Munmap(mem) }, err
}

// leave takes back what the process of a lease had, if others go on with the queue. last reports that there are none. Caller
// holds d.mu, which is released meanwhile: the kernel takes its time to close the last descriptor of a socket.
func (g *Group) leave(l *lease) (last bool, err error) {
	d, sockets, others := l.dev, l.sockets, len(g.members) > 1
	l.sockets = nil // others join by another process's
	d.mu.Unlock()
	if sockets != nil {
		if others {
			err = l.reclaim(sockets)
		}
		fds.CloseFiles(sockets...)
	}
	d.mu.Lock()
	delete(g.members, l.partition)
	if last = len(g.members) == 0; last {
		delete(d.groups, g.queue)
		l.nic, l.steering = g.nic, g.steering // to be undone
		err = errors.Join(err, g.memory.Close())
	}
	return last, err
}

// leaving reports whether TakeMemory was called for all members.
func (g *Group) leaving() bool {
	for _, m := range g.members {
		if !m.leaving {
			return false
		}
	}
	return true
}

// reclaim returns the chunks of a process that has gone.
func (l *lease) reclaim(sockets []*os.File) error {
	g := l.group
	g.reclaiming.Lock() // xdpnic.Reclaim: one at a time
	defer g.reclaiming.Unlock()
	mem, unmap, err := g.mapMemory()
	if err != nil {
		return err
	}
	h := g.of
	h.Config.Sharing.Partition = l.partition
	h.Config.Rings = l.info.NIC.Rings
	err = fds.WithAll(sockets, func(all []int) error {
		_, err := xdpnic.Reclaim(all[0], h, mem, all[1:]...)
		return err
	})
	return errors.Join(err, unmap())
}
