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
)

const (
	maxAsked = 16 // questions answered at once
	patience = 5 * time.Second
	parting  = 250 * time.Millisecond // for what is still to be said when the server is closed
	longest  = 256                    // bytes of a question
)

// Answers are what a program says of itself. Its methods may be called
// concurrently.
type Answers interface {
	// Status is the answer to status, for package json.
	Status() any
	// Capture writes records until writing fails or done is closed.
	Capture(w io.Writer, snaplen int, done <-chan struct{}) error
}

// Server answers for this process.
type Server struct {
	path     string
	ln       *net.UnixListener
	answers  Answers
	patience time.Duration // with one who asks
	done     chan struct{}
	end      time.Time // of all answers; from when done is closed
	wait     sync.WaitGroup
}

// Serve begins to answer, on a socket in dir, which it makes. Sockets there of
// programs that were killed are removed.
func Serve(dir string, a Answers) (*Server, error) {
	s := &Server{path: filepath.Join(dir, strconv.Itoa(os.Getpid())+".sock"), answers: a, patience: patience, done: make(chan struct{})}
	var err error
	for range 3 { // another program that ends may remove the directory
		if err = os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		// Of a former process with this number.
		if err = os.Remove(s.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if s.ln, err = net.ListenUnix("unix", &net.UnixAddr{Name: s.path, Net: "unix"}); err == nil {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(s.path, 0o600); err != nil {
		return nil, errors.Join(err, s.ln.Close())
	}
	for _, path := range Stale(dir) {
		_ = Remove(path) // another program may have
	}
	s.wait.Go(s.accept)
	return s, nil
}

// Path is that of the socket.
func (s *Server) Path() string { return s.path }

// Close ends answering and removes the socket, and the directories if they are
// empty.
func (s *Server) Close() error {
	s.end = time.Now().Add(parting)
	close(s.done)
	err := s.ln.Close() // removes the socket
	s.wait.Wait()
	dir := filepath.Dir(s.path)
	if os.Remove(dir) == nil && filepath.Base(dir) == "proc" {
		os.Remove(filepath.Dir(dir))
	}
	return err
}

func (s *Server) accept() {
	places := make(chan struct{}, maxAsked)
	for {
		c, err := s.ln.AcceptUnix()
		if err != nil {
			return // closed
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

// answer reads a question and answers it.
func (s *Server) answer(c *net.UnixConn) {
	stop := make(chan struct{})
	defer close(stop)
	s.wait.Go(func() { // whoever asks does not keep Close waiting
		select {
		case <-s.done:
			s.hurry(c)
		case <-stop:
		}
	})
	if !trusted(c) {
		return
	}
	c.SetDeadline(time.Now().Add(s.patience))
	s.hurry(c) // what that may have come over
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

// capture streams until the asker leaves.
func (s *Server) capture(c *net.UnixConn, snaplen int) {
	c.SetDeadline(time.Time{})
	done := make(chan struct{})
	s.wait.Go(func() {
		io.Copy(io.Discard, c) // ends when the asker does, or with the server
		close(done)
	})
	select {
	case <-s.done:
		return
	default:
	}
	s.answers.Capture(patient{s, c}, snaplen, done)
}

// patient gives each write its time, so that an asker that does not read is
// given up.
type patient struct {
	s *Server
	c *net.UnixConn
}

func (p patient) Write(b []byte) (int, error) {
	p.c.SetWriteDeadline(time.Now().Add(p.s.patience))
	p.s.hurry(p.c)
	return p.c.Write(b)
}

// hurry ends what is asked and answered on a connection, if the server is closed.
func (s *Server) hurry(c *net.UnixConn) {
	select {
	case <-s.done:
		c.SetReadDeadline(time.Unix(1, 0))
		c.SetWriteDeadline(s.end)
	default:
	}
}

// trusted tells whether the asker is root or of this program's user.
func trusted(c *net.UnixConn) bool {
	cred, err := credentials(c)
	return err == nil && (cred.Uid == 0 || int(cred.Uid) == os.Geteuid())
}

// errAnswer is an answer that is none.
func errAnswer(pid int, err error) error { return fmt.Errorf("process %d: %w", pid, err) }
