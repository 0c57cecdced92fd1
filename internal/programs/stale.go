package programs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// sockets are the paths in a directory that are named as a program's socket is.
func sockets(dir string) (paths []string) {
	all, _ := filepath.Glob(filepath.Join(dir, "*.sock"))
	for _, path := range all {
		if _, err := strconv.Atoi(strings.TrimSuffix(filepath.Base(path), ".sock")); err == nil {
			paths = append(paths, path)
		}
	}
	return paths
}

// Stale lists the sockets in a directory that nobody answers on. Of a directory
// that is another user's, which [Remove] leaves alone, it lists none.
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

// Remove removes a socket that [Stale] has listed. Nothing but a socket goes, and
// only in a directory that is this user's alone: another user could put a link
// where the directory or the socket was, and have root remove what it names.
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

// openOwn opens a directory that only this user can change, and that no link leads
// to. Who holds it holds this very directory, whatever becomes of its path.
func openOwn(dir string) (fd int, err error) {
	fd, err = unix.Openat2(unix.AT_FDCWD, dir, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && (int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0) {
		err = errors.New("others may change it: remove by hand what is stale there")
	}
	if err != nil {
		unix.Close(fd)
		return -1, &os.PathError{Op: "use", Path: dir, Err: err}
	}
	return fd, nil
}

// isStale tells whether err, of greet, means that nobody answers any more. A young
// socket may be one whose program is about to listen.
func isStale(path string, err error) bool {
	if !errors.Is(err, unix.ECONNREFUSED) {
		return false
	}
	st, err := os.Lstat(path)
	return err == nil && st.Mode().Type() == os.ModeSocket && time.Since(st.ModTime()) > youth
}

// youth is how old a socket is before it can be stale.
const youth = 2 * time.Second
