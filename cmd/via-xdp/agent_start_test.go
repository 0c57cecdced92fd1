package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/agentclient"
	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
	"viaxdp/vianet"
	"viaxdp/vipl"
)

// sharer is a program of root that shares a queue: share.
type sharer struct {
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Scanner
}

// asSharer makes the test program share.
const asSharer = "internal-sharer"

// startSharer starts a program in a namespace, which finds via-xdp in path; server: the address of the server, or nothing for the server
// itself.
func startSharer(t *testing.T, ns *nstest.NS, path, state, server string) *sharer {
	t.Helper()
	s := &sharer{cmd: exec.Command("/proc/self/exe", asSharer, server)}
	s.cmd.Env = append(os.Environ(), "PATH="+path, "VIA_AGENT=auto", "VIA_STATE_DIR="+state)
	s.cmd.Stderr = os.Stderr
	in, err := s.cmd.StdinPipe()
	nstest.Must(t, err)
	out, err := s.cmd.StdoutPipe()
	nstest.Must(t, err)
	s.in, s.out = in, bufio.NewScanner(out)
	nstest.Must(t, ns.Do(s.cmd.Start))
	t.Cleanup(func() { _, _, _ = in.Close(), s.cmd.Process.Kill(), s.cmd.Wait() })
	return s
}

// opened waits until a program has opened its NIC.
func (s *sharer) opened(t *testing.T) *sharer {
	t.Helper()
	s.says(t, "ready")
	return s
}

func (s *sharer) says(t *testing.T, want string) {
	t.Helper()
	if !s.out.Scan() || s.out.Text() != want {
		told := s.out.Text()
		for s.out.Scan() {
			told += "\n" + s.out.Text()
		}
		t.Fatalf("a program says %q, want %q", told, want)
	}
}

// ask has a program exchange messages with the server.
func (s *sharer) ask(t *testing.T) {
	t.Helper()
	_, err := fmt.Fprintln(s.in, "exchange")
	nstest.Must(t, err)
	s.says(t, "same")
}

// share is a program of TestProgramsOfRootShare: the server, which returns what it gets, or a client of the server at an address, which
// sends and compares when it is told to. It is killed in the end, so it must not be a test: testscript.Main would leave its directory.
func share(server string) error {
	n, err := vipl.OpenNIC("via0", vipl.WithArena(8<<20), vipl.WithSilence(time.Minute))
	if err != nil {
		return err
	}
	stack, err := vianet.New(n, vianet.Options{})
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{DialContext: stack.DialContext}}
	if server == "" {
		l, err := stack.Listen("via", ":80")
		if err != nil {
			return err
		}
		go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if all, err := io.ReadAll(r.Body); err == nil {
				_, _ = w.Write(all)
			}
		}))
	}
	fmt.Println("ready")
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		fmt.Println(roundTrip(&client, server))
	}
	return in.Err()
}

// roundTrip sends bytes to the server and compares what returns.
func roundTrip(c *http.Client, server string) string {
	sent := make([]byte, 1+rand.IntN(200_000))
	for i := range sent {
		sent[i] = byte(rand.Uint32())
	}
	r, err := c.Post("http://"+server+"/", "application/octet-stream", bytes.NewReader(sent))
	if err != nil {
		return err.Error()
	}
	defer r.Body.Close()
	switch got, err := io.ReadAll(r.Body); {
	case err != nil:
		return err.Error()
	case !bytes.Equal(got, sent):
		return fmt.Sprintf("%d bytes return, or others than the %d that were sent", len(got), len(sent))
	}
	return "same"
}

// Programs of root with VIA_AGENT=auto share the only queue: the first one starts the agent, the others use it. They go on, and others
// come, after the first program is killed, and after the agent is. The agent leaves nothing when the last has ended.
func TestProgramsOfRootShare(t *testing.T) {
	t.Parallel()
	a, b := nstest.Pair(t, nstest.Options{})
	dir := t.TempDir()
	path, state := filepath.Join(dir, "bin"), filepath.Join(dir, "state")
	exe, err := os.Executable()
	nstest.Must(t, errors.Join(err, os.Mkdir(path, 0o755)))
	nstest.Must(t, os.Symlink(exe, filepath.Join(path, "via-xdp"))) // TestMain makes this program via-xdp
	server := startSharer(t, b, path, state, "").opened(t)
	var clients []*sharer
	for range 8 { // at the same time: none finds an agent
		clients = append(clients, startSharer(t, a, path, state, b.IPv4.String()))
	}
	for _, c := range clients {
		c.opened(t)
	}
	everyone := func() {
		t.Helper()
		for _, c := range clients {
			c.ask(t)
		}
	}
	everyone()
	sockets, err := filepath.Glob(filepath.Join(state, "netns-*.sock"))
	if nstest.Must(t, err); len(sockets) != 2 {
		t.Fatalf("agents at %v, want one for each namespace", sockets)
	}

	nstest.Must(t, clients[0].cmd.Process.Kill())
	_ = clients[0].cmd.Wait()
	clients = append(clients[1:], startSharer(t, a, path, state, b.IPv4.String()).opened(t))
	everyone()

	before := make(map[string]int)
	for _, socket := range sockets {
		before[socket], err = agentclient.Probe(socket)
		nstest.Must(t, err)
		nstest.Must(t, unix.Kill(before[socket], unix.SIGKILL))
	}
	everyone()
	clients = append(clients, startSharer(t, a, path, state, b.IPv4.String()).opened(t))
	everyone()
	for _, socket := range sockets {
		if pid, err := agentclient.Probe(socket); err != nil || pid == before[socket] {
			t.Errorf("at %s serves %d, %v; want another agent than %d", socket, pid, err, before[socket])
		}
	}

	for _, c := range append(clients, server) {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
	}
	if !await.Comes(func() bool { _, err := os.Stat(state); return errors.Is(err, os.ErrNotExist) }) {
		left, _ := filepath.Glob(filepath.Join(state, "*"))
		t.Errorf("the agents leave %v", left)
	}
}

// An agent that does not start because another one serves leaves that one's log alone, and leaves nothing of its own.
func TestLogOfAgentInBackground(t *testing.T) {
	nstest.Require(t)
	socket := filepath.Join(t.TempDir(), "agent", "agent.sock")
	start := func() (string, error) {
		cmd := viaXDP(t, "agent", "--background", "--config", os.DevNull, "--no-fdstored", "--socket", socket)
		told, err := cmd.CombinedOutput()
		return string(told), err
	}
	if told, err := start(); err != nil {
		t.Fatalf("%v: %s", err, told)
	}
	pid, err := agentclient.Probe(socket)
	nstest.Must(t, err)
	defer func() {
		if pid, err := agentclient.Probe(socket); err == nil { // the test has failed
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}()
	if told, err := start(); err == nil || !strings.Contains(told, "another agent serves") {
		t.Errorf("a second one: %v: %s", err, told)
	}
	log, err := os.ReadFile(socket + ".log")
	nstest.ErrorIf(t, err != nil || !strings.Contains(string(log), "the agent serves"), "log: %q, %v", log, err)
	files, err := filepath.Glob(socket + "*")
	nstest.ErrorIf(t, err != nil || len(files) != 3, "files: %v, %v; want socket, lock and log", files, err)
	nstest.Must(t, unix.Kill(pid, unix.SIGTERM))
	await.Until(t, "the agent leaves nothing", func() bool {
		files, err = filepath.Glob(socket + "*")
		return err == nil && len(files) == 0
	})
}

// Without the command, or for users other than root, the error says what to do.
func TestStartOfAgentFails(t *testing.T) {
	nstest.Require(t)
	t.Setenv("VIA_STATE_DIR", t.TempDir())
	t.Setenv("PATH", t.TempDir())
	if _, err := vipl.OpenNIC("via0", vipl.WithAgent(agentclient.Auto)); err == nil || !strings.Contains(err.Error(), "go install viaxdp/cmd/via-xdp") {
		t.Errorf("without the command: %v", err)
	}
	cmd := nstest.AsNobody(t, "TestProgramOfAgent")
	cmd.Env = append(os.Environ(), "VIA_TEST_AGENT=auto")
	if told, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(told), "root starts one") {
		t.Errorf("a user: %v\n%s", err, told)
	}
}
