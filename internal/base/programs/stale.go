package programs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/base/rundir"
)

// Bounds of what is read in a directory, which may be another user's.
const (
	maxSockets = 1024
	maxEntries = 4 * maxSockets // names that are read
)

// sockets returns the paths in a directory that have the name of a program's socket.
func sockets(dir string) (paths []string) {
	fd, _, err := openDir(dir, unix.O_RDONLY)
	if err != nil {
		return nil
	}
	d := os.NewFile(uintptr(fd), dir)
	defer d.Close()
	names, _ := d.Readdirnames(maxEntries)
	for _, name := range names {
		number, ok := strings.CutSuffix(name, ".sock")
		if _, err := strconv.Atoi(number); ok && err == nil && len(paths) < maxSockets {
			paths = append(paths, filepath.Join(dir, name))
		}
	}
	slices.Sort(paths)
	return paths
}

// openDir opens a directory through a path without symbolic links, and returns its state. It does not
// enter what a user has mounted in the user's own directory in /run/user, which could block it.
func openDir(dir string, flags uint64) (fd int, st unix.Stat_t, err error) {
	at, path, resolve := unix.AT_FDCWD, dir, uint64(unix.RESOLVE_NO_SYMLINKS)
	if home, rest, ok := rundir.OfUser(dir); ok {
		if at, err = unix.Open(home, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0); err != nil {
			return -1, st, &os.PathError{Op: "open", Path: home, Err: err}
		}
		defer unix.Close(at)
		path, resolve = rest, resolve|unix.RESOLVE_NO_XDEV
	}
	fd, err = unix.Openat2(at, path, &unix.OpenHow{Flags: flags | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: resolve})
	if err == nil {
		if err = unix.Fstat(fd, &st); err != nil {
			unix.Close(fd)
		}
	}
	if err != nil {
		return -1, st, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	return fd, st, nil
}

// Stale lists the sockets in a directory on which no process listens. It lists none
// in another user's directory, which [Remove] leaves alone.
func Stale(dir string) (paths []string) {
	fd, err := openOwn(dir)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	for _, path := range sockets(dir) {
		if _, err := greet(path); isStale(path, err) {
			paths = append(paths, path)
		}
	}
	return paths
}

// Remove removes a socket that [Stale] has listed. It removes only sockets, and only
// in a directory that no other user can change: another user could replace the
// directory or the socket by a link, and make root remove what the link names.
func Remove(path string) error {
	fd, err := openOwn(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	name := filepath.Base(path)
	if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return fmt.Errorf("%s is no socket: it is left", path)
	}
	if err := unix.Unlinkat(fd, name, 0); err != nil {
		return &os.PathError{Op: "unlink", Path: path, Err: err}
	}
	return nil
}

// openOwn opens a directory that only this user can change. The descriptor stays that of this directory if its path
// changes.
func openOwn(dir string) (fd int, err error) {
	fd, st, err := openDir(dir, unix.O_PATH)
	if err != nil {
		return -1, err
	}
	if int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		unix.Close(fd)
		return -1, &os.PathError{Op: "use", Path: dir, Err: errors.New("other users may change it: remove stale sockets by hand")}
	}
	return fd, nil
}

// isStale reports whether err, from greet, means that no process listens any more. The
// program of a young socket may be about to listen.
func isStale(path string, err error) bool {
	if !errors.Is(err, unix.ECONNREFUSED) {
		return false
	}
	st, err := os.Lstat(path)
	return err == nil && st.Mode().Type() == os.ModeSocket && time.Since(st.ModTime()) > youth
}

// youth is the age from which a socket can be stale.
const youth = 2 * time.Second
