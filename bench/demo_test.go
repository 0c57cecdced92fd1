package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/fail"
	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/testbed"
)

// traces of a demonstration on this machine.
type traces struct {
	links     []string
	allowance int // of surplus hugepages; other tests may raise it for a while
}

func tracesNow(t *testing.T) (s traces) {
	t.Helper()
	links, err := netlink.LinkList()
	nstest.Must(t, err)
	for _, l := range links {
		s.links = append(s.links, l.Attrs().Name)
	}
	b, err := os.ReadFile("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_overcommit_hugepages")
	if err == nil {
		s.allowance, _ = strconv.Atoi(strings.TrimSpace(string(b)))
	}
	return s
}

// nothingLeft waits until the machine looks as before and no process of the token is left. Tests
// of other packages may use hugepages for a while. The kernel does not report when a namespace
// is gone, so it polls.
func nothingLeft(t *testing.T, before traces, token string) {
	t.Helper()
	var why string
	for deadline := time.Now().Add(3 * time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		now := tracesNow(t)
		why = ""
		if p := processes(token); len(p) > 0 {
			why += fmt.Sprintf(" processes %v", p)
		}
		for _, l := range now.links {
			if !slices.Contains(before.links, l) && (l == xdpInterface || l == kernelInterface) {
				why += " interface " + l
			}
		}
		if now.allowance > before.allowance {
			why += fmt.Sprintf(" allowance of hugepages %d, not %d", now.allowance, before.allowance)
		}
		if why == "" {
			return
		}
	}
	t.Errorf("left behind:%s", why)
}

// processes lists those that have a word on their command line.
func processes(token string) (pids []string) {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range all {
		b, _ := os.ReadFile(f)
		if args := strings.Split(string(b), "\x00"); len(args) > 2 && slices.Contains(args[1:], token) {
			pids = append(pids, filepath.Base(filepath.Dir(f)))
		}
	}
	return pids
}

func tokenOf(t *testing.T) string { return fmt.Sprintf("%s-%d", t.Name(), os.Getpid()) }

// A whole demonstration with transports of each kind: all bytes are right, each transport has a
// row, and nothing is left behind.
func TestDemo(t *testing.T) {
	nstest.Require(t)
	before, token := tracesNow(t), tokenOf(t)
	names := []string{"raw-afxdp", "vi-unreliable-wait", "vi-reliable-delivery", "vi-rdma-read", "vianet", "tcp-net", "udp-spin"}
	cfg := demoConfig(token, names)
	r, err := Demo(context.Background(), cfg)
	nstest.Must(t, err)
	for _, name := range names {
		for _, bytes := range cfg.Plan.Sizes {
			if l := r.LatencyOf(name, bytes); l == nil || l.N == 0 || l.P50 <= 0 {
				t.Errorf("%s, %d bytes: latency %+v", name, bytes, l)
			}
			if b := r.BandwidthOf(name, bytes); b == nil || b.MBps <= 0 {
				t.Errorf("%s, %d bytes: bandwidth %+v", name, bytes, b)
			}
		}
	}
	c := r.Conditions
	if c.Mode != "generic" || c.Interface != "via0" || c.MTU != 1500 || c.FrameBytes != 1514 || len(c.PinnedCPUs) != 2 {
		t.Errorf("conditions: %+v", c)
	}
	nothingLeft(t, before, token)
}

// An MTU beyond a chunk; and none of the AF_XDP transports.
func TestDemoMTU(t *testing.T) {
	nstest.Require(t)
	token := tokenOf(t)
	cfg := demoConfig(token, []string{"raw-afxdp", "vi-reliable-delivery", "udp-spin", "tcp-net"})
	cfg.MTU, cfg.Hugepages, cfg.Plan.Sizes = 65535, false, []int{1 << 16}
	r, err := Demo(context.Background(), cfg)
	nstest.Must(t, err)
	if c := r.Conditions; c.MTU != 65535 || c.FrameBytes != 65549 || c.Hugepages == "hugetlb" {
		t.Errorf("conditions: %+v", c)
	}
	cfg = demoConfig(token, []string{"tcp-net"})
	cfg.MTU = 9000
	r, err = Demo(context.Background(), cfg)
	nstest.Must(t, err)
	if c := r.Conditions; c.Interface != "tcp0" || c.MTU != 9000 || c.Mode != "" {
		t.Errorf("conditions: %+v", c)
	}
	cfg.MTU = 99999
	nstest.ErrorIf(t, nstest.Err(Demo(context.Background(), cfg)) == nil, "an MTU of 99999")
}

// An interrupted demonstration returns that error and leaves nothing, both while it measures and
// while its bed is being made, even if making the bed fails.
func TestDemoInterrupted(t *testing.T) {
	nstest.Require(t)
	for _, early := range []bool{false, true} {
		before, token := tracesNow(t), fmt.Sprint(tokenOf(t), early)
		cfg := demoConfig(token, []string{"raw-afxdp", "vi-reliable-delivery"})
		cfg.Plan.Duration = time.Minute
		ctx, cancel := context.WithCancel(context.Background())
		cfg.Plan.Progress = func(Step) { time.AfterFunc(50*time.Millisecond, cancel) }
		if early {
			cfg.MTU = 99999 // that no pair takes
			cancel()
		}
		nstest.WantErr(t, fmt.Sprint("early ", early), nstest.Err(Demo(ctx, cfg)), context.Canceled)
		nothingLeft(t, before, token)
	}
}

// An interrupted demonstration has its workers close their NICs: no socket of theirs remains.
func TestDemoInterruptedTidily(t *testing.T) {
	nstest.Require(t)
	defer func(d time.Duration) { endGrace = d }(endGrace)
	endGrace = time.Minute
	dir := filepath.Join(t.TempDir(), "proc")
	t.Setenv("VIA_RUNTIME_DIR", dir)
	sockets := func() []string {
		found, _ := filepath.Glob(filepath.Join(dir, "*.sock"))
		return found
	}
	cfg := demoConfig(tokenOf(t), []string{"vi-reliable-delivery"})
	cfg.Plan.Duration = time.Minute
	ctx, cancel := context.WithCancel(t.Context())
	cfg.Plan.Progress = func(Step) {
		if len(sockets()) != 2 {
			t.Errorf("while it measures there are %v", sockets())
		}
		cancel()
	}
	nstest.WantErr(t, "interrupted", nstest.Err(Demo(ctx, cfg)), context.Canceled)
	if left := sockets(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// When do reports that a bed was interrupted, the bed's workers are gone, even if the work on
// them had ended long before.
func TestDoInterrupted(t *testing.T) {
	b := onBed(t)
	ctx, cancel := context.WithCancel(t.Context())
	err := b.do(ctx, false, func() {
		cancel()
		fail.With("nothing more to do")
	})
	nstest.WantErr(t, "do", err, context.Canceled)
	if b.bed.Ended(0) == nil {
		t.Error("the workers still run")
	}
}

// A worker that is killed ends the demonstration with an error that says so.
func TestDemoKilledWorker(t *testing.T) {
	nstest.Require(t)
	before, token := tracesNow(t), tokenOf(t)
	cfg := demoConfig(token, []string{"tcp-block"})
	cfg.Plan.Duration = time.Minute
	cfg.Plan.Progress = func(Step) {
		time.AfterFunc(50*time.Millisecond, func() {
			for _, pid := range processes(token) {
				if cmd, _ := os.ReadFile("/proc/" + pid + "/cmdline"); strings.Contains(string(cmd), asWorker) {
					n, _ := strconv.Atoi(pid)
					p, _ := os.FindProcess(n)
					p.Kill()
					return
				}
			}
		})
	}
	nstest.ErrSays(t, "a worker that is killed", nstest.Err(Demo(context.Background(), cfg)), "killed")
	nothingLeft(t, before, token)
}

// A demonstration that is killed, at several moments, leaves nothing.
func TestDemoKilled(t *testing.T) {
	nstest.Require(t)
	for i, delay := range []time.Duration{0, 30 * time.Millisecond, 60 * time.Millisecond, 100 * time.Millisecond, -1} {
		before, token := tracesNow(t), fmt.Sprintf("%s-%d", tokenOf(t), i)
		cmd := exec.Command("/proc/self/exe", asDemo, token)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		nstest.Must(t, err)
		nstest.Must(t, cmd.Start())
		if delay < 0 { // in the midst of a measurement
			if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
				t.Error(err)
			}
		} else {
			time.Sleep(delay) // the moment at which it is killed; any will do
		}
		cmd.Process.Kill()
		cmd.Wait()
		nothingLeft(t, before, token)
	}
}

// serving starts a server on the loopback. It returns its address, and the channel of its error.
func serving(ctx context.Context, cfg ServerConfig) (at netip.AddrPort, served chan error) {
	ready, served := make(chan netip.AddrPort, 1), make(chan error, 1)
	cfg.Listen, cfg.Ready = "127.0.0.1", func(a net.Addr) { ready <- a.(*net.TCPAddr).AddrPort() }
	go func() { served <- ListenAndServe(ctx, cfg) }()
	return <-ready, served
}

// Over the loopback, without privilege.
func TestMeasureLoopback(t *testing.T) {
	ctx := t.Context()
	at, served := serving(ctx, ServerConfig{})
	for _, probe := range []string{"", "GET / HTTP/1.0\r\n\r\n"} { // which are no clients
		conn, err := net.Dial("tcp", at.String())
		nstest.Must(t, err)
		nstest.Check(t, errors.Join(nstest.Err(io.WriteString(conn, probe)), conn.Close()))
	}
	r, err := Measure(ctx, ClientConfig{
		Server: at.Addr().String(), Port: int(at.Port()),
		Plan: Plan{Rows: RowsOf([]string{"tcp-net", "udp-block"}), Sizes: []int{64}, Duration: 3 * time.Millisecond, Latency: true, Bandwidth: true, Check: true},
	})
	nstest.Must(t, err)
	if len(r.Latency) != 2 || len(r.Bandwidth) != 2 || r.Conditions.Interface != "lo" {
		t.Errorf("got %+v", r)
	}
	nstest.WantErr(t, "the server", <-served, nil)
}

// A server that could not open the client's transport reports that itself, and not only to the
// client.
func TestServerFails(t *testing.T) {
	for _, keep := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error, 1)
		at, served := serving(ctx, ServerConfig{Keep: keep, Failed: func(err error) { failed <- err }})
		conn, err := net.Dial("tcp", at.String())
		nstest.Must(t, err)
		w := NewWorker("server", conn, Params{})
		nstest.ErrorIf(t, nstest.Err(w.call(request{Op: opOpen, Transport: "no-such-transport", Params: &Params{}})) == nil, "it is open")
		conn.Close()
		if keep {
			err = <-failed
			cancel()
			if end := <-served; !errors.Is(end, context.Canceled) {
				t.Errorf("ended with %v", end)
			}
		} else {
			err = <-served
		}
		nstest.ErrSays(t, fmt.Sprintf("keep %v: the server", keep), err, `"no-such-transport"`)
		cancel()
	}
}

// If the server's host lacks something, the client's error names that host, and Missing reports it.
func TestServerLacks(t *testing.T) {
	lacks := &testbed.MissingError{What: "CAP_BPF", Remedy: "use sudo", Err: errors.New("no")}
	ours, theirs := net.Pipe()
	defer ours.Close()
	go func() {
		defer theirs.Close()
		var r request
		if json.NewDecoder(theirs).Decode(&r) == nil {
			json.NewEncoder(theirs).Encode(errorReply(lacks))
		}
	}()
	_, err := NewWorker("server", ours, Params{}).call(request{Op: opOpen, Transport: "vi-reliable-delivery", Params: &Params{}})
	if want := "server: " + lacks.Error(); err == nil || err.Error() != want || !Missing(err) {
		t.Errorf("got %v, want %s", err, want)
	}
}

// A server whose client leaves before it has connected does not wait for it.
func TestClientLeavesUnconnected(t *testing.T) {
	a, _ := nstest.Pair(t, nstest.Options{})
	ctx, stop := stopping(t)
	var server endpoint
	if err := a.Do(func() (err error) {
		server, err = openEndpoint(ctx, "vi-reliable-delivery", Params{Place: Place{Interface: a.Name, Mode: "generic"}, Server: true, Local: a.IPv4, MaxBytes: 64})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	stop()
	nstest.WantErr(t, "connect", fail.Try(func() { server.Connect(Hello{}) }), ErrStopped)
	nstest.Check(t, server.Close())
}

// Without privilege a demonstration and operations say what is missing, and so do rings of one's
// own. A VI asks for a NIC, which an agent may open. The test runs itself again as user nobody.
func TestNeeds(t *testing.T) {
	if os.Geteuid() == 0 {
		out, err := nstest.AsNobody(t, "TestNeeds").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "--- PASS: TestNeeds") {
			t.Errorf("as nobody: %v\n%s", err, out)
		}
		return
	}
	client, _ := workers(t)
	_, demo := Demo(context.Background(), demoConfig(tokenOf(t), Names()))
	operate := fail.Try(func() { operateOn(context.Background(), client, Operations{Count: 1}) })
	for what, err := range map[string]error{"demo": demo, "operate": operate} {
		var missing *testbed.MissingError
		if !errors.As(err, &missing) || !strings.Contains(err.Error(), "CAP_NET_ADMIN") && !strings.Contains(err.Error(), "CAP_BPF") {
			t.Errorf("%s: got %v", what, err)
		}
	}
	const socket = "/nowhere/agent.sock"
	t.Setenv("VIA_AGENT", socket)
	for name, want := range map[string]string{"vi-reliable-delivery": socket, "vianet": socket, "raw-afxdp": "CAP_NET_RAW"} {
		_, err := openEndpoint(t.Context(), name, Params{Place: Place{Interface: "lo"}, Server: true})
		nstest.ErrSays(t, name, err, want)
	}
}

// Errors of this side are reported before it waits for the other side.
func TestPlaceIsChecked(t *testing.T) {
	for want, p := range map[string]Place{
		"ip link":     {Interface: "no-such-nic"},
		"want one of": {Mode: "dance"},
		"off or all":  {Steer: "dance"},
	} {
		err := ListenAndServe(t.Context(), ServerConfig{Place: p, Listen: "127.0.0.1", Ready: func(net.Addr) {
			t.Errorf("%+v: it waits", p)
		}})
		nstest.ErrSays(t, fmt.Sprintf("%+v", p), err, want)
	}
}

// A client that is started beside its server, as in the README, waits until the server
// listens. If the server never comes, the client returns an error; it does not retry after
// other errors.
func TestServerComesLate(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: unix.ECONNREFUSED}
	other := errors.New("no such host")
	for _, c := range []struct {
		after time.Duration // that refuse
		then  error
		want  error
		until time.Duration
	}{
		{0, nil, nil, 0}, {0, other, other, 0},
		{refusedFor / 2, nil, nil, refusedFor / 2}, {refusedFor / 2, other, other, refusedFor / 2},
		{time.Hour, nil, unix.ECONNREFUSED, refusedFor},
	} {
		synctest.Test(t, func(t *testing.T) {
			begin := time.Now()
			_, err := reach(t.Context(), func(context.Context) (net.Conn, error) {
				if time.Since(begin) < c.after {
					return nil, refused
				}
				return nil, c.then
			})
			if took := time.Since(begin); !errors.Is(err, c.want) || took < c.until || took >= c.until+2*refusedPause {
				t.Errorf("%+v: %v after %v", c, err, took)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		_, err := reach(ctx, func(context.Context) (net.Conn, error) {
			cancel()
			return nil, refused
		})
		nstest.WantErr(t, "interrupted", err, context.Canceled)
	})
}
