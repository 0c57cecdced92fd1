package device

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"viaxdp/bpf"
	"viaxdp/internal/agent/connmgr"
	"viaxdp/internal/agent/ctrlport"
	"viaxdp/internal/agent/fdstore"
	"viaxdp/internal/base/fds"
)

// Restored is a queue that a previous agent handed out.
type Restored struct {
	Local *Local   // nil: its interface was removed, and only Memory is left
	Tag   []byte   // HandOut's
	Alive *os.File // ends when the holder is dead; the caller's
	// Memory is Size bytes, which TakeMemory returns if there is a Local; the caller's. nil:
	// none.
	Memory *os.File
	Size   int
	Queues int // without a Local: that it has, unless another one of the Group counts them
	// Group, without a Local, is the same for processes that shared a queue, whose Memory is the same. Common bytes of the
	// Size of one of them are theirs together.
	Group  *Group
	Common int
}

// Restore continues where a killed agent has stopped. entries is everything that it put into the
// descriptor store. Restore drops entries of removed interfaces, and invalid records; the error
// names them and the reason, and everything else is restored. A holder may go on using the memory
// of a removed interface: such queues are returned without a Local. The files belong to Restore
// from now on.
//
// It works in the network namespace of the calling thread, which must be that of the previous
// agent.
func Restore(fdStore fdstore.Store, entries []fdstore.Entry) ([]Restored, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all []Restored
	var errs []error
	byPlace := make(map[string][]fdstore.Entry)
	for _, i := range entries {
		_, rest, _ := strings.Cut(i.Key, "/")
		place, _, _ := strings.Cut(rest, "/")
		byPlace[place] = append(byPlace[place], i)
	}
	for place, entries := range byPlace {
		r, bad, whole := restoreNIC(fdStore, place, entries)
		if err := errors.Join(bad, whole); err != nil {
			errs = append(errs, fmt.Errorf("kagent: restore %s: %w", place, err))
		}
		if whole != nil {
			for _, i := range entries {
				errs = append(errs, fdStore.Delete(i.Key))
			}
		}
		all = append(all, r...)
		for _, i := range entries {
			i.Close() // entries that were not used
		}
	}
	return all, errors.Join(errs...)
}

// RestoreNeeds returns how many descriptors Restore opens at most for these entries, in addition to theirs.
func RestoreNeeds(entries []fdstore.Entry) (n int) {
	const (
		nic   = 9 // netlink sockets, and one to query the driver
		lease = 1 // the NIC that is steered
	)
	for _, i := range entries {
		switch kind, _, _ := strings.Cut(i.Key, "/"); kind {
		case "nic":
			n += nic + len(i.Files)
		case "lease":
			if n += lease; len(i.Files) > 2 { // of a queue that processes share: else the files are used as they are
				n += len(i.Files)
			}
		case "shmlink":
			n += len(i.Files)
		}
	}
	return n
}

// kept has the entries of one place.
type kept struct {
	nic    *fdstore.Entry
	leases map[*fdstore.Entry]leaseRecord
	vis    map[uint32]viRecord
	// listens has the listeners by their keys; restoreLeases removes those of its queues.
	listens  map[string]listenRecord
	shmLinks map[*fdstore.Entry]linkRecord
	// bad has the errors of invalid records.
	bad map[string]error
}

// sortEntries parses the entries of a place. The error is about the interface itself.
func sortEntries(place string, entries []fdstore.Entry) (k kept, nic nicRecord, err error) {
	k = kept{
		bad: make(map[string]error), leases: make(map[*fdstore.Entry]leaseRecord), vis: make(map[uint32]viRecord),
		listens: make(map[string]listenRecord), shmLinks: make(map[*fdstore.Entry]linkRecord),
	}
	for n := range entries {
		i := &entries[n]
		kind, _, _ := strings.Cut(i.Key, "/")
		var bad error
		switch kind {
		case "nic":
			k.nic = i
			bad = json.Unmarshal(i.Value, &nic)
			err = bad
		case "lease":
			var r leaseRecord
			bad = json.Unmarshal(i.Value, &r)
			switch {
			case bad != nil:
			case len(i.Files) == 0:
				bad = errors.New("no sign of life was kept")
			case i.Key != leaseKey(place, r.id()):
				bad = fmt.Errorf("it is of queue %d, process %d", r.Queue, r.Partition)
			case r.Partition < 0 || r.Group == nil && r.Partition > 0 || r.Group != nil && len(i.Files) != 3+len(r.Info.Info.NIC.ExtraQueues):
				bad = fmt.Errorf("process %d of a queue that is shared: %v, with %d files", r.Partition, r.Group != nil, len(i.Files))
			default:
				k.leases[i] = r
			}
		case "vi":
			var r viRecord
			var num uint64
			if num, bad = strconv.ParseUint(strings.TrimPrefix(i.Key, "vi/"+place+"/"), 16, 32); bad == nil {
				bad = json.Unmarshal(i.Value, &r)
			}
			if bad == nil {
				k.vis[uint32(num)] = r
			}
		case "shmlink":
			var r linkRecord
			if r, bad = readLink(i); bad == nil && i.Key != linkKey(place, r.ID) {
				bad = fmt.Errorf("it is link %016x", r.ID)
			}
			if bad == nil {
				k.shmLinks[i] = r
			}
		case "listen":
			var r listenRecord
			if r, bad = readListener(i.Value); bad == nil {
				k.listens[i.Key] = r
			}
		default:
			bad = errors.New("no such kind")
		}
		if bad != nil {
			k.bad[i.Key] = fmt.Errorf("%s: %w", i.Key, bad)
		}
	}
	switch {
	case err != nil:
		err = k.bad[k.nic.Key]
	case k.nic == nil:
		err = errors.New("nothing was kept of the interface itself")
	}
	return k, nic, err
}

// lost returns the queues of an interface that is not restored. They take their files.
func (k *kept) lost() (all []Restored) {
	groups := make(map[int]*Group)
	for entry, r := range k.leases {
		info := &r.Info.Info
		l := Restored{Tag: r.Tag, Alive: entry.Files[0], Size: info.PinnedBytes(), Queues: 1 + len(info.NIC.ExtraQueues)}
		entry.Files = entry.Files[1:]
		own := info.NIC.SocketRingBytes()
		if len(entry.Files) > 0 {
			l.Memory, entry.Files = entry.Files[0], entry.Files[1:]
		}
		if l.Group = groups[r.Queue]; l.Group != nil {
			l.Size, l.Queues = own, 0
		}
		if r.Group != nil && l.Group == nil {
			l.Group, l.Common = new(Group), l.Size-own
			groups[r.Queue] = l.Group
		}
		all = append(all, l)
	}
	return all
}

// An interface that is not restored is lost to its programs, so Restore waits for memory and descriptors.
const (
	shortTime  = 5 * time.Second
	shortPause = 20 * time.Millisecond
)

// restoreNIC restores one interface. If that fails, whole is an error, and the queues are lost.
func restoreNIC(fdStore fdstore.Store, place string, entries []fdstore.Entry) (all []Restored, bad, whole error) {
	k, nic, err := sortEntries(place, entries)
	for key, why := range k.bad {
		bad = errors.Join(bad, why, fdStore.Delete(key))
	}
	if err == nil {
		var rest error
		for until := time.Now().Add(shortTime); ; time.Sleep(shortPause) {
			if all, rest, err = k.restoreAll(fdStore, place, nic); !fds.Short(err) || time.Now().After(until) {
				break
			}
		}
		bad = errors.Join(bad, rest)
	}
	if err != nil {
		return k.lost(), bad, err
	}
	return all, bad, nil
}

func (k *kept) restoreAll(fdStore fdstore.Store, place string, nic nicRecord) (_ []Restored, bad, _ error) {
	link, err := netlink.LinkByIndex(nic.Index)
	if err != nil {
		return nil, nil, linkError(nameOf(place), err)
	}
	if k.unbound() {
		return nil, nil, fmt.Errorf("interface %d was removed, and is another one now", nic.Index)
	}
	d := &device{refs: 1, place: place}
	if d.key, err = keyOf(nic.Index, nic.Port); err != nil {
		return nil, nil, err
	}
	registry.mu.Lock()
	if registry.devices[d.key] != nil {
		registry.mu.Unlock()
		return nil, nil, errors.New("this process has it open already")
	}
	registry.devices[d.key] = d
	registry.mu.Unlock()
	discs := k.discs()
	d.mu.Lock()
	if err := d.restore(fdStore, nic, k.nic, link.Attrs(), discs); err != nil {
		d.fdStore = nil // the entries are Restore's
		return nil, nil, errors.Join(err, d.release())
	}
	for _, key := range k.keys(place) {
		d.fdStore.holds(key)
	}
	all, lost := d.restoreLeases(k)
	bad = errors.Join(bad, lost)
	d.reconcile(all)
	bad = errors.Join(bad, d.restoreLinks(k.shmLinks))
	for num := range k.vis {
		if !d.numbers.Live(num) {
			bad = errors.Join(bad, d.fdStore.Delete(viKey(place, num)))
		}
	}
	for key := range k.listens {
		bad = errors.Join(bad, d.fdStore.Delete(key))
		if of, ok := discs[key]; ok {
			d.manager.ReleaseDisc(of.Disc, of.User)
		}
	}
	return all, errors.Join(bad, d.release()), nil // each Local has a reference of its own
}

// unbound reports whether the kernel has unbound a queue's socket, since the interface was removed or moved to another
// network namespace (xsk_notifier, net/xdp/xsk.c). It may be back with its name, number and program. Only the sockets of queues
// that processes share are in the store.
func (k *kept) unbound() (is bool) {
	for entry, r := range k.leases {
		if r.Group == nil {
			continue
		}
		_ = fds.WithAll(entry.Files[2:], func(sockets []int) error {
			for _, fd := range sockets {
				_, _, err := unix.Recvfrom(fd, nil, unix.MSG_DONTWAIT) // which takes no frame
				is = is || errors.Is(err, unix.ENXIO)
			}
			return nil
		})
	}
	return is
}

// keys returns the keys of all valid records.
func (k *kept) keys(place string) []string {
	all := []string{k.nic.Key}
	for i := range k.leases {
		all = append(all, i.Key)
	}
	for i := range k.shmLinks {
		all = append(all, i.Key)
	}
	for num := range k.vis {
		all = append(all, viKey(place, num))
	}
	return slices.AppendSeq(all, maps.Keys(k.listens))
}

// discs returns the discriminators at which programs listened, by the keys of their records.
func (k *kept) discs() map[string]connmgr.Kept {
	all := make(map[string]connmgr.Kept)
	for key, listener := range k.listens {
		for _, lease := range k.leases {
			if lease.id() == listener.Queue {
				all[key] = connmgr.Kept{Disc: string(listener.Disc), User: lease.Holder.UID}
			}
		}
	}
	return all
}

// restore is setUp from the entries of the descriptor store. Caller holds d.mu.
func (d *device) restore(fdStore fdstore.Store, r nicRecord, i *fdstore.Entry, link *netlink.LinkAttrs, discs map[string]connmgr.Kept) error {
	if len(i.Files) < 6 {
		return fmt.Errorf("%d descriptors were kept", len(i.Files))
	}
	d.begin(r.MaxVIs, fdStore)
	_, err := d.observe(link, r.Port)
	if err != nil {
		return err
	}
	if d.udp, err = ctrlport.Adopt(i.Files[0], link.Name, r.Port, d.router.Own); err != nil {
		return err
	}
	dups, err := fds.DupAll(i.Files[1:])
	if err != nil {
		return err
	}
	objects, err := bpf.DescriptorsOf(dups)
	if err != nil {
		fds.Close(dups...)
		return err
	}
	if d.demux, err = bpf.AdoptDemux(objects, r.Index); err != nil {
		return err
	}
	if link.Name != nameOf(d.place) && !d.isOn(link) {
		return fmt.Errorf("interface %d is %s now", r.Index, link.Name)
	}
	d.attached, d.mode = r.Attached && objects.Link >= 0, bpf.Native
	if r.Generic {
		d.mode = bpf.Generic
	}
	d.manage(r.Port, func(t connmgr.Transport, port uint16) *connmgr.Manager {
		return connmgr.Resume(t, port, slices.Collect(maps.Values(discs))...)
	})
	d.linger.mtu = link.MTU
	d.up = true
	return nil
}

// nameOf is the interface's name in a place: it may have been renamed since.
func nameOf(place string) string {
	name, _, _ := strings.Cut(place, ":")
	return name
}

// isOn reports whether an interface has the device's program, so that it is the device's, whatever its name. Caller holds d.mu.
func (d *device) isOn(link *netlink.LinkAttrs) bool {
	info, err := d.demux.Program.Info()
	if err != nil {
		return false
	}
	id, ok := info.ID()
	return ok && link.Xdp != nil && link.Xdp.Attached && link.Xdp.ProgId == uint32(id)
}

// restoreLeases makes a Local for each queue that was handed out. Caller holds
// d.mu and is on a thread of the interface's namespace.
func (d *device) restoreLeases(k *kept) (all []Restored, _ error) {
	var errs []error
	for entry, r := range k.leases {
		l := &lease{
			dev: d, queueID: r.Queue, extra: r.Info.Info.NIC.ExtraQueues, slot: r.Slot, since: r.Since, refs: 1, holder: r.Holder, info: r.Info.Restore(),
		}
		if r.Group == nil {
			l.resumeSteering(r.Steering)
		} else if err := d.resumeMember(l, r, entry); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", entry.Key, err), d.fdStore.Delete(entry.Key))
			continue
		}
		d.leases[l.id()] = l
		registry.mu.Lock()
		d.refs++
		registry.mu.Unlock()
		local := newLocal(d, l)
		for num, v := range k.vis {
			if v.Queue == l.id() && d.numbers.Take(num) {
				local.vis[num] = netip.Addr{}
				l.vis.set(num, netip.Addr{})
				if v.PeerReset != nil {
					local.peerResets[num] = *v.PeerReset
				}
			}
		}
		for key, ln := range k.listens {
			if ln.Queue == l.id() {
				local.keptDiscs[key] = string(ln.Disc)
				delete(k.listens, key)
			}
		}
		all = append(all, Restored{Local: local, Tag: r.Tag, Alive: entry.Files[0]})
		if entry.Files = entry.Files[1:]; len(entry.Files) > 0 && l.group == nil {
			l.memory, entry.Files = entry.Files[0], entry.Files[1:]
		}
	}
	return all, errors.Join(errs...)
}

// resumeMember puts a lease of a queue that processes share into its group. Caller holds d.mu.
func (d *device) resumeMember(l *lease, r leaseRecord, entry *fdstore.Entry) error {
	dups, err := fds.DupAll(entry.Files[2:]) // first: a group has at least one member
	if err != nil {
		return err
	}
	l.partition = r.Partition
	g := d.groups[r.Queue]
	if g == nil {
		info := r.Info.Restore()
		g = &Group{
			queue: r.Queue, uid: r.Holder.UID, sealed: r.Sealed, of: r.Group.Restore(info),
			arena: info.Arena, info: info, members: make(map[int]*lease),
		}
		if g.memory = dupFile(entry.Files[1], "umem"); g.memory == nil {
			fds.Close(dups...)
			return unix.EMFILE
		}
		l.resumeSteering(r.Steering)
		g.nic, g.steering, l.nic, l.steering = l.nic, l.steering, nil, nil
		d.groups[g.queue] = g
	}
	for _, fd := range dups {
		l.sockets = append(l.sockets, os.NewFile(uintptr(fd), "xdp"))
	}
	l.group = g
	g.members[l.partition] = l
	return nil
}

// reconcile brings tables and records into agreement: the agent may have died between writing the
// one and the other. For a known VI the VI table counts. VIs and slots without a record are
// cleared. Caller holds d.mu.
func (d *device) reconcile(all []Restored) {
	var stray []uint32
	d.demux.EachVI(func(num uint32, e bpf.VIEntry) {
		for _, r := range all {
			if _, ok := r.Local.vis[num]; ok && int(e.Slot) == r.Local.lease.slot {
				r.Local.vis[num] = e.Peer
				r.Local.lease.vis.set(num, e.Peer)
				return
			}
		}
		stray = append(stray, num)
	})
	for _, num := range stray {
		_ = d.demux.RemoveVI(num)
	}
	for _, r := range all {
		for num := range r.Local.peerResets {
			if !r.Local.vis[num].IsValid() {
				delete(r.Local.peerResets, num) // its connection had ended
			}
		}
	}
	for _, slot := range d.demux.Slots() {
		if d.slotFree(slot) {
			_ = d.demux.Evict(slot)
		}
	}
}
