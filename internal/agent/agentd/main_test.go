package agentd_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/agentclient"
	"viaxdp/internal/agent/agentd"
	"viaxdp/internal/agent/agentproto"
	"viaxdp/internal/agent/fdstore"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
)

// roleEnv selects the role of the test binary as another process of a test: an agent, its descriptor store, a
// program.
const roleEnv = "AGENTD_TEST_ROLE"

var roles = map[string]func() error{"agent": agentRole, "fdstored": fdstoredRole}

func TestMain(m *testing.M) {
	if name := os.Getenv(roleEnv); name != "" {
		if err := roles[name](); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	flag.Set("test.parallel", "4") // on few CPUs, too: tests wait most of the time, for processes and for the kernel
	code := m.Run()
	// A goroutine that ends may have to wait for a processor.
	var err error
	if code == 0 && !await.Comes(func() bool { err = goleak.Find(); return err == nil }) {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func fdstoredRole() error {
	l, err := fdstore.Listener()
	if err != nil {
		return err
	}
	return fdstore.Main(context.Background(), l)
}

// agentConfig is a test's configuration of its agent.
type agentConfig struct {
	Socket string
	State  string // its directory of state
	Quota  agentd.Quota
	Users  map[uint32]agentd.Quota
	Ifaces map[string]agentd.Interface // nil: those of the tests, to every user
	// Processes is that of the interfaces of the tests.
	Processes int
	Access    agentd.Grant  // zero: every user
	Linger    time.Duration // 0: none
	Mode      fs.FileMode   // of the socket; 0: 0666
	// Defaults has the agent's own settings hold, instead of those that the tests grant.
	Defaults bool
	Most     int
	Files    uint64    // that it may have open; 0: as many as this process
	UID      uint32    // of the agent, if not root
	Caps     []uintptr // that it then has
	// Activated has the socket opened for it, in a directory that is not its own.
	Activated bool
}

func agentRole() error {
	var cfg agentConfig
	if err := json.Unmarshal([]byte(os.Getenv("AGENTD_TEST_CONFIG")), &cfg); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	if cfg.Files > 0 {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: cfg.Files, Max: cfg.Files}); err != nil {
			return err
		}
	}
	os.Setenv(roleEnv, "fdstored")
	d := agentd.Daemon{
		Config: agentd.Config{
			Interfaces: cfg.Ifaces, Quota: cfg.Quota, Users: cfg.Users, MaxConnections: cfg.Most,
			Access: cfg.Access, Linger: cfg.Linger,
			Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		},
		Socket: cfg.Socket, Mode: cfg.Mode, StateDir: cfg.State, FDStored: []string{"/proc/self/exe"},
	}
	if !cfg.Defaults {
		d.Mode = cmp.Or(d.Mode, 0o666)
		if d.Interfaces == nil {
			d.Interfaces = map[string]agentd.Interface{"lo": {}}
			for n := range 64 {
				d.Interfaces[fmt.Sprint("via", n)] = agentd.Interface{Processes: cfg.Processes}
			}
		}
		if d.Linger == 0 {
			d.Linger = -1
		}
	}
	if cfg.Activated {
		l, err := net.FileListener(os.NewFile(3, "socket"))
		if err != nil {
			return err
		}
		d.Listener = l.(*net.UnixListener)
	}
	return d.Run(ctx)
}

// agent is an agent in a process of its own, in a namespace.
type agent struct {
	t      testing.TB
	ns     *nstest.NS
	cfg    agentConfig
	socket string
	opened *os.File // the socket, where it is opened for the agent
	cmd    *exec.Cmd
	log    *lines // of cmd
}

// startAgent starts an agent, which stops with the test and must leave nothing
// behind.
func startAgent(t testing.TB, ns *nstest.NS, cfg agentConfig) *agent {
	t.Helper()
	dir, err := os.MkdirTemp("", "agentd") // t.TempDir is root's alone
	nstest.Must(t, err)
	a := &agent{t: t, ns: ns, cfg: cfg, socket: filepath.Join(dir, "agent.sock")}
	a.cfg.Socket = a.socket
	state := dir
	if cfg.Activated {
		state = filepath.Join(dir, "state")
		a.cfg.State = state
		err = errors.Join(os.Mkdir(state, 0o700), a.listen())
	}
	nstest.Must(t, errors.Join(err, os.Chmod(dir, 0o755), os.Chown(state, int(cfg.UID), -1)))
	t.Cleanup(func() {
		a.stop()
		await.Until(t, "the descriptor store leaves", func() bool {
			_, err := os.Stat(filepath.Join(state, "agent.sock.fds"))
			return errors.Is(err, os.ErrNotExist)
		})
		if left, _ := os.ReadDir(state); len(left) > 0 {
			t.Errorf("the agent has left %v", left)
		}
		if cfg.Activated {
			if left, err := os.ReadDir(dir); len(left) != 2 {
				t.Errorf("in the socket's directory are %v, %v; want socket and state", left, err)
			}
			_ = a.opened.Close()
		}
		nstest.Check(t, os.RemoveAll(dir))
	})
	a.start()
	return a
}

// listen opens the socket for later agents, as systemd does.
func (a *agent) listen() error {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: a.socket, Net: "unix"})
	if err != nil {
		return err
	}
	l.SetUnlinkOnClose(false)
	a.opened, err = l.File()
	return errors.Join(err, l.Close(), os.Chmod(a.socket, 0o666))
}

func (a *agent) start() {
	a.t.Helper()
	a.launch()
	pid := a.cmd.Process.Pid
	await.Until(a.t, "the agent serves", func() bool {
		p, err := agentclient.Probe(a.socket)
		return err == nil && p == pid
	})
}

// launch is start without the wait.
func (a *agent) launch() {
	a.t.Helper()
	cfg, err := json.Marshal(a.cfg)
	nstest.Must(a.t, err)
	a.cmd = exec.Command("/proc/self/exe")
	if a.cfg.UID != 0 {
		a.cmd = program(a.t, a.cfg.UID, "none")
		a.cmd.Args = a.cmd.Args[:1]
		a.cmd.SysProcAttr.AmbientCaps = a.cfg.Caps
	}
	a.cmd.Env = append(os.Environ(), roleEnv+"=agent", "AGENTD_TEST_CONFIG="+string(cfg))
	if a.opened != nil {
		a.cmd.ExtraFiles = []*os.File{a.opened}
	}
	a.log = &lines{t: a.t}
	a.cmd.Stderr = a.log
	// The descriptor store inherits nothing of the agent's output.
	nstest.Must(a.t, a.ns.Do(a.cmd.Start))
}

// restart has the next agent take over.
func (a *agent) restart() {
	a.t.Helper()
	a.kill()
	a.start()
}

// kill is kill -9.
func (a *agent) kill() {
	a.t.Helper()
	nstest.Must(a.t, a.cmd.Process.Kill())
	_ = a.cmd.Wait()
	a.cmd = nil
}

func (a *agent) stop() {
	if a.cmd == nil {
		return
	}
	_ = a.cmd.Process.Signal(unix.SIGTERM)
	nstest.WantErr(a.t, "the agent", a.cmd.Wait(), nil)
	a.cmd = nil
}

// lines copies an agent's log to the test's.
type lines struct {
	t testing.TB

	mu  sync.Mutex
	all strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.t.Logf("%s", strings.TrimSpace(string(b)))
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(b)
}

// count returns how often a line is in the agent's log.
func (l *lines) count(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.all.String(), what)
}

// waitLimit bounds the wait for a required event.
const waitLimit = await.WaitLimit

func (a *agent) status(t testing.TB) kagent.Status {
	t.Helper()
	r := a.raw(t)
	defer r.c.Close()
	reply, err := r.hello().ask(agentproto.Request{ID: 2, Op: agentproto.OpStatus})
	nstest.Must(t, err)
	return *reply.Status
}
