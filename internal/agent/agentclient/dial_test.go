package agentclient

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/agentproto"
	"viaxdp/internal/lab/nstest"
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
