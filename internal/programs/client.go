package programs

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/comm"
)

// Program is one that answers.
type Program struct {
	PID     int    `json:"pid"`
	UID     int    `json:"uid"`
	Command string `json:"command"`
	path    string
}

// List asks in directories who is there. Sockets of programs that have died are
// removed, where [Remove] does; programs that this process may not ask are left
// out, and counted.
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

// greet connects, and leaves: who listens is known then. A link leads nowhere: the
// directory may be another user's.
func greet(path string) (p Program, err error) {
	if st, err := os.Lstat(path); err != nil || st.Mode().Type() != os.ModeSocket {
		return p, errors.Join(err, unix.ENOTSOCK)
	}
	c, err := dial(path)
	if err != nil {
		return p, err
	}
	defer c.Close()
	cred, err := credentials(c)
	if err != nil {
		return p, err
	}
	return Program{PID: int(cred.Pid), UID: int(cred.Uid), Command: comm.Name(int(cred.Pid)), path: path}, nil
}

func dial(path string) (*net.UnixConn, error) {
	c, err := net.DialTimeout("unix", path, patience)
	if err != nil {
		return nil, err
	}
	return c.(*net.UnixConn), nil
}

func credentials(c *net.UnixConn) (cred *unix.Ucred, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	cerr := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	return cred, errors.Join(cerr, err)
}

// Status asks for the program's status, which v takes.
func (p Program) Status(v any) error {
	c, err := p.ask("status")
	if err != nil {
		return errAnswer(p.PID, err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	if err := json.NewDecoder(io.LimitReader(c, 64<<20)).Decode(v); err != nil {
		return errAnswer(p.PID, err)
	}
	return nil
}

// Capture asks for frames, of which snaplen bytes are kept. The records end when
// the program does; close the stream to end them before.
func (p Program) Capture(snaplen int) (io.ReadCloser, error) {
	c, err := p.ask("capture " + strconv.Itoa(snaplen))
	if err != nil {
		return nil, errAnswer(p.PID, err)
	}
	return c, nil
}

func (p Program) ask(question string) (*net.UnixConn, error) {
	c, err := dial(p.path)
	if err != nil {
		return nil, err
	}
	if _, err := io.WriteString(c, question+"\n"); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}
