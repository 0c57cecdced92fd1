package kagent

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"viaxdp/lane"
)

// Laner is an Agent that can join VIs of one interface that are on different
// queues.
type Laner interface {
	// Lane gives this handle's end of the lane to the queue that has the VI
	// peer: the same one for all VIs of the two queues, as long as both are
	// leased. It fails with ErrUnreachable when no other queue of the interface
	// has that VI.
	Lane(peer uint32) (*LaneEnd, error)
}

// LaneEnd is one queue's end of a lane, see package lane. The files are the
// caller's.
type LaneEnd struct {
	ID     uint64   // random: the same at both ends, and of no other lane
	Side   int      // of lane.New
	Memory *os.File // lane.Size bytes
	Wake   *os.File // readable when the other end has rung; to be drained
	Bell   *os.File // the same socket: a byte sent on it rings at the other end
}

func (e *LaneEnd) files() []*os.File { return []*os.File{e.Memory, e.Wake, e.Bell} }

// Close closes the files.
func (e *LaneEnd) Close() {
	for _, f := range e.files() {
		if f != nil {
			_ = f.Close()
		}
	}
}

// laneFiles is a lane of a device. Guarded by device.mu.
type laneFiles struct {
	id     uint64
	memory *os.File
	// A socket of each side, which has no description in common with the other
	// one: a program could make a shared one block, or fill it, for its neighbour.
	bells [2]*os.File
}

// close closes the files: those of the bells on its own time, since it closes as
// well what a hostile side has sent along.
func (l *laneFiles) close() error {
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

func newLane() (l *laneFiles, err error) {
	l = &laneFiles{id: NewKey()}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	fd, err := unix.MemfdCreate("via-xdp lane", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return l, os.NewSyscallError("memfd_create", err)
	}
	l.memory = os.NewFile(uintptr(fd), "lane")
	if err = unix.Ftruncate(fd, lane.Size); err == nil {
		// Neither side can make the other one fault.
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err != nil {
		return l, err
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return l, os.NewSyscallError("socketpair", err)
	}
	for i, fd := range fds {
		// Bytes only: a descriptor that comes along is closed by who drops it, and
		// there are some whose closing takes long. Kernels before 6.16 cannot.
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSRIGHTS, 0)
		l.bells[i] = os.NewFile(uintptr(fd), "bell")
	}
	return l, nil
}

// pairOf names the lane between two queues.
func pairOf(a, b int) [2]int { return [2]int{min(a, b), max(a, b)} }

// Lane joins this queue with the one of VI peer; see [Laner].
func (l *Local) Lane(peer uint32) (*LaneEnd, error) {
	l.dev.mu.Lock()
	defer l.dev.mu.Unlock()
	if l.isClosed() {
		return nil, ErrClosed
	}
	other := l.dev.leaseOf(peer)
	if other == nil || other == l.lease {
		return nil, l.fail("lane", netip.Addr{}, fmt.Errorf("%w: no other queue has VI %#x", ErrUnreachable, peer))
	}
	end, err := l.dev.lane(l.lease.queueID, other.queueID)
	if err != nil {
		return nil, l.fail("lane", netip.Addr{}, err)
	}
	return end, nil
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

// lane finds or makes the lane between two queues. Caller holds d.mu.
func (d *device) lane(mine, other int) (*LaneEnd, error) {
	pair := pairOf(mine, other)
	f := d.lanes[pair]
	if f == nil {
		var err error
		if f, err = newLane(); err != nil {
			return nil, err
		}
		if d.lanes == nil {
			d.lanes = make(map[[2]int]*laneFiles)
		}
		d.lanes[pair] = f
	}
	end := &LaneEnd{ID: f.id}
	if mine > other {
		end.Side = 1
	}
	fds, err := descriptorsOf([]*os.File{f.memory, f.bells[end.Side], f.bells[end.Side]})
	for i, to := range []**os.File{&end.Memory, &end.Wake, &end.Bell} {
		if i < len(fds) {
			*to = os.NewFile(uintptr(fds[i]), "lane")
		}
	}
	if err != nil {
		end.Close()
		return nil, err
	}
	return end, nil
}

// closeLanes drops the lanes of a queue whose lease ends: the next who has the
// queue gets others. Caller holds d.mu.
func (d *device) closeLanes(queue int) error {
	var errs []error
	for pair, f := range d.lanes {
		if pair[0] == queue || pair[1] == queue {
			delete(d.lanes, pair)
			errs = append(errs, f.close())
		}
	}
	return errors.Join(errs...)
}
