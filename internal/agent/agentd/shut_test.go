package agentd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/agentproto"
	"viaxdp/internal/base/rundir"
	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
)

// slowToClose makes a TCP connection whose close lingers for an hour; let ends that.
func slowToClose(t *testing.T) (c *net.TCPConn, let func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	nstest.Must(t, err)
	defer l.Close()
	out, err := net.Dial("tcp", l.Addr().String())
	nstest.Must(t, err)
	in, err := l.Accept() // never read
	nstest.Must(t, err)
	c = out.(*net.TCPConn)
	nstest.Must(t, c.SetLinger(3600))
	raw, err := c.SyscallConn()
	nstest.Must(t, err)
	for full := false; !full; {
		nstest.Must(t, raw.Control(func(fd uintptr) {
			_, err := unix.Write(int(fd), make([]byte, 1<<20))
			full = errors.Is(err, unix.EAGAIN)
		}))
	}
	return c, func() { in.(*net.TCPConn).SetLinger(0); in.Close() }
}

// sendAlong sends b, which is not read yet, with the descriptor of a connection. The message then holds the
// only copy.
func sendAlong(c *net.UnixConn, b []byte, slow *net.TCPConn) error {
	f, err := slow.File()
	if err != nil {
		return err
	}
	_, _, err = c.WriteMsgUnix(b, unix.UnixRights(int(f.Fd())), nil)
	return errors.Join(err, slow.Close(), f.Close())
}

// A program whose descriptors in flight are slow to close delays neither its session's end nor the agent's.
func TestHeldUp(t *testing.T) {
	s, err := New(Config{}, nil)
	nstest.Must(t, err)
	s.leaveTime = 100 * time.Millisecond
	socket := filepath.Join(t.TempDir(), "agent.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"}) // as before Linux 6.16
	nstest.Must(t, err)
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	nstest.Must(t, err)
	defer c.Close()
	hello := encodedHello(t)
	slow, let := slowToClose(t)
	nstest.Must(t, sendAlong(c, hello, slow))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	defer s.talks.Wait()
	defer let()
	// The reader has taken the message, and not answered.
	await.Until(t, "the agent reads", (&conn{c: c}).taken)
	_ = os.Remove(socket)
	cancel()
	select {
	case err := <-served:
		nstest.Check(t, err)
	case <-time.After(time.Minute):
		t.Error("the agent does not end")
	}
}

// Refused programs whose descriptors in flight are slow to close delay no other program, however many there are.
func TestRefusedHoldsUpNobody(t *testing.T) {
	s, err := New(Config{Users: map[uint32]Quota{uint32(os.Getuid()): {Connections: 1}}}, nil)
	nstest.Must(t, err)
	s.leaveTime, s.closers = 100*time.Millisecond, make(chan struct{}, 1)
	at := &net.UnixAddr{Name: filepath.Join(t.TempDir(), "agent.sock"), Net: "unix"}
	l, err := net.ListenUnix("unix", at) // as before Linux 6.16
	nstest.Must(t, err)
	dial := func() *net.UnixConn {
		t.Helper()
		c, err := net.DialUnix("unix", nil, at)
		nstest.Must(t, err)
		t.Cleanup(func() { c.Close() })
		return c
	}
	first := dial()
	const refused = 2 // one more than are closed at a time
	var lets []func()
	for range refused {
		slow, let := slowToClose(t)
		lets = append(lets, let)
		nstest.Must(t, sendAlong(dial(), encodedHello(t), slow))
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	defer func() {
		cancel()
		nstest.WantErr(t, "Serve", <-served, nil)
		s.talks.Wait()
	}()
	defer func() {
		for _, let := range lets {
			let()
		}
	}()
	await.Until(t, "both are refused", func() bool { return s.Status().Counts.Refused == refused })
	nstest.Must(t, first.Close())
	await.Until(t, "there is room", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.counts.Accepted == 1 && len(s.conns) == 0
	})
	c := dial()
	nstest.Must(t, nstest.Err(c.Write(encodedHello(t))))
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	r := agentproto.Reader{C: c}
	reply, _, err := r.ReadReply()
	nstest.ErrorIf(t, err != nil || reply.Error != nil, "another program: %v, %v, want a welcome", err, reply.Error)
}

func encodedHello(t *testing.T) []byte {
	t.Helper()
	b, err := agentproto.Encode(&agentproto.Request{ID: 1, Op: agentproto.OpHello, Versions: []int{agentproto.Version}},
		agentproto.MaxRequest)
	nstest.Must(t, err)
	return b
}

// unixPair makes the two ends of a connection.
func unixPair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	nstest.Must(t, err)
	for i, end := range []**net.UnixConn{&a, &b} {
		f := os.NewFile(uintptr(fds[i]), "socket")
		c, err := net.FileConn(f)
		nstest.Must(t, errors.Join(err, f.Close()))
		t.Cleanup(func() { c.Close() })
		*end = c.(*net.UnixConn)
	}
	return a, b
}

// Requests that a program has sent before it was disconnected are not executed any more, though they can still be
// read.
func TestNothingAfterHangUp(t *testing.T) {
	s, err := New(Config{}, nil)
	nstest.Must(t, err)
	accepted, program := unixPair(t)
	nstest.Must(t, nstest.Err(program.Write(encodedHello(t))))
	c := &conn{server: s, c: accepted}
	c.hangUp()
	nstest.WantErr(t, "a request after it", c.talk(), net.ErrClosed)
}

// warned passes on what is logged.
type warned chan string

func (w warned) Write(b []byte) (int, error) {
	w <- string(b)
	return len(b), nil
}

// The end waits for a request that is being executed, however long it takes.
func TestEndWaitsForWork(t *testing.T) {
	log := make(warned, 16)
	s, err := New(Config{Log: slog.New(slog.NewTextHandler(log, nil))}, nil)
	nstest.Must(t, err)
	s.leaveTime = time.Millisecond
	c := &conn{server: s}
	s.conns[c] = struct{}{}
	s.talks.Add(1)
	ended := make(chan bool, 1)
	go func() { ended <- s.await() }()
	if text := <-log; !strings.Contains(text, "still being done") {
		t.Error(text)
	}
	select {
	case <-ended:
		t.Error("it has not waited")
	default:
	}
	c.receiving.Store(true) // and the kernel holds that up
	nstest.ErrorIf(t, <-ended, "it takes the connection for ended")
	if text := <-log; !strings.Contains(text, "the kernel") {
		t.Error(text)
	}
	s.talks.Done()
	nstest.ErrorIf(t, !s.await(), "it waits for a connection that has ended")
}

// A wait on behalf of a program ends when the program hangs up, and not when it sends another message.
func TestWhilePresent(t *testing.T) {
	ours, program := unixPair(t)
	c := &conn{c: ours}
	ctx, stop := c.whilePresent()
	nstest.Must(t, nstest.Err(program.Write([]byte("and"))))
	nstest.ErrorIf(t, ctx.Err() != nil, "it hung up, and has not")
	stop()
	nstest.WantErr(t, "after stop", context.Cause(ctx), context.Canceled)
	ctx, stop = c.whilePresent()
	defer stop()
	program.Close()
	<-ctx.Done()
	nstest.WantErr(t, "after the hang-up", context.Cause(ctx), errHungUp)
}

// An agent may be told to end at once.
func TestEndIdleAtOnce(t *testing.T) {
	ctx, end := context.WithTimeout(t.Context(), time.Minute)
	defer end()
	s := &Server{log: slog.New(slog.DiscardHandler)}
	s.endIdle(ctx, time.Nanosecond, end)
	nstest.ErrorIf(t, !errors.Is(ctx.Err(), context.Canceled), "%v, want its end", ctx.Err())
}

// No connect to the socket succeeds before it has its final permissions, whatever the umask.
func TestListenAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.sock")
	old := unix.Umask(0)
	l, err := listenAlone(path)
	unix.Umask(old)
	nstest.Must(t, err)
	defer l.Close()
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0 {
		t.Errorf("%v, %v, want no rights", st.Mode(), err)
	}
}

// A wrong path does not remove a file.
func TestListenLeavesFilesAlone(t *testing.T) {
	for _, suffix := range []string{"", ".new"} {
		path := filepath.Join(t.TempDir(), "agent.toml")
		nstest.Must(t, os.WriteFile(path+suffix, []byte("mine"), 0o600))
		d := &Daemon{Socket: path}
		if l, err := d.listen(); err == nil {
			l.Close()
			t.Error("it listens")
		} else if !strings.Contains(err.Error(), path+suffix+" is there and is no socket") {
			t.Error(err)
		}
		if b, err := os.ReadFile(path + suffix); string(b) != "mine" {
			t.Errorf("%q, %v", b, err)
		}
	}
}

// Nor does it remove the socket of another program that runs, such as the system's log.
func TestListenLeavesOtherSocketsAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	other, err := net.ListenPacket("unixgram", path)
	nstest.Must(t, err)
	defer other.Close()
	if l, err := (&Daemon{Socket: path}).listen(); err == nil || !strings.Contains(err.Error(), path+" is the socket of another program") {
		t.Errorf("%v, %v", l, err)
	}
	_, err = os.Stat(path)
	nstest.Check(t, err)
}

// In another user's directory the agent sets permissions only of the socket that it has made, and not of a file
// that has replaced it.
func TestRightsOfTheSocket(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	path, moved, victim := filepath.Join(dir, "agent.sock.new"), filepath.Join(dir, "moved"), filepath.Join(dir, "victim")
	nstest.Must(t, os.WriteFile(victim, nil, 0o600))
	l, err := listenAlone(path)
	nstest.Must(t, err)
	defer l.Close()
	nstest.Must(t, errors.Join(os.Rename(path, moved), os.Symlink(victim, path)))
	nstest.Must(t, setRights(l, 0o660, 60100))
	for name, want := range map[string]rights{victim: {0o600, 0}, moved: {0o660, 60100}} {
		nstest.Equal(t, fmt.Sprintf("rights of %s", filepath.Base(name)), rightsOf(t, name), want)
	}
}

type rights struct {
	mode os.FileMode
	gid  uint32
}

func rightsOf(t *testing.T, path string) rights {
	t.Helper()
	st, err := os.Stat(path)
	nstest.Must(t, err)
	return rights{st.Mode().Perm(), st.Sys().(*syscall.Stat_t).Gid}
}

// An agent's directory stays when programs that made it end: containers may have it mounted.
func TestDirectoryStays(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := filepath.Join(t.TempDir(), "via-xdp")
	nstest.Must(t, rundir.Make(filepath.Join(dir, "proc")))
	ctx, stop := context.WithCancel(t.Context())
	d := Daemon{Socket: filepath.Join(dir, "agent.sock"), Ready: func(*Server) { stop() }}
	nstest.Must(t, d.Run(ctx))
	rundir.Unmake(filepath.Join(dir, "proc"))
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("the agent's directory: %v, %v; want it, and nothing in it", left, err)
	}
}

// An agent whose path another agent has taken meanwhile, with its own state directory, leaves the other's socket.
func TestSocketOfAnotherAgentStays(t *testing.T) {
	nstest.Require(t)
	dir := t.TempDir()
	d := Daemon{Socket: filepath.Join(dir, "agent.sock"), StateDir: filepath.Join(dir, "state")}
	nstest.Must(t, os.Mkdir(d.StateDir, 0o700))
	for _, taken := range []bool{false, true} {
		ctx, stop := context.WithCancel(t.Context())
		d.Ready = func(*Server) {
			defer stop()
			if !taken {
				return
			}
			nstest.Check(t, os.Remove(d.Socket))
			l, err := listenAlone(d.Socket)
			nstest.Must(t, err)
			t.Cleanup(func() { l.Close() })
		}
		nstest.Must(t, d.Run(ctx))
		if _, err := os.Lstat(d.Socket); taken != (err == nil) {
			t.Errorf("taken by another agent: %v; the socket at the end: %v", taken, err)
		}
	}
}
