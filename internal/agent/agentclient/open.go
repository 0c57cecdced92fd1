package agentclient

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/hugepages"
	"viaxdp/internal/agent/agentproto"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/fds"
	"viaxdp/xdpnic"
)

const (
	// DefaultSocket is where a daemon listens unless it is told otherwise.
	DefaultSocket = "/run/via-xdp/agent.sock"
	// Environment is the variable that names the socket, or says "none": no
	// daemon, the agent in the program's own process.
	Environment = "VIA_AGENT"
)

// Socket is where to look for a daemon: what the environment says, else
// DefaultSocket. named tells whether it was the environment; ok is false when
// that says "none".
func Socket() (path string, named, ok bool) {
	switch path = os.Getenv(Environment); path {
	case "":
		return DefaultSocket, false, true
	case "none":
		return "", true, false
	}
	return path, true, true
}

// Absent tells whether err means that no daemon is there, or none that this user
// may talk to.
func Absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, fs.ErrPermission) ||
		errors.Is(err, errOtherNetns)
}

var errOtherNetns = errors.New("the agent is in another network namespace, whose interfaces are others")

// Find asks the daemon that a program would use that is started from the calling thread:
// that of Socket, for its status, of which a user sees what is theirs, and root all. here tells that it is in the thread's network namespace,
// so that its interfaces are those. Where there is none that would be used the error says
// why; Absent tells that the program then does without, unless the environment names one.
func Find(ctx context.Context) (socket string, here bool, st kagent.Status, err error) {
	socket, named, ok := Socket()
	if !ok {
		return "", false, st, fmt.Errorf("%w: %s=none", fs.ErrNotExist, Environment)
	}
	st, ns, err := queryStatus(ctx, socket)
	if err != nil {
		return socket, false, st, err
	}
	if here = isHere(ns); !here && !named {
		return socket, false, kagent.Status{}, errOtherNetns
	}
	return socket, here, st, nil
}

// isHere tells whether a daemon's network namespace is the calling thread's, as far as that
// can be seen.
func isHere(netns [2]uint64) bool {
	var ns unix.Stat_t
	err := locked(func() error { return unix.Stat("/proc/thread-self/ns/net", &ns) })
	return err == nil && netns == [2]uint64{ns.Dev, ns.Ino}
}

func queryStatus(ctx context.Context, socket string) (_ kagent.Status, netns [2]uint64, _ error) {
	c, r, welcome, err := dial(ctx, socket)
	if err != nil {
		return kagent.Status{}, netns, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	reply, files, err := exchange(c, r, &agentproto.Request{ID: 2, Op: agentproto.OpStatus}, helloTime)
	fds.CloseFiles(files...)
	if err == nil && reply.Status == nil {
		err = errShort
	}
	if err != nil {
		return kagent.Status{}, netns, fmt.Errorf("agent at %s: %w", socket, err)
	}
	return *reply.Status, welcome.Netns, nil
}

// share is a queue and its session, which several handles may share.
type share struct {
	session *session
	queue   *xdpnic.Queue
	arena   *hugepages.Arena
	info    kagent.Info
	alive   *os.File // whose end tells that this program is dead
	refs    int      // guarded by shares.mu
}

// shares are the queues that this process has of daemons.
var shares = struct {
	sync.Mutex
	open map[*share]struct{}
}{open: make(map[*share]struct{})}

// Open opens an interface by the daemon at a socket. Of cfg, Port and MaxVIs
// are the daemon's matter, and so is whether Steer may be SteerByRSS. Unless named, the daemon must be in the network
// namespace of the calling thread: an interface of that name in another one is
// another interface.
//
// Several Opens of one interface have each a queue of their own, or, with
// ShareQueue, one in common when there is none left, or the user's quota has none.
func Open(socket string, named bool, cfg kagent.Config) (*Agent, error) {
	fail := func(err error) (*Agent, error) {
		var remote *agentproto.Error
		if errors.As(err, &remote) { // the daemon's call was of the same name
			remote.Text = strings.TrimPrefix(remote.Text, "kagent: open "+cfg.Interface+": ")
		}
		return nil, &kagent.OpError{Op: "open", Link: cfg.Interface, Err: err}
	}
	ctx, cancel := context.WithTimeout(context.Background(), helloTime)
	defer cancel()
	c, r, welcome, err := dial(ctx, socket)
	if err != nil {
		return fail(err)
	}
	if !named {
		var ns unix.Stat_t
		err := locked(func() error { return unix.Stat("/proc/thread-self/ns/net", &ns) })
		if err == nil && welcome.Netns != [2]uint64{ns.Dev, ns.Ino} {
			err = errOtherNetns
		}
		if err != nil {
			return fail(errors.Join(err, c.Close()))
		}
	}
	q := &agentproto.Request{ID: 2, Op: agentproto.OpOpen, Open: &agentproto.Open{
		Interface: cfg.Interface, Queue: cfg.Queue, Mode: cfg.Mode, RequireMode: cfg.RequireMode,
		ArenaBytes: cfg.ArenaBytes, Hugepages: cfg.Hugepages, ChunkSize: cfg.ChunkSize,
		RxChunks: cfg.RxChunks, TxChunks: cfg.TxChunks, SingleBuffer: cfg.SingleBuffer,
		Steer: cfg.Steer,
	}}
	reply, files, err := exchange(c, r, q, openTime)
	if err == nil && (reply.Opened == nil || len(files) != 3) {
		err = errShort
	}
	if err != nil {
		fds.CloseFiles(files...)
		c.Close()
		if cfg.ShareQueue && (errors.Is(err, kagent.ErrQueueInUse) || errors.Is(err, agentproto.ErrQueueQuota)) {
			if s := join(socket, cfg); s != nil {
				return newAgent(s), nil
			}
		}
		if errors.Is(err, agentproto.ErrQueueQuota) {
			err = fmt.Errorf("%w; this handle needs a queue of its own: this process has none of %s that it could share", err, which(cfg))
		}
		return fail(err)
	}
	s := &share{alive: files[2], refs: 1}
	if err := s.adopt(reply.Opened, files, cfg.ArenaBytes); err != nil {
		return fail(errors.Join(err, files[2].Close(), c.Close()))
	}
	s.info.Agent = socket
	s.session = newSession(socket, reply.Opened.Token, c, r)
	shares.Lock()
	shares.open[s] = struct{}{}
	shares.Unlock()
	return newAgent(s), nil
}

// which names the queue that is asked for.
func which(cfg kagent.Config) string {
	if cfg.Queue == kagent.AnyQueue {
		return cfg.Interface
	}
	return fmt.Sprintf("%s, number %d,", cfg.Interface, cfg.Queue)
}

func newAgent(s *share) *Agent {
	return &Agent{share: s, done: make(chan struct{}), vis: make(map[uint32]bool)}
}

// join takes part in a queue that this process has, and whose interface is there: another
// one of its name may be what the caller means.
func join(socket string, cfg kagent.Config) *share {
	var all []*share
	shares.Lock()
	for s := range shares.open {
		if s.session.socket == socket && s.info.Interface == cfg.Interface &&
			(cfg.Queue == kagent.AnyQueue || cfg.Queue == s.info.Queue) {
			all = append(all, s)
		}
	}
	shares.Unlock()
	ctx, cancel := bounded()
	defer cancel()
	for _, s := range all {
		reply, err := s.session.call(ctx, agentproto.Request{Op: agentproto.OpLink}, true)
		if err != nil || reply.Link == nil || reply.Link.Gone {
			continue
		}
		shares.Lock()
		if s.refs > 0 {
			s.refs++
			shares.Unlock()
			return s
		}
		shares.Unlock()
	}
	return nil
}

// checkOpened reports what Adopt of hugepages and xdpnic cannot see: memory of another size than
// was wanted (0: the daemon's default), chunks where blocks are given out.
func checkOpened(o *agentproto.Opened, wanted int) error {
	arena, queue := &o.Info.Info.Arena, &o.Queue.Config
	const rounding = 2 << 20 // to a page of whatever size
	switch pool := queue.PoolBytes(); {
	case len(o.Token) != agentproto.TokenLen:
		return fmt.Errorf("%w: a token of %d bytes", agentproto.ErrProtocol, len(o.Token))
	case wanted > 0 && (arena.Size < wanted || arena.Size-wanted >= rounding):
		return fmt.Errorf("%w: an arena of %d bytes, %d were asked for", agentproto.ErrProtocol, arena.Size, wanted)
	case queue.PoolOffset < 0 || pool < 0 || queue.PoolOffset > arena.Reserve || pool > arena.Reserve-queue.PoolOffset:
		return fmt.Errorf("%w: chunks of %d bytes at %d of an arena that keeps %d for them",
			agentproto.ErrProtocol, pool, queue.PoolOffset, arena.Reserve)
	}
	return nil
}

// adopt maps what the daemon has handed over.
func (s *share) adopt(o *agentproto.Opened, files []*os.File, wanted int) error {
	s.info = o.Info.Restore()
	if err := checkOpened(o, wanted); err != nil {
		fds.CloseFiles(files[:2]...)
		return err
	}
	dups, err := fds.DupAll(files[:2])
	fds.CloseFiles(files[:2]...)
	if err != nil {
		return err
	}
	socket, memory := dups[0], dups[1]
	if s.arena, err = hugepages.Adopt(memory, s.info.Arena); err != nil {
		return errors.Join(err, unix.Close(socket))
	}
	s.info.Arena = s.arena.Info()
	if s.queue, err = xdpnic.Adopt(socket, o.Queue.Restore(s.info), s.arena.Bytes()); err != nil {
		return errors.Join(err, s.arena.Close())
	}
	return nil
}

// leave gives up one handle's part. The last one closes all: what is to be sent,
// socket, memory, session. For the others, rest undoes what the handle had.
func (s *share) leave(rest func()) error {
	shares.Lock()
	s.refs--
	last := s.refs == 0
	if last {
		delete(shares.open, s)
	}
	shares.Unlock()
	if !last {
		rest()
		return nil
	}
	_ = s.queue.Drain() // an error is about frames that nobody waits for any more
	errs := []error{s.queue.Close(), s.arena.Close()}
	s.session.close(closeTime)
	return errors.Join(append(errs, s.alive.Close())...)
}

// present tells whether the daemon is there.
func (s *session) present() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conn != nil
}

// Probe asks who listens at a socket, for people.
func Probe(socket string) (pid int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	var c *net.UnixConn
	c, _, w, err := dial(ctx, socket)
	if err != nil {
		return 0, err
	}
	return w.PID, c.Close()
}
