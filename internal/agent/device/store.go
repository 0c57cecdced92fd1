package device

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/bpf"
	"viaxdp/internal/agent/fdstore"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/fds"
	"viaxdp/internal/base/steer"
	"viaxdp/internal/base/wire"
)

// Keys of an fdstore.Store. A device's place is NAME:INDEX:PORT, since a removed interface may
// coexist with a new one of the same name. Names have neither slash nor colon (dev_valid_name,
// net/core/dev.c).
//
//	nic/PLACE          nicRecord; program, maps, control socket, link
//	lease/PLACE/QUEUE  leaseRecord; the holder's sign of life, the memory
//	vi/PLACE/NUMBER    viRecord; no file
//	listen/PLACE/ID    listenRecord; no file
//	shmlink/PLACE/ID   linkRecord; the memory, the bells
//	pinned/RANDOM      the agent's that put it; as of a lease
func nicKey(place string) string              { return "nic/" + place }
func leaseKey(place string, queue int) string { return fmt.Sprintf("lease/%s/%d", place, queue) }
func viKey(place string, num uint32) string   { return fmt.Sprintf("vi/%s/%08x", place, num) }
func linkKey(place string, id uint64) string  { return fmt.Sprintf("shmlink/%s/%016x", place, id) }

// deviceStore is a device's part of an fdstore.Store. Once it is cleared it accepts nothing more, since the
// keys may be another device's. nil keeps nothing.
type deviceStore struct {
	fdStore fdstore.Store

	mu      sync.Mutex // held while the descriptor store is called
	keys    map[string]bool
	cleared bool
}

func newDeviceStore(v fdstore.Store) *deviceStore {
	if v == nil {
		return nil
	}
	return &deviceStore{fdStore: v, keys: make(map[string]bool)}
}

// put encodes and stores a record.
func (s *deviceStore) put(key string, record any, fds ...int) error {
	if s == nil {
		return nil
	}
	b, err := json.Marshal(record)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cleared {
		return nil
	}
	if err == nil {
		s.keys[key] = true
		err = s.fdStore.Put(key, b, fds...)
	}
	if err != nil {
		return fmt.Errorf("keep %s for a later agent: %w", key, err)
	}
	return nil
}

// Delete is [fdstore.Store]'s.
func (s *deviceStore) Delete(key string) error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cleared {
		return nil
	}
	delete(s.keys, key)
	return s.fdStore.Delete(key)
}

// holds records that a key is already in the store.
func (s *deviceStore) holds(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys[key] = true
}

func (s *deviceStore) clear() error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cleared = true
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(s.keys)) {
		errs = append(errs, s.fdStore.Delete(key))
	}
	s.keys = nil
	return errors.Join(errs...)
}

// nicRecord is what Restore needs for an interface.
type nicRecord struct {
	Index    int
	Port     uint16
	MaxVIs   int
	Attached bool
	Generic  bool
}

// leaseRecord is what Restore needs for a queue that was handed out.
type leaseRecord struct {
	Queue, Slot int
	Since       time.Time
	Holder      kagent.Holder
	Info        kagent.InfoMessage
	Tag         []byte       // HandOut's
	Steering    *steer.State // of the NIC; nil: not steered to this queue

	// Of a queue that processes share. The files after the second are the sockets.
	Partition int                  `json:",omitempty"`
	Group     *kagent.QueueMessage `json:",omitempty"` // of the first process; nil: the queue is not shared
	Sealed    bool                 `json:",omitempty"`
}

// id is lease.id.
func (r *leaseRecord) id() int { return r.Queue + r.Partition<<partitionShift }

// viRecord is what Restore needs for a VI number.
type viRecord struct {
	Queue     int
	Peer      netip.Addr // zero: not in the VI table
	PeerReset *PeerReset `json:",omitempty"`
}

// keep stores the current state of the device in the descriptor store. Caller holds d.mu.
func (d *device) keep() error {
	if d.fdStore == nil || !d.up {
		return nil
	}
	objects, ok := d.demux.Descriptors()
	if !ok {
		return errors.New("the program has no descriptors to keep")
	}
	r := nicRecord{
		Index: d.key.index, Port: d.key.port, MaxVIs: d.maxVIs,
		Attached: d.attached, Generic: d.attached && d.mode == bpf.Generic,
	}
	var err error
	if cerr := d.udp.Control(func(fd uintptr) {
		err = d.fdStore.put(nicKey(d.place), r, append([]int{int(fd)}, objects.List()...)...)
	}); cerr != nil {
		return cerr
	}
	return err
}

// keep stores a lease that was handed out in the descriptor store.
func (l *lease) keep(tag []byte, alive int) error {
	r := leaseRecord{
		Queue: l.queueID, Slot: l.slot, Since: l.since, Holder: l.holder, Info: l.info.Message(), Tag: tag,
		Steering: l.steered(),
	}
	store := func(held ...int) error { return l.dev.fdStore.put(leaseKey(l.dev.place, l.id()), r, held...) }
	if g := l.group; g != nil {
		m := kagent.NewQueueMessage(g.of)
		r.Partition, r.Group, r.Sealed = l.partition, &m, g.sealed
		return fds.WithAll(append([]*os.File{g.memory}, l.sockets...), func(memoryAndSockets []int) error {
			return store(append([]int{alive}, memoryAndSockets...)...)
		})
	}
	if l.memory == nil {
		return store(alive)
	}
	return fds.With(l.memory, func(memory int) error { return store(alive, memory) })
}

func (l *lease) unkeep() error { return l.dev.fdStore.Delete(leaseKey(l.dev.place, l.id())) }

// listenRecord is what Restore needs for a listener: its user keeps the discriminator until the program has
// come back.
type listenRecord struct {
	Queue int
	Disc  []byte
}

func listenKey(place string, id uint64) string { return fmt.Sprintf("listen/%s/%016x", place, id) }

// keepListener stores a listener in the descriptor store, until unkeep. If that fails, the listener works all
// the same.
func (l *lease) keepListener(disc []byte) (unkeep func()) {
	v, key := l.dev.fdStore, listenKey(l.dev.place, kagent.NewKey())
	_ = v.put(key, listenRecord{l.id(), disc})
	return sync.OnceFunc(func() { _ = v.Delete(key) })
}

// readListener reads an entry of keepListener.
func readListener(value []byte) (r listenRecord, err error) {
	if err = json.Unmarshal(value, &r); err == nil && len(r.Disc) > wire.CMMaxDisc {
		err = fmt.Errorf("a discriminator of %d bytes", len(r.Disc))
	}
	return r, err
}

// EndKept releases the discriminators at which the program listened under the previous agent, and at which it
// does not listen any more. A daemon calls it when the program has come back and has opened its listeners.
func (l *Local) EndKept() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endKept()
}

// endKept is EndKept. Caller holds l.mu.
func (l *Local) endKept() {
	for key, disc := range l.keptDiscs {
		l.manager.ReleaseDisc(disc, l.lease.holder.UID)
		_ = l.dev.fdStore.Delete(key)
	}
	clear(l.keptDiscs)
}

// Handout is a queue to be passed to another process.
type Handout struct {
	Sockets []*os.File // the AF_XDP socket, and those of Queue.Config.ExtraQueues
	Memory  *os.File   // memfd of the registered memory
	Queue   kagent.QueueMessage
	Info    kagent.InfoMessage
}

// Close closes the files.
func (h *Handout) Close() {
	fds.CloseFiles(h.Sockets...)
	fds.CloseFiles(h.Memory)
}

var errNotShared = errors.New("the queue is shared in this process, handed out, or its memory cannot be mapped by others")

// HandOut gives away the queue and its memory, to be passed to Config.Holder. This process keeps
// no descriptor of the queue, so that the holder's death frees it, and unmaps the memory (see
// TakeMemory). The agent's other methods work as before. An fdstore.Store keeps the lease with
// tag and alive, the reading end of a pipe whose other end the holder gets.
func (l *Local) HandOut(tag []byte, alive int) (*Handout, error) {
	l.dev.mu.Lock()
	defer l.dev.mu.Unlock()
	h, err := l.lease.handOut(tag, alive)
	if err != nil {
		if h != nil {
			h.Close()
		}
		return nil, l.fail("hand out", netip.Addr{}, err)
	}
	return h, nil
}

// handOut is HandOut. With an error there may be some files. Caller holds d.mu.
func (l *lease) handOut(tag []byte, alive int) (*Handout, error) {
	if l.queue == nil || l.refs > 1 || l.group == nil && l.arena.FD() < 0 {
		return nil, errNotShared
	}
	q, err := l.queue.Handout()
	if err == nil && l.group == nil && q.Config.Sharing.Guests > 0 {
		err = l.newGroup(q, l.sealed)
	}
	if err != nil {
		return nil, err
	}
	h := &Handout{Queue: kagent.NewQueueMessage(q), Info: l.info.Message()}
	if h.Sockets, err = l.dupSockets(); err != nil {
		return h, err
	}
	if l.group != nil {
		return h, l.handOutMember(h, tag, alive)
	}
	if h.Memory, err = fds.DupFile(l.arena.FD(), "umem"); err != nil {
		return h, err
	}
	if l.memory, err = fds.DupFile(l.arena.FD(), "umem"); err != nil {
		return h, err
	}
	if err := errors.Join(l.keep(tag, alive), l.queue.Close(), l.arena.Close()); err != nil {
		return h, err
	}
	l.queue, l.arena = nil, nil
	return h, nil
}

// dupSockets returns duplicates of the queue's sockets.
func (l *lease) dupSockets() (all []*os.File, err error) {
	for _, fd := range l.queue.FDs() {
		f, err := fds.DupFile(fd, "xdp")
		if err != nil {
			fds.CloseFiles(all...)
			return nil, err
		}
		all = append(all, f)
	}
	return all, nil
}

// handOutMember is the rest of HandOut for a queue that processes share. Caller holds d.mu.
func (l *lease) handOutMember(h *Handout, tag []byte, alive int) (err error) {
	if h.Memory = dupFile(l.group.memory, "umem"); h.Memory == nil {
		return unix.EMFILE
	}
	if l.sockets, err = l.dupSockets(); err == nil {
		err = l.keep(tag, alive)
	}
	err = errors.Join(err, l.queue.Close())
	if l.arena != nil { // of the first process
		err = errors.Join(err, l.arena.Close())
	}
	if l.unmap != nil {
		err = errors.Join(err, l.unmap())
	}
	l.queue, l.arena, l.unmap = nil, nil, nil
	l.dev.announce() // others may join now
	return err
}

// dupFile returns a copy of a file; nil: this process cannot have one more.
func dupFile(f *os.File, name string) *os.File {
	fd, err := fds.Dup(f)
	if err != nil {
		return nil
	}
	return os.NewFile(uintptr(fd), name)
}

// TakeMemory returns the memory of a queue that was handed out, once; it is the caller's then.
// nil: there is none, or this process cannot have the file. With it the caller can free the pages although the holder still
// has a descriptor of its own: see FreeMemory. Of the processes that share a queue (Group), last is true of the last one for
// which it is called: no other process joins from then on. The memory is all of theirs.
func (l *Local) TakeMemory() (memory *os.File, last bool) {
	d := l.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	if g := l.lease.group; g != nil {
		l.lease.leaving = true
		last = g.leaving()
		g.ending = g.ending || last
		return dupFile(g.memory, "umem"), last
	}
	f := l.lease.memory
	l.lease.memory = nil
	return f, true
}

// FreeMemory frees the pages of memory that was handed out, even if a process maps it, except
// those that a queue has pinned. A process that reads a freed page gets zeros, in a new page
// charged to itself, or SIGBUS if it is a huge page and the pool has none left.
func FreeMemory(f *os.File) error {
	st, err := f.Stat()
	if err != nil {
		return err
	}
	return fds.With(f, func(fd int) error {
		// The memory is sealed against shrinking, to protect the mappings of the kernel and the agent. The
		// seal permits this call.
		return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, st.Size())
	})
}
