package rundir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

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

// Unlock ends what Lock began. Where there is no state, nothing is left behind.
func Unlock(lock *os.File) error {
	os.Remove(lock.Name())
	Unmake(filepath.Dir(lock.Name()))
	return lock.Close()
}

// Save replaces a file of state as a whole, by what v is in JSON; nil: by none. The file is locked.
func Save(path string, v any) error {
	fresh := path + ".new" // of a crash
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
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(fresh, path)
}

// remove removes a file, which need not exist.
func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
