package agentd

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"viaxdp/internal/agent/device"
	"viaxdp/internal/agent/fdstore"
	"viaxdp/internal/base/fds"
)

// How often pinned queues are checked: soon at first, for a program that is just exiting, then
// less and less often.
const (
	firstCollection = 10 * time.Millisecond
	lastCollection  = time.Second
)

// pinnedQueue is a queue whose session has ended. It counts against its user's quota as long as
// the program has the socket, which pins the memory: a program that hangs up but keeps its
// descriptors frees no quota. If the kernel does not list the sockets, the queue counts until the
// program's sign of life ends. When it no longer counts, the pages of the memory are freed, even
// if a process still has a descriptor of it.
//
// A link of such a session is a pinnedQueue, too. Its pages are freed unless the program at the
// other end, whose session continues, is also charged with it.
type pinnedQueue struct {
	uid     uint32
	has     claims   // refunded when the program has released it
	shmLink bool     // of a link: no queue
	share   *share   // of a queue that processes share
	shared  claims   // the part of has that is the share's, until heir gets it
	sockets []uint64 // inodes
	alive   *os.File // nil: not known
	memory  *os.File // nil: not known; of a queue that processes share, it is all of theirs
	key     string   // in the descriptor store; empty: not there
	over    bool     // it is reclaimed
}

// pinnedRecord is the descriptor store's record of a pinned queue, for the next agent. alive and
// memory are stored with it.
type pinnedRecord struct {
	UID     uint32
	Pinned  int
	Sockets []uint64 // inodes, one or more
	ShmLink bool     `json:",omitempty"`
	Shared  bool     `json:",omitempty"` // processes share the queue; the memory shows which ones do
	Common  int      `json:",omitempty"` // of Pinned: what is the share's; 0: another process is charged with the queue
}

// record is what the descriptor store keeps.
func (d *pinnedQueue) record() pinnedRecord {
	return pinnedRecord{
		UID: d.uid, Pinned: d.has.pinned, Sockets: d.sockets, ShmLink: d.shmLink, Shared: d.share != nil, Common: d.shared.pinned,
	}
}

// claims returns what the record's user is charged with.
func (r *pinnedRecord) claims() claims {
	switch {
	case r.ShmLink:
		return claims{pinned: r.Pinned}
	case r.Shared:
		return claims{processes: 1, queues: r.shared().queues, pinned: r.Pinned}
	}
	return claims{processes: 1, queues: len(r.Sockets), pinned: r.Pinned}
}

// shared returns the part of claims that is the share's.
func (r *pinnedRecord) shared() claims {
	if r.Common == 0 {
		return claims{}
	}
	return claims{queues: len(r.Sockets), pinned: r.Common}
}

// keep puts a pinned queue into the descriptor store. A queue whose end cannot be detected, or whose memory
// is not known, is only tracked by this agent.
func (d *pinnedQueue) keep(v fdstore.Store) {
	if v == nil || d.alive == nil || d.memory == nil {
		return
	}
	b, err := json.Marshal(d.record())
	if err != nil {
		return
	}
	if d.key == "" {
		d.key = fdstore.PinnedPrefix + rand.Text()
	}
	_ = fds.With(d.alive, func(alive int) error {
		return fds.With(d.memory, func(memory int) error { return v.Put(d.key, b, alive, memory) })
	})
}

// mostPinned is more than an address space, and sums of it do not overflow.
const mostPinned = 1 << 47

// readPinned reads an entry of keep.
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
	if r.Common < 0 || r.Common > r.Pinned || r.Common > 0 && !r.Shared || r.Shared && r.ShmLink {
		return pinnedRecord{}, fmt.Errorf("%d bytes of %d are of a queue that processes share: %v", r.Common, r.Pinned, r.Shared)
	}
	if len(r.Sockets) == 0 {
		return pinnedRecord{}, errNoSocket
	}
	return r, nil
}

var errNoSocket = errors.New("it has no socket")

// restorePinned takes over the pinned queues of the previous agent, and returns all other entries.
func (s *Server) restorePinned(kept []fdstore.Entry) (rest []fdstore.Entry) {
	for _, i := range kept {
		if !strings.HasPrefix(i.Key, fdstore.PinnedPrefix) {
			rest = append(rest, i)
			continue
		}
		r, err := readPinned(i)
		if err != nil {
			s.log.Error("the memory that a program still pins cannot be taken over", "key", i.Key, "error", err)
			i.Close()
			_ = s.cfg.FDStore.Delete(i.Key)
			continue
		}
		d := &pinnedQueue{uid: r.UID, has: r.claims(), shmLink: r.ShmLink, sockets: r.Sockets, alive: i.Files[0], memory: i.Files[1], key: i.Key}
		s.mu.Lock()
		if r.Shared {
			d.share, d.shared = s.shareOf(d.memory), r.shared()
		}
		s.account(d.uid).add(d.has, 1)
		s.pinnedQueues[d] = struct{}{}
		s.mu.Unlock()
	}
	s.collectLater()
	return rest
}

// stillPinned returns what a session leaves pinned at its end. It is put into the descriptor store before the
// session's entries are removed; see session.owed.
func (n *session) stillPinned() []*pinnedQueue {
	queue := &pinnedQueue{uid: n.uid, has: n.has, share: n.share, sockets: n.sockets}
	memory, last := n.local.TakeMemory()
	if queue.memory = memory; n.share != nil && last { // no other process has it, or joins
		queue.shared = n.server.takeShare(n.share)
		queue.has.add(queue.shared, 1)
	}
	all := []*pinnedQueue{queue}
	for _, memory := range n.local.TakeLinks() {
		all = append(all, &pinnedQueue{uid: n.uid, shmLink: true, has: claims{pinned: device.LinkBytes}, sockets: n.sockets, memory: memory})
	}
	for _, d := range all {
		if fd, err := fds.Dup(n.alive); err == nil {
			d.alive = os.NewFile(uintptr(fd), "alive")
		}
		d.keep(n.server.cfg.FDStore)
	}
	return all
}

// track refunds queues, memory and links as soon as the program has released them.
func (s *Server) track(all ...*pinnedQueue) {
	s.mu.Lock()
	for _, d := range all {
		s.pinnedQueues[d] = struct{}{}
	}
	s.mu.Unlock()
	s.collect()
	s.collectLater()
}

// collectLater starts a collector unless one runs.
func (s *Server) collectLater() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.pinnedQueues) > 0 && !s.collecting && !s.closed {
		s.collecting = true
		s.work.Go(s.collector)
	}
}

// collector checks the pinned queues until there are none.
func (s *Server) collector() {
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

// hasPinned reports whether a user is still charged for programs that have gone.
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

// collect refunds what programs have released. Calls that arrive during a collection share the
// next one, so that they pay for the kernel's list of sockets once. A collection that fails
// counts for no other call.
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
	all := slices.Collect(maps.Keys(s.pinnedQueues))
	sharing := s.asked // this collection may miss what later calls ask for
	s.mu.Unlock()
	if len(all) == 0 {
		return
	}
	open, known, err := s.sockets()
	if err != nil {
		return // try again the next time
	}
	s.looked = sharing
	for _, d := range all {
		// The sockets decide, if they are known: a program can close the sign of life and keep a socket.
		if slices.ContainsFunc(d.sockets, func(inode uint64) bool { return open[inode] }) ||
			!known && d.alive != nil && !fdstore.IsDead(d.alive) {
			continue
		}
		s.reclaim(d)
	}
}

// reclaim refunds a pinned queue after it has freed the pages. Caller holds s.collection.
func (s *Server) reclaim(d *pinnedQueue) {
	if to := s.heir(d); to != nil {
		s.passOn(d, to)
	}
	d.over = true
	inUse := d.share != nil && d.shared == (claims{}) || d.shmLink && d.memory != nil && s.hasLink(d.memory)
	if d.memory != nil && !inUse {
		if err := device.FreeMemory(d.memory); err != nil {
			s.log.Error("the memory of a queue that is closed cannot be freed", "user", d.uid, "error", err)
		}
	}
	if d.key != "" {
		_ = s.cfg.FDStore.Delete(d.key)
	}
	d.close()
	s.refund(d.uid, d.has)
	s.mu.Lock()
	delete(s.pinnedQueues, d)
	s.mu.Unlock()
}

// heir returns the part of another program that still has the queue of d, if d has the charge of what they share; nil: there
// is none. The program may have hung up earlier and kept its sockets, or have its session still because the interface was
// removed. Caller holds s.collection.
func (s *Server) heir(d *pinnedQueue) *pinnedQueue {
	if d.shared == (claims{}) {
		return nil
	}
	s.mu.Lock()
	for other := range s.pinnedQueues {
		if other != d && other.share == d.share {
			s.mu.Unlock()
			return other
		}
	}
	all := slices.Collect(maps.Values(s.sessions)) // one that ends is there until its part is in pinnedQueues
	s.mu.Unlock()
	for _, n := range all {
		if n.share != d.share {
			continue
		}
		// It has left the share as d's session has, or the charge would not be d's.
		if other := n.owed()[0]; other != d && !other.over {
			return other
		}
	}
	return nil
}

// passOn makes the charge of what programs share another one's, which frees the memory. Caller holds s.collection.
func (s *Server) passOn(d, to *pinnedQueue) {
	s.mu.Lock()
	d.has.add(d.shared, -1)
	to.has.add(d.shared, 1)
	s.mu.Unlock()
	to.shared, d.shared = d.shared, claims{}
	if to.memory == nil {
		to.memory, d.memory = d.memory, nil
	}
	to.keep(s.cfg.FDStore)
}

// hasLink reports whether a session is charged with the link of that memory. The pages are freed
// when the last charge ends.
func (s *Server) hasLink(memory *os.File) bool {
	st, err := memory.Stat()
	if err != nil {
		return false
	}
	return slices.ContainsFunc(s.allSessions(), func(n *session) bool { return n.local.HasLink(st) })
}

func (s *Server) allSessions() []*session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.sessions))
}

func (d *pinnedQueue) close() { fds.CloseFiles(d.alive, d.memory) }

// share is a queue that processes of one user share. The user is charged with the queue and its memory until the last
// program has released it, in whatever order they came and went. Guarded by Server.mu.
type share struct {
	group *device.Group
	has   claims // the queue and its memory, until the last session takes them over
}

// shareOf returns the share of the programs that have gone and had that memory, which the previous agent has charged; if there
// are none, a new one. Caller holds s.mu.
func (s *Server) shareOf(memory *os.File) *share {
	if st, err := memory.Stat(); err == nil {
		for d := range s.pinnedQueues {
			if d.share == nil || d.memory == nil {
				continue
			}
			if other, err := d.memory.Stat(); err == nil && os.SameFile(st, other) {
				return d.share
			}
		}
	}
	return new(share)
}

// joinShare makes a session one of the processes that share its queue, if it is such a queue. What it is charged with
// beyond its own part becomes the share's. Caller holds s.mu.
func (s *Server) joinShare(n *session) {
	g := n.local.Group()
	if g == nil {
		return
	}
	info := n.local.Info()
	sh := s.shares[g]
	if sh == nil {
		sh = s.shareOf(g.Memory())
		sh.group, sh.has = g, claims{queues: 1 + len(info.NIC.ExtraQueues), pinned: g.PinnedBytes()}
		s.shares[g] = sh
		s.account(n.uid).add(sh.has, 1)
	}
	s.account(n.uid).add(n.has, -1)
	n.share, n.has = sh, claims{processes: 1, pinned: info.NIC.SocketRingBytes()}
	s.account(n.uid).add(n.has, 1)
}

// takeShare returns what the user is charged with for a queue that no other session has any more. The charge is the
// caller's then.
func (s *Server) takeShare(sh *share) claims {
	s.mu.Lock()
	defer s.mu.Unlock()
	has := sh.has
	sh.has = claims{}
	delete(s.shares, sh.group)
	return has
}

// giveUp closes a queue that a user's program does not get because of err. The other programs that shared it may have ended
// meanwhile: then nothing else refunds what was common.
func (s *Server) giveUp(err error, local *device.Local, uid uint32) error {
	g := local.Group()
	if g == nil {
		return joinClose(err, local)
	}
	memory, last := local.TakeMemory()
	err = joinClose(err, local)
	s.mu.Lock()
	sh := s.shares[g]
	s.mu.Unlock()
	if !last || sh == nil {
		fds.CloseFiles(memory)
		return err
	}
	has := s.takeShare(sh)
	s.track(&pinnedQueue{uid: uid, has: has, share: sh, shared: has, memory: memory})
	return err
}

// openSockets returns the inodes of the AF_XDP sockets of the network namespace. known is false if the kernel does not list
// them all: it lists none without CONFIG_XDP_SOCKETS_DIAG, and ends the list at a socket whose interface was removed
// (xsk_diag_fill, net/xdp/xsk_diag.c). An error may be temporary.
func openSockets() (inodes map[uint64]bool, known bool, err error) {
	return listSockets(netlink.SocketDiagXDP, socketCount)
}

func listSockets(list func() ([]*netlink.XDPDiagInfoResp, error), count func() (int, error)) (inodes map[uint64]bool, known bool, err error) {
	for range 3 {
		before, berr := count()
		all, lerr := list()
		after, aerr := count()
		err := errors.Join(berr, lerr, aerr)
		if errors.Is(err, netlink.ErrDumpInterrupted) || isPassing(err) {
			return nil, false, err
		}
		if err == nil && before != after {
			continue // the list may be as of either
		}
		inodes = make(map[uint64]bool, len(all))
		for _, s := range all {
			inodes[uint64(s.XDPDiagMsg.Ino)] = true
		}
		return inodes, err == nil && len(all) == after, nil
	}
	return nil, false, errSocketsChange
}

var errSocketsChange = errors.New("AF_XDP sockets are opened and closed all the time")

// socketCount returns the number of AF_XDP sockets of the network namespace.
func socketCount() (n int, err error) {
	b, err := os.ReadFile("/proc/thread-self/net/protocols")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 2 && f[0] == "XDP" { // name, size, sockets
			return strconv.Atoi(f[2])
		}
	}
	return 0, errors.New("the kernel does not count AF_XDP sockets")
}
