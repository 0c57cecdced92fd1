package kagent

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/base/steer"
)

// Vault keeps descriptors and what belongs to them outside of the agent's
// process, so that an agent that is killed takes nothing with it that programs
// still use. Package internal/agent/fdstore is one. Methods may be called concurrently,
// and must not call back.
type FDStore interface {
	// Put keeps value and copies of the descriptors under key, in the place
	// of what was there. When it returns, the agent's death changes nothing.
	Put(key string, value []byte, fds ...int) error
	// Delete forgets a key, known or not. When it returns, the descriptor store has
	// closed its copies.
	Delete(key string) error
}

// Item is something out of a Vault. Whoever has it owns the files.
type Entry struct {
	Key   string
	Value []byte
	Files []*os.File
}

// Close closes the files.
func (i *Entry) Close() {
	for _, f := range i.Files {
		_ = f.Close()
	}
	i.Files = nil
}

// Keys of a Vault. A device's place is NAME:INDEX:PORT: one whose interface is gone
// may be there beside that of another interface of this name. Names have neither slash
// nor colon (dev_valid_name, net/core/dev.c). Agents before have put NAME alone.
//
//	nic/PLACE          nicRecord; program, maps, control socket, link
//	lease/PLACE/QUEUE  leaseRecord; the holder's sign of life, the memory
//	vi/PLACE/NUMBER    viRecord; no file
//	listen/PLACE/ID    listenRecord; no file
//	lane/PLACE/ID      laneRecord; the memory, the bells
//	debt/RANDOM        the agent's that put it; as of a lease
func nicKey(place string) string              { return "nic/" + place }
func leaseKey(place string, queue int) string { return fmt.Sprintf("lease/%s/%d", place, queue) }
func viKey(place string, num uint32) string   { return fmt.Sprintf("vi/%s/%08x", place, num) }

// DebtPrefix begins the keys of what a program has kept of a queue that it gave back.
const PinnedPrefix = "pinned/"

// IsHeld tells whether a key is that of a lease or a debt, whose first file ends (as
// a pipe does) when its holder is dead.
func HasHolder(key string) bool {
	return strings.HasPrefix(key, "lease/") || strings.HasPrefix(key, PinnedPrefix)
}

// IsDead tells whether the holder of the other end of a sign of life is dead: all who had
// it have closed it. So is who has closed this end.
func IsDead(alive *os.File) bool {
	raw, err := alive.SyscallConn()
	if err != nil {
		return true
	}
	dead := false
	err = raw.Control(func(fd uintptr) { dead = hasEnded(fd) })
	return err != nil || dead
}

// AwaitDeath waits until IsDead; the file is in non-blocking mode. Nothing is read: a program that writes to its sign of
// life makes no more work than it takes to fill the pipe.
func AwaitDeath(alive *os.File) {
	if raw, err := alive.SyscallConn(); err == nil {
		_ = raw.Read(hasEnded)
	}
}

// hasEnded tells whether the writing end of a pipe is closed everywhere.
func hasEnded(pipe uintptr) bool {
	fds := []unix.PollFd{{Fd: int32(pipe)}}
	_, err := unix.Poll(fds, 0)
	return err == nil && fds[0].Revents&unix.POLLHUP != 0
}

// nicRecord is what Restore must know of an interface.
type nicRecord struct {
	Index    int
	Port     uint16
	MaxVIs   int
	Attached bool
	Generic  bool
}

// leaseRecord is what Restore must know of a queue that was handed out.
type leaseRecord struct {
	Queue, Slot int
	Since       time.Time
	Holder      Holder
	Info        InfoMessage
	Tag         []byte       // HandOut's
	Steering    *steer.State // of the NIC; nil: not steered to this queue
}

// viRecord is what Restore must know of a VI number.
type viRecord struct {
	Queue     int
	Peer      netip.Addr // zero: not in the VI table
	PeerReset *PeerReset `json:",omitempty"`
}

// put encodes and keeps a record.
func put(v FDStore, key string, record any, fds ...int) error {
	b, err := json.Marshal(record)
	if err == nil {
		err = v.Put(key, b, fds...)
	}
	if err != nil {
		return fmt.Errorf("keep %s for a later agent: %w", key, err)
	}
	return nil
}

// keep puts the device into the descriptor store as it is. Caller holds d.mu.
func (d *device) keep() error {
	if d.fdStore == nil || !d.up {
		return nil
	}
	fds, ok := d.demux.Descriptors()
	if !ok {
		return errors.New("the program has no descriptors to keep")
	}
	r := nicRecord{
		Index: d.key.index, Port: d.key.port, MaxVIs: d.maxVIs,
		Attached: d.attached, Generic: d.attached && attachMode(genericMode) == d.mode,
	}
	var err error
	if cerr := d.udp.conn.Control(func(fd uintptr) {
		err = put(d.fdStore, nicKey(d.place), r, append([]int{int(fd)}, fds.List()...)...)
	}); cerr != nil {
		return cerr
	}
	return err
}

// forget takes the device out of the descriptor store. Caller holds d.mu.
func (d *device) forget() error {
	if d.fdStore == nil {
		return nil
	}
	return d.fdStore.Delete(nicKey(d.place))
}

// keep puts a lease that was handed out into the descriptor store.
func (l *lease) keep(tag []byte, alive int) error {
	if l.dev.fdStore == nil {
		return nil
	}
	r := leaseRecord{
		Queue: l.queueID, Slot: l.slot, Since: l.since, Holder: l.holder, Info: l.info.Message(), Tag: tag,
		Steering: l.steered(),
	}
	var fds []int
	if l.memory != nil {
		var err error
		if fds, err = descriptorsOf([]*os.File{l.memory}); err != nil {
			return err
		}
		defer closeAll(fds)
	}
	return put(l.dev.fdStore, leaseKey(l.dev.place, l.queueID), r, append([]int{alive}, fds...)...)
}

func (l *lease) unkeep() error {
	if l.dev.fdStore == nil {
		return nil
	}
	return l.dev.fdStore.Delete(leaseKey(l.dev.place, l.queueID))
}

// keepVI puts a VI into the descriptor store. An error is not the program's: the VI works,
// and an agent that comes back takes it for one that was not handed out.
func (l *lease) keepVI(num uint32, peer netip.Addr, peerReset *PeerReset) {
	if v := l.dev.fdStore; v != nil {
		_ = put(v, viKey(l.dev.place, num), viRecord{l.queueID, peer, peerReset})
	}
}

func (l *lease) unkeepVI(num uint32) {
	if v := l.dev.fdStore; v != nil {
		_ = v.Delete(viKey(l.dev.place, num))
	}
}

// Handout is a queue on its way to another process.
type Handout struct {
	Socket *os.File // the AF_XDP socket
	Memory *os.File // memfd of the registered memory
	Queue  QueueMessage
	Info   InfoMessage
}

// Close closes the files.
func (h *Handout) Close() {
	_ = h.Socket.Close()
	_ = h.Memory.Close()
}

var errNotShared = errors.New("the queue is shared in this process, handed out, or its memory cannot be mapped by others")

// HandOut gives queue and memory away, to be passed to Config.Holder: this process keeps
// no descriptor of the queue, so that the holder's death frees it, and maps the
// memory no more (see TakeMemory). The agent's other methods go on as before. Where
// there is a Vault it keeps the lease with tag, and alive, the reading end of a pipe
// whose other end the holder gets.
func (l *Local) HandOut(tag []byte, alive int) (*Handout, error) {
	d := l.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	s := l.lease
	if s.queue == nil || s.refs > 1 || s.arena.FD() < 0 {
		return nil, l.fail("hand out", netip.Addr{}, errNotShared)
	}
	q, err := s.queue.Handout()
	if err != nil {
		return nil, l.fail("hand out", netip.Addr{}, err)
	}
	h := &Handout{Queue: queueMessage(q), Info: s.info.Message()}
	if h.Socket, err = duplicate(s.queue.FD(), "xdp"); err != nil {
		return nil, l.fail("hand out", netip.Addr{}, err)
	}
	if h.Memory, err = duplicate(s.arena.FD(), "umem"); err != nil {
		_ = h.Socket.Close()
		return nil, l.fail("hand out", netip.Addr{}, err)
	}
	if s.memory, err = duplicate(s.arena.FD(), "umem"); err != nil {
		h.Close()
		return nil, l.fail("hand out", netip.Addr{}, err)
	}
	if err := errors.Join(s.keep(tag, alive), s.queue.Close(), s.arena.Close()); err != nil {
		h.Close()
		return nil, l.fail("hand out", netip.Addr{}, err)
	}
	s.queue, s.arena = nil, nil
	return h, nil
}

// TakeMemory gives the memory of a queue that was handed out, once; it is the
// caller's then. nil: there is none. Who has it can have its pages freed, although
// the holder goes on having its own descriptor: see FreeMemory.
func (l *Local) TakeMemory() *os.File {
	d := l.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	f := l.lease.memory
	l.lease.memory = nil
	return f
}

// FreeMemory frees the pages of memory that was handed out, whoever maps it, as far
// as no queue has them pinned: who looks finds zeros, in pages of its own account.
func FreeMemory(f *os.File) error {
	st, err := f.Stat()
	if err != nil {
		return err
	}
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	cerr := c.Control(func(fd uintptr) {
		// It is sealed against shrinking, for the sake of the kernel's and the
		// agent's own mappings, and not against this.
		err = unix.Fallocate(int(fd), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, st.Size())
	})
	return errors.Join(cerr, err)
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

func duplicate(fd int, name string) (*os.File, error) {
	c, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("dup", err)
	}
	return os.NewFile(uintptr(c), name), nil
}
