package agentd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"viaxdp/kagent"
	"viaxdp/kagent/keeper"
)

// Daemon is a Server with its socket and its keeper.
type Daemon struct {
	Config

	Socket string      // path; its directory is made, for root alone to write
	Mode   fs.FileMode // of the socket; 0: 0666, anybody may connect
	Group  string      // of the socket, name or number; empty: the agent's
	// StateDir is where the lock and the keeper's socket are, a directory that only
	// the agent's user can change; empty: the socket's.
	StateDir string
	// Listener, unless nil, listens already, for socket activation.
	Listener *net.UnixListener
	// Keeper is the command that calls keeper.Main; empty: no keeper, and
	// programs do not survive the agent.
	Keeper []string
	// Ready, unless nil, is called when programs are served, with the server.
	Ready func(*Server)
}

// BusyError says that another agent has the socket.
type BusyError struct{ Socket string }

func (e *BusyError) Error() string {
	return fmt.Sprintf("another agent serves at %s: stop it, or take another socket", e.Socket)
}

// Run serves until ctx ends. It works in the network namespace of the calling
// thread, which must not change before Ready is called.
func (d *Daemon) Run(ctx context.Context) error {
	if err := d.Check(); err != nil {
		return err
	}
	if d.Listener == nil {
		if err := os.MkdirAll(filepath.Dir(d.Socket), 0o755); err != nil {
			return fmt.Errorf("directory of the socket: %w", err)
		}
	}
	lock, err := d.lock()
	if err != nil {
		return err
	}
	defer d.unlock(lock)
	var kept []kagent.Item
	cfg := d.Config
	if len(d.Keeper) > 0 {
		k, err := keeper.Start(d.state(".keeper"), d.Log, d.Keeper[0], d.Keeper[1:]...)
		if err != nil {
			return err
		}
		defer k.Close()
		if kept, err = k.List(); err != nil {
			return fmt.Errorf("keeper: %w", err)
		}
		cfg.Vault = k
	}
	s, err := New(cfg, kept)
	if err != nil {
		return err
	}
	l := d.Listener
	if l == nil {
		if l, err = d.listen(); err != nil {
			return errors.Join(err, s.shut())
		}
		defer os.Remove(d.Socket)
	}
	refuseDescriptors(l)
	if d.Ready != nil {
		d.Ready(s)
	}
	return s.Serve(ctx, l)
}

// freshSuffix is of the socket until it has its rights.
const freshSuffix = ".new"

// Check tells whether the paths of the sockets that Run makes are short enough to be
// those of sockets, and whether their group is there.
func (d *Daemon) Check() error {
	var paths []string
	if d.Listener == nil {
		if _, err := d.groupID(); err != nil {
			return err
		}
		paths = append(paths, d.Socket+freshSuffix)
	}
	if len(d.Keeper) > 0 {
		paths = append(paths, d.state(".keeper"))
	}
	const most = len(unix.RawSockaddrUnix{}.Path) - 1 // and a zero
	for _, p := range paths {
		if len(p) > most {
			return fmt.Errorf("socket %s: a path of %d bytes, where the kernel takes %d: take a shorter one", p, len(p), most)
		}
	}
	return nil
}

// listenAlone opens a socket that nobody but root can connect to, whatever the umask.
func listenAlone(path string) (*net.UnixListener, error) {
	c := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		// The file will have no more rights than the socket (unix_bind_bsd, net/unix/af_unix.c).
		cerr := raw.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0) })
		return errors.Join(cerr, err)
	}}
	any, err := c.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, err
	}
	l := any.(*net.UnixListener)
	l.SetUnlinkOnClose(false)
	return l, nil
}

// refuseDescriptors has the kernel refuse those that programs send along: nobody asks for them,
// and there are some whose closing takes long. Kernels before 6.16 cannot.
func refuseDescriptors(l *net.UnixListener) {
	if raw, err := l.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSRIGHTS, 0) })
	}
}

// state is the path of something that agents share.
func (d *Daemon) state(suffix string) string {
	return filepath.Join(cmp.Or(d.StateDir, filepath.Dir(d.Socket)), filepath.Base(d.Socket)+suffix)
}

// lock makes sure that there is one agent for a socket. The kernel releases it when
// the process dies. It is on a file for this user only: a lock takes no more than
// the right to read, and whoever had that could keep the agent from starting.
func (d *Daemon) lock() (*os.File, error) {
	for {
		f, err := os.OpenFile(d.state(".lock"), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, fmt.Errorf("lock: %w", err)
		}
		raw, err := f.SyscallConn()
		if err == nil {
			cerr := raw.Control(func(fd uintptr) { err = unix.Flock(int(fd), unix.LOCK_EX|unix.LOCK_NB) })
			err = errors.Join(err, cerr)
		}
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, joinClose(&BusyError{d.Socket}, f)
		}
		locked, serr := f.Stat()
		if err = errors.Join(err, serr); err != nil {
			return nil, joinClose(fmt.Errorf("lock: %w", err), f)
		}
		// The agent before this one may have removed it in between.
		if current, err := os.Lstat(f.Name()); err == nil && os.SameFile(locked, current) {
			return f, nil
		}
		_ = f.Close()
	}
}

// unlock removes the file while it is locked, so that nobody's is removed who came
// after.
func (d *Daemon) unlock(f *os.File) {
	_ = os.Remove(f.Name())
	_ = f.Close()
}

// removeSocket removes what an agent has left, and nothing that is no socket: the path may
// be a mistake.
func removeSocket(path string) error {
	st, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err == nil && st.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s is there and is no socket: take another path, or remove it", path)
	}
	if err == nil {
		err = os.Remove(path)
	}
	if errors.Is(err, fs.ErrNotExist) { // another agent has, meanwhile
		return nil
	}
	return err
}

// groupID is the number of the socket's group, or -1.
func (d *Daemon) groupID() (int, error) {
	if d.Group == "" {
		return -1, nil
	}
	g, err := user.LookupGroup(d.Group)
	if err != nil {
		g, err = user.LookupGroupId(d.Group)
	}
	if err != nil {
		return -1, fmt.Errorf("group of the socket: there is no group %q", d.Group)
	}
	return strconv.Atoi(g.Gid)
}

// listen opens the socket. It has its final rights before anybody can connect.
func (d *Daemon) listen() (*net.UnixListener, error) {
	gid, err := d.groupID()
	if err != nil {
		return nil, err
	}
	// One that keeps its state elsewhere may serve here.
	switch c, err := net.Dial("unix", d.Socket); {
	case err == nil:
		return nil, joinClose(&BusyError{d.Socket}, c)
	case errors.Is(err, unix.EAGAIN): // too many wait for it
		return nil, &BusyError{d.Socket}
	}
	fresh := d.Socket + freshSuffix
	for _, path := range []string{fresh, d.Socket} {
		if err := removeSocket(path); err != nil {
			return nil, err
		}
	}
	l, err := listenAlone(fresh)
	if err != nil {
		return nil, err
	}
	err = os.Chmod(fresh, cmp.Or(d.Mode, 0o666))
	if err == nil && gid >= 0 { // a system call that a filter may forbid
		err = os.Chown(fresh, -1, gid)
	}
	if err == nil {
		err = os.Rename(fresh, d.Socket)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close(), os.Remove(fresh))
	}
	return l, nil
}
