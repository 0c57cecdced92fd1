package agentd

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/agentproto"
	"viaxdp/internal/agent/device"
	"viaxdp/internal/agent/fdstore"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/termsafe"
)

// session is the queue of a program, from open until the program closes it or dies. It has no connection
// while the agent is away.
type session struct {
	server  *Server
	uid     uint32
	token   []byte
	local   *device.Local
	alive   *os.File // the reading end of a pipe that ends with the program
	has     claims   // besides VIs: what it is charged with until it has gone
	share   *share   // of a queue that processes share; nil: it has the queue alone
	sockets []uint64 // inodes of the AF_XDP sockets
	once    sync.Once
	// owed returns what the session leaves pinned, and puts it into the descriptor store. It runs once: when the interface is removed, since the
	// descriptor store then drops the other entries, or at the end.
	owed func() []*pinnedQueue

	mu   sync.Mutex
	conn *conn
	vis  int // charged
	over bool
}

// tag is what the descriptor store keeps of a session.
type tag struct {
	Token   []byte
	UID     uint32
	Sockets []uint64 // inodes, one of each queue
}

// open opens an interface for a program. It waits no longer than ctx.
func (c *conn) open(ctx context.Context, o *agentproto.Open) (*session, *device.Handout, *os.File, error) {
	s := c.server
	settings, ok := s.cfg.served(o.Interface, &c.cred)
	if !ok {
		return nil, nil, nil, s.cfg.errNotServed(o.Interface, &c.cred)
	}
	cfg := device.Config{
		Config: kagent.Config{
			Interface: o.Interface, Queue: o.Queue, Mode: max(o.Mode, settings.Mode), RequireMode: o.RequireMode,
			ArenaBytes: cmp.Or(o.ArenaBytes, kagent.DefaultArena), Hugepages: o.Hugepages, ChunkSize: o.ChunkSize,
			RxChunks: o.RxChunks, TxChunks: o.TxChunks, SingleBuffer: o.SingleBuffer,
			Steer: steering(o.Steer, c.cred.Uid), MaxVIs: settings.MaxVIs, Port: settings.Port, Sealed: o.Sealed,
		},
		Processes: cmp.Or(settings.Processes, DefaultProcesses), Alone: o.Alone,
		Shared: true, FDStore: s.cfg.FDStore, Linger: s.linger(c.cred.Uid), NoZeroCopy: s.cfg.zeroCopy(o.Interface, &c.cred),
		Holder: kagent.Holder{PID: int(c.cred.Pid), UID: c.cred.Uid, Comm: termsafe.Name(int(c.cred.Pid))},
	}
	if cfg.ArenaBytes < 0 {
		return nil, nil, nil, fmt.Errorf("%w: an arena of %d bytes", agentproto.ErrProtocol, cfg.ArenaBytes)
	}
	// A queue of its own is charged before it is opened. If the quota has none, or none is free, the program may join
	// another of its user.
	has := claims{processes: 1, queues: 1, pinned: cfg.PinnedBytes()}
	err := s.charge(c.cred.Uid, has)
	if errors.Is(err, agentproto.ErrQueueQuota) && !cfg.Alone && cfg.Processes > 1 {
		has = claims{processes: 1}
		if s.charge(c.cred.Uid, has) != nil {
			return nil, nil, nil, err
		}
		cfg.OnlyJoin = err
	} else if err != nil {
		return nil, nil, nil, err
	}
	n, h, alive, err := s.lease(ctx, cfg, c, &has)
	if err != nil {
		s.refund(c.cred.Uid, has)
		return nil, nil, nil, err
	}
	if i := &h.Info.Info; cfg.Steer != o.Steer && i.Steered == "" && n.local.Inputs() > 1 {
		i.Notes = append(slices.Clip(i.Notes), "the indirection table, which moves the traffic of all, "+
			"the agent changes for programs of root only")
	}
	return n, h, alive, nil
}

// linger is device.Config's Linger for a user's queue. Root can attach and detach programs without
// the agent.
func (s *Server) linger(uid uint32) time.Duration {
	if uid == 0 {
		return 0
	}
	return max(s.cfg.Linger, 0)
}

// steering returns how a user's program may change the NIC: only root may change the indirection table, which
// affects all traffic.
func steering(want kagent.Steering, uid uint32) kagent.Steering {
	if want == kagent.SteerByRSS && uid != 0 {
		return kagent.SteerByRules
	}
	return want
}

// lease opens the queue and prepares it to be passed on. The user has been charged with has, which lease raises by the room
// for other processes.
func (s *Server) lease(ctx context.Context, cfg device.Config, c *conn, has *claims) (_ *session, _ *device.Handout, theirs *os.File, err error) {
	// For all users: there are at most as many as queues, and opening one costs more than a check of each.
	reapDead := func() bool { return s.reapDead(func(*session) bool { return true }) }
	reapDead()
	s.collect() // pages of dead programs may be all
	local, err := device.OpenContext(ctx, cfg)
	if errors.Is(err, kagent.ErrQueueInUse) && reapDead() {
		local, err = device.OpenContext(ctx, cfg)
	}
	if err != nil {
		return nil, nil, nil, err
	}
	info, before := local.Info(), *has
	again := func() (*session, *device.Handout, *os.File, error) {
		s.refund(c.cred.Uid, claims{queues: has.queues - before.queues})
		*has = before
		if err := local.Close(); err != nil {
			return nil, nil, nil, err
		}
		return s.lease(ctx, cfg, c, has)
	}
	more := len(info.NIC.ExtraQueues)
	if more > 0 && local.Group() == nil {
		if s.tryCharge(c.cred.Uid, claims{queues: more}) != nil {
			cfg.OneQueue = true // the user may have one queue
			return again()
		}
		has.queues += more
	}
	if room := info.PinnedBytes() - has.pinned; room > 0 && local.Group() == nil {
		if err := s.tryCharge(c.cred.Uid, claims{pinned: room}); err != nil {
			switch {
			case cfg.Processes > 1:
				cfg.Processes = 1 // the user may have the queue, without room for others
			case more > 0:
				cfg.OneQueue = true // or without other queues
			default:
				s.count(func(c *kagent.DaemonCounter) { c.Quota++ })
				return nil, nil, nil, joinClose(err, local)
			}
			return again()
		}
		has.pinned += room
	}
	if rings := info.NIC.SocketRingBytes() - has.pinned; rings > 0 && local.Group() != nil { // it has joined others, without memory of its own
		if err := s.charge(c.cred.Uid, claims{pinned: rings}); err != nil {
			return nil, nil, nil, s.giveUp(err, local, c.cred.Uid)
		}
		has.pinned += rings
	}
	n := &session{server: s, uid: c.cred.Uid, token: make([]byte, agentproto.TokenLen), local: local, has: *has, conn: c}
	n.owed = sync.OnceValue(n.stillPinned)
	rand.Read(n.token)
	local.OnLinkLeft(n.linkLeft)
	for _, fd := range local.Queue().FDs() {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return nil, nil, nil, s.giveUp(err, local, c.cred.Uid)
		}
		n.sockets = append(n.sockets, st.Ino)
	}
	fds := make([]int, 2)
	if err := unix.Pipe2(fds, unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil, nil, nil, s.giveUp(err, local, c.cred.Uid)
	}
	n.alive, theirs = os.NewFile(uintptr(fds[0]), "alive"), os.NewFile(uintptr(fds[1]), "alive")
	t, err := json.Marshal(tag{n.token, n.uid, n.sockets})
	var h *device.Handout
	if err == nil {
		h, err = local.HandOut(t, fds[0])
	}
	if err != nil {
		_, _ = n.alive.Close(), theirs.Close()
		return nil, nil, nil, s.giveUp(err, local, c.cred.Uid)
	}
	s.mu.Lock()
	if s.closed { // shut has already closed the sessions
		s.mu.Unlock()
		h.Close()
		_, _ = n.alive.Close(), theirs.Close()
		return nil, nil, nil, s.giveUp(net.ErrClosed, local, c.cred.Uid)
	}
	s.joinShare(n)
	s.sessions[string(n.token)] = n
	s.work.Go(n.watch)
	s.mu.Unlock()
	return n, h, theirs, nil
}

// watch ends the session when the program is dead.
func (n *session) watch() {
	i := n.local.Info()
	n.local.OnGone(func() {
		s := n.server
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.closed {
			return
		}
		s.work.Go(func() { // not in this goroutine, which holds locks
			n.owed()
			s.log.Warn("the interface is gone; programs that open it when it is back are served", "interface", i.Interface, "index", i.Index, "queue", i.Queue, "user", n.uid)
		})
	})
	fdstore.AwaitDeath(n.alive) // or the server's end
	if !n.server.isClosed() {
		_ = n.end(true)
	}
}

// reapDead ends the sessions of dead programs for which concern returns true, or waits until
// another goroutine has ended them. It reports whether there were any. Other sessions cost
// nothing.
func (s *Server) reapDead(concern func(*session) bool) (any bool) {
	for _, n := range s.allSessions() {
		if concern(n) && n.isDead() && !s.isClosed() { // shut also closes the signs of life of living programs
			_ = n.end(true)
			any = true
		}
	}
	return any
}

// isDead reports whether the session has ended, or its program is dead.
func (n *session) isDead() bool {
	n.mu.Lock()
	over := n.over
	n.mu.Unlock()
	return over || fdstore.IsDead(n.alive)
}

// end takes back everything that the session has. died means that the program did not close it.
func (n *session) end(died bool) (err error) {
	n.once.Do(func() {
		s := n.server
		n.mu.Lock()
		n.over = true
		c, vis := n.conn, n.vis
		n.mu.Unlock()
		if died {
			s.count(func(c *kagent.DaemonCounter) { c.Deaths++ })
			n.local.ResetPeers()
		}
		owed := n.owed()
		if err = n.local.Close(); err != nil {
			s.log.Error("a session is not closed cleanly", "user", n.uid, "error", err)
		}
		s.refund(n.uid, claims{vis: vis})
		s.track(owed...)
		s.mu.Lock()
		delete(s.sessions, string(n.token)) // until here reapDead waits for it
		s.mu.Unlock()
		_ = n.alive.Close()
		if c != nil && died {
			c.hangUp()
		}
		s.log.Info("queue closed", "interface", n.local.Info().Interface, "queue", n.local.Info().Queue,
			"user", n.uid, "died", died)
	})
	return err
}

// attach gives a session back to the program that has its token.
func (s *Server) attach(token []byte, c *conn) (*session, error) {
	s.mu.Lock()
	n := s.sessions[string(token)]
	s.mu.Unlock()
	if n == nil || n.uid != c.cred.Uid || !bytes.Equal(n.token, token) {
		return nil, agentproto.ErrToken
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	// It may try again before the end of its last attempt has been detected here.
	for before := n.conn; before != nil && before.isHungUp(); before = n.conn {
		n.mu.Unlock()
		select {
		case <-before.ended:
		case <-s.done:
		}
		n.mu.Lock()
		if n.conn == before {
			break
		}
	}
	if n.conn != nil || n.over {
		return nil, fmt.Errorf("%w that has no connection", agentproto.ErrToken)
	}
	n.conn = c
	return n, nil
}

// detach takes the session from a connection on which the program has not rejoined after all. If the program
// is dead, watch detects it.
func (n *session) detach(c *conn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.conn == c {
		n.conn = nil
	}
}

// readTag reads the tag of a session with size bytes of memory.
func readTag(b []byte, pinned int) (t tag, err error) {
	if err := json.Unmarshal(b, &t); err != nil {
		return tag{}, err
	}
	if len(t.Token) != agentproto.TokenLen {
		return tag{}, fmt.Errorf("a token of %d bytes, want %d", len(t.Token), agentproto.TokenLen)
	}
	if pinned <= 0 || pinned > mostPinned {
		return tag{}, fmt.Errorf("a memory of %d bytes", pinned)
	}
	if len(t.Sockets) == 0 {
		return tag{}, errNoSocket
	}
	return t, nil
}

// restore takes over the sessions of a previous agent.
func (s *Server) restore(kept []fdstore.Entry) {
	if len(kept) == 0 {
		return
	}
	defer s.collectLater()
	all, err := device.Restore(s.cfg.FDStore, kept)
	if err != nil {
		s.log.Error("some state of the previous agent could not be taken over", "error", err)
	}
	lost := make(map[*device.Group]*share)
	for _, r := range all {
		if r.Local == nil {
			if r.Group != nil && lost[r.Group] == nil {
				s.mu.Lock()
				lost[r.Group] = s.shareOf(r.Memory)
				s.mu.Unlock()
			}
			s.restoreLost(&r, lost[r.Group])
			continue
		}
		info := r.Local.Info()
		pinned := info.PinnedBytes()
		t, err := readTag(r.Tag, pinned)
		s.mu.Lock()
		if s.sessions[string(t.Token)] != nil && err == nil {
			err = errors.New("another one has its token")
		}
		s.mu.Unlock()
		if err != nil {
			s.log.Error("a session cannot be taken over", "error", err)
			_, _ = r.Local.Close(), r.Alive.Close()
			continue
		}
		n := &session{
			server: s, uid: t.UID, token: t.Token, sockets: t.Sockets, local: r.Local, alive: r.Alive,
			has: claims{processes: 1, queues: 1 + len(info.NIC.ExtraQueues), pinned: pinned}, vis: r.Local.VIs(),
		}
		n.owed = sync.OnceValue(n.stillPinned)
		n.local.SetLinger(s.linger(n.uid))
		shmLinks := n.local.OnLinkLeft(n.linkLeft)
		s.mu.Lock()
		// The program had it before, so no quota applies.
		s.account(n.uid).add(n.has, 1)
		s.account(n.uid).add(claims{vis: n.vis, pinned: shmLinks * device.LinkBytes}, 1)
		s.joinShare(n)
		s.sessions[string(n.token)] = n
		s.work.Go(n.watch)
		s.mu.Unlock()
		s.log.Info("queue taken over", "interface", r.Local.Info().Interface, "queue", r.Local.Info().Queue, "user", n.uid)
	}
}

// restoreLost takes over the memory that a program still has, if the interface of its session was
// removed while no agent ran. sh is of the programs that shared its queue; nil: it had the queue alone.
func (s *Server) restoreLost(r *device.Restored, sh *share) {
	d := &pinnedQueue{has: claims{processes: 1, queues: r.Queues, pinned: r.Size}, share: sh, alive: r.Alive, memory: r.Memory}
	if r.Common > 0 {
		d.shared = claims{queues: r.Queues, pinned: r.Common}
	}
	t, err := readTag(r.Tag, r.Size)
	if err != nil {
		s.log.Error("the memory of a program whose interface was removed cannot be taken over", "error", err)
		d.close()
		return
	}
	d.uid, d.sockets = t.UID, t.Sockets
	d.keep(s.cfg.FDStore)
	s.mu.Lock()
	s.account(d.uid).add(d.has, 1)
	s.pinnedQueues[d] = struct{}{}
	s.mu.Unlock()
}

// connected records the peer to reset if the program dies. A connection with a key is not
// recorded: its peer accepts frames of the program only.
func (n *session) connected(ours kagent.Offer, from netip.Addr, theirs kagent.Offer, peer netip.Addr) {
	if ours.Handshake == "" {
		n.local.Connected(ours.VI, device.PeerReset{
			From: from, To: peer, VI: theirs.VI, Key: theirs.Key, Seq: theirs.Seq, Offset: theirs.PortOffset,
		})
	}
}

// shmLink joins the session's queue with that of VI peer. A user with too many misses gets the
// answer for a missing VI, whether or not the VI exists.
func (n *session) shmLink(peer uint32) (*kagent.ShmLinkEnd, error) {
	s := n.server
	if !s.misses.left(n.uid, time.Now()) {
		return nil, n.local.NoLink(peer)
	}
	end, err := n.chargedLink(peer)
	if errors.Is(err, kagent.ErrUnreachable) {
		s.misses.add(n.uid, time.Now())
	}
	return end, err
}

// chargedLink is shmLink without the limit on misses. The user is charged for the memory when the
// program gets the link for the first time.
func (n *session) chargedLink(peer uint32) (*kagent.ShmLinkEnd, error) {
	end, _, err := n.local.ChargedLink(peer, false)
	if !errors.Is(err, device.ErrLinkUncharged) {
		return end, err
	}
	if err := n.server.charge(n.uid, claims{pinned: device.LinkBytes}); err != nil {
		return nil, fmt.Errorf("a VI of another queue of this interface is reached by a shared-memory link: %w", err)
	}
	end, took, err := n.local.ChargedLink(peer, true)
	if !took {
		n.server.refund(n.uid, claims{pinned: device.LinkBytes})
	}
	return end, err
}

// linkLeft is called when the program has released a link.
func (n *session) linkLeft() { n.server.refund(n.uid, claims{pinned: device.LinkBytes}) }

// newVI hands out a VI number, if the quota allows one more.
func (n *session) newVI() (uint32, error) {
	if err := n.server.charge(n.uid, claims{vis: 1}); err != nil {
		return 0, err
	}
	num, err := n.local.NewVI()
	n.mu.Lock()
	defer n.mu.Unlock()
	if err == nil && !n.over {
		n.vis++
		return num, nil
	}
	n.server.refund(n.uid, claims{vis: 1})
	return num, err
}

func (n *session) freeVI(num uint32) {
	if !n.local.HasVI(num) {
		return
	}
	n.local.FreeVI(num)
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.over {
		n.vis--
		n.server.refund(n.uid, claims{vis: 1})
	}
}
