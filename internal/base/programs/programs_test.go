package programs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/nstest"
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
	nstest.Must(t, err)
	t.Cleanup(func() {
		nstest.Check(t, s.Close())
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

// A program leaves the socket of a live one that has the same PID, as in the containers that share a directory.
func TestSamePID(t *testing.T) {
	dir, _, first := serve(t)
	second, err := Serve(dir, answers{})
	if err == nil {
		second.Close()
		t.Error("two programs have one socket")
	} else if !strings.Contains(err.Error(), first.path) {
		t.Errorf("the error does not name the socket: %v", err)
	}
	if found, _ := List([]string{dir}); len(found) != 1 {
		t.Errorf("the first program is not found: %+v", found)
	}
}

// A container that shares the directory does not see the processes of the host. It still tells their programs apart.
func TestOtherPIDNamespace(t *testing.T) {
	const shared = "PROGRAMS_TEST_SHARED"
	if dir := os.Getenv(shared); dir != "" {
		found, _ := List([]string{dir})
		for _, p := range found {
			var status any
			fmt.Println(p.PID, p.Command, p.Status(&status))
		}
		return
	}
	nstest.Require(t)
	dir := private(t)
	pid := os.Getpid()
	answering(t, dir, func(c net.Conn) { io.WriteString(c, "{}") })
	nstest.Must(t, os.Rename(filepath.Join(dir, fmt.Sprint(pid)+".sock"), filepath.Join(dir, "4194000.sock")))
	answering(t, dir, func(c net.Conn) { io.WriteString(c, "{}") })
	lister := exec.Command("/proc/self/exe", "-test.run=^TestOtherPIDNamespace$")
	lister.Env = append(os.Environ(), shared+"="+dir)
	lister.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
	out, err := lister.CombinedOutput()
	nstest.Must(t, err)
	for _, want := range []string{fmt.Sprintf("%d  <nil>", pid), "4194000  <nil>"} {
		nstest.ErrorIf(t, !strings.Contains(string(out), want), "listed as\n%swant %q", out, want)
	}
}

// A program that was out of descriptors when a client came answers the next one.
func TestOutOfDescriptors(t *testing.T) {
	dir, _, s := serve(t)
	client, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	nstest.Must(t, err)
	defer unix.Close(client)
	nstest.WithDescriptors(t, 0, func() {
		err = unix.Connect(client, &unix.SockaddrUnix{Name: s.path})
		time.Sleep(4 * acceptPause) // the server tries to accept
	})
	nstest.Must(t, err)
	found, _ := List([]string{dir})
	nstest.FatalIf(t, len(found) != 1, "found %+v", found)
	var got map[string]int
	nstest.Check(t, found[0].Status(&got))
}

// A capture ends when its client disconnects, and with the server.
func TestCapture(t *testing.T) {
	dir, a, _ := serve(t)
	found, _ := List([]string{dir})
	for _, leave := range []bool{true, false} {
		c, err := found[0].Capture(128)
		nstest.Must(t, err)
		b := make([]byte, 6)
		if _, err := io.ReadFull(c, b); err != nil || string(b) != "frames" {
			t.Fatalf("%q, %v", b, err)
		}
		nstest.Equal(t, "snaplen", <-a.captures, 128)
		if leave {
			c.Close()
			nstest.Equal(t, "captures", <-a.captures, -1)
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
		nstest.Must(t, err)
		io.WriteString(c, question)
		c.(*net.UnixConn).CloseWrite()
		c.SetDeadline(time.Now().Add(30 * time.Second))
		if b, _ := io.ReadAll(c); len(b) > 0 {
			t.Errorf("%.20q: answered %q", question, b)
		}
		c.Close()
	}
	var held []net.Conn // silent connections
	for range maxAsked + 4 {
		c, err := net.Dial("unix", s.path)
		nstest.Must(t, err)
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
		nstest.FatalIf(t, time.Now().After(end), "no answer any more")
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
	nstest.Must(t, err)
	defer s.Close()
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Error("Serve leaves it")
	}
}

func age(t *testing.T, path string) {
	t.Helper()
	old := time.Now().Add(-time.Hour)
	nstest.Must(t, os.Chtimes(path, old, old))
}

// dead makes a socket without a listener.
func dead(t *testing.T, path string) {
	t.Helper()
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	nstest.Must(t, err)
	ln.SetUnlinkOnClose(false)
	ln.Close()
}

// A closing server has one deadline for all that it still writes.
func TestPartingIsOne(t *testing.T) {
	path := filepath.Join(t.TempDir(), "server.sock")
	ln, err := net.Listen("unix", path)
	nstest.Must(t, err)
	defer ln.Close()
	c, err := net.Dial("unix", path)
	nstest.Must(t, err)
	defer c.Close()
	s := &Server{waitLimit: time.Hour, done: make(chan struct{}), end: time.Now().Add(-time.Second)}
	w := patient{s, c.(*net.UnixConn)}
	nstest.WantErr(t, "before it is closed", nstest.Err(w.Write([]byte("x"))), nil)
	close(s.done)
	nstest.WantErr(t, "after the end", nstest.Err(w.Write([]byte("x"))), os.ErrDeadlineExceeded)
}

// private is a directory that only this user can change, whatever the umask.
func private(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "proc")
	nstest.Must(t, os.Mkdir(dir, 0o755))
	return dir
}

func old(t *testing.T, dir, name string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	dead(t, path)
	age(t, path)
	return path
}

// keeps checks that a socket without a listener is not removed.
func keeps(t *testing.T, what, dir, path string) {
	t.Helper()
	if got := Stale(dir); len(got) != 0 {
		t.Errorf("%s: stale: %v", what, got)
	}
	List([]string{dir})
	if err := Remove(filepath.Join(dir, filepath.Base(path))); err == nil {
		t.Errorf("%s: removed without an error", what)
	}
	nstest.WantErr(t, what, nstest.Err(os.Lstat(path)), nil)
}

// A socket stays if another user could have made root remove it: a socket elsewhere that the directory links
// to, one below a linked part of the path, or one in a directory that others may change.
func TestOthersSocketsStay(t *testing.T) {
	victims := private(t)
	path := old(t, victims, "4194000.sock")

	links := t.TempDir()
	dir := filepath.Join(links, "proc")
	nstest.Must(t, os.Symlink(victims, dir))
	keeps(t, "a link for the directory", dir, path)

	above := filepath.Join(links, "above")
	nstest.Must(t, os.Symlink(filepath.Dir(victims), above))
	keeps(t, "a link in the path", filepath.Join(above, filepath.Base(victims)), path)

	for _, mode := range []os.FileMode{0o775, 0o757, os.ModeSticky | 0o777} {
		nstest.Must(t, os.Chmod(victims, mode))
		keeps(t, mode.String(), victims, path)
	}
	nstest.Must(t, os.Chmod(victims, 0o755))
	if os.Geteuid() == 0 {
		nstest.Must(t, os.Chown(victims, 65534, 65534))
		keeps(t, "another user's directory", victims, path)
		nstest.Must(t, os.Chown(victims, 0, 0))
	}
	if got := Stale(victims); len(got) != 1 { // nothing else kept it
		t.Errorf("stale: %v", got)
	}
}

// In its own directory only dead sockets of programs are removed: no link, no file, no socket with another
// name. The target of a link is not removed either.
func TestOnlySocketsGo(t *testing.T) {
	dir, other := private(t), private(t)
	target := old(t, other, "4194000.sock")
	link, file := filepath.Join(dir, "4194001.sock"), filepath.Join(dir, "4194002.sock")
	nstest.Must(t, os.Symlink(target, link))
	nstest.Must(t, os.WriteFile(file, nil, 0o600))
	age(t, file)
	ln, err := net.Listen("unix", filepath.Join(other, "4194003.sock"))
	nstest.Must(t, err)
	defer ln.Close()
	nstest.Must(t, os.Symlink(ln.Addr().String(), filepath.Join(dir, "4194003.sock")))
	named := old(t, dir, "docker.sock")
	if got := Stale(dir); len(got) != 0 {
		t.Errorf("stale: %v", got)
	}
	if found, _ := List([]string{dir}); len(found) != 0 {
		t.Errorf("found by a link: %+v", found)
	}
	for _, path := range []string{link, file} {
		nstest.ErrorIf(t, Remove(path) == nil, "%s removed", path)
	}
	for _, path := range []string{link, file, named, target} {
		nstest.Check(t, nstest.Err(os.Lstat(path)))
	}
}

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
	nstest.Must(t, err)
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "")
		c, err := net.FileConn(f)
		f.Close()
		nstest.Must(t, err)
		ends[i] = c.(*net.UnixConn)
	}
	return ends[0], ends[1]
}

// answering listens at a program's path in dir, and answers each question by a function.
func answering(t *testing.T, dir string, answer func(c net.Conn)) (path string) {
	t.Helper()
	path = filepath.Join(dir, fmt.Sprint(os.Getpid())+".sock")
	ln, err := net.Listen("unix", path)
	nstest.Must(t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			if n, _ := c.Read(make([]byte, 64)); n > 0 {
				answer(c)
			}
			c.Close()
		}
	}()
	t.Cleanup(func() {
		ln.Close()
		<-ended
	})
	return path
}

// A program is asked at the socket that was looked at: not where a link leads that has taken its place.
func TestAskedWhereItWasFound(t *testing.T) {
	dir, elsewhere := private(t), private(t)
	hello := func(c net.Conn) { io.WriteString(c, "{}") }
	path, other := answering(t, dir, hello), answering(t, elsewhere, hello)
	found, _ := List([]string{dir})
	var v any
	nstest.FatalIf(t, len(found) != 1 || found[0].Status(&v) != nil, "%+v", found)
	for _, who := range []func(*Program){func(p *Program) { p.PID++ }, func(p *Program) { p.UID++ }} {
		p := found[0]
		who(&p)
		nstest.ErrSays(t, "another process answers", p.Status(&v), "answers now")
	}
	nstest.Must(t, errors.Join(os.Remove(path), os.Symlink(other, path)))
	if err := found[0].Status(&v); err == nil {
		t.Error("a link was followed")
	}
	nstest.Must(t, errors.Join(os.Remove(path), os.Remove(dir), os.Symlink(elsewhere, dir)))
	if err := found[0].Status(&v); err == nil {
		t.Error("a link in the place of the directory was followed")
	}
}

// In another user's directory only sockets of that user count, on which a process of that user answers.
func TestOwnerAnswers(t *testing.T) {
	nstest.Require(t)
	dir := private(t)
	path := answering(t, dir, func(net.Conn) {})
	for _, c := range []struct {
		dir, socket int
		found       bool
	}{{0, 0, true}, {65534, 0, false}, {65534, 65534, false}, {0, 65534, false}} {
		nstest.Must(t, errors.Join(os.Chown(dir, c.dir, -1), os.Chown(path, c.socket, -1)))
		if found, _ := List([]string{dir}); (len(found) > 0) != c.found {
			t.Errorf("directory of user %d, socket of user %d, process of root: found %+v", c.dir, c.socket, found)
		}
	}
}

// A hostile answer costs the client no more than its budget, however short the answer is on the wire.
func TestHostileAnswers(t *testing.T) {
	for name, answer := range map[string]func(c net.Conn){
		"many objects": func(c net.Conn) { io.WriteString(c, "["+strings.Repeat("{},", budgetObjects)+"{}]") },
		"many members": func(c net.Conn) {
			io.WriteString(c, "["+strings.Repeat("1,", budgetMembers+1)+"1]")
		},
		"no end": func(c net.Conn) {
			for b := []byte(strings.Repeat(" ", 1<<16)); ; {
				if _, err := c.Write(b); err != nil {
					return
				}
			}
		},
	} {
		dir := private(t)
		answering(t, dir, answer)
		found, _ := List([]string{dir})
		nstest.FatalIf(t, len(found) != 1, "%+v", found)
		var v []struct{}
		nstest.WantErr(t, name, found[0].Status(&v), errBudget)
	}
}

// The programs of a user share a budget, of time as well.
func TestBudgetIsShared(t *testing.T) {
	dir := private(t)
	answering(t, dir, func(c net.Conn) { io.WriteString(c, "["+strings.Repeat("{},", budgetObjects/2)+"{}]") })
	found, _ := List([]string{dir})
	nstest.FatalIf(t, len(found) != 1, "%+v", found)
	var v []struct{}
	b := new(Budget)
	nstest.Check(t, found[0].StatusWithin(b, &v))
	nstest.WantErr(t, "the second half and more", found[0].StatusWithin(b, &v), errBudget)
	late := &Budget{end: time.Now().Add(-time.Second)}
	nstest.WantErr(t, "after its time", found[0].StatusWithin(late, &v), errBudget)
	if end, err := new(Budget).begin(); err != nil || time.Until(end) > waitLimit {
		t.Errorf("one program gets %v, %v", time.Until(end), err)
	}
}

// However many sockets are in a directory, a bounded number is looked at.
func TestManySockets(t *testing.T) {
	dir := private(t)
	for n := range maxSockets + 10 {
		nstest.Must(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(n)+".sock"), nil, 0o600))
	}
	nstest.Equal(t, "sockets", len(sockets(dir)), maxSockets)
}
