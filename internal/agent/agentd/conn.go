package agentd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/agentproto"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/fds"
)

// Limits of a connection.
const (
	helloTime  = 2 * time.Second  // for the program's hello
	chooseTime = 10 * time.Second // for its open or resume; until then it may ask for the status
	writeTime  = 5 * time.Second  // for it to take a message
	maxCalls   = 512              // requests that wait
	maxHandles = 1024             // exchanges and listeners that it has
)

// conn is a program's connection.
type conn struct {
	server *Server
	c      *net.UnixConn
	cred   peer
	// resumed: the program has rejoined its session, and opens its listeners first. Until its next request it
	// may not have got the reply, and may try again: the end of the connection is then not the end of the
	// session.
	resumed bool
	n       *session      // set by serve before there are calls
	over    chan struct{} // closed when the program has hung up
	ended   chan struct{} // closed when the session knows of it
	hung    atomic.Bool   // hangUp was called
	// receiving: the reader takes or drops what the program has sent, which the kernel can make slow.
	receiving atomic.Bool
	asked     chan struct{} // the program asks for the next change of its interface; nil: it never has; made by do

	wmu   sync.Mutex // one message at a time
	files bool       // one had descriptors; guarded by wmu until serve ends

	mu      sync.Mutex
	calls   map[uint64]context.CancelFunc
	handles map[uint64]*handle
	next    uint64 // handle
	work    sync.WaitGroup
}

var errGoodbye = errors.New("the program has closed its session")

// serve serves a program until it hangs up, or breaks a rule.
func (c *conn) serve() {
	defer func() {
		c.receiving.Store(true)
		c.linger()
		c.c.Close()
	}()
	s := c.server
	err := c.talk()
	close(c.over)
	c.mu.Lock()
	for _, cancel := range c.calls {
		cancel()
	}
	c.mu.Unlock()
	c.release()
	c.work.Wait()
	switch n := c.n; {
	case n == nil || s.isClosed():
	case c.resumed && !errors.Is(err, agentproto.ErrProtocol):
		n.detach(c)
	default:
		_ = n.end(!errors.Is(err, errGoodbye))
	}
	close(c.ended)
	if errors.Is(err, agentproto.ErrProtocol) {
		s.count(func(c *kagent.DaemonCounter) { c.Invalid++ })
		s.log.Warn("a program breaks the protocol", "user", c.cred.Uid, "pid", c.cred.Pid, "error", err)
	}
}

// talk reads requests, and enforces the order of the protocol.
func (c *conn) talk() error {
	r := bufio.NewReaderSize(c.c, 4096)
	buf := make([]byte, 4096)
	read := func(limit time.Duration) (q agentproto.Request, err error) {
		var until time.Time
		if limit > 0 {
			until = time.Now().Add(limit)
		}
		if err = c.c.SetReadDeadline(until); err == nil {
			c.receiving.Store(true)
			q, err = agentproto.ReadRequest(r, buf)
			c.receiving.Store(false)
		}
		if err == nil && (c.hung.Load() || c.server.isClosed()) {
			err = net.ErrClosed // a request that arrives after hangUp is the next agent's
		}
		return q, err
	}
	q, err := read(helloTime)
	if err != nil {
		return err
	}
	if err := c.hello(&q); err != nil {
		return err
	}
	for end := time.Now().Add(chooseTime); c.n == nil; {
		if q, err = read(max(time.Until(end), time.Nanosecond)); err != nil {
			return err
		}
		if err := c.choose(&q); err != nil {
			return err
		}
	}
	for {
		if q, err = read(0); err != nil {
			return err
		}
		c.server.count(func(c *kagent.DaemonCounter) { c.Requests++ })
		if err := c.do(q); err != nil {
			return err
		}
	}
}

func (c *conn) hello(q *agentproto.Request) error {
	if q.Op != agentproto.OpHello {
		return fmt.Errorf("%w: %s before hello", agentproto.ErrProtocol, q.Op)
	}
	if !slices.Contains(q.Versions, agentproto.Version) {
		err := fmt.Errorf("%w: this agent speaks version %d, the program %v: update the older of the two",
			agentproto.ErrProtocol, agentproto.Version, q.Versions)
		return errors.Join(err, c.answer(q, &agentproto.Reply{}, err))
	}
	return c.answer(q, &agentproto.Reply{Welcome: &agentproto.Welcome{
		Version: agentproto.Version, PID: os.Getpid(), Netns: c.server.netns,
	}}, nil)
}

// choose executes the requests of a connection without a session.
func (c *conn) choose(q *agentproto.Request) (err error) {
	switch q.Op {
	case agentproto.OpStatus:
		st := c.server.statusFor(&c.cred)
		return c.answer(q, &agentproto.Reply{Status: &st}, nil)
	case agentproto.OpResume:
		n, err := c.server.attach(q.Token, c)
		if err == nil {
			c.n, c.resumed = n, true
		}
		return c.answer(q, &agentproto.Reply{}, err)
	case agentproto.OpOpen:
		ctx, stop := c.whilePresent()
		n, h, alive, err := c.open(ctx, q.Open)
		stop()
		if err != nil {
			return c.answer(q, &agentproto.Reply{}, err)
		}
		c.n = n
		defer h.Close()
		defer alive.Close()
		c.server.log.Info("queue opened", "interface", n.local.Info().Interface, "queue", n.local.Info().Queue,
			"mode", n.local.Info().Mode.String(), "user", c.cred.Uid, "pid", c.cred.Pid)
		return c.answer(q, &agentproto.Reply{Opened: &agentproto.Opened{Token: n.token, Queue: h.Queue, Info: h.Info}},
			nil, append([]*os.File{h.Sockets[0], h.Memory, alive}, h.Sockets[1:]...)...)
	}
	return fmt.Errorf("%w: %s without a session", agentproto.ErrProtocol, q.Op)
}

// answer sends the reply to a request, or the error.
func (c *conn) answer(q *agentproto.Request, r *agentproto.Reply, err error, files ...*os.File) error {
	r.ID = q.ID
	if r.Error = agentproto.NewError(err); r.Error != nil {
		c.server.count(func(c *kagent.DaemonCounter) { c.Failed++ })
	}
	return c.write(r, files...)
}

func (c *conn) write(r *agentproto.Reply, files ...*os.File) error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	var err error
	if len(files) > 0 {
		err = c.awaitTaken()
	}
	if err == nil {
		c.files = c.files || len(files) > 0
		_ = c.c.SetWriteDeadline(time.Now().Add(writeTime))
		err = agentproto.WriteReply(c.c, r, files...)
	}
	if err != nil {
		c.hangUp()
	}
	return err
}

// The kernel counts descriptors in flight against this process's user, up to RLIMIT_NOFILE.
// Programs that do not receive theirs could keep the agent from sending any, also to the
// descriptor store. So one message with descriptors is in flight at a time, and until the
// program has received it the connection counts for the program's user.

// awaitTaken waits until the program has received everything that was sent to it.
func (c *conn) awaitTaken() error {
	for end := time.Now().Add(writeTime); !c.taken(); time.Sleep(time.Millisecond) {
		switch {
		case c.hung.Load():
			return net.ErrClosed
		case time.Now().After(end):
			return os.ErrDeadlineExceeded
		}
	}
	return nil
}

// linger waits until the program has received or dropped the descriptors that were sent to it.
func (c *conn) linger() {
	c.hangUp()
	for pause := time.Millisecond; c.files && !c.taken(); pause = min(2*pause, time.Second) {
		select {
		case <-time.After(pause):
		case <-c.server.done:
			return
		}
	}
}

// taken reports whether the program has received or dropped everything that was sent to it.
func (c *conn) taken() bool {
	left := 0
	err := fds.With(c.c, func(fd int) (err error) {
		left, err = unix.IoctlGetInt(fd, unix.SIOCOUTQ)
		return err
	})
	return err != nil || left == 0
}

// hangUp ends the connection. Its reader then accepts nothing more from the program. Close
// would wait for a reader that the kernel delays while it closes descriptors from the program.
func (c *conn) hangUp() {
	c.hung.Store(true)
	_, _ = c.c.CloseRead(), c.c.CloseWrite()
}

// errHungUp: the program or the agent has hung up.
var errHungUp = errors.New("the program has hung up")

// whilePresent returns a context that ends when the program hangs up, for a request that waits
// while the connection is not read. The reader must not continue before stop.
func (c *conn) whilePresent() (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	raw, err := c.c.SyscallConn()
	if err != nil {
		return ctx, func() { cancel(nil) }
	}
	_ = c.c.SetReadDeadline(time.Time{})
	over := make(chan struct{})
	go func() {
		defer close(over)
		if raw.Read(isHungUp) == nil {
			cancel(errHungUp)
		}
	}()
	return ctx, func() {
		_ = c.c.SetReadDeadline(time.Unix(1, 0)) // talk sets a new deadline before it reads
		<-over
		cancel(nil)
	}
}

// isHungUp reports whether the other end of a socket is closed, or shut.
func isHungUp(socket uintptr) bool {
	poll := []unix.PollFd{{Fd: int32(socket), Events: unix.POLLRDHUP}}
	_, err := unix.Poll(poll, 0)
	return err == nil && poll[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0
}

// isHungUp reports whether one of the two has hung up on the other.
func (c *conn) isHungUp() (is bool) {
	if c.hung.Load() {
		return true
	}
	err := fds.With(c.c, func(fd int) error {
		is = isHungUp(uintptr(fd))
		return nil
	})
	return is || err != nil
}

// wait runs a request that may block in a goroutine of its own.
func (c *conn) wait(q agentproto.Request, f func(ctx context.Context) (*agentproto.Reply, error)) error {
	ctx, cancel := context.WithCancel(context.Background())
	if q.Timeout > 0 {
		ctx, cancel = context.WithTimeout(context.Background(), q.Timeout)
	}
	c.mu.Lock()
	waiting, again := len(c.calls), c.calls[q.ID] != nil
	if waiting < maxCalls && !again {
		c.calls[q.ID] = cancel
	}
	c.mu.Unlock()
	switch {
	case waiting >= maxCalls:
		cancel()
		return c.answer(&q, &agentproto.Reply{}, fmt.Errorf("%w: %d requests wait", agentproto.ErrQuota, maxCalls))
	case again:
		cancel()
		return fmt.Errorf("%w: request %d twice", agentproto.ErrProtocol, q.ID)
	}
	c.work.Go(func() {
		r, err := f(ctx)
		cancel()
		c.mu.Lock()
		delete(c.calls, q.ID) // before the answer: the number may be used again
		c.mu.Unlock()
		if r == nil {
			r = &agentproto.Reply{}
		}
		_ = c.answer(&q, r, err)
		if r.Incoming != nil { // the program ignores the end of an exchange that it does not have yet
			c.notifyEnd(r.Incoming.Handle)
		}
	})
	return nil
}

func joinClose(err error, c io.Closer) error { return errors.Join(err, c.Close()) }
