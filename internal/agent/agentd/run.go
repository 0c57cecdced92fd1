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

	"viaxdp/internal/agent/fdstore"
	"viaxdp/internal/base/fds"
	"viaxdp/internal/base/rundir"
)

// Daemon is a Server with its socket and its descriptor store.
type Daemon struct {
	Config

	Socket string // path; its directory is made, for root alone to write
	// Mode is the socket's; 0: 0660. Without an Access of its own, Config has that which the mode gives:
	// the group's members if the group may write, every user if all may.
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
	lock, err := d.lock()
	if err != nil {
		return err
	}
	defer d.unlock(lock)
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

// siocUnixFile is SIOCUNIXFILE (include/uapi/linux/un.h): a descriptor, of O_PATH, of a socket's file.
const siocUnixFile = 0x89e0

// setRights sets mode and group of the socket's file, unless gid is negative. It names the file by the
// socket: in a directory that is another user's, a link may have taken the path's place.
func setRights(l *net.UnixListener, mode fs.FileMode, gid int) error {
	return fds.With(l, func(fd int) error {
		file, err := unix.IoctlRetInt(fd, siocUnixFile) // takes CAP_NET_ADMIN, as all that an agent does
		if err != nil {
			return os.NewSyscallError("SIOCUNIXFILE", err)
		}
		defer unix.Close(file)
		if gid >= 0 { // a system call that a filter may forbid
			err = os.NewSyscallError("chown of the socket", unix.Fchownat(file, "", -1, gid, unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW))
		}
		if err == nil { // fchmod(2) refuses a descriptor of O_PATH
			err = unix.Chmod(fmt.Sprintf("/proc/thread-self/fd/%d", file), uint32(mode.Perm()))
			err = os.NewSyscallError("chmod of the socket", err)
		}
		return err
	})
}

// refuseDescriptors has the kernel refuse those that programs send along: nobody asks for them,
// and there are some whose closing takes long. Kernels before 6.16 cannot.
func refuseDescriptors(l *net.UnixListener) {
	_ = fds.With(l, func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSRIGHTS, 0) })
}

// state is the path of something that agents share.
func (d *Daemon) state(suffix string) string {
	return filepath.Join(cmp.Or(d.StateDir, filepath.Dir(d.Socket)), filepath.Base(d.Socket)+suffix)
}

// lock makes sure that there is one agent for a socket. The kernel releases it when
// the process dies. It is on a file for this user only: a lock takes no more than
// the right to read, and whoever had that could keep the agent from starting.
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

// maxTries is how often something is put into a directory that a program may be about to remove.
const maxTries = 3

// keepDir makes the directory of the socket, which programs then leave although it is empty:
// containers may have it mounted, and an agent that is restarted serves there again.
func (d *Daemon) keepDir() error {
	if d.Listener != nil {
		return nil // another one's
	}
	if err := rundir.Keep(filepath.Dir(d.Socket)); err != nil {
		return fmt.Errorf("directory of the socket: %w", err)
	}
	return nil
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
		g, err := user.LookupGroup(DefaultGroup)
		if errors.As(err, new(user.UnknownGroupError)) || errors.Is(err, fs.ErrNotExist) { // no /etc/group
			return -1, nil
		}
		if err != nil {
			return -1, fmt.Errorf("group of the socket: %w", err)
		}
		return strconv.Atoi(g.Gid)
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

func (d *Daemon) mode() fs.FileMode { return cmp.Or(d.Mode, 0o660) }

// access is the users that the socket's mode and group let in.
func (d *Daemon) access() (g Grant, err error) {
	gid, err := d.groupID()
	if err != nil {
		return g, err
	}
	const write = 0o2 // connect(2) takes the right to write
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
