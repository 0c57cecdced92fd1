package names

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"
)

// stamp distinguishes versions of a file without reading it.
type stamp struct {
	dev, ino      uint64
	size          int64
	mtime, change syscall.Timespec
}

func stampOf(info fs.FileInfo) stamp {
	s := stamp{size: info.Size()}
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		s.dev, s.ino, s.mtime, s.change = uint64(sys.Dev), sys.Ino, sys.Mtim, sys.Ctim
	}
	return s
}

// settling is the time after a change in which another change may get the same time stamp: the coarsest
// resolution of any file system.
const settling = 2 * time.Second

// settled reports whether a file that is read at the given time can be
// distinguished from one that changes later.
func (s stamp) settled(at time.Time) bool { return at.Sub(time.Unix(s.change.Unix())) > settling }

// file is a file with its content when it was last read.
type file struct {
	path     string // "": there is none
	optional bool   // it need not exist
	parse    func(text string) ([]Entry, error)

	mu    sync.Mutex
	fresh bool  // the fields below are valid while the stamp is the same
	stamp stamp //
	table *table
	err   error
}

// load returns the current content of the file. Errors name the file.
func (f *file) load() (*table, error) {
	if f.path == "" || f.path == os.DevNull {
		return &table{}, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	began := time.Now() // a change during the read counts as later
	info, err := os.Stat(f.path)
	if err == nil && f.fresh && stampOf(info) == f.stamp {
		return f.table, f.err
	}
	f.fresh = false
	var text string
	if err == nil {
		text, info, err = read(f.path, info)
	}
	if f.optional && errors.Is(err, fs.ErrNotExist) {
		return &table{}, nil
	}
	if err != nil {
		return nil, err
	}
	f.stamp = stampOf(info)
	f.fresh = f.stamp.settled(began)
	f.table, f.err = nil, nil
	entries, err := f.parse(text)
	if wrong, ok := errors.AsType[*ParseError](err); ok {
		wrong.File = f.path
	}
	if err != nil {
		f.err = err
		return nil, err
	}
	f.table = newTable(entries)
	return f.table, nil
}

// read reads a file that stat described by info. It returns the file's state when
// reading began: a change meanwhile gives the file another stamp.
func read(path string, info fs.FileInfo) (string, fs.FileInfo, error) {
	if err := readable(path, info); err != nil { // before opening it, which can have side effects
		return "", nil, err
	}
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // do not block if it became a pipe
	if err != nil {
		return "", nil, err
	}
	defer file.Close()
	if info, err = file.Stat(); err != nil {
		return "", nil, err
	}
	if err := readable(path, info); err != nil {
		return "", nil, err
	}
	text, err := io.ReadAll(io.LimitReader(file, MaxBytes+1))
	if err == nil && len(text) > MaxBytes { // it grew
		err = fmt.Errorf("%s: %w", path, tooLarge(int64(len(text))))
	}
	return string(text), info, err
}

func readable(path string, info fs.FileInfo) error {
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file (%v)", path, info.Mode())
	}
	if info.Size() > MaxBytes {
		return fmt.Errorf("%s: %w", path, tooLarge(info.Size()))
	}
	return nil
}

// table is a file, ready for lookups. It does not change. The zero table is
// that of an empty file.
type table struct {
	byName map[string][]Address // by folded name, in the order of the file
	exact  map[Address]string   // the first name of that host with that discriminator
	host   map[netip.Addr]string
}

func newTable(entries []Entry) *table {
	t := &table{
		byName: make(map[string][]Address),
		exact:  make(map[Address]string, len(entries)),
		host:   make(map[netip.Addr]string, len(entries)),
	}
	for _, e := range entries {
		for _, name := range e.Names {
			key := fold(name)
			t.byName[key] = append(t.byName[key], e.Address)
		}
		if _, ok := t.exact[e.Address]; !ok {
			t.exact[e.Address] = e.Names[0]
		}
		if _, ok := t.host[e.Host]; !ok {
			t.host[e.Host] = e.Names[0]
		}
	}
	return t
}

// name returns the name of an address: that of the host with the same discriminator. If there is none, it is that
// of the host without a discriminator or, for an address without one, that of the host with any.
func (t *table) name(a Address) (string, bool) {
	if name, ok := t.exact[a]; ok {
		return name, true
	}
	if a.Disc == "" {
		name, ok := t.host[a.Host]
		return name, ok
	}
	name, ok := t.exact[Address{Host: a.Host}]
	return name, ok
}
