package device

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/fdstore"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/fds"
	"viaxdp/internal/base/shmlink"
)

// shmLinkFiles is a link of a device. Guarded by device.mu.
type shmLinkFiles struct {
	id      uint64
	pair    [2]int  // queues of its sides, the lower one first
	charged [2]bool // sides charged with it by a daemon
	left    int     // the side that still has it when the other queue has been given back; or both
	watched bool    // see watchLink
	stored  bool    // it has an entry in the descriptor store

	memory *os.File
	// A socket for each side. The two share no file description: a program could make a shared one blocking,
	// or fill it, for its neighbour.
	bells [2]*os.File
}

// close closes the files. It closes the bells in goroutines of their own, since closing a bell
// also closes the descriptors that a hostile side has sent along.
func (l *shmLinkFiles) close() error {
	for _, f := range l.bells {
		if f != nil {
			go f.Close()
		}
	}
	if l.memory == nil {
		return nil
	}
	return l.memory.Close()
}

func newShmLink(pair [2]int) (l *shmLinkFiles, err error) {
	l = &shmLinkFiles{id: kagent.NewKey(), pair: pair, left: both}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	fd, err := unix.MemfdCreate("via-xdp link", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return l, os.NewSyscallError("memfd_create", err)
	}
	l.memory = os.NewFile(uintptr(fd), "shmlink")
	if err = unix.Ftruncate(fd, shmlink.Size); err == nil {
		// With the seals neither side can cause the other a SIGBUS.
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err != nil {
		return l, err
	}
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return l, os.NewSyscallError("socketpair", err)
	}
	for i, fd := range ends {
		// Bytes only. A descriptor that is sent along is closed by the process that drops it, and
		// closing one can take long. Kernels before 6.16 lack the option.
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSRIGHTS, 0)
		l.bells[i] = os.NewFile(uintptr(fd), "bell")
	}
	return l, nil
}

// ShmLink joins this queue with the one of VI peer; see [kagent.ShmLinker].
func (l *Local) ShmLink(peer uint32) (*kagent.ShmLinkEnd, error) {
	l.dev.mu.Lock()
	defer l.dev.mu.Unlock()
	pair, side, err := l.linkTo(peer)
	if err != nil {
		return nil, err
	}
	return l.shmLink(pair, side)
}

// linkTo returns the key of the link to the queue of VI peer, and the side of this queue. Caller holds d.mu.
func (l *Local) linkTo(peer uint32) (pair [2]int, side int, err error) {
	if l.isClosed() || l.lease.linksTaken {
		return pair, 0, kagent.ErrClosed
	}
	other := l.dev.leaseOf(peer)
	if other == nil || other == l.lease {
		return pair, 0, l.NoLink(peer)
	}
	pair = [2]int{min(l.lease.id(), other.id()), max(l.lease.id(), other.id())}
	return pair, slices.Index(pair[:], l.lease.id()), nil
}

// shmLink is device.shmLink for the program. Caller holds d.mu.
func (l *Local) shmLink(pair [2]int, side int) (*kagent.ShmLinkEnd, error) {
	end, err := l.dev.shmLink(pair, side)
	if err != nil {
		return nil, l.fail("shared-memory link", netip.Addr{}, err)
	}
	return end, nil
}

// NoLink is the error of ShmLink if no other queue has the VI.
func (l *Local) NoLink(peer uint32) error {
	return l.fail("shared-memory link", netip.Addr{}, fmt.Errorf("%w: no other queue has VI %#x", kagent.ErrUnreachable, peer))
}

// leaseOf returns the queue of a VI. Caller holds d.mu.
func (d *device) leaseOf(num uint32) *lease {
	for _, l := range d.leases {
		if l.vis.has(num) {
			return l
		}
	}
	return nil
}

// shmLink returns a side's end of the link between two queues, and creates it if necessary. Caller holds d.mu.
func (d *device) shmLink(pair [2]int, side int) (_ *kagent.ShmLinkEnd, err error) {
	f := d.shmLinks[pair]
	if f == nil {
		if f, err = newShmLink(pair); err != nil {
			return nil, err
		}
		d.shmLinks[pair] = f
	}
	end := &kagent.ShmLinkEnd{ID: f.id, Side: side}
	dups, err := fds.DupAll([]*os.File{f.memory, f.bells[end.Side], f.bells[end.Side]})
	if err != nil {
		return nil, err
	}
	for i, to := range []**os.File{&end.Memory, &end.Wake, &end.Bell} {
		*to = os.NewFile(uintptr(dups[i]), "shmlink")
	}
	return end, nil
}

// closeShmLinks ends the links of a queue whose lease ends: the next lease of the queue gets new
// ones. Caller holds d.mu.
func (d *device) closeShmLinks(queue int) error {
	var errs []error
	for f := range d.halfLinks {
		if f.pair[f.left] == queue {
			errs = append(errs, d.dropLink(f))
		}
	}
	for pair, f := range d.shmLinks {
		if side := slices.Index(pair[:], queue); side >= 0 {
			delete(d.shmLinks, pair)
			errs = append(errs, d.leaveLink(f, 1-side))
		}
	}
	return errors.Join(errs...)
}

// A daemon charges the memory of a link to the user of each program that has it.
//
//   - A side is charged when its program asks for the link for the first time (ChargedLink).
//   - When one of the two queues is given back, no program gets the link any more. The side of that
//     queue is charged with what is left of the queue (TakeLinks).
//   - The other program may still end its connections and read what is in the link. Its side stays
//     charged until it has closed its bell. Then the pages are freed, even if a process maps them
//     (OnLinkLeft).
//
// A link is in the descriptor store, so that a later agent goes on charging it, and hands it out.

// LinkBytes is the size of the memory of a link.
const LinkBytes = shmlink.Size

// ErrLinkUncharged: the program does not have the link yet, and its user has not been charged for it.
var ErrLinkUncharged = errors.New("the memory of the shared-memory link is not charged yet")

// both: neither queue of a link has been given back.
const both = -1

// ChargedLink is ShmLink for a daemon that charges its users. If the program does not have the
// link yet, it fails with ErrLinkUncharged, unless charged: the user has been charged with
// LinkBytes. took reports whether the charge now belongs to this link.
func (l *Local) ChargedLink(peer uint32, charged bool) (end *kagent.ShmLinkEnd, took bool, err error) {
	d := l.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	pair, side, err := l.linkTo(peer)
	if err != nil {
		return nil, false, err
	}
	f := d.shmLinks[pair]
	if has := f != nil && f.charged[side]; !has && !charged {
		return nil, false, l.fail("shared-memory link", netip.Addr{}, ErrLinkUncharged)
	}
	if end, err = l.shmLink(pair, side); err != nil {
		return nil, false, err
	}
	if f = d.shmLinks[pair]; !f.charged[side] {
		f.charged[side], took = true, true
		d.keepLink(f)
	}
	return end, took, nil
}

// OnLinkLeft has f called for each link whose charge ends because the other queue was given back
// and the program has released the link. It returns the number of links that the program is
// charged with now. f is not called for links that TakeLinks returns.
func (l *Local) OnLinkLeft(f func()) (charged int) {
	d := l.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	l.lease.linkLeft = f
	for shmLink := range d.halfLinks {
		if shmLink.pair[shmLink.left] == l.lease.id() {
			d.watchLink(shmLink)
		}
	}
	return len(d.chargedLinks(l.lease))
}

// TakeLinks returns the memory of each link that the program is charged with, before Close. The files and the
// charges become the caller's. A file that is not available is nil. The program gets no link after that.
func (l *Local) TakeLinks() (memory []*os.File) {
	d := l.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	l.lease.linksTaken = true
	for _, f := range d.chargedLinks(l.lease) {
		f.charged[slices.Index(f.pair[:], l.lease.id())] = false
		memory = append(memory, dupFile(f.memory, "shmlink"))
	}
	return memory
}

// HasLink reports whether the program is charged with the link of that memory.
func (l *Local) HasLink(memory os.FileInfo) bool {
	d := l.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.ContainsFunc(d.chargedLinks(l.lease), func(f *shmLinkFiles) bool {
		st, err := f.memory.Stat()
		return err == nil && os.SameFile(st, memory)
	})
}

// chargedLinks returns the links that the program of a queue is charged with. Caller holds d.mu.
func (d *device) chargedLinks(l *lease) (all []*shmLinkFiles) {
	if d.leases[l.id()] != l {
		return nil // the queue may be another lease's
	}
	add := func(f *shmLinkFiles) {
		if side := slices.Index(f.pair[:], l.id()); side >= 0 && f.charged[side] {
			all = append(all, f)
		}
	}
	for _, f := range d.shmLinks {
		add(f)
	}
	for f := range d.halfLinks {
		add(f)
	}
	return all
}

// leaveLink leaves a link to the program of one side, as long as that side is charged with it. No
// other program gets the link. Caller holds d.mu.
func (d *device) leaveLink(f *shmLinkFiles, left int) error {
	if !f.charged[left] {
		return d.dropLink(f)
	}
	// Once the program has closed this bell, the other side has no process to wake.
	bell := f.bells[left]
	f.bells[left] = nil
	go bell.Close() // see shmLinkFiles.close
	f.left, f.charged[1-left] = left, false
	d.halfLinks[f] = true
	d.keepLink(f)
	d.watchLink(f)
	return nil
}

// watchLink ends the charge of the remaining side when its program has released the link. Caller holds d.mu.
func (d *device) watchLink(f *shmLinkFiles) {
	if f.watched {
		return
	}
	f.watched = true
	bell := f.bells[1-f.left]
	go func() {
		fdstore.AwaitDeath(bell) // or closed, with the queue
		d.mu.Lock()
		if !d.halfLinks[f] || !f.charged[f.left] {
			d.mu.Unlock()
			return
		}
		left := d.leases[f.pair[f.left]].linkLeft
		_ = FreeMemory(f.memory) // after an error the pages stay with the processes that map them
		_ = d.dropLink(f)        // an error of the descriptor store does not affect the program
		d.mu.Unlock()
		if left != nil {
			left()
		}
	}()
}

// dropLink removes a link. Caller holds d.mu.
func (d *device) dropLink(f *shmLinkFiles) error {
	delete(d.halfLinks, f)
	err := f.close()
	if f.stored {
		err = errors.Join(err, d.fdStore.Delete(linkKey(d.place, f.id)))
	}
	return err
}

// linkRecord is what Restore must know of a link. Its files are the memory and the bells; of a link
// that one side has left, the memory and that side's bell.
type linkRecord struct {
	ID      uint64
	Queues  [2]int // the lower one first
	Charged [2]bool
	Left    int // the side that still has it, or both
}

// keepLink stores the current state of a link in the descriptor store. If that fails, the link works all the
// same. Caller holds d.mu.
func (d *device) keepLink(f *shmLinkFiles) {
	if d.fdStore == nil {
		return
	}
	files := []*os.File{f.memory}
	for _, b := range f.bells {
		if b != nil {
			files = append(files, b)
		}
	}
	f.stored = true
	_ = fds.WithAll(files, func(all []int) error {
		return d.fdStore.put(linkKey(d.place, f.id), linkRecord{f.id, f.pair, f.charged, f.left}, all...)
	})
}

// readLink reads an entry of keepLink.
func readLink(i *fdstore.Entry) (r linkRecord, err error) {
	if err := json.Unmarshal(i.Value, &r); err != nil {
		return linkRecord{}, err
	}
	if r.Left < both || r.Left > 1 || r.Queues[0] < 0 || r.Queues[0] >= r.Queues[1] {
		return linkRecord{}, fmt.Errorf("a link of the queues %v, left to side %d", r.Queues, r.Left)
	}
	return r, nil
}

// restoreLinks takes over the links of the restored queues, and removes the others. Caller holds d.mu.
func (d *device) restoreLinks(kept map[*fdstore.Entry]linkRecord) error {
	var errs []error
	for i, r := range kept {
		f := &shmLinkFiles{id: r.ID, pair: r.Queues, left: r.Left, stored: true}
		if err := f.restore(i); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", i.Key, err), d.fdStore.Delete(i.Key))
			continue
		}
		there := [2]bool{d.leases[f.pair[0]] != nil, d.leases[f.pair[1]] != nil}
		for side := range there {
			f.charged[side] = r.Charged[side] && there[side]
		}
		switch {
		case f.left != both && f.charged[f.left]:
			d.halfLinks[f] = true // watched from OnLinkLeft on
		case f.left == both && there[0] && there[1] && d.shmLinks[f.pair] == nil:
			d.shmLinks[f.pair] = f
		case f.left == both && there[0] != there[1]: // the other session could not be restored
			errs = append(errs, d.leaveLink(f, slices.Index(there[:], true)))
		default:
			errs = append(errs, d.dropLink(f))
		}
	}
	return errors.Join(errs...)
}

// restore copies the files of a link's entry.
func (f *shmLinkFiles) restore(i *fdstore.Entry) error {
	bells := f.bells[:]
	if f.left != both {
		bells = f.bells[1-f.left:][:1]
	}
	if len(i.Files) != 1+len(bells) {
		return fmt.Errorf("%d files, want %d", len(i.Files), 1+len(bells))
	}
	dups, err := fds.DupAll(i.Files)
	if err != nil {
		return err
	}
	f.memory = os.NewFile(uintptr(dups[0]), "shmlink")
	for n, fd := range dups[1:] {
		_ = unix.SetNonblock(fd, true) // its program may have changed it
		bells[n] = os.NewFile(uintptr(fd), "bell")
	}
	return nil
}
