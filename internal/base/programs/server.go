package programs

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"viaxdp/internal/base/fds"
	"viaxdp/internal/base/rundir"
)

const (
	maxAsked  = 16 // questions answered at once
	waitLimit = 5 * time.Second
	parting   = 250 * time.Millisecond // time for the last replies when the server is closed
	longest   = 256                    // bytes of a question

	acceptPause = 50 * time.Millisecond // after a connection that could not be accepted
)

// Answers provides a program's answers about itself. Its methods may be called
// concurrently.
type Answers interface {
	// Status is the answer to status, for package json.
	Status() any
	// Capture writes records until writing fails or done is closed.
	Capture(w io.Writer, snaplen int, done <-chan struct{}) error
}

// Server answers queries for this process.
type Server struct {
	path      string
	ln        *net.UnixListener
	answers   Answers
	waitLimit time.Duration // for one read or write
	done      chan struct{}
	end       time.Time // of all answers; from when done is closed
	wait      sync.WaitGroup
}

// Serve starts a Server on a socket in dir, which it creates. It removes sockets
// there of programs that were killed. It fails if a program of another PID namespace
// has this PID and serves there.
func Serve(dir string, a Answers) (*Server, error) {
	s := &Server{path: filepath.Join(dir, strconv.Itoa(os.Getpid())+".sock"), answers: a, waitLimit: waitLimit, done: make(chan struct{})}
	var err error
	for range 3 { // another program that ends may remove the directory
		if err = rundir.Make(dir); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if c, err := net.DialTimeout("unix", s.path, waitLimit); err == nil {
			c.Close()
			return nil, fmt.Errorf("%s: a program of another PID namespace has the same process ID and answers there; "+
				"give one of them another VIA_RUNTIME_DIR", s.path)
		}
		// Left by an earlier process with this PID.
		if err = os.Remove(s.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if s.ln, err = rundir.Listen("unix", s.path); err == nil {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	for _, path := range Stale(dir) {
		_ = Remove(path) // another program may have
	}
	s.wait.Go(s.accept)
	return s, nil
}

// Path returns the path of the socket.
func (s *Server) Path() string { return s.path }

// Close stops answering and removes the socket. It also removes the directories if
// programs have made them and they are empty.
func (s *Server) Close() error {
	s.end = time.Now().Add(parting)
	close(s.done)
	err := s.ln.Close() // removes the socket
	s.wait.Wait()
	rundir.Unmake(filepath.Dir(s.path))
	return err
}

func (s *Server) accept() {
	places := make(chan struct{}, maxAsked)
	for {
		c, err := s.ln.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // the program is out of descriptors, or of memory, and may have some again later
			select {
			case <-s.done:
			case <-time.After(acceptPause):
			}
			continue
		}
		select {
		case places <- struct{}{}:
			s.wait.Go(func() {
				defer func() { <-places }()
				defer c.Close()
				s.answer(c)
			})
		default:
			c.Close()
		}
	}
}

// answer reads a query and answers it.
func (s *Server) answer(c *net.UnixConn) {
	stop := make(chan struct{})
	defer close(stop)
	s.wait.Go(func() { // a client must not delay Close
		select {
		case <-s.done:
			s.shorten(c)
		case <-stop:
		}
	})
	if !trusted(c) {
		return
	}
	c.SetDeadline(time.Now().Add(s.waitLimit))
	s.shorten(c) // Close may have come first
	line, err := bufio.NewReaderSize(io.LimitReader(c, longest), longest).ReadString('\n')
	if err != nil {
		return
	}
	verb, arg, _ := strings.Cut(strings.TrimSpace(line), " ")
	switch verb {
	case "status":
		json.NewEncoder(c).Encode(s.answers.Status())
	case "capture":
		snaplen, err := strconv.Atoi(arg)
		if err != nil {
			return
		}
		s.capture(c, snaplen)
	}
}

// capture streams until the client disconnects.
func (s *Server) capture(c *net.UnixConn, snaplen int) {
	c.SetDeadline(time.Time{})
	done := make(chan struct{})
	s.wait.Go(func() {
		io.Copy(io.Discard, c) // until the client disconnects, or the server closes
		close(done)
	})
	select {
	case <-s.done:
		return
	default:
	}
	s.answers.Capture(patient{s, c}, snaplen, done)
}

// patient sets a deadline for each write, so that a client that does not read is
// dropped.
type patient struct {
	s *Server
	c *net.UnixConn
}

func (p patient) Write(b []byte) (int, error) {
	p.c.SetWriteDeadline(time.Now().Add(p.s.waitLimit))
	p.s.shorten(p.c)
	return p.c.Write(b)
}

// shorten shortens the deadline of a connection if the server is closed.
func (s *Server) shorten(c *net.UnixConn) {
	select {
	case <-s.done:
		c.SetReadDeadline(time.Unix(1, 0))
		c.SetWriteDeadline(s.end)
	default:
	}
}

// trusted reports whether the client is root or of this program's user.
func trusted(c *net.UnixConn) bool {
	cred, err := fds.Peer(c)
	return err == nil && (cred.Uid == 0 || int(cred.Uid) == os.Geteuid())
}
