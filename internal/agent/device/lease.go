package device

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"viaxdp/bpf"
	"viaxdp/hugepages"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/steer"
	"viaxdp/xdpnic"
)

// lease is one queue of a device: its socket, the socket's slot in the XSKMAP,
// the memory. Guarded by device.mu; queue, slot, sockets and arena do not change.
//
// A lease may have all queues that receive: also are those beside queueID, and queue n's socket is in slot + n.
type lease struct {
	dev     *device
	queueID int
	extra   []int
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

	sealed    bool         // Config.Sealed
	anyQueue  bool         // Config.Queue was AnyQueue
	room      room         // that is still to be made
	extraErr  error        // why the other queues could not be opened
	group     *Group       // that the queue belongs to; nil: no other process may have it
	partition int          // in the group
	leaving   bool         // TakeMemory was called
	sockets   []*os.File   // duplicates of those of a queue of a group that was handed out
	unmap     func() error // of the group's memory, until it is handed out
}

// room is what the memory of a lease has beside what its own queue needs.
type room struct {
	guests int   // other processes
	extra  []int // other queues
}

func (r room) none() bool { return r.guests == 0 && len(r.extra) == 0 }

// queues are all queues of the lease.
func (l *lease) queues() []int { return append([]int{l.queueID}, l.extra...) }

// slots are the slots of the XSKMAP that the lease has, in the order of its sockets.
func (l *lease) slots() []int {
	if len(l.extra) == 0 {
		return []int{l.slot}
	}
	all := l.queues()
	for i := range all {
		all[i] += l.slot
	}
	return all
}

// width is the number of slots from the first one on.
func (l *lease) width() int {
	if len(l.extra) == 0 {
		return 1
	}
	return slices.Max(l.queues()) + 1
}

// register puts the sockets into their slots.
func (l *lease) register() error {
	slots := l.slots()
	for i, fd := range l.queue.FDs() {
		if err := l.dev.demux.Register(slots[i], fd); err != nil {
			return errors.Join(err, l.evict())
		}
	}
	return nil
}

// evict empties the slots.
func (l *lease) evict() (err error) {
	for _, slot := range l.slots() {
		err = errors.Join(err, l.dev.demux.Evict(slot))
	}
	return err
}

// who returns a description of the process that has the queue.
func (l *lease) who() string {
	if h := l.holder; h != (kagent.Holder{}) {
		return fmt.Sprintf("process %d (%s) of user %d", h.PID, h.Comm, h.UID)
	}
	return "this process"
}

func (l *lease) String() string {
	return fmt.Sprintf("open in %s since %s in %v mode", l.who(), l.since.Format(time.TimeOnly), l.info.Mode)
}

// release gives up one reference. The last one gives the queue back, in the order that stops
// frames first: map entries, frames to be sent, link, socket, memory. It detaches the program
// last, since many drivers set up their rings again then and drop what is on them. Caller holds
// d.mu, which is released while frames are sent; the queue is reserved until then.
func (l *lease) release() error {
	if l.refs--; l.refs > 0 {
		return nil
	}
	d := l.dev
	delete(d.leases, l.id())
	defer d.announce()
	var errs []error
	// The slot of a queue that was handed out is empty once its holder has died.
	if l.group == nil {
		errs = append(errs, l.unsteer())
	}
	errs = append(errs, l.evict(), d.closeShmLinks(l.id()))
	if l.group != nil {
		return l.releaseMember(errs)
	}
	if l.queue != nil {
		d.reserve(l)
		d.mu.Unlock()
		// An error here concerns frames that no handle waits for.
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

// releaseMember is the rest of release for a queue that processes share.
func (l *lease) releaseMember(errs []error) error {
	d := l.dev
	if l.queue != nil { // it was not handed out
		errs = append(errs, l.queue.Close())
		l.queue = nil
	}
	if l.arena != nil { // of the first process
		errs = append(errs, l.arena.Close())
	}
	if l.unmap != nil {
		errs = append(errs, l.unmap())
	}
	last, err := l.group.leave(l)
	if errs = append(errs, err, l.unkeep()); last {
		errs = append(errs, l.unsteer())
	}
	if d.idle() && d.linger.time == 0 {
		errs = append(errs, d.detach())
	}
	return errors.Join(errs...)
}

// entry returns the demux program's entry for a VI of this lease.
func (l *lease) entry(key uint64) bpf.VIEntry {
	e := bpf.VIEntry{Slot: uint32(l.slot), Queue: uint32(l.queueID), Key: key}
	if len(l.extra) > 0 {
		e.Queues = uint32(l.width())
	}
	return e
}

// viList is the VIs of a lease, of all handles that share it. Status lists them and Local.Close
// removes them. The zero value is empty. All methods may be called concurrently.
type viList struct {
	mu   sync.Mutex
	peer map[uint32]netip.Addr // by number; the zero Addr: not connected
}

func (v *viList) set(num uint32, peer netip.Addr) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.peer == nil {
		v.peer = make(map[uint32]netip.Addr)
	}
	v.peer[num] = peer
}

func (v *viList) remove(num uint32) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.peer, num)
}

func (v *viList) has(num uint32) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	_, ok := v.peer[num]
	return ok
}

func (v *viList) list() []kagent.VIStatus {
	v.mu.Lock()
	defer v.mu.Unlock()
	all := make([]kagent.VIStatus, 0, len(v.peer))
	for num, peer := range v.peer {
		s := kagent.VIStatus{Num: num, State: kagent.VICreated, Peer: peer}
		if peer.IsValid() {
			s.State = kagent.VIConnected
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b kagent.VIStatus) int { return cmp.Compare(a.Num, b.Num) })
	return all
}
