package programs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/base/fds"
	"viaxdp/internal/base/termsafe"
)

// Program is a running program that answers queries.
type Program struct {
	PID     int    `json:"pid"` // in the program's own PID namespace if it is invisible in this one
	UID     int    `json:"uid"`
	Command string `json:"command"`
	path    string
}

// List finds the programs that answer in directories. It removes sockets of programs
// that have died, as far as [Remove] does. It leaves out programs that this process
// may not query, and counts them in denied. It checks at most maxSockets sockets of a
// directory.
func List(dirs []string) (found []Program, denied int) {
	for _, dir := range dirs {
		for _, path := range sockets(dir) {
			p, err := greet(path)
			switch {
			case errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM):
				denied++
			case isStale(path, err):
				_ = Remove(path) // not in another user's directory
			case err == nil:
				found = append(found, p)
			}
		}
	}
	slices.SortFunc(found, func(a, b Program) int { return a.PID - b.PID })
	return found, denied
}

// greet connects and disconnects, to learn which process listens.
func greet(path string) (p Program, err error) {
	c, cred, err := connect(path)
	if err != nil {
		return p, err
	}
	defer c.Close()
	return Program{PID: pidOf(cred, path), UID: int(cred.Uid), Command: termsafe.Name(int(cred.Pid)), path: path}, nil
}

// pidOf returns the ID of a process. That of a process which is invisible in this PID namespace is in the name of its socket.
func pidOf(cred *unix.Ucred, path string) int {
	if cred.Pid != 0 {
		return int(cred.Pid)
	}
	pid, _ := strconv.Atoi(strings.TrimSuffix(filepath.Base(path), ".sock"))
	return pid
}

// connect connects to the socket at a path. It first opens the directory and the socket, and then checks and
// connects to what it has opened. Otherwise a user that owns the directory could put a link, or a third user's
// socket, there in between. The process that answers must run as the socket's owner.
func connect(path string) (*net.UnixConn, *unix.Ucred, error) {
	dir, in, err := openDir(filepath.Dir(path), unix.O_PATH)
	if err != nil {
		return nil, nil, err
	}
	defer unix.Close(dir)
	fail := func(op string, err error) (*net.UnixConn, *unix.Ucred, error) {
		return nil, nil, &os.PathError{Op: op, Path: path, Err: err}
	}
	fd, err := unix.Openat(dir, filepath.Base(path), unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fail("open", err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fail("stat", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return fail("connect", unix.ENOTSOCK)
	}
	if st.Uid != in.Uid && in.Uid != 0 && int(in.Uid) != os.Geteuid() {
		return fail("connect", fmt.Errorf("the socket belongs to user %d, and the directory to user %d", st.Uid, in.Uid))
	}
	any, err := net.DialTimeout("unix", fmt.Sprintf("/proc/self/fd/%d", fd), waitLimit)
	var op *net.OpError
	if errors.As(err, &op) {
		err = op.Err // without that path
	}
	if err != nil {
		return fail("connect", err)
	}
	c := any.(*net.UnixConn)
	cred, err := fds.Peer(c)
	if err == nil && cred.Uid != st.Uid {
		err = fmt.Errorf("the socket belongs to user %d, and the process that answers to user %d", st.Uid, cred.Uid)
	}
	if err != nil {
		c.Close()
		return fail("connect", err)
	}
	return c, cred, nil
}

// Status gets the program's status and decodes it into v.
func (p Program) Status(v any) error { return p.StatusWithin(new(Budget), v) }

// StatusWithin is Status within a Budget that it shares with other queries.
func (p Program) StatusWithin(b *Budget, v any) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("process %d: %w", p.PID, err)
		}
	}()
	end, err := b.begin()
	if err != nil {
		return err
	}
	c, err := p.ask("status")
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(end)
	answer, err := io.ReadAll(charged{c, b})
	if err == nil {
		err = b.spend(answer)
	}
	if err == nil {
		err = json.Unmarshal(answer, v)
	}
	return err
}

// Capture gets records of frames, with at most snaplen bytes of each. The stream ends
// when the program ends; close it to end it earlier.
func (p Program) Capture(snaplen int) (io.ReadCloser, error) {
	c, err := p.ask("capture " + strconv.Itoa(snaplen))
	if err != nil {
		return nil, fmt.Errorf("process %d: %w", p.PID, err)
	}
	return c, nil
}

func (p Program) ask(question string) (*net.UnixConn, error) {
	c, cred, err := connect(p.path)
	if err != nil {
		return nil, err
	}
	if pid := pidOf(cred, p.path); pid != p.PID || int(cred.Uid) != p.UID {
		c.Close()
		return nil, fmt.Errorf("process %d of user %d answers now at %s", pid, cred.Uid, p.path)
	}
	if _, err := io.WriteString(c, question+"\n"); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Budget bounds the cost of querying the programs of one user, whatever they answer. The zero value is
// a new one, whose time begins with the first query. It may be used concurrently.
type Budget struct {
	mu    sync.Mutex
	end   time.Time
	spent struct{ bytes, objects, members int }
}

const (
	budgetTime    = 2 * waitLimit
	budgetBytes   = 64 << 20
	budgetObjects = 1 << 17 // in JSON; each may become a NIC's status in memory
	budgetMembers = 1 << 22
)

var errBudget = errors.New("the programs of this user took too long or answered too much")

// begin returns the time by which an answer must be complete.
func (b *Budget) begin() (time.Time, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if b.end.IsZero() {
		b.end = now.Add(budgetTime)
	}
	if now.After(b.end) {
		return now, errBudget
	}
	if end := now.Add(waitLimit); end.Before(b.end) {
		return end, nil
	}
	return b.end, nil
}

// charged reads at a Budget's expense.
type charged struct {
	r io.Reader
	b *Budget
}

func (c charged) Read(p []byte) (n int, err error) {
	n, err = c.r.Read(p)
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	if c.b.spent.bytes += n; c.b.spent.bytes > budgetBytes {
		return n, errBudget
	}
	return n, err
}

// spend charges an answer to the Budget before it is decoded: few bytes of JSON can take much memory.
func (b *Budget) spend(answer []byte) error {
	objects, members := bytes.Count(answer, []byte("{")), bytes.Count(answer, []byte(","))
	b.mu.Lock()
	defer b.mu.Unlock()
	s := &b.spent
	s.objects, s.members = s.objects+objects, s.members+members
	if s.objects > budgetObjects || s.members > budgetMembers {
		return errBudget
	}
	return nil
}
