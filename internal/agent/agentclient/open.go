package agentclient

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/hugepages"
	"viaxdp/internal/agent/agentproto"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/fds"
	"viaxdp/internal/base/thread"
	"viaxdp/xdpnic"
)

const (
	// DefaultSocket is where a daemon listens by default.
	DefaultSocket = "/run/via-xdp/agent.sock"
	// Environment is the variable that names the socket. "none" selects the agent in the
	// program's own process, and [Auto] one that is started if there is none.
	Environment = "VIA_AGENT"
)

// Socket returns where to look for a daemon: the environment's path, which may be [Auto], else DefaultSocket. named
// reports whether the environment has a value. ok is false if that value is "none".
func Socket() (path string, named, ok bool) {
	switch path = os.Getenv(Environment); path {
	case "":
		return DefaultSocket, false, true
	case "none":
		return "", true, false
	}
	return path, true, true
}

// Absent reports whether err means that there is no daemon, or none that this user may use.
func Absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, fs.ErrPermission) ||
		errors.Is(err, errOtherNetns)
}

var errOtherNetns = errors.New("the agent is in another network namespace, whose interfaces are others")

// Find asks for the status of the daemon that a program started from the calling thread would
// use (see Socket). A user's status covers the user's own queues, root's covers all. here
// reports whether the daemon is in the thread's network namespace, so that its interfaces are
// the thread's. If no daemon would be used, the error names the reason. Absent then reports
// whether the program would do without one, unless the environment names one. ErrStarts means that it would start one.
func Find(ctx context.Context) (socket string, here bool, st kagent.Status, err error) {
	socket, named, ok := Socket()
	if !ok {
		return "", false, st, fmt.Errorf("%w: %s=none", fs.ErrNotExist, Environment)
	}
	auto := socket == Auto
	if auto {
		socket = started(ctx)
	}
	st, ns, err := queryStatus(ctx, socket)
	if auto && Absent(err) && socket == startSocket() {
		err = ErrStarts
	}
	if err != nil {
		return socket, false, st, err
	}
	own, err := thread.Netns()
	if here = err == nil && ns == own; !here && !named {
		return socket, false, kagent.Status{}, errOtherNetns
	}
	return socket, here, st, nil
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
	umem    *hugepages.Arena // the memory that the daemon has passed: the arena, unless processes share the queue
	arena   *hugepages.Arena
	info    kagent.Info
	alive   *os.File // writing end of the sign of life: closed when this program dies
	refs    int      // guarded by shares.mu
}

// shares are the queues that daemons have given to this process.
var shares = struct {
	sync.Mutex
	open map[*share]struct{}
}{open: make(map[*share]struct{})}

// Open opens an interface by the daemon at a socket. The daemon, not cfg, sets Port and MaxVIs, and decides
// whether Steer may be SteerByRSS. Unless named, the daemon must be in the network namespace of the calling
// thread: an interface of that name in another namespace is another interface.
//
// Several Opens of one interface each get a queue of their own. With ShareQueue they share one if there is
// none left, or the user's quota has none.
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
		ns, err := thread.Netns()
		if err == nil && welcome.Netns != ns {
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
		Steer: cfg.Steer, Alone: cfg.ShareQueue && has(socket, cfg), Sealed: cfg.Sealed,
	}}
	reply, files, err := exchange(c, r, q, openTime)
	if err == nil && (reply.Opened == nil || len(files) != 3+len(reply.Opened.Queue.Config.ExtraQueues)) {
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
	if err := s.adopt(reply.Opened, files[1], append([]*os.File{files[0]}, files[3:]...), cfg); err != nil {
		return fail(errors.Join(err, files[2].Close(), c.Close()))
	}
	s.info.Agent = socket
	s.session = newSession(socket, reply.Opened.Token, c, r, namespaceToStartIn(socket))
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
	ctx, end := context.WithCancel(context.Background())
	return &Agent{share: s, ctx: ctx, end: end, vis: make(map[uint32]bool)}
}

// candidates returns the queues of this process that a handle might share.
func candidates(socket string, cfg kagent.Config) (all []*share) {
	shares.Lock()
	defer shares.Unlock()
	for s := range shares.open {
		if s.session.socket == socket && s.info.Interface == cfg.Interface &&
			(cfg.Queue == kagent.AnyQueue || cfg.Queue == s.info.Queue || slices.Contains(s.info.NIC.ExtraQueues, cfg.Queue)) {
			all = append(all, s)
		}
	}
	return all
}

// has reports whether this process has a queue that a handle might share.
func has(socket string, cfg kagent.Config) bool { return len(candidates(socket, cfg)) > 0 }

// join adds a handle to a queue that this process already has. The queue's interface must still
// be there, with its name, since the caller may mean another interface of the same name.
func join(socket string, cfg kagent.Config) *share {
	all := candidates(socket, cfg)
	ctx, cancel := bounded()
	defer cancel()
	for _, s := range all {
		reply, err := s.session.do(ctx, &call{request: agentproto.Request{Op: agentproto.OpLink}, again: true})
		if err != nil || reply.Link == nil || reply.Link.Gone || reply.Link.Name != cfg.Interface {
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

// checkOpened checks what Adopt of hugepages and xdpnic cannot: that the memory has the requested size (0:
// the daemon's default), and that no chunk lies where blocks are allocated.
func checkOpened(o *agentproto.Opened, wanted int) error {
	arena, queue := &o.Info.Info.Arena, &o.Queue.Config
	if queue.Sharing.Guests > 0 || len(queue.ExtraQueues) > 0 {
		wanted = 0 // it has room for other processes, or is one's, or for other queues
	}
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

// adopt maps the memory and rings that the daemon has passed.
func (s *share) adopt(o *agentproto.Opened, memory *os.File, sockets []*os.File, cfg kagent.Config) error {
	s.info = o.Info.Restore()
	files := append([]*os.File{memory}, sockets...)
	defer fds.CloseFiles(files...)
	if err := checkOpened(o, cfg.ArenaBytes); err != nil {
		return err
	}
	dups, err := fds.DupAll(files)
	if err != nil {
		return err
	}
	all := dups[1:]
	if s.umem, err = hugepages.Adopt(dups[0], s.info.Arena); err != nil {
		fds.Close(all...)
		return err
	}
	s.arena = s.umem
	if o.Queue.Config.Sharing.Partition > 0 { // the rest of the UMEM is the first process's
		s.arena, err = hugepages.New(hugepages.Config{Size: cmp.Or(cfg.ArenaBytes, kagent.DefaultArena), Policy: cfg.Hugepages})
		if err != nil {
			fds.Close(all...)
			return errors.Join(err, s.umem.Close())
		}
	}
	s.info.Arena = s.arena.Info()
	if s.queue, err = xdpnic.Adopt(all[0], o.Queue.Restore(s.info), s.umem.Bytes(), all[1:]...); err != nil {
		return errors.Join(err, s.closeMemory())
	}
	return nil
}

func (s *share) closeMemory() error {
	err := s.umem.Close()
	if s.arena != s.umem {
		err = errors.Join(err, s.arena.Close())
	}
	return err
}

// leave gives up one handle's share. The last one closes everything: frames to be sent, socket, memory,
// session. For the others, rest undoes what the handle had.
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
	_ = s.queue.Drain() // an error concerns frames that no handle waits for
	errs := []error{s.queue.Close(), s.closeMemory()}
	s.session.close(closeTime)
	return errors.Join(append(errs, s.alive.Close())...)
}

// Probe returns the process ID of the agent at a socket, for messages to the user.
func Probe(socket string) (pid int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	c, _, w, err := dial(ctx, socket)
	if err != nil {
		return 0, err
	}
	return w.PID, c.Close()
}
