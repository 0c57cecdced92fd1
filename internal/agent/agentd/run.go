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
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/fdstore"
	"viaxdp/internal/base/fds"
	"viaxdp/internal/base/rundir"
)

// Daemon is a Server with its socket and its descriptor store.
type Daemon struct {
	Config

	Socket string // path; its directory is created, writable by root only
	// Mode is the socket's mode; 0: 0660. Without an Access of its own, Config gets the mode's: the group's
	// members if the group may write, every user if all may.
	Mode  fs.FileMode
	Group string // of the socket, name or number; empty: DefaultGroup if there is one, else the agent's
	// StateDir is where the lock and the descriptor store's socket are, a directory that only
	// the agent's user can change; empty: the socket's.
	StateDir string
	// Listener, unless nil, listens already, for socket activation.
	Listener *net.UnixListener
	// FDStored is the command that calls fdstore.Main; empty: no descriptor store, and
	// programs do not survive the agent.
	FDStored []string
	// UntilIdle, unless 0, ends Run when the agent has had no program for this time. The socket's
	// directory then goes with it, if an agent made it and nothing else is there.
	UntilIdle time.Duration
	// LogFile, unless empty, is where Log goes. When programs are served, Run renames it to the socket's path with .log
	// at the end, and removes it at its own end, unless it fails.
	LogFile string
	// Ready, unless nil, is called when programs are served, with the server.
	Ready func(*Server)
}

// BusyError means that another agent has the socket.
type BusyError struct{ Socket string }

func (e *BusyError) Error() string {
	return fmt.Sprintf("another agent serves at %s: stop it, or take another socket", e.Socket)
}

// Run serves until ctx ends. It works in the network namespace of the calling
// thread, which must not change before Ready is called.
func (d *Daemon) Run(ctx context.Context) (err error) {
	if err := d.Check(); err != nil {
		return err
	}
	lock, err := d.lock()
	if err != nil {
		return err
	}
	defer func() {
		if err == nil && d.LogFile != "" {
			_ = os.Remove(d.Socket + logSuffix)
		}
		d.unlock(lock)
		if d.UntilIdle > 0 {
			rundir.Unmake(filepath.Dir(d.Socket))
		}
	}()
	var kept []fdstore.Entry
	cfg := d.Config
	if cfg.Access.isZero() {
		if cfg.Access, err = d.access(); err != nil {
			return err
		}
	}
	if len(d.FDStored) > 0 {
		k, err := fdstore.Start(d.state(".fds"), d.Log, d.FDStored[0], d.FDStored[1:]...)
		if err != nil {
			return err
		}
		defer k.Close()
		if kept, err = k.List(); err != nil {
			return fmt.Errorf("fdstore: %w", err)
		}
		cfg.FDStore = k
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
		file, err := socketFile(l)
		if err != nil {
			return errors.Join(err, l.Close(), os.Remove(d.Socket), s.shut())
		}
		defer d.removeSocket(file)
	}
	refuseDescriptors(l)
	if d.LogFile != "" {
		if err := os.Rename(d.LogFile, d.Socket+logSuffix); err != nil {
			return errors.Join(err, l.Close(), s.shut())
		}
	}
	if d.Ready != nil {
		d.Ready(s)
	}
	if d.UntilIdle > 0 {
		var end context.CancelFunc
		ctx, end = context.WithCancel(ctx)
		defer end()
		go s.endIdle(ctx, d.UntilIdle, end)
	}
	return s.Serve(ctx, l)
}

// endIdle calls end when the server has had no program for a time, or returns when ctx ends.
func (s *Server) endIdle(ctx context.Context, limit time.Duration, end func()) {
	look := time.NewTicker(max(limit/8, time.Millisecond))
	defer look.Stop()
	var accepted uint64
	for last := time.Now(); time.Since(last) < limit; {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
		s.mu.Lock()
		if len(s.conns) > 0 || len(s.sessions) > 0 || len(s.pinnedQueues) > 0 || s.counts.Accepted != accepted {
			last, accepted = time.Now(), s.counts.Accepted
		}
		s.mu.Unlock()
	}
	s.log.Info("the agent ends: no program has used it", "time", limit)
	end()
}

// freshSuffix names the socket until it has its permissions, logSuffix the log.
const (
	freshSuffix = ".new"
	logSuffix   = ".log"
)

// Check returns an error if a path of a socket that Run makes is too long for a socket address,
// or if the group does not exist.
func (d *Daemon) Check() error {
	var paths []string
	if d.Listener == nil {
		if _, err := d.groupID(); err != nil {
			return err
		}
		paths = append(paths, d.Socket+freshSuffix)
	}
	if len(d.FDStored) > 0 {
		paths = append(paths, d.state(".fds"))
	}
	const most = len(unix.RawSockaddrUnix{}.Path) - 1 // and a zero
	for _, p := range paths {
		if len(p) > most {
			return fmt.Errorf("socket %s: a path of %d bytes, where the kernel takes %d: take a shorter one", p, len(p), most)
		}
	}
	return nil
}

// listenAlone opens a socket to which only root can connect, regardless of the umask.
func listenAlone(path string) (*net.UnixListener, error) {
	c := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		// The file gets at most the permissions of the socket (unix_bind_bsd, net/unix/af_unix.c).
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

// siocUnixFile is SIOCUNIXFILE (include/uapi/linux/un.h). It returns an O_PATH descriptor of a socket's file.
const siocUnixFile = 0x89e0

// socketFile returns the file of the socket, opened with O_PATH. The path may lead to another one by now.
func socketFile(l *net.UnixListener) (f *os.File, err error) {
	err = fds.With(l, func(fd int) error {
		file, err := unix.IoctlRetInt(fd, siocUnixFile) // needs CAP_NET_ADMIN, as do all operations of an agent
		if err != nil {
			return os.NewSyscallError("SIOCUNIXFILE", err)
		}
		f = os.NewFile(uintptr(file), "file of the socket")
		return nil
	})
	return f, err
}

// setRights sets mode and group of the socket's file, unless gid is negative. It gets the file from the
// socket: in a directory of another user, the path may be a link by now.
func setRights(l *net.UnixListener, mode fs.FileMode, gid int) error {
	f, err := socketFile(l)
	if err != nil {
		return err
	}
	defer f.Close()
	return fds.With(f, func(file int) (err error) {
		if gid >= 0 { // a seccomp filter may forbid the system call
			err = os.NewSyscallError("chown of the socket", unix.Fchownat(file, "", -1, gid, unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW))
		}
		if err == nil { // fchmod(2) refuses a descriptor of O_PATH
			err = unix.Chmod(fmt.Sprintf("/proc/thread-self/fd/%d", file), uint32(mode.Perm()))
			err = os.NewSyscallError("chmod of the socket", err)
		}
		return err
	})
}

// refuseDescriptors has the kernel refuse descriptors that programs send: the protocol has none
// in that direction, and closing one can take long. Kernels before 6.16 lack the option.
func refuseDescriptors(l *net.UnixListener) {
	_ = fds.With(l, func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSRIGHTS, 0) })
}

// state returns the path of a file that successive agents share.
func (d *Daemon) state(suffix string) string {
	return filepath.Join(cmp.Or(d.StateDir, filepath.Dir(d.Socket)), filepath.Base(d.Socket)+suffix)
}

// lock ensures that a socket has one agent. The kernel releases the lock when the process dies.
// Only this user can open the file: flock needs no more than read permission, so any other user
// who could read the file could keep the agent from starting.
func (d *Daemon) lock() (*os.File, error) {
	for tries := 1; ; tries++ {
		if err := d.keepDir(); err != nil {
			return nil, err
		}
		f, err := os.OpenFile(d.state(".lock"), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
		if errors.Is(err, fs.ErrNotExist) && tries < maxTries {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("lock: %w", err)
		}
		err = fds.With(f, func(fd int) error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
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

// maxTries is the number of attempts to create a file in a directory that another process may be removing.
const maxTries = 3

// keepDir creates the directory of the socket. It is kept even if it is empty: containers may have it
// mounted, and a restarted agent serves there again. With UntilIdle it is removed.
func (d *Daemon) keepDir() error {
	if d.Listener != nil {
		return nil // another process's
	}
	create := rundir.Keep
	if d.UntilIdle > 0 {
		create = rundir.Make
	}
	if err := create(filepath.Dir(d.Socket)); err != nil {
		return fmt.Errorf("directory of the socket: %w", err)
	}
	return nil
}

// unlock removes the file before it releases the lock, so that it cannot remove the file of a
// later agent.
func (d *Daemon) unlock(f *os.File) {
	_ = os.Remove(f.Name())
	_ = f.Close()
}

// removeSocket removes the socket, and closes its file. It leaves the socket of an agent with another state
// directory, which may have taken the path since this agent's listener was closed. The open file keeps its inode
// number from being used again.
func (d *Daemon) removeSocket(file *os.File) {
	defer file.Close()
	ours, err := file.Stat()
	if err != nil {
		return
	}
	if current, err := os.Lstat(d.Socket); err == nil && os.SameFile(ours, current) {
		_ = os.Remove(d.Socket)
	}
}

// removeStaleSocket removes the socket of an earlier agent. It removes no other kind of file, since the path may
// be a mistake.
func removeStaleSocket(path string) error {
	st, err := os.Lstat(path)
	if err == nil && st.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s is there and is no socket: take another path, or remove it", path)
	}
	if err == nil {
		err = os.Remove(path)
	}
	if errors.Is(err, fs.ErrNotExist) { // there was none, or another agent has removed it meanwhile
		return nil
	}
	return err
}

// groupID returns the number of the socket's group, or -1.
func (d *Daemon) groupID() (int, error) {
	g, err := user.LookupGroup(cmp.Or(d.Group, DefaultGroup))
	if err != nil && d.Group != "" {
		g, err = user.LookupGroupId(d.Group)
	}
	switch {
	case err == nil:
		return strconv.Atoi(g.Gid)
	case d.Group != "":
		return -1, fmt.Errorf("group of the socket: there is no group %q", d.Group)
	case errors.As(err, new(user.UnknownGroupError)) || errors.Is(err, fs.ErrNotExist): // no /etc/group
		return -1, nil
	}
	return -1, fmt.Errorf("group of the socket: %w", err)
}

func (d *Daemon) mode() fs.FileMode { return cmp.Or(d.Mode, 0o660) }

// access returns the users that the socket's mode and group admit.
func (d *Daemon) access() (g Grant, err error) {
	gid, err := d.groupID()
	if err != nil {
		return g, err
	}
	const write = 0o2 // connect(2) needs write permission
	g.Everyone = d.mode()&write != 0
	switch {
	case g.Everyone:
	case d.mode()&(write<<3) == 0:
	case gid >= 0:
		g.Groups = []uint32{uint32(gid)}
	case d.Log != nil:
		d.Log.Warn("only root may use the agent: there is no group " + DefaultGroup +
			" (groupadd --system " + DefaultGroup + ", and restart the agent), and the settings name no other (group, mode)")
	}
	return g, nil
}

// listen opens the socket. The socket has its final permissions before a connect can succeed.
func (d *Daemon) listen() (*net.UnixListener, error) {
	gid, err := d.groupID()
	if err != nil {
		return nil, err
	}
	// An agent with another state directory may serve here.
	switch c, err := net.Dial("unix", d.Socket); {
	case err == nil:
		return nil, joinClose(&BusyError{d.Socket}, c)
	case errors.Is(err, unix.EAGAIN): // its backlog is full
		return nil, &BusyError{d.Socket}
	case errors.Is(err, unix.EPROTOTYPE): // of datagrams, for instance
		return nil, fmt.Errorf("%s is the socket of another program that runs: take another path", d.Socket)
	}
	fresh := d.Socket + freshSuffix
	for _, path := range []string{fresh, d.Socket} {
		if err := removeStaleSocket(path); err != nil {
			return nil, err
		}
	}
	var l *net.UnixListener
	for tries := 1; ; tries++ {
		if err := d.keepDir(); err != nil {
			return nil, err
		}
		if l, err = listenAlone(fresh); !errors.Is(err, fs.ErrNotExist) || tries == maxTries {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	err = setRights(l, d.mode(), gid)
	if d.Group == "" && gid >= 0 && errors.Is(err, unix.EPERM) {
		if d.Log != nil {
			d.Log.Warn("only root may connect: the agent's user cannot give its socket to the group "+DefaultGroup, "error", err)
		}
		err = setRights(l, d.mode(), -1)
	}
	if err == nil {
		err = os.Rename(fresh, d.Socket)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close(), os.Remove(fresh))
	}
	return l, nil
}
