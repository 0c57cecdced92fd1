// Package rundir names the directories in which the programs of this project keep
// what must be found again: settings to restore, and who runs.
//
//	/run/via-xdp            root's: the state of testbed, doctor and tune
//	/run/via-xdp/proc       root's programs, a socket each
//	/run/user/UID/via-xdp   the same of a user
//
// All of it is gone after a reboot, as are the settings.
package rundir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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

// Programs is the directory in which this process says that it runs:
// $VIA_RUNTIME_DIR, else that of root's programs or the user's. It need not
// exist.
func Programs() (string, error) {
	dir, err := find("VIA_RUNTIME_DIR")
	if err == nil && os.Getenv("VIA_RUNTIME_DIR") == "" {
		dir = filepath.Join(dir, "proc")
	}
	return dir, err
}

// AllPrograms are the directories in which programs that this process may look
// at say that they run: for root those of every user.
func AllPrograms() []string {
	dir, err := Programs()
	if err != nil {
		return []string{filepath.Join(system, "proc")}
	}
	dirs := []string{dir}
	if os.Getenv("VIA_RUNTIME_DIR") == "" {
		more, _ := filepath.Glob(filepath.Join(users, "*", own, "proc"))
		for _, d := range append(more, filepath.Join(system, "proc")) {
			if d != dir {
				dirs = append(dirs, d)
			}
		}
	}
	return dirs
}

// Own refuses a directory or a file of [State] that others can change: what is
// written there is believed, and put back with the rights of this user. In a
// directory that is the user's own, a file stays what it was found to be.
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
