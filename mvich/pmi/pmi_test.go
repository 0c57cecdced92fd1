package pmi

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestMain lets the test's program be a rank that mpiexec starts.
func TestMain(m *testing.M) {
	if os.Getenv("VIA_PMI_RANK_OF_A_TEST") == "" {
		os.Exit(m.Run())
	}
	c, err := FromEnv()
	if err == nil {
		err = exchange(c)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Printf("rank %d of %d has heard of all\n", c.Rank(), c.Size())
}

// exchange has each rank hear of each other one.
func exchange(c *Client) error {
	if err := c.Put(fmt.Sprint("key-", c.Rank()), fmt.Sprint("value=", c.Rank())); err != nil {
		return err
	}
	if err := c.Fence(); err != nil {
		return err
	}
	for rank := range c.Size() {
		v, err := c.Get(fmt.Sprint("key-", rank))
		if err != nil || v != fmt.Sprint("value=", rank) {
			return fmt.Errorf("rank %d has put %q, %v", rank, v, err)
		}
	}
	return c.Close()
}

// launcher plays mpiexec for some ranks.
type launcher struct {
	size int

	mu      sync.Mutex
	values  map[string]string
	inside  []net.Conn
	done    int
	aborted string
}

// serve answers one rank.
func (l *launcher) serve(conn net.Conn) {
	in := bufio.NewScanner(conn)
	for in.Scan() {
		words := make(map[string]string)
		for _, word := range strings.Fields(in.Text()) {
			name, value, _ := strings.Cut(word, "=")
			words[name] = value
		}
		l.answer(conn, words)
	}
}

func (l *launcher) answer(conn net.Conn, words map[string]string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch words["cmd"] {
	case "initack":
		fmt.Fprintf(conn, "cmd=initack rc=0\ncmd=set size=%d\ncmd=set rank=%s\ncmd=set debug=0\n", l.size, words["pmiid"])
	case "init":
		fmt.Fprintln(conn, "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0")
	case "get_maxes":
		fmt.Fprintln(conn, "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024")
	case "get_my_kvsname":
		fmt.Fprintln(conn, "cmd=my_kvsname kvsname=kvs_1_0")
	case "put":
		l.values[words["kvsname"]+words["key"]] = words["value"]
		fmt.Fprintln(conn, "cmd=put_result rc=0 msg=success")
	case "get":
		if v, ok := l.values[words["kvsname"]+words["key"]]; ok {
			fmt.Fprintf(conn, "cmd=get_result rc=0 msg=success value=%s\n", v)
		} else {
			fmt.Fprintln(conn, "cmd=get_result rc=-1 msg=key_not_found")
		}
	case "barrier_in":
		if l.inside = append(l.inside, conn); len(l.inside) == l.size {
			for _, c := range l.inside {
				fmt.Fprintln(c, "cmd=barrier_out")
			}
			l.inside = nil
		}
	case "finalize":
		l.done++
		fmt.Fprintln(conn, "cmd=finalize_ack")
	case "abort":
		l.aborted = words["exitcode"]
	}
}

func newLauncher(size int) *launcher { return &launcher{size: size, values: map[string]string{}} }

// inherited gives a rank its end of a socket pair, as PMI_FD, and serves the other end.
func (l *launcher) inherited(t *testing.T, rank int) func(string) string {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fds[0]), "launcher")
	conn, err := net.FileConn(f)
	f.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go l.serve(conn)
	return environment("PMI_FD", strconv.Itoa(fds[1]), "PMI_RANK", strconv.Itoa(rank), "PMI_SIZE", strconv.Itoa(l.size))
}

func environment(pairs ...string) func(string) string {
	return func(name string) string {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1]
			}
		}
		return ""
	}
}

// Both ways to the launcher carry values between ranks.
func TestExchange(t *testing.T) {
	const ranks = 3
	for name, way := range map[string]func(l *launcher, rank int) func(string) string{
		"PMI_FD": func(l *launcher, rank int) func(string) string { return l.inherited(t, rank) },
		"PMI_PORT": func(l *launcher, rank int) func(string) string {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { listener.Close() })
			go func() {
				if conn, err := listener.Accept(); err == nil {
					l.serve(conn)
				}
			}()
			return environment("PMI_PORT", listener.Addr().String(), "PMI_ID", strconv.Itoa(rank))
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLauncher(ranks)
			errs := make(chan error, ranks)
			for rank := range ranks {
				env := way(l, rank)
				go func() {
					c, err := connect(env)
					if err == nil && (c.Rank() != rank || c.Size() != ranks) {
						err = fmt.Errorf("rank %d of %d", c.Rank(), c.Size())
					}
					if err == nil {
						err = exchange(c)
					}
					errs <- err
				}()
			}
			for range ranks {
				if err := <-errs; err != nil {
					t.Error(err)
				}
			}
			if l.done != ranks {
				t.Errorf("%d ranks have said that they are done", l.done)
			}
		})
	}
}

func TestRefused(t *testing.T) {
	l := newLauncher(1)
	c, err := connect(l.inherited(t, 0))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Get("nothing"); !errors.Is(err, ErrAnswer) {
		t.Errorf("a key that nobody has put: %v", err)
	}
	for key, value := range map[string]string{"a key": "v", "key": "a value", "": "v", "long": strings.Repeat("x", 1024)} {
		if err := c.Put(key, value); !errors.Is(err, ErrValue) {
			t.Errorf("%q=%q: %v", key, value, err)
		}
	}
	if err := c.Abort(3); err != nil {
		t.Error(err)
	}
	if err := c.Close(); err != nil { // which the launcher answers after the abort
		t.Error(err)
	}
	if l.aborted != "3" {
		t.Errorf("aborted with %q", l.aborted)
	}
}

func TestEnvironment(t *testing.T) {
	for name, c := range map[string]struct {
		env  func(string) string
		want error
	}{
		"nothing":       {environment(), ErrNoLauncher},
		"no rank":       {environment("PMI_FD", "77"), ErrEnvironment},
		"no number":     {environment("PMI_FD", "x"), ErrEnvironment},
		"no id":         {environment("PMI_PORT", "127.0.0.1:1"), ErrEnvironment},
		"nobody there":  {environment("PMI_PORT", "127.0.0.1:1", "PMI_ID", "0"), syscall.ECONNREFUSED},
		"no file":       {environment("PMI_FD", "1000000", "PMI_RANK", "0", "PMI_SIZE", "1"), syscall.EBADF},
		"rank too high": {environment("PMI_FD", "1000000", "PMI_RANK", "1", "PMI_SIZE", "1"), ErrEnvironment},
	} {
		if _, err := connect(c.env); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// Whoever was started by another launcher is told which one it was, and what to do.
func TestOtherLaunchers(t *testing.T) {
	for name, test := range map[string]struct {
		env  func(string) string
		want string
	}{
		"by hand":          {environment(), "via-xdp mpirun"},
		"srun":             {environment("SLURM_PROCID", "0", "SLURM_NTASKS", "4"), "srun --mpi=pmi2"},
		"srun --mpi=pmix":  {environment("SLURM_PROCID", "0", "PMIX_RANK", "0"), "PMIx"},
		"Open MPI":         {environment("OMPI_COMM_WORLD_RANK", "0", "PMIX_RANK", "0"), "Open MPI"},
		"rank, no socket":  {environment("PMI_RANK", "0", "PMI_SIZE", "4"), "does not offer its socket"},
		"Hydra over Slurm": {environment("PMI_FD", "1000000", "PMI_RANK", "0", "PMI_SIZE", "1", "SLURM_PROCID", "0"), ""},
	} {
		_, err := connect(test.env)
		switch {
		case err == nil:
			t.Errorf("%s: connected", name)
		case test.want == "" && errors.Is(err, ErrNoLauncher):
			t.Errorf("%s: %v, though there is one", name, err)
		case test.want != "" && (!errors.Is(err, ErrNoLauncher) || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%s: %v, want a word about %q", name, err, test.want)
		}
	}
}

// A launcher that ends, or says nonsense, is an error and no more.
func TestWrongLauncher(t *testing.T) {
	for name, says := range map[string]string{
		"nothing":        "",
		"nonsense":       "hello\n",
		"refusal":        "cmd=response_to_init rc=-1\n",
		"another answer": "cmd=maxes\n",
		"no lengths":     "cmd=response_to_init rc=0\ncmd=maxes\n",
	} {
		t.Run(name, func(t *testing.T) {
			fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			f := os.NewFile(uintptr(fds[0]), "launcher")
			defer f.Close()
			io.WriteString(f, says)
			syscall.Shutdown(fds[0], syscall.SHUT_WR)
			_, err = connect(environment("PMI_FD", strconv.Itoa(fds[1]), "PMI_RANK", "0", "PMI_SIZE", "1"))
			if !errors.Is(err, ErrAnswer) && !errors.Is(err, io.EOF) {
				t.Error(err)
			}
		})
	}
}

// Hydra's mpiexec starts ranks that hear of each other, where it is installed.
func TestMpiexec(t *testing.T) {
	path, err := exec.LookPath("mpiexec.hydra")
	if err != nil {
		t.Skip("Hydra's mpiexec is not installed (Debian: mpich)")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "-n", "3", self)
	cmd.Env = append(os.Environ(), "VIA_PMI_RANK_OF_A_TEST=1")
	cmd.WaitDelay = 20 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for rank := range 3 {
		if !strings.Contains(string(out), fmt.Sprintf("rank %d of 3 has heard of all", rank)) {
			t.Errorf("rank %d is missing in\n%s", rank, out)
		}
	}
}

// Programs that a rank starts do not get its socket: one that outlives it would keep its end from the launcher.
func TestSocketIsNotInherited(t *testing.T) {
	env := newLauncher(1).inherited(t, 0)
	fd, err := strconv.Atoi(env("PMI_FD"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil { // as launchers leave it
		t.Fatal(err)
	}
	c, err := connect(env)
	if err != nil {
		t.Fatal(err)
	}
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("flags %#x, %v", flags, err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
