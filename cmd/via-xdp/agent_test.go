package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/agentclient"
	"viaxdp/internal/agent/agentd"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
	"viaxdp/vipl"
	"viaxdp/xdpnic"
)

// Every setting takes effect; settings that are not given have their defaults.
func TestAgentSettings(t *testing.T) {
	got, err := parseAgentSettings([]byte(`
socket = "/run/x/agent.sock"
mode = "0660"
group = "via"
metrics = "127.0.0.1:9793"
max_connections = 77
linger = "2s"

[quota]
queues = 3
pinned = "512MiB"

[user.root]
queues = 9

[user.1001]
vis = 0

[interface.eth1]
port = 5000
max_vis = 100
mode = "generic"
users = ["root", "@root", "1001"]
zero_copy = ["1001", "@77"]

[interface.eth2]
users = []
`))
	nstest.Must(t, err)
	quota := agentd.DefaultQuota
	quota.Queues, quota.PinnedBytes = 3, 512<<20
	user := quota
	user.VIs = 0
	want := agentSettings{metrics: "127.0.0.1:9793", daemon: agentd.Daemon{
		Socket: "/run/x/agent.sock", Mode: 0o660, Group: "via",
		Config: agentd.Config{
			MaxConnections: 77, Linger: 2 * time.Second, Quota: quota, Users: map[uint32]agentd.Quota{0: {Queues: 9}, 1001: user},
			Interfaces: map[string]agentd.Interface{
				"eth1": {
					Port: 5000, MaxVIs: 100, Mode: xdpnic.ModeGeneric, Users: []uint32{0, 1001}, Groups: []uint32{0},
					ZeroCopy: agentd.Grant{Users: []uint32{1001}, Groups: []uint32{77}},
				},
				"eth2": {Users: []uint32{}}, // root only
			},
		},
	}}
	nstest.Same(t, "configuration", got.daemon.Config, want.daemon.Config)
	if got.metrics != want.metrics || got.daemon.Socket != want.daemon.Socket || got.daemon.Mode != want.daemon.Mode ||
		got.daemon.Group != want.daemon.Group {
		t.Errorf("settings: %+v", got)
	}
	none, found, err := readAgentSettings(filepath.Join(t.TempDir(), "none"), false)
	if err != nil || found || none.daemon.Socket != agentclient.DefaultSocket || none.daemon.Quota != agentd.DefaultQuota || none.daemon.Interfaces != nil {
		t.Errorf("without a file: %+v, %v", none, err)
	}
	if _, _, err := readAgentSettings(filepath.Join(t.TempDir(), "none"), true); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that was asked for: %v", err)
	}
	_, _, err = readAgentSettings("/dev/full", true) // which has no end
	nstest.ErrorIf(t, err == nil || !strings.Contains(err.Error(), "/dev/full: more than"), "/dev/full: %v", err)
}

// The file in contrib is good, and says the defaults.
func TestAgentSettingsExample(t *testing.T) {
	s, _, err := readAgentSettings("../../contrib/agent.toml", true)
	nstest.Must(t, err)
	if s.daemon.Mode != 0o660 || s.daemon.Linger != agentd.DefaultLinger || s.daemon.Quota != agentd.DefaultQuota || s.daemon.Socket != agentclient.DefaultSocket {
		t.Errorf("%+v", s.daemon)
	}
}

// An invalid setting is an error that says where it is.
func TestAgentSettingsErrors(t *testing.T) {
	for text, want := range map[string]string{
		"\nqeues = 3":                                             "line 2: there is no setting qeues",
		"[interface.eth1]\nprot = 1":                              "line 2: there is no setting interface.eth1.prot",
		"socket = 3":                                              "line 1: socket: want text in quotes and not a number",
		"[quota]\nvis = \"many\"":                                 "line 2: quota.vis: want a number and not text in quotes",
		"[interface.e]\nport = \"4793\"":                          "line 2: interface.e.port: want a number and not text in quotes",
		"[interface.e]\nusers = \"al\"":                           "line 2: interface.e.users: want a list of names and not text in quotes",
		"socket = \"a\"\nsocket = \"b\"":                          "line 2",
		"socket = \"run/x\"":                                      "no absolute path",
		"mode = \"rw\"":                                           "mode",
		"mode = \"01777\"":                                        "mode",
		"[quota]\nqueues = -1":                                    "quota.queues: -1",
		"[quota]\npinned = \"1GB\"":                               "quota.pinned",
		"[quota]\npinned = \"99999999999GiB\"":                    "quota.pinned",
		"[user.root]\nqueues = 1\n[user.0]\nqueues = 2":           "named twice", // the order of a map must not decide
		"[user.nobody-of-that-name]\nqueues = 1":                  "user.nobody-of-that-name",
		"[interface.e]\nmode = \"fast\"":                          "interface.e.mode",
		"[interface.e]\nmax_vis = 1":                              "interface.e.max_vis",
		"[interface.e]\nport = 70000":                             "line 2",
		"max_connections = -1":                                    "max_connections",
		"linger = \"2\"":                                          "linger: \"2\" is no time",
		"linger = \"-1s\"":                                        "linger",
		"[interface.e]\nzero_copy = [\"@no-group-of-that-name\"]": "interface.e.zero_copy",
		"[interface.e]\nusers = [\"@no-group-of-that-name\"]":     "interface.e.users",
	} {
		if _, err := parseAgentSettings([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// The command serves at its socket until it is stopped, and leaves nothing.
func TestAgentCommand(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	socket := filepath.Join(dir, "agent.sock")
	state := t.TempDir()
	t.Setenv("RUNTIME_DIRECTORY", state+":/nowhere")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	status, said, done := exitFine, "", make(chan bool)
	go func() {
		defer close(done)
		status, _, said = produce(ctx,
			"agent", "--config", "/dev/null", "--socket", socket, "--no-fdstored", "--metrics", "127.0.0.1:0")
	}()
	var pid int
	await.Succeeds(t, "the agent serves", func() (err error) {
		pid, err = agentclient.Probe(socket)
		return err
	})
	nstest.ErrorIf(t, pid != os.Getpid(), "process %d serves", pid)
	nstest.Check(t, nstest.Err(os.Stat(filepath.Join(state, "agent.sock.lock"))))
	second, _, _ := produce(ctx, "agent", "--config", "/dev/null", "--socket", socket, "--no-fdstored")
	nstest.ErrorIf(t, second != exitFailed, "a second agent ends with %d", second)
	stop()
	<-done
	nstest.ErrorIf(t, status != exitFine, "exit status %d\n%s", status, said)
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if _, err := net.Dial("unix", socket); err == nil {
		t.Error("it goes on serving")
	}
}

// Each metric has its labels, and a status with everything in it collects.
func TestAgentMetrics(t *testing.T) {
	st := kagent.Status{
		NICs: []kagent.NICStatus{{Interface: "eth1", Queues: 4, VIs: 2, MaxVIs: 9, Leases: []kagent.LeaseStatus{{
			Queue: 1, Holder: kagent.Holder{UID: 1001, Comm: "prog"}, PinnedBytes: 4096,
			VIs: []kagent.VIStatus{{State: kagent.VIConnected}, {State: kagent.VICreated}},
		}}}},
		Users:  []kagent.UserStatus{{UID: 1001, Queues: 1, MaxQueues: 8}},
		Counts: kagent.DaemonCounter{Deaths: 3},
	}
	st.NICs[0].Counters.Redirected = 42
	st.NICs[0].Connects.Refused = 43
	st.NICs = append(st.NICs, st.NICs[0]) // the new interface of a name whose old one has programs yet
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(&agentMetrics{func() kagent.Status { return st }})
	families, err := r.Gather()
	nstest.Must(t, err)
	got := make(map[string]float64)
	for _, f := range families {
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			got[f.GetName()+"{"+strings.Join(labels, ",")+"}"] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	want := map[string]float64{
		"viaxdp_demux_frames_total{cause=redirected,interface=eth1}":                  84,
		"viaxdp_connect_dropped_total{cause=refused,interface=eth1}":                  86,
		"viaxdp_agent_events_total{event=deaths}":                                     3,
		"viaxdp_queues_leased{interface=eth1}":                                        2,
		"viaxdp_queue_vis{comm=prog,interface=eth1,queue=1,state=connected,uid=1001}": 2,
		"viaxdp_queue_pinned_bytes{comm=prog,interface=eth1,queue=1,uid=1001}":        8192,
		"viaxdp_user_usage{resource=queues,uid=1001}":                                 1,
		"viaxdp_user_limit{resource=queues,uid=1001}":                                 8,
	}
	maps.DeleteFunc(got, func(name string, _ float64) bool { _, ok := want[name]; return !ok })
	nstest.Same(t, "metrics", got, want)
}

// An interface's name may be any bytes, a label's value only UTF-8.
func TestAgentMetricsOfAnyName(t *testing.T) {
	st := kagent.Status{NICs: []kagent.NICStatus{{Interface: "eth\xff", Queues: 4}}}
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(&agentMetrics{func() kagent.Status { return st }})
	families, err := r.Gather()
	nstest.Must(t, err)
	for _, f := range families {
		if f.GetName() == "viaxdp_queues" && f.Metric[0].GetGauge().GetValue() == 4 {
			return
		}
	}
	t.Error("no queues")
}

// countedListener counts what it has accepted.
type countedListener struct {
	net.Listener
	n atomic.Int64
}

func (l *countedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.n.Add(1)
	}
	return c, err
}

// Processes that connect to the metrics' address take few of the agent's descriptors, and each for a short time.
func TestAgentMetricsConnections(t *testing.T) {
	t.Parallel()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	nstest.Must(t, err)
	l := &countedListener{Listener: inner}
	ended := make(chan bool)
	go func() {
		defer close(ended)
		serveMetrics(l, func() kagent.Status { return kagent.Status{} })
	}()
	defer func() { l.Close(); <-ended }()
	dial := func() net.Conn {
		c, err := net.Dial("tcp", l.Addr().String())
		nstest.Must(t, err)
		return c
	}
	var silent []net.Conn
	for range 4 * maxMetricsConns {
		c := dial()
		defer c.Close()
		silent = append(silent, c)
	}
	await.Until(t, "connections are accepted", func() bool { return l.n.Load() >= maxMetricsConns })
	time.Sleep(100 * time.Millisecond) // without a limit the others are accepted by then
	if n := l.n.Load(); n > maxMetricsConns {
		t.Errorf("%d silent connections are open, want at most %d", n, maxMetricsConns)
	}
	for _, c := range silent[maxMetricsConns:] { // the others stay, until their time is over
		c.Close()
	}
	c := dial()
	defer c.Close()
	_, err = io.WriteString(c, "GET /metrics HTTP/1.1\r\nHost: agent\r\n\r\n")
	nstest.Must(t, err)
	nstest.Must(t, c.SetReadDeadline(time.Now().Add(30*time.Second)))
	if answer, err := io.ReadAll(c); err != nil || !strings.Contains(string(answer), "viaxdp_agent_start_time_seconds") {
		t.Errorf("a request: %v, %s", err, answer)
	}
}

// The dashboard asks for metrics that there are, by labels that they have.
func TestDashboard(t *testing.T) {
	b, err := os.ReadFile("../../contrib/grafana/via-xdp.json")
	nstest.Must(t, err)
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	nstest.Must(t, json.Unmarshal(b, &board))
	labels := map[string][]string{} // of each metric
	descriptions := make(chan *prometheus.Desc)
	go func() {
		(&agentMetrics{}).Describe(descriptions)
		close(descriptions)
	}()
	for d := range descriptions {
		m := regexp.MustCompile(`fqName: "(\w+)".*variableLabels: \{([^}]*)\}`).FindStringSubmatch(d.String())
		nstest.FatalIf(t, m == nil, "%v", d)
		labels[m[1]] = append(strings.Split(m[2], ","), "instance", "job") // Prometheus adds two
	}
	asked := map[string]bool{}
	for _, p := range board.Panels {
		nstest.ErrorIf(t, len(p.Targets) == 0, "panel %q asks for nothing", p.Title)
		for _, target := range p.Targets {
			var has []string
			for _, metric := range regexp.MustCompile(`viaxdp_\w+`).FindAllString(target.Expr, -1) {
				nstest.ErrorIf(t, labels[metric] == nil, "panel %q: there is no metric %s", p.Title, metric)
				asked[metric], has = true, labels[metric]
			}
			for _, m := range regexp.MustCompile(`\{\{(\w+)\}\}|\b(\w+)(?:=|!=|=~|!~)"`).FindAllStringSubmatch(target.LegendFormat+target.Expr, -1) {
				if label := m[1] + m[2]; !slices.Contains(has, label) {
					t.Errorf("panel %q: %s has no label %s", p.Title, target.Expr, label)
				}
			}
		}
	}
	nstest.ErrorIf(t, len(asked) < 5, "it asks for %v", asked)
}

// By default the agent serves root alone, or its group. Other users get an error with the remedy. Users
// other than root get the interfaces that the command line names.
func TestAgentDefaults(t *testing.T) {
	ns, _ := nstest.Pair(t, nstest.Options{})
	for _, c := range []struct {
		settings string
		args     []string
		want     string // in the error of a user; empty: the NIC opens
	}{
		{"", nil, "permission denied"},
		{"mode = \"0666\"\n", nil, "-i via0"},
		{"mode = \"0666\"\n", []string{"-i", "other,via0"}, ""},
	} {
		dir, err := os.MkdirTemp("", "agent") // t.TempDir is root's alone
		nstest.Must(t, err)
		defer os.RemoveAll(dir)
		file, socket := filepath.Join(dir, "agent.toml"), filepath.Join(dir, "agent.sock")
		nstest.Must(t, errors.Join(os.Chmod(dir, 0o755), os.WriteFile(file, []byte(c.settings), 0o644)))
		agent := viaXDP(t, append([]string{"agent", "--config", file, "--socket", socket, "--no-fdstored"}, c.args...)...)
		var out strings.Builder
		agent.Stdout, agent.Stderr = &out, &out
		nstest.Must(t, ns.Do(agent.Start))
		await.Until(t, "the agent serves", func() bool { _, err := agentclient.Probe(socket); return err == nil })
		cmd := nstest.AsNobody(t, "TestProgramOfAgent")
		cmd.Env = append(os.Environ(), "VIA_TEST_AGENT="+socket)
		told, err := cmd.CombinedOutput()
		nstest.ErrorIf(t, (c.want == "") != (err == nil) || !strings.Contains(string(told), c.want),
			"%+v: a user: %v\n%s", c, err, told)
		_ = agent.Process.Signal(unix.SIGTERM)
		if err := agent.Wait(); err != nil {
			t.Errorf("the agent: %v\n%s", err, out.String())
		}
	}
}

// TestProgramOfAgent is a program of TestAgentDefaults.
func TestProgramOfAgent(t *testing.T) {
	socket, ok := os.LookupEnv("VIA_TEST_AGENT")
	if !ok {
		t.Skip("a program of TestAgentDefaults")
	}
	n, err := vipl.OpenNIC("via0", vipl.WithAgent(socket), vipl.WithArena(8<<20))
	nstest.Must(t, err)
	nstest.Check(t, n.Close())
}

// The command line may name the socket relative to the working directory; the descriptor store runs in another
// directory.
func TestRelativeSocket(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	s, err := parseAgentSettings(nil)
	if err == nil {
		err = s.override("agent.sock", "", nil)
	}
	if want := filepath.Join(dir, "agent.sock"); err != nil || s.daemon.Socket != want {
		t.Errorf("%q, %v, want %q", s.daemon.Socket, err, want)
	}
}

// FuzzAgentSettings: any settings file gives settings within their bounds, or an error, the same each time.
func FuzzAgentSettings(f *testing.F) {
	f.Add([]byte("socket = \"/run/a\"\nmode = \"0660\"\nmax_connections = 5\n[quota]\nqueues = 3\npinned = \"64MiB\"\n" +
		"[user.0]\nvis = 9\n[interface.eth0]\nport = 4800\nmax_vis = 64\nmode = \"generic\"\nusers = [\"0\", \"12\"]\n"))
	f.Add([]byte("[user.root]\n[user.0]\n"))
	f.Add([]byte("[interface.x]\nmax_vis = 1\n"))
	f.Add([]byte("quota = 3\n"))
	f.Add([]byte("[quota]\npinned = \"9223372036854775807KiB\"\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := parseAgentSettings(b)
		again, err2 := parseAgentSettings(b)
		nstest.FatalIf(t, (err == nil) != (err2 == nil) || err == nil && !reflect.DeepEqual(s, again),
			"%+v, %v and %+v, %v", s, err, again, err2)
		if err != nil {
			nstest.FatalIf(t, err.Error() == "", "an error without words")
			return
		}
		d := s.daemon
		quota := d.Quota
		if !strings.HasPrefix(d.Socket, "/") || d.Mode > 0o777 || d.MaxConnections < 0 ||
			min(quota.Connections, quota.Queues, quota.VIs, quota.PinnedBytes) < 0 {
			t.Errorf("%+v", d)
		}
		for uid, q := range d.Users {
			nstest.ErrorIf(t, min(q.Connections, q.Queues, q.VIs, q.PinnedBytes) < 0, "user %d: %+v", uid, q)
		}
		for name, i := range d.Interfaces {
			nstest.ErrorIf(t, i.MaxVIs != 0 && (i.MaxVIs < 2 || i.MaxVIs > 1<<16), "interface %s: %+v", name, i)
		}
	})
}

// FuzzCapabilities: the agent reports the capabilities that the kernel's line lacks, for any program name and any
// other content of the file. A file without that line does not stop the agent.
func FuzzCapabilities(f *testing.F) {
	f.Add("via-xdp", uint64(0x1ffffffffff), "CapBnd:\t0\n")
	f.Add("CapEff:0", uint64(0x3000), "")
	f.Add("x", uint64(1)<<39, "CapEff:\t0\n")
	f.Add("x", uint64(1)<<21, "NoNewPrivs:\t0")
	f.Add("x", uint64(0x203000), "")
	f.Fuzz(func(t *testing.T, name string, have uint64, rest string) {
		name = strings.ReplaceAll(name, "\n", "\\n") // proc_pid_status(5)
		var want []string
		bit := func(n int) bool { return have&(1<<n) != 0 }
		if !bit(12) {
			want = append(want, "CAP_NET_ADMIN")
		}
		if !bit(13) {
			want = append(want, "CAP_NET_RAW")
		}
		if !bit(39) && !bit(21) {
			want = append(want, "CAP_BPF")
		}
		err := missingCapabilities(fmt.Sprintf("Name:\t%s\nUmask:\t0022\nCapPrm:\t0\nCapEff:\t%016x\n%s", name, have, rest))
		var missing *capabilityError
		if err != nil && statusOf(t.Context(), err) != exitCannotRun {
			t.Errorf("%v: exit status %d", err, statusOf(t.Context(), err))
		}
		if errors.As(err, &missing) != (err != nil) || err == nil && len(want) > 0 || err != nil && !slices.Equal(missing.missing, want) {
			t.Fatalf("%q with %x: %v, want %q", name, have, err, want)
		}
		if err := missingCapabilities(rest); errors.As(err, &missing) != (err != nil) || err != nil &&
			(len(missing.missing) == 0 || !strings.Contains(rest, "CapEff:") || !strings.Contains(err.Error(), "start it as root")) {
			t.Fatalf("%q: %v", rest, err)
		}
	})
}

// mostExposure is the highest score that systemd-analyze security may give the agent's
// service, in tenths; docs/agent.md explains the rest.
const mostExposure = "22"

// The units are good, and the service has no more than it needs, as systemd sees it.
func TestSystemdUnits(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		nstest.Lacks(t, "needs systemd-analyze (Debian: systemd): %v", err)
	}
	self, err := os.Executable()
	nstest.Must(t, err)
	dir := t.TempDir()
	args := []string{"verify", "--man=no"}
	for _, name := range []string{"via-xdp-agent.service", "via-xdp-agent.socket"} {
		text, err := os.ReadFile("../../contrib/systemd/" + name)
		nstest.Must(t, err)
		// It must be there.
		unit := strings.ReplaceAll(string(text), "/usr/bin/via-xdp", self)
		nstest.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(unit), 0o644))
		args = append(args, filepath.Join(dir, name))
	}
	if out, err := exec.Command(analyze, args...).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("verify: %v\n%s", err, out)
	}
	// systemd older than 250 has no --offline.
	service := filepath.Join(dir, "via-xdp-agent.service")
	if out, err := exec.Command(analyze, "security", "--no-pager", "--offline=true", "--threshold="+mostExposure, service).CombinedOutput(); err != nil {
		t.Errorf("security: %v\n%s", err, out)
	}
}

// The units work with systemd as process 1; see contrib/systemd/try.
func TestSystemdService(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("boots systemd")
	}
	nstest.Require(t)
	self, err := os.Executable() // as via-xdp it is via-xdp: TestMain
	nstest.Must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "../../contrib/systemd/try", self)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // it tidies up
	cmd.WaitDelay = time.Minute
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == exitCannotRun {
		nstest.Lacks(t, "%s", out)
	}
	nstest.ErrorIf(t, err != nil, "%v\n%s", err, out)
}
