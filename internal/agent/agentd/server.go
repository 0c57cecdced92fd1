package agentd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/agentproto"
	"viaxdp/internal/agent/device"
	"viaxdp/internal/agent/fdstore"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/fds"
)

// Server is the daemon.
type Server struct {
	cfg       Config
	log       *slog.Logger
	since     time.Time
	netns     [2]uint64
	admission string // Config.admission

	mu           sync.Mutex
	closed       bool
	users        map[uint32]*account
	conns        map[*conn]struct{}
	sessions     map[string]*session // by token
	pinnedQueues map[*pinnedQueue]struct{}
	asked        uint64 // for looks at pinned queues
	counts       kagent.DaemonCounter
	talks        sync.WaitGroup // connections
	work         sync.WaitGroup // watchers of sessions, the collector; none begins after closed

	leaveTime  time.Duration // leaveTime, but for tests
	collecting bool          // there is a collector
	done       chan struct{} // closed by shut
	misses     misses
	sockets    func() (inodes map[uint64]bool, known bool, err error)
	// collection is held, before mu, while pinned queues are looked at: who wants room waits
	// for what another one is about to refund.
	collection sync.Mutex
	looked     uint64 // so many of those who asked have had a look; guarded by collection
}

// leaveTime is how long the end waits for connections of which nothing more is to be done than
// to take or drop what the program has sent: the kernel may hold a thread up for longer with
// closing the descriptors in it.
const leaveTime = 15 * time.Second

// New makes a Server in the network namespace of the calling thread, and takes
// over what kept has of an agent before it: the sessions of programs that have
// not died meanwhile. What cannot be taken over is logged.
func New(cfg Config, kept []fdstore.Entry) (*Server, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Quota == (Quota{}) {
		cfg.Quota = DefaultQuota
	}
	cfg.MaxConnections = cmp.Or(cfg.MaxConnections, DefaultConnections)
	if cfg.Linger == 0 {
		cfg.Linger = DefaultLinger
	}
	s := &Server{
		cfg: cfg, log: cfg.Log, since: time.Now(), admission: cfg.admission(),
		users: make(map[uint32]*account), conns: make(map[*conn]struct{}), sessions: make(map[string]*session),
		pinnedQueues: make(map[*pinnedQueue]struct{}), done: make(chan struct{}), sockets: openSockets, leaveTime: leaveTime,
	}
	if cfg.FDStore != nil {
		s.cfg.FDStore = &lenient{cfg.FDStore, s.log}
	}
	var ns unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &ns); err != nil {
		return nil, err
	}
	s.netns = [2]uint64{ns.Dev, ns.Ino}
	s.restore(s.restorePinned(kept))
	return s, nil
}

// Serve serves programs until ctx ends; it then hangs up on all of them, without
// taking anything away from them: with a descriptor store, they go on with the next agent.
// Without one, or if there are none, all is taken down. A Server serves once.
func (s *Server) Serve(ctx context.Context, l *net.UnixListener) error {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	var err error
	for {
		var c *net.UnixConn
		if c, err = l.AcceptUnix(); err != nil {
			// Out of descriptors: those who have connections go on, and when they
			// leave there is room.
			if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ECONNABORTED) {
				s.log.Warn("a connection cannot be accepted", "error", err)
				select {
				case <-time.After(50 * time.Millisecond):
					continue
				case <-ctx.Done():
				}
			}
			break
		}
		s.accept(c)
	}
	if ctx.Err() != nil {
		err = nil
	}
	_ = l.Close() // again, perhaps
	return errors.Join(err, s.shut())
}

// noRoom says why a user gets no connection more; nil: there is room. Root comes in when
// everybody else has used up all there is. Caller holds s.mu.
func (s *Server) noRoom(u *account) error {
	switch {
	case u.quota.Connections > 0 && u.connections >= u.quota.Connections:
		return fmt.Errorf("%w: user %d has %d connections to the agent, of at most %d: end one of its programs, "+
			"or raise it in the agent's settings ([quota], [user.NAME])", agentproto.ErrQuota, u.uid, u.connections, u.quota.Connections)
	case len(s.conns) >= s.cfg.MaxConnections && u.uid != 0:
		return fmt.Errorf("%w: all users together have %d connections to the agent, of at most %d: end programs, "+
			"or raise max_connections in its settings", agentproto.ErrQuota, len(s.conns), s.cfg.MaxConnections)
	}
	return nil
}

// accept takes a connection in, or closes it, with the cause for an answer to its hello.
func (s *Server) accept(raw *net.UnixConn) {
	cred, err := credentials(raw)
	if err != nil {
		_ = raw.Close()
		return
	}
	s.mu.Lock()
	u := s.account(cred.Uid)
	if cred.Uid != 0 && !s.cfg.Access.includes(&cred) {
		err = fmt.Errorf("%w: user %d: %s", agentproto.ErrDenied, cred.Uid, s.admission)
	} else {
		err = s.noRoom(u)
	}
	if err != nil || s.closed {
		s.counts.Refused++
		s.forget(u)
		s.mu.Unlock()
		if err != nil { // a new socket has room for it
			_ = agentproto.WriteReply(raw, &agentproto.Reply{ID: agentproto.HelloID, Error: agentproto.NewError(err)})
		}
		_ = raw.Close()
		return
	}
	u.connections++
	s.counts.Accepted++
	c := &conn{
		server: s, c: raw, cred: cred, calls: make(map[uint64]context.CancelFunc),
		handles: make(map[uint64]*handle), over: make(chan struct{}), ended: make(chan struct{}),
	}
	s.conns[c] = struct{}{}
	s.talks.Add(1)
	s.mu.Unlock()
	go func() {
		defer s.talks.Done()
		c.serve()
		s.mu.Lock()
		delete(s.conns, c)
		u.connections--
		s.forget(u)
		s.mu.Unlock()
	}()
}

// shut ends what the server does, at the end of Serve.
func (s *Server) shut() error {
	s.mu.Lock()
	s.closed = true
	close(s.done)
	for c := range s.conns {
		c.hangUp()
	}
	var all []*session
	for _, n := range s.sessions {
		all = append(all, n)
	}
	s.mu.Unlock()
	var errs []error
	for _, n := range all {
		if s.cfg.FDStore == nil {
			errs = append(errs, n.end(true))
		}
		_ = n.alive.Close() // its watcher leaves
	}
	s.work.Wait()
	ended := s.await()
	errs = append(errs, device.EndLinger())
	if !ended {
		return errors.Join(errs...)
	}
	for d := range s.pinnedQueues {
		d.close() // a later agent has those that the descriptor store keeps
	}
	return errors.Join(errs...)
}

// await waits until the connections have ended, however long a queue takes to be opened or
// closed; false: all that are left the kernel holds up.
func (s *Server) await() bool {
	ended := make(chan struct{})
	go func() {
		s.talks.Wait()
		close(ended)
	}()
	wait := s.leaveTime
	for told := false; ; told = true {
		select {
		case <-ended:
			return true
		case <-time.After(wait):
		}
		busy := 0
		s.mu.Lock()
		for c := range s.conns {
			if !c.receiving.Load() {
				busy++
			}
		}
		s.mu.Unlock()
		switch {
		case busy == 0:
			s.log.Warn("a connection does not end: the kernel is still closing what its program has sent along")
			return false
		case !told:
			s.log.Warn("the end waits for requests that are still being done", "connections", busy)
			wait = min(wait, 100*time.Millisecond)
		}
	}
}

// isClosed tells whether the server is about to end: then a connection's end says
// nothing about its program.
func (s *Server) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// Status is what the agent knows.
func (s *Server) Status() kagent.Status {
	st := device.LocalStatus()
	st.Daemon, st.Since = true, s.since
	s.mu.Lock()
	defer s.mu.Unlock()
	st.Counts = s.counts
	for _, u := range s.users {
		st.Users = append(st.Users, u.status())
	}
	slices.SortFunc(st.Users, func(a, b kagent.UserStatus) int { return cmp.Compare(a.UID, b.UID) })
	return st
}

// statusFor is what a user may see of it: root all, others what is theirs.
func (s *Server) statusFor(p *peer) kagent.Status {
	st := s.Status()
	st.Served = s.cfg.servedTo(p)
	if p.Uid == 0 {
		return st
	}
	for i := range st.NICs {
		n := &st.NICs[i]
		n.Leases = slices.DeleteFunc(n.Leases, func(l kagent.LeaseStatus) bool { return l.Holder.UID != p.Uid })
	}
	st.Users = slices.DeleteFunc(st.Users, func(u kagent.UserStatus) bool { return u.UID != p.Uid })
	return st
}

func (s *Server) count(f func(c *kagent.DaemonCounter)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.counts)
}

// peer is the user, with its groups, and the process at the other end of a connection.
type peer struct {
	unix.Ucred
	groups []uint32 // beside Gid
}

// credentials are those of the other end of a connection, at the time of connect(2), by the kernel's
// word. The user database is not asked: what it says may not hold for that process.
func credentials(c *net.UnixConn) (p peer, err error) {
	err = fds.With(c, func(fd int) error {
		u, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil {
			return err
		}
		p.Ucred = *u
		p.groups, err = peerGroups(uintptr(fd))
		return err
	})
	return p, err
}

// lenient is a descriptor store whose failure harms nobody but a later agent: programs work
// as before.
type lenient struct {
	fdStore fdstore.Store
	log     *slog.Logger
}

func (l *lenient) Put(key string, value []byte, fds ...int) error {
	l.warn(key, l.fdStore.Put(key, value, fds...))
	return nil
}

func (l *lenient) Delete(key string) error {
	l.warn(key, l.fdStore.Delete(key))
	return nil
}

func (l *lenient) warn(key string, err error) {
	if err != nil {
		l.log.Error("the descriptor store fails: until there is another one, programs will not survive this agent's death",
			"key", key, "error", err)
	}
}
