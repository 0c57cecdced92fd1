package kagent

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"viaxdp/bpf"
)

// Restored is a queue that an agent before this one handed out.
type Restored struct {
	Local *Local
	Tag   []byte   // what HandOut was given
	Alive *os.File // ends when the holder is dead; the caller's
}

// Restore goes on where an agent that was killed has stopped: items is all that
// it put into the vault. Interfaces that are gone, and what makes no sense, are
// dropped from the vault; the error says which and why, and the rest is restored
// all the same. The files belong to Restore from now on.
//
// It works in the network namespace of the calling thread, in which the agent
// before this one has worked.
func Restore(vault Vault, items []Item) ([]Restored, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all []Restored
	var errs []error
	byPlace := make(map[string][]Item)
	for _, i := range items {
		_, rest, _ := strings.Cut(i.Key, "/")
		place, _, _ := strings.Cut(rest, "/")
		byPlace[place] = append(byPlace[place], i)
	}
	for place, items := range byPlace {
		r, err := restoreNIC(vault, place, items)
		if err != nil {
			errs = append(errs, fmt.Errorf("kagent: restore %s: %w", place, err))
			for _, i := range items {
				errs = append(errs, vault.Delete(i.Key))
			}
		}
		all = append(all, r...)
		for _, i := range items {
			i.Close() // what was of no use
		}
	}
	return all, errors.Join(errs...)
}

// kept are the items of one place.
type kept struct {
	nic    *Item
	leases map[*Item]leaseRecord
	vis    map[uint32]viRecord
}

func sortItems(place string, items []Item) (k kept, nic nicRecord, err error) {
	k = kept{leases: make(map[*Item]leaseRecord), vis: make(map[uint32]viRecord)}
	for n := range items {
		i := &items[n]
		kind, _, _ := strings.Cut(i.Key, "/")
		switch kind {
		case "nic":
			k.nic = i
			err = json.Unmarshal(i.Value, &nic)
		case "lease":
			var r leaseRecord
			if err = json.Unmarshal(i.Value, &r); err == nil && len(i.Files) > 0 {
				k.leases[i] = r
			}
		case "vi":
			var r viRecord
			var num uint64
			if num, err = strconv.ParseUint(strings.TrimPrefix(i.Key, "vi/"+place+"/"), 16, 32); err == nil {
				err = json.Unmarshal(i.Value, &r)
			}
			k.vis[uint32(num)] = r
		default:
			err = errors.New("no such kind")
		}
		if err != nil {
			return k, nic, fmt.Errorf("%s: %w", i.Key, err)
		}
	}
	if k.nic == nil {
		return k, nic, errors.New("nothing was kept of the interface itself")
	}
	return k, nic, nil
}

func restoreNIC(vault Vault, place string, items []Item) (_ []Restored, err error) {
	k, nic, err := sortItems(place, items)
	if err != nil {
		return nil, err
	}
	name, _, _ := strings.Cut(place, ":")
	link, err := netlink.LinkByIndex(nic.Index)
	if err != nil {
		return nil, linkError(name, err)
	}
	if link.Attrs().Name != name {
		return nil, fmt.Errorf("interface %d is %s now", nic.Index, link.Attrs().Name)
	}
	var ns unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &ns); err != nil {
		return nil, err
	}
	d := &device{key: deviceKey{netnsDev: ns.Dev, netnsIno: ns.Ino, index: nic.Index, port: nic.Port}, refs: 1, place: place}
	registry.mu.Lock()
	if registry.devices[d.key] != nil {
		registry.mu.Unlock()
		return nil, errors.New("this process has it open already")
	}
	registry.devices[d.key] = d
	registry.mu.Unlock()
	d.mu.Lock()
	if err := d.restore(vault, nic, k.nic, link.Attrs()); err != nil {
		return nil, errors.Join(err, d.release())
	}
	for i := range items {
		d.vault.holds(items[i].Key)
	}
	all := d.restoreLeases(&k)
	d.reconcile(all)
	for num := range k.vis {
		if !d.numbers.Live(num) {
			err = errors.Join(err, d.vault.Delete(viKey(place, num)))
		}
	}
	return all, errors.Join(err, d.release()) // each Local has a reference of its own
}

// restore is setUp with what was kept. Caller holds d.mu.
func (d *device) restore(vault Vault, r nicRecord, i *Item, link *netlink.LinkAttrs) error {
	if len(i.Files) < 6 {
		return fmt.Errorf("%d descriptors were kept", len(i.Files))
	}
	d.begin(Config{MaxVIs: r.MaxVIs, Vault: vault})
	nl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	d.router = &router{nl: nl, name: link.Name, index: link.Index, port: r.Port}
	if d.watch, err = newWatch(d.router, d.fall); err != nil {
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
	d.up = true
	return nil
}

// restoreLeases makes a Local for each queue that was handed out. Caller holds
// d.mu and is on a thread of the interface's namespace.
func (d *device) restoreLeases(k *kept) (all []Restored) {
	for item, r := range k.leases {
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
				if v.Grave != nil {
					local.graves[num] = *v.Grave
				}
			}
		}
		all = append(all, Restored{Local: local, Tag: r.Tag, Alive: item.Files[0]})
		if item.Files = item.Files[1:]; len(item.Files) > 0 {
			l.memory, item.Files = item.Files[0], item.Files[1:]
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
		for num := range r.Local.graves {
			if !r.Local.vis[num].IsValid() {
				delete(r.Local.graves, num) // its connection had ended
			}
		}
	}
	for _, slot := range d.demux.Slots() {
		if d.slotFree(slot) {
			_ = d.demux.Evict(slot)
		}
	}
}

// descriptorsOf duplicates the descriptors of files.
func descriptorsOf(files []*os.File) (fds []int, err error) {
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
