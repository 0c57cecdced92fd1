package programs

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// answers counts what it was asked.
type answers struct{ captures chan int }

func (answers) Status() any { return map[string]int{"nics": 3} }
func (a answers) Capture(w io.Writer, snaplen int, done <-chan struct{}) error {
	a.captures <- snaplen
	_, err := io.WriteString(w, "frames")
	<-done
	a.captures <- -1
	return err
}

func serve(t *testing.T) (dir string, a answers, s *Server) {
	t.Helper()
	leaks := goleak.IgnoreCurrent()
	dir = filepath.Join(t.TempDir(), "via-xdp", "proc")
	a = answers{make(chan int, 2)}
	s, err := Serve(dir, a)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(filepath.Dir(dir)); !os.IsNotExist(err) {
			t.Errorf("%s is still there", filepath.Dir(dir))
		}
		goleak.VerifyNone(t, leaks)
	})
	return dir, a, s
}

func TestStatus(t *testing.T) {
	dir, _, _ := serve(t)
	found, denied := List([]string{"/no/such/dir", dir})
	if len(found) != 1 || denied != 0 || found[0].PID != os.Getpid() || found[0].UID != os.Getuid() || found[0].Command == "" {
		t.Fatalf("%+v, %d", found, denied)
	}
	if st, err := os.Stat(found[0].path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("socket %v, %v", st.Mode(), err)
	}
	var got map[string]int
	if err := found[0].Status(&got); err != nil || got["nics"] != 3 {
		t.Errorf("%v, %v", got, err)
	}
}

// A capture ends when its client disconnects, and with the server.
func TestCapture(t *testing.T) {
	dir, a, _ := serve(t)
	found, _ := List([]string{dir})
	for _, leave := range []bool{true, false} {
		c, err := found[0].Capture(128)
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 6)
		if _, err := io.ReadFull(c, b); err != nil || string(b) != "frames" {
			t.Fatalf("%q, %v", b, err)
		}
		if n := <-a.captures; n != 128 {
			t.Errorf("snaplen %d", n)
		}
		if leave {
			c.Close()
			if n := <-a.captures; n != -1 {
				t.Errorf("%d", n)
			}
		} else {
			t.Cleanup(func() { c.Close() }) // after the server has closed
		}
	}
}

// A client that sends an invalid query, too much or nothing gets no answer and does no harm.
func TestHostile(t *testing.T) {
	dir, _, s := serve(t)
	for _, question := range []string{"", "\n", "capture\n", "capture x\n", "shutdown\n", strings.Repeat("x", 10000) + "\n"} {
		c, err := net.Dial("unix", s.path)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, question)
		c.(*net.UnixConn).CloseWrite()
		c.SetDeadline(time.Now().Add(30 * time.Second))
		if b, _ := io.ReadAll(c); len(b) > 0 {
			t.Errorf("%.20q: answered %q", question, b)
		}
		c.Close()
	}
	var held []net.Conn // that say nothing
	for range maxAsked + 4 {
		c, err := net.Dial("unix", s.path)
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, c)
	}
	for _, c := range held {
		c.Close()
	}
	end := time.Now().Add(30 * time.Second)
	for {
		found, _ := List([]string{dir})
		var got json.RawMessage
		if len(found) == 1 && found[0].Status(&got) == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal("no answer any more")
		}
	}
}

// List and Serve remove the socket of a killed program. They leave a young one, because its
// program may be about to listen.
func TestStale(t *testing.T) {
	dir := private(t)
	path := filepath.Join(dir, "4194000.sock")
	dead(t, path)
	if err := os.Chtimes(path, time.Time{}, time.Now().Add(time.Hour)); err != nil { // young, however long this takes
		t.Fatal(err)
	}
	if got := Stale(dir); len(got) != 0 {
		t.Errorf("young, and stale: %v", got)
	}
	age(t, path)
	if got := Stale(dir); len(got) != 1 || got[0] != path {
		t.Errorf("stale: %v", got)
	}
	if found, denied := List([]string{dir}); len(found) != 0 || denied != 0 {
		t.Errorf("%v, %d", found, denied)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Error("List leaves it")
	}
	dead(t, path)
	age(t, path)
	s, err := Serve(dir, answers{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Error("Serve leaves it")
	}
}

func age(t *testing.T, path string) {
	t.Helper()
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
}

// dead makes a socket that nobody listens on.
func dead(t *testing.T, path string) {
	t.Helper()
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	ln.SetUnlinkOnClose(false)
	ln.Close()
}

// A closing server has one deadline for all that it still writes.
func TestPartingIsOne(t *testing.T) {
	path := filepath.Join(t.TempDir(), "server.sock")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s := &Server{waitLimit: time.Hour, done: make(chan struct{}), end: time.Now().Add(-time.Second)}
	w := patient{s, c.(*net.UnixConn)}
	if _, err := w.Write([]byte("x")); err != nil {
		t.Errorf("before it is closed: %v", err)
	}
	close(s.done)
	if _, err := w.Write([]byte("x")); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after the end: %v", err)
	}
}
