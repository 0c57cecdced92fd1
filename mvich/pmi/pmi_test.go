package pmi

import (
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

	"viaxdp/internal/lab/nstest"
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

// exchange has each rank read the values of all others, twice.
func exchange(c *Client) error {
	for turn := range 2 {
		key := func(rank int) string { return fmt.Sprint("key-", turn, "-", rank) }
		if err := errors.Join(c.Put(key(c.Rank()), fmt.Sprint("value=", c.Rank())), c.Fence()); err != nil {
			return err
		}
		for rank := range c.Size() {
			v, err := c.Get(key(rank))
			if err != nil || v != fmt.Sprint("value=", rank) {
				return fmt.Errorf("rank %d has put %q, %v", rank, v, err)
			}
		}
	}
	return c.Close()
}

// inherited gives a rank its end of a socket pair as PMI_FD, and passes the other end to serve.
func inherited(t *testing.T, rank, size int, serve func(conn net.Conn)) func(string) string {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	nstest.Must(t, err)
	f := os.NewFile(uintptr(fds[0]), "launcher")
	defer f.Close()
	conn, err := net.FileConn(f)
	nstest.Must(t, err)
	t.Cleanup(func() { conn.Close() })
	go serve(conn)
	return environment("PMI_FD", strconv.Itoa(fds[1]), "PMI_RANK", strconv.Itoa(rank), "PMI_SIZE", strconv.Itoa(size))
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

// listened has a rank connect with PMI_PORT, where it gets its number and the size of the job.
func listened(t *testing.T, rank, size int, serve func(conn net.Conn)) func(string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	nstest.Must(t, err)
	t.Cleanup(func() { listener.Close() })
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		var id int
		nstest.Check(t, nstest.Err(fmt.Fscanf(conn, "cmd=initack pmiid=%d\n", &id)))
		fmt.Fprintf(conn, "cmd=initack rc=0\ncmd=set size=%d\ncmd=set rank=%d\ncmd=set debug=0\n", size, id)
		serve(conn)
	}()
	return environment("PMI_PORT", listener.Addr().String(), "PMI_ID", strconv.Itoa(rank))
}

// The ranks of a server exchange values over both kinds of connections, and finalize.
func TestExchange(t *testing.T) {
	const ranks = 5
	for name, way := range map[string]func(t *testing.T, rank, size int, serve func(conn net.Conn)) func(string) string{
		"PMI_FD": inherited, "PMI_PORT": listened,
	} {
		t.Run(name, func(t *testing.T) {
			s := NewServer(ranks)
			var wait sync.WaitGroup
			for rank := range ranks {
				c, result := rankOf(t, s, rank, ranks, way)
				nstest.ErrorIf(t, c.Rank() != rank || c.Size() != ranks, "rank %d of %d", c.Rank(), c.Size())
				wait.Go(func() {
					nstest.Check(t, exchange(c))
					nstest.Equal(t, fmt.Sprint("rank ", rank), <-result, "true true <nil>")
				})
			}
			wait.Wait()
		})
	}
}

// Values that PMI cannot carry are not sent.
func TestWrongValues(t *testing.T) {
	c, _ := rankOf(t, NewServer(1), 0, 1, inherited)
	defer c.Close()
	for key, value := range map[string]string{
		"a key": "v", "key": "a value", "": "v", "long": strings.Repeat("x", maxValue),
		"a\tkey": "v", "tab": "a\tvalue", "return": "a\rvalue", "NUL": "a\x00value", "no-break": "a\u00a0value", "next-line": "a\u0085value",
	} {
		nstest.WantErr(t, fmt.Sprintf("%q=%q", key, value), c.Put(key, value), ErrValue)
	}
}

// An environment that is wrong, or another launcher's, gives an error. That of another launcher names it and the remedy.
func TestEnvironment(t *testing.T) {
	open, err := unix.Dup(2) // connect closes it
	nstest.Must(t, err)
	const openMPI, pmix, slurm = "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID"
	for name, c := range map[string]struct {
		env  func(string) string
		want error
		says string
	}{
		"no rank":          {environment("PMI_FD", "77"), ErrEnvironment, ""},
		"no number":        {environment("PMI_FD", "x"), ErrEnvironment, ""},
		"no id":            {environment("PMI_PORT", "127.0.0.1:1"), ErrEnvironment, ""},
		"nobody there":     {environment("PMI_PORT", "127.0.0.1:1", "PMI_ID", "0"), syscall.ECONNREFUSED, ""},
		"no file":          {environment("PMI_FD", "1000000", "PMI_RANK", "0", "PMI_SIZE", "1"), syscall.EBADF, "PMI_FD=1000000 is not open"},
		"rank too high":    {environment("PMI_FD", strconv.Itoa(open), "PMI_RANK", "1", "PMI_SIZE", "1"), ErrEnvironment, "rank 1 of 1"},
		"Hydra over Slurm": {environment("PMI_FD", "1000000", "PMI_RANK", "0", "PMI_SIZE", "1", slurm, "0"), syscall.EBADF, ""},
		"by hand":          {environment(), ErrNoLauncher, "via-xdp mpirun"},
		"srun":             {environment(slurm, "0", "SLURM_NTASKS", "4"), ErrNoLauncher, "srun --mpi=pmi2"},
		"srun --mpi=pmix":  {environment(slurm, "0", pmix, "0"), ErrNoLauncher, "PMIx"},
		"Open MPI":         {environment(openMPI, "0", pmix, "0"), ErrNoLauncher, "Open MPI"},
		"rank, no socket":  {environment("PMI_RANK", "0", "PMI_SIZE", "4"), ErrNoLauncher, "does not offer its socket"},
	} {
		_, err := connect(c.env)
		nstest.WantErr(t, name, err, c.want)
		nstest.ErrSays(t, name, err, c.says)
	}
}

// A launcher that ends, or sends malformed lines, causes an error and no panic.
func TestWrongLauncher(t *testing.T) {
	for name, says := range map[string]string{
		"nothing":        "",
		"nonsense":       "hello\n",
		"refusal":        "cmd=response_to_init rc=-1\n",
		"another answer": "cmd=maxes\n",
		"no lengths":     "cmd=response_to_init rc=0\ncmd=maxes\n",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := connect(inherited(t, 0, 1, func(conn net.Conn) {
				io.WriteString(conn, says)
				conn.(*net.UnixConn).CloseWrite()
			}))
			nstest.ErrorIf(t, !errors.Is(err, ErrAnswer) && !errors.Is(err, io.EOF), "%v", err)
		})
	}
}

// Hydra's mpiexec, where it is installed, starts ranks that exchange values.
func TestMpiexec(t *testing.T) {
	path, err := exec.LookPath("mpiexec.hydra")
	if err != nil {
		t.Skip("Hydra's mpiexec is not installed (Debian: mpich)")
	}
	self, err := os.Executable()
	nstest.Must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "-n", "3", self)
	cmd.Env = append(os.Environ(), "VIA_PMI_RANK_OF_A_TEST=1")
	cmd.WaitDelay = 20 * time.Second
	out, err := cmd.CombinedOutput()
	nstest.FatalIf(t, err != nil, "%v\n%s", err, out)
	for rank := range 3 {
		nstest.ErrorIf(t, !strings.Contains(string(out), fmt.Sprintf("rank %d of 3 has heard of all", rank)), "rank %d is missing in\n%s", rank, out)
	}
}

// Programs that a rank starts do not inherit its socket: one that outlives the rank would hide the rank's end
// from the launcher.
func TestSocketIsNotInherited(t *testing.T) {
	env := inherited(t, 0, 1, func(conn net.Conn) { NewServer(1).Serve(t.Context(), 0, conn) })
	fd, err := strconv.Atoi(env("PMI_FD"))
	nstest.Must(t, err)
	nstest.Must(t, nstest.Err(unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0))) // as launchers leave it
	c, err := connect(env)
	nstest.Must(t, err)
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	nstest.ErrorIf(t, err != nil || flags&unix.FD_CLOEXEC == 0, "flags %#x, %v", flags, err)
	nstest.Check(t, c.Close())
}
