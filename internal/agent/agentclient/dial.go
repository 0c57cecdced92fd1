package agentclient

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/agentproto"
	"viaxdp/internal/base/fds"
)

// dial connects and completes the hello exchange.
func dial(ctx context.Context, socket string) (*net.UnixConn, *agentproto.Reader, *agentproto.Welcome, error) {
	c, err := connect(ctx, socket)
	if err != nil {
		return nil, nil, nil, noAgent(socket, err)
	}
	defer context.AfterFunc(ctx, func() {
		if errors.Is(ctx.Err(), context.Canceled) { // exchange handles the deadline
			_ = c.Close()
		}
	})()
	r := &agentproto.Reader{C: c}
	reply, files, err := exchange(c, r, &agentproto.Request{
		ID: agentproto.HelloID, Op: agentproto.OpHello, Versions: []int{agentproto.Version},
	}, helloTime)
	fds.CloseFiles(files...)
	if err == nil && reply.Welcome == nil {
		err = fmt.Errorf("%w: no welcome", agentproto.ErrProtocol)
	}
	if err != nil {
		return nil, nil, nil, errors.Join(fmt.Errorf("agent at %s: %w", socket, err), c.Close())
	}
	return c, r, reply.Welcome, nil
}

const fullPause = time.Millisecond // between two attempts while the socket's backlog is full

// connect connects. While the socket's backlog is full, connect(2) fails at once with EAGAIN: then it tries again
// until ctx ends, since programs of other users can keep the backlog full.
func connect(ctx context.Context, socket string) (*net.UnixConn, error) {
	var full error
	for {
		var d net.Dialer
		c, err := d.DialContext(ctx, "unix", socket)
		switch {
		case err == nil:
			return c.(*net.UnixConn), nil
		case errors.Is(err, unix.EAGAIN):
			full = err
		case full != nil && (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)):
			return nil, full
		default:
			return nil, err
		}
		select {
		case <-time.After(fullPause):
		case <-ctx.Done():
			return nil, full
		}
	}
}

// noAgent returns an error for a failed connect. If no agent listens, it names the command that
// starts one.
func noAgent(socket string, err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: %s", err, letIn(socket))
	}
	if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ECONNREFUSED) {
		return err
	}
	command := "via-xdp agent"
	if socket != DefaultSocket {
		command += " --socket " + socket
	}
	var op *net.OpError
	if errors.As(err, &op) {
		err = op.Err // without the socket's path
	}
	return fmt.Errorf("there is no agent at %s (%w): root starts one by %q", socket, err, command)
}

// letIn describes how this process's user gets permission to connect to a socket.
func letIn(socket string) string {
	var st unix.Stat_t
	switch err := unix.Stat(socket, &st); {
	case err != nil:
		return "a directory above the socket keeps this user out"
	case st.Mode&0o020 == 0 || st.Gid == 0:
		return "its socket is root's alone: the agent's settings (group, mode) say who may use it"
	}
	name := strconv.FormatUint(uint64(st.Gid), 10)
	if g, err := user.LookupGroupId(name); err == nil {
		name = g.Name
	}
	who := "USER"
	if u, err := user.Current(); err == nil {
		who = u.Username
	}
	return fmt.Sprintf("it serves members of the group %s: sudo usermod -aG %[1]s %s, and log in again; "+
		"or the agent's settings (group, mode) say who may use it", name, who)
}

// exchange sends a request and reads its reply, while no other request is under way.
func exchange(c *net.UnixConn, r *agentproto.Reader, q *agentproto.Request, limit time.Duration) (agentproto.Reply, []*os.File, error) {
	_ = c.SetDeadline(time.Now().Add(limit))
	defer c.SetDeadline(time.Time{})
	b, err := agentproto.Encode(q, agentproto.MaxRequest)
	if err == nil {
		_, err = write(c, b)
	}
	if err != nil && !errors.Is(err, unix.EPIPE) { // hung up, perhaps with a reason
		return agentproto.Reply{}, nil, unanswered(err, limit)
	}
	reply, files, err := r.ReadReply()
	switch {
	case err != nil:
		err = unanswered(err, limit)
	case reply.Error != nil:
		err = reply.Error
	case reply.ID != q.ID:
		err = fmt.Errorf("%w: the answer to another request", agentproto.ErrProtocol)
	}
	return reply, files, err
}

// silentError is the error of a request that the agent has not answered in time.
type silentError struct {
	limit time.Duration
	err   error
}

func (e *silentError) Error() string {
	return fmt.Sprintf("the agent has not answered within %v: it is stopped, or waits for a driver: "+
		"try again, look at its log, or restart it", e.limit)
}

func (e *silentError) Unwrap() error { return e.err }

// unanswered turns a timeout of exchange into an error that names the agent.
func unanswered(err error, limit time.Duration) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return &silentError{limit, err}
	}
	return err
}

// write sends b on a connection. If the agent hung up, Write of c would also raise SIGPIPE, which ends a program in C.
func write(c *net.UnixConn, b []byte) (n int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var failed error
	err = raw.Write(func(fd uintptr) bool {
		for n < len(b) {
			k, err := unix.SendmsgN(int(fd), b[n:], nil, nil, unix.MSG_NOSIGNAL)
			switch err {
			case nil:
				n += k
			case unix.EINTR:
			case unix.EAGAIN:
				return false
			default:
				failed = os.NewSyscallError("sendmsg", err)
				return true
			}
		}
		return true
	})
	return n, cmp.Or(err, failed)
}
