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
	"viaxdp/internal/base/thread"
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
	shares       map[*device.Group]*share
	asked        uint64 // collections requested so far
	counts       kagent.DaemonCounter
	talks        sync.WaitGroup // connections
	work         sync.WaitGroup // watchers of sessions, the collector; none begins after closed

	closers    chan struct{} // one element for each refused connection that is being closed
	leaveTime  time.Duration // leaveTime, but for tests
	collecting bool          // there is a collector
	done       chan struct{} // closed by shut
	misses     misses
	sockets    func() (inodes map[uint64]bool, known bool, err error)
	// collection is held, before mu, while pinned queues are checked: a request for quota waits
	// for the refunds of the check that is under way.
	collection sync.Mutex
	looked     uint64 // value of asked that the last collection covers; guarded by collection
}

// leaveTime is how long shut waits for connections that only have to drain what the program has
// sent: closing the descriptors in it may block a thread in the kernel for longer.
const leaveTime = 15 * time.Second

// maxClosers is how many refused connections are closed at a time. Each blocks a thread while the
// kernel closes descriptors that the program has sent, and Go ends a process with 10000 threads.
const maxClosers = 64

// New makes a Server in the network namespace of the calling thread. It takes over the sessions of a previous
// agent, from the entries in kept, unless their programs have died. It logs what it cannot take over. It fails without having
// changed anything if this process cannot open the descriptors that it needs for them.
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
		pinnedQueues: make(map[*pinnedQueue]struct{}), shares: make(map[*device.Group]*share), done: make(chan struct{}), sockets: openSockets,
		closers: make(chan struct{}, maxClosers), leaveTime: leaveTime,
	}
	if cfg.FDStore != nil {
		s.cfg.FDStore = &lenient{cfg.FDStore, s.log}
	}
	var err error
	if s.netns, err = thread.Netns(); err != nil {
		return nil, err
	}
	// What is not taken over is lost, so an agent that cannot take all over does not begin.
	if err := fds.Need(device.RestoreNeeds(kept)); err != nil {
		return nil, fmt.Errorf("the queues of running programs cannot be taken over: %w: raise the limit of open files", err)
	}
	s.restore(s.restorePinned(kept))
	return s, nil
}

// Serve serves programs until ctx ends, and then closes all connections. With a descriptor store, programs
// keep everything and continue with the next agent. Without one, or without programs, it takes everything
// down. A Server serves once.
func (s *Server) Serve(ctx context.Context, l *net.UnixListener) error {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	var err error
	for {
		var c *net.UnixConn
		if c, err = l.AcceptUnix(); err != nil {
			// Out of descriptors, or of memory. Existing connections continue, and free descriptors when they
			// end.
			if isPassing(err) {
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

// isPassing reports whether an error is of a system call after which a later one may succeed.
func isPassing(err error) bool { return fds.Short(err) || errors.Is(err, unix.ECONNABORTED) }

// noRoom returns why a user gets no further connection, or nil. Root may exceed the limit of all
// users. Caller holds s.mu.
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

// accept accepts a connection, or refuses it with an error as the answer to its hello.
func (s *Server) accept(raw *net.UnixConn) {
	cred, err := credentials(raw)
	if err != nil {
		s.closeRefused(raw)
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
		s.closeRefused(raw)
		return
	}
	u.connections++
	s.counts.Accepted++
	c := &conn{
		server: s, c: raw, cred: cred, calls: make(map[uint64]context.CancelFunc),
		handles: make(map[uint64]*handle), over: make(chan struct{}), ended: make(chan struct{}),
	}
	s.conns[c] = struct{}{}
	s.talks.Go(func() {
		c.serve()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.conns, c)
		u.connections--
		s.forget(u)
	})
	s.mu.Unlock()
}

// closeRefused closes a refused connection without delaying the accept loop. The number of those
// that wait to be closed is limited by the agent's limit of open files.
func (s *Server) closeRefused(raw *net.UnixConn) {
	s.talks.Go(func() {
		s.closers <- struct{}{}
		_ = raw.Close()
		<-s.closers
	})
}

// shut stops the server, at the end of Serve.
func (s *Server) shut() error {
	s.mu.Lock()
	s.closed = true
	close(s.done)
	for c := range s.conns {
		c.hangUp()
	}
	s.mu.Unlock()
	var errs []error
	for _, n := range s.allSessions() { // once closed, there are no new ones
		if s.cfg.FDStore == nil {
			errs = append(errs, n.end(true))
		}
		_ = n.alive.Close() // ends its watcher
	}
	s.work.Wait()
	ended := s.await()
	errs = append(errs, device.EndLinger())
	if !ended {
		return errors.Join(errs...)
	}
	for d := range s.pinnedQueues {
		d.close() // the descriptor store has them for a later agent
	}
	return errors.Join(errs...)
}

// await waits until the connections have ended, including any opening or closing of a queue. It returns false
// if the kernel blocks all remaining ones.
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

// isClosed reports whether the server shuts down. The end of a connection then does not mean that
// its program has died.
func (s *Server) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// Status returns the state of the agent.
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

// statusFor returns the part of Status that a user may see: root sees all, others see their own.
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

// peer is the process at the other end of a connection, with its user and groups.
type peer struct {
	unix.Ucred
	groups []uint32 // beside Gid
}

// credentials returns the kernel's record of the other end's credentials, as of connect(2). It
// does not ask the user database, which may not hold for that process.
func credentials(c *net.UnixConn) (p peer, err error) {
	cred, err := fds.Peer(c)
	if err != nil {
		return p, err
	}
	p.Ucred = *cred
	err = fds.With(c, func(fd int) (err error) { p.groups, err = peerGroups(uintptr(fd)); return err })
	return p, err
}

// lenient logs the errors of a descriptor store and continues. A failure affects only the next
// agent: programs work as before.
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
