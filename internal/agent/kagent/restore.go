package kagent

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

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"viaxdp/bpf"
)

// Restored is a queue that an agent before this one handed out.
type Restored struct {
	Local *Local   // nil: its interface is gone, and what is left of it is Memory
	Tag   []byte   // what HandOut was given
	Alive *os.File // ends when the holder is dead; the caller's
	// Memory is what TakeMemory gives otherwise, of so many bytes; the caller's. nil: there is none.
	Memory *os.File
	Size   int
}

// Restore goes on where an agent that was killed has stopped: items is all that
// it put into the descriptor store. Interfaces that are gone, and records that make no sense, are
// dropped from the descriptor store; the error says which and why, and the rest is restored
// all the same. A holder may go on using the memory of an interface that is gone: such
// queues are returned without a Local. The files belong to Restore from now on.
//
// It works in the network namespace of the calling thread, in which the agent
// before this one has worked.
func Restore(fdStore FDStore, entries []Entry) ([]Restored, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all []Restored
	var errs []error
	byPlace := make(map[string][]Entry)
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
			i.Close() // what was of no use
		}
	}
	return all, errors.Join(errs...)
}

// kept are the items of one place.
type kept struct {
	nic    *Entry
	leases map[*Entry]leaseRecord
	vis    map[uint32]viRecord
	// listens are the listeners by their keys; restoreLeases takes those out that are of its queues.
	listens  map[string]listenRecord
	shmLinks map[*Entry]linkRecord
	// bad are the records that make no sense, and why.
	bad map[string]error
}

// sortItems reads the items of a place. The error is about the interface itself.
func sortEntries(place string, entries []Entry) (k kept, nic nicRecord, err error) {
	k = kept{
		bad: make(map[string]error), leases: make(map[*Entry]leaseRecord), vis: make(map[uint32]viRecord),
		listens: make(map[string]listenRecord), shmLinks: make(map[*Entry]linkRecord),
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
			case i.Key != leaseKey(place, r.Queue):
				bad = fmt.Errorf("it is of queue %d", r.Queue)
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
		case "lane":
			var r linkRecord
			if r, bad = readLink(i); bad == nil {
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

// lost are the queues of an interface that is not restored. They take their files.
func (k *kept) lost() (all []Restored) {
	for entry, r := range k.leases {
		l := Restored{Tag: r.Tag, Alive: entry.Files[0], Size: r.Info.Info.PinnedBytes()}
		if entry.Files = entry.Files[1:]; len(entry.Files) > 0 {
			l.Memory, entry.Files = entry.Files[0], entry.Files[1:]
		}
		all = append(all, l)
	}
	return all
}

// restoreNIC restores one interface. Where that fails, whole is an error, and the queues are lost.
func restoreNIC(fdStore FDStore, place string, entries []Entry) (all []Restored, bad, whole error) {
	k, nic, err := sortEntries(place, entries)
	for key, why := range k.bad {
		bad = errors.Join(bad, why, fdStore.Delete(key))
	}
	if err == nil {
		var rest error
		all, rest, err = k.restoreAll(fdStore, place, nic)
		bad = errors.Join(bad, rest)
	}
	if err != nil {
		return k.lost(), bad, err
	}
	return all, bad, nil
}

func (k *kept) restoreAll(fdStore FDStore, place string, nic nicRecord) (_ []Restored, bad, _ error) {
	name, _, _ := strings.Cut(place, ":")
	link, err := netlink.LinkByIndex(nic.Index)
	if err != nil {
		return nil, nil, linkError(name, err)
	}
	if link.Attrs().Name != name {
		return nil, nil, fmt.Errorf("interface %d is %s now", nic.Index, link.Attrs().Name)
	}
	var ns unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &ns); err != nil {
		return nil, nil, err
	}
	d := &device{key: deviceKey{netnsDev: ns.Dev, netnsIno: ns.Ino, index: nic.Index, port: nic.Port}, refs: 1, place: place}
	registry.mu.Lock()
	if registry.devices[d.key] != nil {
		registry.mu.Unlock()
		return nil, nil, errors.New("this process has it open already")
	}
	registry.devices[d.key] = d
	registry.mu.Unlock()
	d.mu.Lock()
	if err := d.restore(fdStore, nic, k.nic, link.Attrs()); err != nil {
		return nil, nil, errors.Join(err, d.release())
	}
	for _, key := range k.keys(place) {
		d.fdStore.holds(key)
	}
	all := d.restoreLeases(k)
	d.reconcile(all)
	bad = errors.Join(bad, d.restoreLinks(k.shmLinks))
	for num := range k.vis {
		if !d.numbers.Live(num) {
			bad = errors.Join(bad, d.fdStore.Delete(viKey(place, num)))
		}
	}
	for key := range k.listens {
		bad = errors.Join(bad, d.fdStore.Delete(key))
	}
	return all, errors.Join(bad, d.release()), nil // each Local has a reference of its own
}

// keys are those of all records that make sense.
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

// restore is setUp with what was kept. Caller holds d.mu.
func (d *device) restore(fdStore FDStore, r nicRecord, i *Entry, link *netlink.LinkAttrs) error {
	if len(i.Files) < 6 {
		return fmt.Errorf("%d descriptors were kept", len(i.Files))
	}
	d.begin(Config{MaxVIs: r.MaxVIs, FDStore: fdStore})
	nl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	d.router = &router{nl: nl, name: link.Name, index: link.Index, port: r.Port}
	if d.watch, err = newWatch(d.router, d.onRemove); err != nil {
		return err
	}
	d.describe(link)
	if d.udp, err = adoptUDP(i.Files[0], link.Name, r.Port, d.router.own); err != nil {
		return err
	}
	fds, err := descriptorsOf(i.Files[1:])
	if err != nil {
		return err
	}
	objects, err := bpf.DescriptorsOf(fds)
	if err != nil {
		closeAll(fds)
		return err
	}
	if d.demux, err = bpf.AdoptDemux(objects, r.Index); err != nil {
		return err
	}
	d.attached, d.mode = r.Attached && objects.Link >= 0, bpf.Native
	if r.Generic {
		d.mode = bpf.Generic
	}
	d.manage(r.Port)
	d.linger.mtu = link.MTU
	d.up = true
	return nil
}

// restoreLeases makes a Local for each queue that was handed out. Caller holds
// d.mu and is on a thread of the interface's namespace.
func (d *device) restoreLeases(k *kept) (all []Restored) {
	for entry, r := range k.leases {
		l := &lease{
			dev: d, queueID: r.Queue, slot: r.Slot, since: r.Since, refs: 1, holder: r.Holder, info: r.Info.Restore(),
		}
		l.resumeSteering(r.Steering)
		d.leases[l.queueID] = l
		registry.mu.Lock()
		d.refs++
		registry.mu.Unlock()
		local := newLocal(d, l)
		for num, v := range k.vis {
			if v.Queue == r.Queue && d.numbers.Take(num) {
				local.vis[num] = netip.Addr{}
				l.vis.set(num, netip.Addr{})
				if v.PeerReset != nil {
					local.peerResets[num] = *v.PeerReset
				}
			}
		}
		for key, ln := range k.listens {
			if ln.Queue == r.Queue {
				local.resumeListener(key, ln)
				delete(k.listens, key)
			}
		}
		all = append(all, Restored{Local: local, Tag: r.Tag, Alive: entry.Files[0]})
		if entry.Files = entry.Files[1:]; len(entry.Files) > 0 {
			l.memory, entry.Files = entry.Files[0], entry.Files[1:]
		}
	}
	return all
}

// reconcile makes tables and records agree: the agent may have died between
// writing the one and the other. The VI table is what counts for a VI that is
// known; VIs and slots that nobody has are emptied. Caller holds d.mu.
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

// descriptorsOf duplicates the descriptors of files: of all, or, with an error, of none.
func descriptorsOf(files []*os.File) (fds []int, err error) {
	defer func() {
		if err != nil {
			closeAll(fds)
			fds = nil
		}
	}()
	for _, f := range files {
		c, err := f.SyscallConn()
		if err != nil {
			return fds, err
		}
		var fd int
		if cerr := c.Control(func(old uintptr) {
			fd, err = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0)
		}); cerr != nil || err != nil {
			return fds, errors.Join(cerr, err)
		}
		fds = append(fds, fd)
	}
	return fds, nil
}
