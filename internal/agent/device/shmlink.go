package device

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/fds"
	"viaxdp/internal/base/shmlink"
)

// shmLinkFiles is a link of a device. Guarded by device.mu.
type shmLinkFiles struct {
	id      uint64
	pair    [2]int  // queues of its sides, the lower one first
	charged [2]bool // sides that a daemon has charged with it
	left    int     // the side that still has it when the other queue has been given back; or both
	watched bool    // see watchLink
	kept    bool    // the descriptor store has it

	memory *os.File
	// A socket of each side, which has no description in common with the other
	// one: a program could make a shared one block, or fill it, for its neighbour.
	bells [2]*os.File
}

// close closes the files: those of the bells on its own time, since it closes as
// well what a hostile side has sent along.
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
	fd, err := unix.MemfdCreate("via-xdp lane", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return l, os.NewSyscallError("memfd_create", err)
	}
	l.memory = os.NewFile(uintptr(fd), "shmlink")
	if err = unix.Ftruncate(fd, shmlink.Size); err == nil {
		// Neither side can make the other one fault.
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
		// Bytes only: a descriptor that comes along is closed by who drops it, and
		// there are some whose closing takes long. Kernels before 6.16 cannot.
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSRIGHTS, 0)
		l.bells[i] = os.NewFile(uintptr(fd), "bell")
	}
	return l, nil
}

// pairOf names the link between two queues.
func pairOf(a, b int) [2]int { return [2]int{min(a, b), max(a, b)} }

// ShmLink joins this queue with the one of VI peer; see [Laner].
func (l *Local) ShmLink(peer uint32) (*kagent.ShmLinkEnd, error) {
	l.dev.mu.Lock()
	defer l.dev.mu.Unlock()
	if l.isClosed() {
		return nil, kagent.ErrClosed
	}
	other := l.dev.leaseOf(peer)
	if other == nil || other == l.lease {
		return nil, l.NoLink(peer)
	}
	end, err := l.dev.shmLink(l.lease.queueID, other.queueID)
	if err != nil {
		return nil, l.fail("shared-memory link", netip.Addr{}, err)
	}
	return end, nil
}

// NoLink is the error of ShmLink when no other queue has the VI.
func (l *Local) NoLink(peer uint32) error {
	return l.fail("shared-memory link", netip.Addr{}, fmt.Errorf("%w: no other queue has VI %#x", kagent.ErrUnreachable, peer))
}

// leaseOf finds the queue of a VI. Caller holds d.mu.
func (d *device) leaseOf(num uint32) *lease {
	for _, l := range d.leases {
		if l.vis.has(num) {
			return l
		}
	}
	return nil
}

// shmLink finds or makes the link between two queues. Caller holds d.mu.
func (d *device) shmLink(mine, other int) (*kagent.ShmLinkEnd, error) {
	pair := pairOf(mine, other)
	f := d.shmLinks[pair]
	if f == nil {
		var err error
		if f, err = newShmLink(pair); err != nil {
			return nil, err
		}
		if d.shmLinks == nil {
			d.shmLinks = make(map[[2]int]*shmLinkFiles)
		}
		d.shmLinks[pair] = f
	}
	end := &kagent.ShmLinkEnd{ID: f.id}
	if mine > other {
		end.Side = 1
	}
	dups, err := fds.DupAll([]*os.File{f.memory, f.bells[end.Side], f.bells[end.Side]})
	if err != nil {
		return nil, err
	}
	for i, to := range []**os.File{&end.Memory, &end.Wake, &end.Bell} {
		*to = os.NewFile(uintptr(dups[i]), "shmlink")
	}
	return end, nil
}

// closeShmLinks ends the links of a queue whose lease ends: the next who has the
// queue gets others. Caller holds d.mu.
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
