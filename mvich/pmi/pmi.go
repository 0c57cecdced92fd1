package pmi

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"unicode"

	"golang.org/x/sys/unix"
)

// What goes wrong.
var (
	// ErrNoLauncher: the environment names no launcher.
	ErrNoLauncher = errors.New("pmi: not started by a launcher that speaks PMI-1: neither PMI_FD nor PMI_PORT is set")
	// ErrEnvironment: its variables are malformed.
	ErrEnvironment = errors.New("pmi: wrong environment")
	// ErrAnswer: the launcher's reply violates the protocol, or reports a failure.
	ErrAnswer = errors.New("pmi: wrong answer of the launcher")
	// ErrValue: a key or value that PMI cannot carry.
	ErrValue = errors.New("pmi: key or value is too long, or has white space or a control character")
)

// Client is a rank's connection with its launcher. Calls come one at a time.
type Client struct {
	conn       io.ReadWriteCloser
	in         *bufio.Reader
	rank, size int
	space      string // name of the key-value space of the job
	keys, vals int    // bytes of the longest key and value
}

// FromEnv connects with the launcher that the environment names.
func FromEnv() (*Client, error) { return connect(os.Getenv) }

func connect(env func(string) string) (*Client, error) {
	c := &Client{rank: -1, size: -1}
	var err error
	switch {
	case env("PMI_FD") != "":
		err = c.inherit(env)
	case env("PMI_PORT") != "":
		err = c.dial(env)
	default:
		err = fmt.Errorf("%w; %s", ErrNoLauncher, remedy(env))
	}
	if err == nil {
		err = c.begin()
	}
	if err != nil {
		if c.conn != nil {
			c.conn.Close()
		}
		return nil, err
	}
	return c, nil
}

// launchers lists launchers that do not speak PMI-1 by default: a variable that identifies each, and the remedy.
var launchers = []struct{ variable, remedy string }{
	{"OMPI_COMM_WORLD_RANK", "this is Open MPI's mpirun, which speaks PMIx: use Hydra's mpiexec (Debian: mpiexec.hydra)"},
	{"PMIX_RANK", "the launcher speaks PMIx: use Hydra's mpiexec, with Slurm also srun --mpi=pmi2"},
	{"SLURM_PROCID", "this is Slurm's srun without PMI: use srun --mpi=pmi2, or Hydra's mpiexec in the allocation"},
	{"PMI_RANK", "PMI_RANK is set by a launcher that does not offer its socket: use Hydra's mpiexec"},
}

// remedy says what to do where there is no launcher.
func remedy(env func(string) string) string {
	for _, l := range launchers {
		if env(l.variable) != "" {
			return l.remedy
		}
	}
	return "start the program with via-xdp mpirun or Hydra's mpiexec"
}

// inherit takes the socket that the launcher has left open.
func (c *Client) inherit(env func(string) string) (err error) {
	fd, err := number(env, "PMI_FD")
	if err != nil {
		return err
	}
	if c.rank, err = number(env, "PMI_RANK"); err != nil {
		return err
	}
	if c.size, err = number(env, "PMI_SIZE"); err != nil {
		return err
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil {
		return fmt.Errorf("%w: PMI_FD=%d is not open: a program between the launcher and this one has closed it, as sudo does: %w",
			ErrEnvironment, fd, err)
	}
	syscall.CloseOnExec(fd) // what outlives this rank would keep its death from the launcher
	f := os.NewFile(uintptr(fd), "PMI_FD")
	if f == nil {
		return fmt.Errorf("%w: PMI_FD=%d", ErrEnvironment, fd)
	}
	c.use(f)
	return nil
}

// dial connects with the launcher, and asks it for what is not in the environment.
func (c *Client) dial(env func(string) string) error {
	id, err := number(env, "PMI_ID")
	if err != nil {
		return err
	}
	conn, err := net.Dial("tcp", env("PMI_PORT"))
	if err != nil {
		return fmt.Errorf("pmi: connecting with the launcher at PMI_PORT: %w", err)
	}
	c.use(conn)
	return c.greet(id)
}

// greet sends this rank's number, as the launcher gave it, and reads the rest.
func (c *Client) greet(id int) error {
	if _, err := c.ask("initack", "initack", "pmiid="+strconv.Itoa(id)); err != nil {
		return err
	}
	for _, name := range []string{"size", "rank", "debug"} {
		answer, err := c.read("set")
		if err != nil {
			return err
		}
		n, err := strconv.Atoi(answer[name])
		if err != nil {
			return fmt.Errorf("%w: no %s in %v", ErrAnswer, name, answer)
		}
		switch name {
		case "size":
			c.size = n
		case "rank":
			c.rank = n
		}
	}
	return nil
}

func number(env func(string) string, name string) (int, error) {
	n, err := strconv.Atoi(env(name))
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%w: %s=%q, want a number", ErrEnvironment, name, env(name))
	}
	return n, nil
}

func (c *Client) use(conn io.ReadWriteCloser) { c.conn, c.in = conn, bufio.NewReader(conn) }

// begin agrees on the version, and learns of the key-value space.
func (c *Client) begin() error {
	if c.size < 1 || c.rank < 0 || c.rank >= c.size {
		return fmt.Errorf("%w: rank %d of %d", ErrEnvironment, c.rank, c.size)
	}
	if _, err := c.ask("init", "response_to_init", "pmi_version=1", "pmi_subversion=1"); err != nil {
		return err
	}
	maxes, err := c.ask("get_maxes", "maxes")
	if err != nil {
		return err
	}
	c.keys, _ = strconv.Atoi(maxes["keylen_max"])
	c.vals, _ = strconv.Atoi(maxes["vallen_max"])
	if c.keys < 1 || c.vals < 1 {
		return fmt.Errorf("%w: no lengths in %v", ErrAnswer, maxes)
	}
	space, err := c.ask("get_my_kvsname", "my_kvsname")
	c.space = space["kvsname"]
	return err
}

// ask sends a command and reads its answer.
func (c *Client) ask(cmd, answer string, words ...string) (map[string]string, error) {
	if err := c.write(cmd, words...); err != nil {
		return nil, err
	}
	return c.read(answer)
}

func (c *Client) write(cmd string, words ...string) error {
	line := strings.Join(append([]string{"cmd=" + cmd}, words...), " ") + "\n"
	if _, err := io.WriteString(c.conn, line); err != nil {
		return fmt.Errorf("pmi: %s: the launcher is gone: %w", cmd, err)
	}
	return nil
}

// read reads a line, which must be that answer, and a good one.
func (c *Client) read(want string) (map[string]string, error) {
	line, err := c.in.ReadString('\n')
	if err != nil {
		return nil, fmt.Errorf("pmi: waiting for %s: the launcher is gone: %w", want, err)
	}
	words := wordsOf(line)
	if rc := words["rc"]; words["cmd"] != want || rc != "" && rc != "0" {
		return nil, fmt.Errorf("%w: %q, want %s", ErrAnswer, strings.TrimSpace(line), want)
	}
	return words, nil
}

// Rank is this rank's number.
func (c *Client) Rank() int { return c.rank }

// Size is the number of ranks.
func (c *Client) Size() int { return c.size }

// Put publishes a value for the other ranks, which can get it after the next Fence. ErrValue: launchers differ in the
// characters at which they end a value, so no white space and no control character is sent.
func (c *Client) Put(key, value string) error {
	ends := func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }
	if len(key) >= c.keys || len(value) >= c.vals || strings.ContainsFunc(key+value, ends) || key == "" {
		return fmt.Errorf("%w: %q=%q, at most %d and %d bytes", ErrValue, key, value, c.keys-1, c.vals-1)
	}
	_, err := c.ask("put", "put_result", "kvsname="+c.space, "key="+key, "value="+value)
	return err
}

// Get gives a value that a rank has put before the last Fence.
func (c *Client) Get(key string) (string, error) {
	answer, err := c.ask("get", "get_result", "kvsname="+c.space, "key="+key)
	return answer["value"], err
}

// Fence waits until all ranks have called it.
func (c *Client) Fence() error {
	_, err := c.ask("barrier_in", "barrier_out")
	return err
}

// Abort has the launcher end all ranks.
func (c *Client) Abort(code int) error {
	return c.write("abort", "exitcode="+strconv.Itoa(code))
}

// Close reports to the launcher that this rank is done. A launcher takes an exit without Close for the rank's death.
func (c *Client) Close() error {
	_, err := c.ask("finalize", "finalize_ack")
	return errors.Join(err, c.conn.Close())
}
