// Package rundir names the directories in which the programs of this project keep
// state for other processes: settings to restore, and the running programs.
//
//	/run/via-xdp            root's: the state of testbed, doctor and tune
//	/run/via-xdp/proc       root's programs, a socket each
//	/run/user/UID/via-xdp   the same of a user
//
// A reboot removes all of it, and the settings too. The last program that uses a directory removes it
// if a program made it. A directory that existed before, or in which an agent serves, stays.
package rundir

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

const (
	system = "/run/via-xdp"
	users  = "/run/user"
	own    = "via-xdp"
)

// State is the directory of settings to restore: $VIA_STATE_DIR, else root's or
// the user's. It need not exist.
func State() (string, error) { return find("VIA_STATE_DIR") }

// Programs is the directory in which this process announces itself:
// $VIA_RUNTIME_DIR, else that of root's programs or the user's. It need not
// exist.
func Programs() (string, error) {
	dir, err := find("VIA_RUNTIME_DIR")
	if err == nil && os.Getenv("VIA_RUNTIME_DIR") == "" {
		dir = filepath.Join(dir, "proc")
	}
	return dir, err
}

// AllPrograms lists the directories in which the programs that this process may
// query announce themselves: for root those of every user.
func AllPrograms() []string {
	dir, err := Programs()
	if err != nil {
		return []string{filepath.Join(system, "proc")}
	}
	// The path to this user's own directory may have links in it, such as /var/run.
	if resolved, err := filepath.EvalSymlinks(dir); err == nil {
		dir = resolved
	}
	dirs := []string{dir}
	if os.Getenv("VIA_RUNTIME_DIR") == "" {
		var more []string
		var entries []os.DirEntry
		if os.Geteuid() == 0 { // to others those of other users are closed
			entries, _ = os.ReadDir(users)
		}
		for _, e := range entries {
			more = append(more, filepath.Join(users, e.Name(), own, "proc"))
		}
		for _, d := range append(more, filepath.Join(system, "proc")) {
			if d != dir {
				dirs = append(dirs, d)
			}
		}
	}
	return dirs
}

// OfUser splits dir into home, the directory that the system makes for a user, and the rest of the path.
func OfUser(dir string) (home, rest string, ok bool) {
	rest, ok = strings.CutPrefix(filepath.Clean(dir), users+"/")
	uid, rest, below := strings.Cut(rest, "/")
	return filepath.Join(users, uid), rest, ok && below
}

// Own refuses a directory or a file of [State] that other users can change, because
// settings are restored from it with the rights of this user. In a directory that
// only this user can change, the result stays valid.
func Own(path string) error {
	st, err := os.Lstat(path)
	if err != nil {
		return err
	}
	uid := os.Geteuid()
	owner := uid
	if s, ok := st.Sys().(*syscall.Stat_t); ok {
		owner = int(s.Uid)
	}
	const remedy = "look at what is there, and remove it, or take another directory by VIA_STATE_DIR"
	switch {
	case !st.IsDir() && !st.Mode().IsRegular():
		return fmt.Errorf("%s is neither a directory nor a file: %s", path, remedy)
	case owner == 0 && uid != 0:
		return &fs.PathError{Op: "use", Path: path, Err: fs.ErrPermission}
	case owner != uid:
		return fmt.Errorf("%s belongs to user %d and not to this one, %d, whose settings would be put back as it says: %s",
			path, owner, uid, remedy)
	case st.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("others may write to %s (mode %#o), and settings would be put back as it says: %s, or chmod go-w",
			path, st.Mode().Perm(), remedy)
	}
	return nil
}

func find(variable string) (string, error) {
	if dir := os.Getenv(variable); dir != "" {
		return dir, nil
	}
	if os.Geteuid() == 0 {
		return system, nil
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, own), nil
	}
	return "", errors.New("no directory for state: set " + variable + " or XDG_RUNTIME_DIR")
}

// removable marks a directory that [Make] made: the sticky bit, which has no effect if only the
// owner may write. Only a marked directory is removed when it is empty. Another one may be mounted
// in containers, which would continue to see the removed directory.
const removable = os.ModeSticky

func isRemovable(st fs.FileInfo) bool {
	s, ok := st.Sys().(*syscall.Stat_t)
	return st.IsDir() && st.Mode()&removable != 0 && st.Mode().Perm()&0o022 == 0 && ok && int(s.Uid) == os.Geteuid()
}

// Make creates a directory and its parent, if they do not exist, so that [Unmake] removes them. It
// also creates the directories above, which stay. While they are empty, a program that ends may
// remove them at any time: call Make again.
func Make(dir string) error {
	if err := os.MkdirAll(filepath.Dir(filepath.Dir(dir)), 0o755); err != nil {
		return err
	}
	for _, path := range []string{filepath.Dir(dir), dir} {
		if err := syscall.Mkdir(path, syscall.S_ISVTX|0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return &fs.PathError{Op: "mkdir", Path: path, Err: err}
		}
	}
	return nil
}

// Unmake removes what [Make] made of a directory and the one that it is in, as far as they are empty.
func Unmake(dir string) {
	for _, path := range []string{dir, filepath.Dir(dir)} {
		st, err := os.Lstat(path)
		if err != nil || !isRemovable(st) || syscall.Rmdir(path) != nil {
			return
		}
	}
}

// Keep creates a directory, if it does not exist, that [Unmake] leaves. This is certain only once the
// directory has an entry: a program may be about to remove an empty one.
func Keep(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if st, err := os.Stat(dir); err != nil || !isRemovable(st) {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	st, err := d.Stat()
	if err != nil || !isRemovable(st) {
		return err
	}
	return d.Chmod(st.Mode().Perm())
}

// Listen opens a Unix socket to which only this user and root can connect, regardless of the umask. It looks up no
// path twice: in another user's directory the path may be a link by then.
func Listen(network, path string) (*net.UnixListener, error) {
	c := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		// The file gets at most the permissions of the socket (unix_bind_bsd, net/unix/af_unix.c).
		cerr := raw.Control(func(fd uintptr) { err = syscall.Fchmod(int(fd), 0o600) })
		return errors.Join(cerr, err)
	}}
	l, err := c.Listen(context.Background(), network, path)
	if err != nil {
		return nil, err
	}
	return l.(*net.UnixListener), nil
}

// Lock locks a file of state for this process, which need not exist, and makes its directory. A directory or a
// file that others can change is refused. The lock is on a separate file that only this user can open, because
// any process that can read a file can lock it and block others.
func Lock(path string) (*os.File, error) {
	dir := filepath.Dir(path)
	for {
		if err := Make(dir); err != nil {
			return nil, err
		}
		err := Own(dir)
		var f *os.File
		if err == nil {
			f, err = os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue // the process that had the lock has removed the directory
		}
		if err != nil {
			return nil, err
		}
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		locked, err1 := f.Stat()
		current, err2 := os.Lstat(f.Name())
		if err1 != nil || err2 != nil || !os.SameFile(locked, current) {
			f.Close() // or the file
			continue
		}
		if err := Own(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			Unlock(f)
			return nil, err
		}
		return f, nil
	}
}

// Unlock undoes Lock. If there is no state, it leaves nothing behind.
func Unlock(lock *os.File) error {
	os.Remove(lock.Name())
	Unmake(filepath.Dir(lock.Name()))
	return lock.Close()
}

// Save atomically replaces a file of state by v in JSON, or removes it if v is nil. The file must be locked.
func Save(path string, v any) error {
	fresh := path + ".new" // left by a crash
	if err := remove(fresh); err != nil {
		return err
	}
	if v == nil {
		return remove(path)
	}
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	f, err := os.OpenFile(fresh, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644) // follows no link
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(fresh, path)
	}
	if err != nil {
		return errors.Join(err, remove(fresh))
	}
	return nil
}

// remove removes a file, which need not exist.
func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
