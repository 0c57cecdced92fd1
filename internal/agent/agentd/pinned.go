package agentd

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"viaxdp/internal/agent/device"
	"viaxdp/internal/agent/fdstore"
	"viaxdp/internal/base/fds"
)

// How often pinned queues are looked at: soon, for a program that is just dying, and then
// less and less.
const (
	firstCollection = 10 * time.Millisecond
	lastCollection  = time.Second
)

// pinnedQueue is a queue whose session has ended. It counts for its user as long as the
// program has the socket, which pins the memory: who hangs up and keeps its
// descriptors has no room for more. Where the kernel does not tell which sockets
// there are, it counts as long as the program shows its sign of life. When it no
// longer counts the memory's pages are freed, whoever has a descriptor of it yet.
//
// So does a link of such a session: its pages are freed unless the program at its other end,
// whose session goes on, is charged with it, too.
type pinnedQueue struct {
	uid     uint32
	shmLink bool     // of a link: no queue
	pinned  int      // bytes
	socket  uint64   // inode; 0: not known
	alive   *os.File // nil: not known
	memory  *os.File // nil: not known
	key     string   // in the descriptor store; empty: not there
}

// pinnedRecord is what the descriptor store keeps of a pinned queue, for an agent that comes after this
// one, beside alive and memory.
type pinnedRecord struct {
	UID     uint32
	Pinned  int
	Socket  uint64
	ShmLink bool `json:",omitempty"`
}

// queues is how many queues a pinned queue is charged with.
func (d *pinnedQueue) queues() int {
	if d.shmLink {
		return 0
	}
	return 1
}

// keep puts a pinned queue into the descriptor store. Without what its end is known by, or its memory,
// it ends with this agent.
func (d *pinnedQueue) keep(v fdstore.Store) {
	if v == nil || d.alive == nil || d.memory == nil {
		return
	}
	b, err := json.Marshal(pinnedRecord{d.uid, d.pinned, d.socket, d.shmLink})
	if err != nil {
		return
	}
	d.key = fdstore.PinnedPrefix + rand.Text()
	_ = fds.With(d.alive, func(alive int) error {
		return fds.With(d.memory, func(memory int) error { return v.Put(d.key, b, alive, memory) })
	})
}

// mostPinned is more than an address space has; sums of it are numbers yet.
const mostPinned = 1 << 47

// readPinned reads what keep has put into the descriptor store.
func readPinned(i fdstore.Entry) (r pinnedRecord, err error) {
	if err := json.Unmarshal(i.Value, &r); err != nil {
		return pinnedRecord{}, err
	}
	if len(i.Files) != 2 {
		return pinnedRecord{}, fmt.Errorf("%d files, want 2", len(i.Files))
	}
	if r.Pinned <= 0 || r.Pinned > mostPinned {
		return pinnedRecord{}, fmt.Errorf("pinned memory of %d bytes", r.Pinned)
	}
	return r, nil
}

// restorePinned takes over the pinned queues of an agent before this one, and returns all else
// that was kept.
func (s *Server) restorePinned(kept []fdstore.Entry) (rest []fdstore.Entry) {
	for _, i := range kept {
		if !strings.HasPrefix(i.Key, fdstore.PinnedPrefix) {
			rest = append(rest, i)
			continue
		}
		r, err := readPinned(i)
		if err != nil {
			s.log.Error("what a program owes cannot be taken over", "key", i.Key, "error", err)
			i.Close()
			_ = s.cfg.FDStore.Delete(i.Key)
			continue
		}
		d := &pinnedQueue{uid: r.UID, shmLink: r.ShmLink, pinned: r.Pinned, socket: r.Socket, alive: i.Files[0], memory: i.Files[1], key: i.Key}
		s.mu.Lock()
		s.account(d.uid).book(d.queues(), 0, d.pinned)
		s.pinnedQueues[d] = struct{}{}
		s.mu.Unlock()
	}
	s.collectLater()
	return rest
}

// stillPinned is what a session that ends leaves pinned, in the descriptor store before the session
// leaves it; see session.owed.
func (n *session) stillPinned() []*pinnedQueue {
	all := []*pinnedQueue{{uid: n.uid, pinned: n.pinned, socket: n.socket, memory: n.local.TakeMemory()}}
	for _, memory := range n.local.TakeLinks() {
		all = append(all, &pinnedQueue{uid: n.uid, shmLink: true, pinned: device.LinkBytes, socket: n.socket, memory: memory})
	}
	for _, d := range all {
		if fd, err := fds.Dup(n.alive); err == nil {
			d.alive = os.NewFile(uintptr(fd), "alive")
		}
		d.keep(n.server.cfg.FDStore)
	}
	return all
}

// track refunds queues, memory and links as soon as the program has let go of them.
func (s *Server) track(all ...*pinnedQueue) {
	s.mu.Lock()
	for _, d := range all {
		s.pinnedQueues[d] = struct{}{}
	}
	s.mu.Unlock()
	s.collect()
	s.collectLater()
}

// collectLater has pinned queues looked at until there are none.
func (s *Server) collectLater() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.pinnedQueues) > 0 && !s.collecting && !s.closed {
		s.collecting = true
		s.work.Add(1)
		go s.collector()
	}
}

// collector looks at pinned queues until there are none.
func (s *Server) collector() {
	defer s.work.Done()
	for wait := firstCollection; ; wait = min(2*wait, lastCollection) {
		select {
		case <-time.After(wait):
		case <-s.done:
			return
		}
		s.collect()
		s.mu.Lock()
		if len(s.pinnedQueues) == 0 {
			s.collecting = false
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
	}
}

// hasPinned tells whether programs of a user that are gone still have something.
func (s *Server) hasPinned(uid uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for d := range s.pinnedQueues {
		if d.uid == uid {
			return true
		}
	}
	return false
}

// collect refunds what programs have let go of by now. Those who come while others look
// share the next look: its cost, the kernel's list of sockets, is not paid for each. One
// that fails is nobody else's.
func (s *Server) collect() {
	s.mu.Lock()
	s.asked++
	me := s.asked
	s.mu.Unlock()
	s.collection.Lock()
	defer s.collection.Unlock()
	if s.looked >= me {
		return
	}
	s.mu.Lock()
	all := make([]*pinnedQueue, 0, len(s.pinnedQueues))
	for d := range s.pinnedQueues {
		all = append(all, d)
	}
	sharing := s.asked // who asks later asks for what this look may miss
	s.mu.Unlock()
	if len(all) == 0 {
		return
	}
	open, known, err := s.sockets()
	if err != nil {
		return // the next time
	}
	s.looked = sharing
	for _, d := range all {
		switch {
		case known && d.socket != 0:
			// Its sign of life says less: a program can close that alone.
			if open[d.socket] {
				continue
			}
		case d.alive != nil && !fdstore.IsDead(d.alive):
			continue
		}
		s.reclaim(d)
	}
}

// reclaim refunds what is pinned, which counts until then. Caller holds s.collection.
func (s *Server) reclaim(d *pinnedQueue) {
	if d.memory != nil && !(d.shmLink && s.hasLink(d.memory)) {
		if err := device.FreeMemory(d.memory); err != nil {
			s.log.Error("the memory of a queue that is closed cannot be freed", "user", d.uid, "error", err)
		}
	}
	if d.key != "" {
		_ = s.cfg.FDStore.Delete(d.key)
	}
	d.close()
	s.refund(d.uid, d.queues(), 0, d.pinned)
	s.mu.Lock()
	delete(s.pinnedQueues, d)
	s.mu.Unlock()
}

// hasLink reports whether a session is charged with the link of that memory, whose pages are freed
// when it is not any more.
func (s *Server) hasLink(memory *os.File) bool {
	st, err := memory.Stat()
	if err != nil {
		return false
	}
	s.mu.Lock()
	all := slices.Collect(maps.Values(s.sessions))
	s.mu.Unlock()
	return slices.ContainsFunc(all, func(n *session) bool { return n.local.HasLink(st) })
}

func (d *pinnedQueue) close() { fds.CloseFiles(d.alive, d.memory) }

// openSockets are the inodes of the AF_XDP sockets of the network namespace, of
// whatever process. known is false where the kernel does not tell
// (CONFIG_XDP_SOCKETS_DIAG); an error is one that may be gone the next time.
func openSockets() (inodes map[uint64]bool, known bool, err error) {
	list, err := netlink.SocketDiagXDP()
	if errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, false, err
	}
	if err != nil {
		return nil, false, nil
	}
	inodes = make(map[uint64]bool, len(list))
	for _, s := range list {
		inodes[uint64(s.XDPDiagMsg.Ino)] = true
	}
	return inodes, true, nil
}
