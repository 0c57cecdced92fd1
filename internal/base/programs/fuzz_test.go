package programs

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// oracle notes what it was asked for.
type oracle struct {
	statuses int
	captures []int
}

func (o *oracle) Status() any {
	o.statuses++
	return map[string]int{"asked": o.statuses}
}

func (o *oracle) Capture(_ io.Writer, snaplen int, _ <-chan struct{}) error {
	o.captures = append(o.captures, snaplen)
	return nil
}

// Whatever a client sends, the program answers one query at most and then disconnects.
func FuzzQuestion(f *testing.F) {
	f.Add([]byte("status\n"))
	f.Add([]byte("status\ncapture 3\n"))
	f.Add([]byte("capture -1\r\n"))
	f.Add([]byte("capture 99999999999999999999\n"))
	f.Add([]byte(" status  x\nstatus"))
	f.Add(make([]byte, longest+1))
	f.Fuzz(func(t *testing.T, question []byte) {
		ours, theirs := connected(t)
		var o oracle
		s := &Server{answers: &o, waitLimit: time.Hour, done: make(chan struct{})}
		s.wait.Go(func() {
			defer theirs.Close()
			s.answer(theirs)
		})
		go func() {
			ours.Write(question)
			ours.CloseWrite()
		}()
		answer, err := io.ReadAll(ours)
		if err != nil && !errors.Is(err, unix.ECONNRESET) {
			t.Fatal(err)
		}
		ours.Close()
		s.wait.Wait()
		switch {
		case o.statuses+len(o.captures) > 1:
			t.Fatalf("%q: answered %+v", question, o)
		case o.statuses == 1 != (len(answer) > 0) && err == nil:
			t.Fatalf("%q: answered %+v by %q", question, o, answer)
		case o.statuses == 1 && err == nil && !json.Valid(answer):
			t.Fatalf("%q: answered by %q", question, answer)
		}
	})
}

// connected are two ends of a connection.
func connected(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = c.(*net.UnixConn)
	}
	return ends[0], ends[1]
}
