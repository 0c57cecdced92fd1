package agentclient

import (
	"context"
	"errors"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"viaxdp/hugepages"
	"viaxdp/internal/agent/agentproto"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/lab/nstest"
	"viaxdp/xdpnic"
)

// If the agent does not answer, the error reports that and names the remedy.
func TestSilentAgent(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	nstest.Must(t, err)
	defer l.Close()
	raw, err := net.Dial("unix", socket) // never accepted
	nstest.Must(t, err)
	defer raw.Close()
	c := raw.(*net.UnixConn)
	for _, limit := range []time.Duration{20 * time.Millisecond, -time.Second} { // that of the answer, and of the request
		_, _, err = exchange(c, &agentproto.Reader{C: c}, &agentproto.Request{ID: 2, Op: agentproto.OpOpen, Open: &agentproto.Open{}}, limit)
		if !errors.Is(err, os.ErrDeadlineExceeded) ||
			!strings.HasPrefix(err.Error(), "the agent has not answered within "+limit.String()) || strings.Contains(err.Error(), "i/o timeout") {
			t.Errorf("%v", err)
		}
	}
}

// A request to an agent that hung up raises no SIGPIPE: in libvipl it would be the program's.
func TestNoSignal(t *testing.T) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	nstest.Must(t, err)
	unix.Close(ends[1])
	file := os.NewFile(uintptr(ends[0]), "")
	defer file.Close()
	conn, err := net.FileConn(file)
	nstest.Must(t, err)
	defer conn.Close()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGPIPE)
	defer signal.Stop(signals)
	c := conn.(*net.UnixConn)
	_, _, err = exchange(c, &agentproto.Reader{C: c}, &agentproto.Request{ID: 2, Op: agentproto.OpStatus}, time.Second)
	nstest.ErrorIf(t, err == nil, "an answer of an agent that hung up")
	nstest.WantErr(t, "write", (&session{}).write(c, &agentproto.Request{ID: 3, Op: agentproto.OpClose}), unix.EPIPE)
	select {
	case s := <-signals:
		t.Error(s)
	case <-time.After(20 * time.Millisecond):
	}
}

// A full backlog, which programs of other users can cause, delays a connection and does not refuse it.
func TestFullBacklog(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	l, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	nstest.Must(t, err)
	defer unix.Close(l)
	nstest.Must(t, errors.Join(unix.Bind(l, &unix.SockaddrUnix{Name: socket}), unix.Listen(l, 1)))
	for err == nil {
		var c net.Conn
		if c, err = net.Dial("unix", socket); err == nil {
			defer c.Close()
		}
	}
	nstest.FatalIf(t, !errors.Is(err, unix.EAGAIN), "%v", err)
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	nstest.WantErr(t, "while it stays full", nstest.Err(connect(short, socket)), unix.EAGAIN)
	time.AfterFunc(20*time.Millisecond, func() {
		if c, _, err := unix.Accept(l); err == nil {
			unix.Close(c)
		}
	})
	c, err := connect(t.Context(), socket)
	nstest.Must(t, err)
	c.Close()
}

// The error for a user that may not connect names the group whose members may.
func TestLetIn(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	path := filepath.Join(t.TempDir(), "agent.sock")
	l, err := net.Listen("unix", path)
	nstest.Must(t, err)
	defer l.Close()
	for _, c := range []struct {
		gid  int
		mode os.FileMode
		want string
	}{
		{60100, 0o660, "members of the group 60100: sudo usermod -aG 60100 root,"},
		{60100, 0o600, "root's alone"}, {0, 0o660, "root's alone"},
	} {
		nstest.Must(t, os.Chown(path, -1, c.gid))
		nstest.Must(t, os.Chmod(path, c.mode))
		if got := noAgent(path, os.ErrPermission).Error(); !strings.Contains(got, c.want) || !strings.Contains(got, "settings (group, mode)") {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

// If there is no agent, the error reports that and how to start one.
func TestNoAgent(t *testing.T) {
	nobody := filepath.Join(t.TempDir(), "agent.sock")
	gone := filepath.Join(t.TempDir(), "agent.sock") // a socket that its process has left behind
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: gone, Net: "unix"})
	nstest.Must(t, err)
	l.SetUnlinkOnClose(false)
	l.Close()
	for socket, why := range map[string]string{nobody: "no such file", gone: "refused"} {
		want := regexp.MustCompile("there is no agent at " + socket + ` \(.*` + why + `.*\): root starts one by "via-xdp agent --socket ` + socket + `"$`)
		_, err := Open(socket, true, kagent.Config{Interface: "via0"})
		nstest.ErrorIf(t, !Absent(err) || !want.MatchString(err.Error()), "%v, want %s", err, want)
		if _, err := Probe(socket); !Absent(err) || !want.MatchString(err.Error()) {
			t.Errorf("status: %v, want %s", err, want)
		}
	}
}

// The daemon gets all that the program has configured.
func TestOpenTellsAll(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	nstest.Must(t, err)
	defer l.Close()
	heard := make(chan *agentproto.Open, 1)
	go func() {
		defer close(heard)
		c, err := l.AcceptUnix()
		if err != nil {
			return
		}
		defer c.Close()
		hello, err := agentproto.ReadRequest(c, nil)
		if err != nil {
			return
		}
		_ = agentproto.WriteReply(c, &agentproto.Reply{ID: hello.ID, Welcome: &agentproto.Welcome{Version: agentproto.Version}})
		q, err := agentproto.ReadRequest(c, nil)
		if err != nil {
			return
		}
		heard <- q.Open
		_ = agentproto.WriteReply(c, &agentproto.Reply{ID: q.ID, Error: agentproto.NewError(agentproto.ErrNotServed)})
	}()
	_, err = Open(socket, true, kagent.Config{
		Interface: "via0", Queue: 3, Mode: xdpnic.ModeNative, RequireMode: true, ArenaBytes: 1 << 20,
		Hugepages: hugepages.Avoid, ChunkSize: 2048, RxChunks: 4, TxChunks: 5, SingleBuffer: true, Steer: kagent.SteerOff,
	})
	nstest.ErrorIf(t, !errors.Is(err, agentproto.ErrNotServed), "%v, want what the daemon says", err)
	want := &agentproto.Open{
		Interface: "via0", Queue: 3, Mode: xdpnic.ModeNative, RequireMode: true, ArenaBytes: 1 << 20,
		Hugepages: hugepages.Avoid, ChunkSize: 2048, RxChunks: 4, TxChunks: 5, SingleBuffer: true, Steer: kagent.SteerOff,
	}
	nstest.Equal(t, "what the daemon hears, -want +got", cmp.Diff(want, <-heard), "")
}
