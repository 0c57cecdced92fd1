// Package mpirun starts the ranks of a job on this machine, as mpiexec does: each in a network namespace with an
// interface of its own, so that ranks reach each other as if on separate hosts.
//
//	mpirun ---- socket, PMI-1 ----> rank 0    in namespace 0: via0 10.77.0.1
//	       ---- socket, PMI-1 ----> rank 1    in namespace 1: via0 10.77.0.2
//	       <--- standard output and error ---
//
// With fewer hosts than ranks, the ranks of a host share its namespace and interface, and an agent of the host lets them share
// the interface's queue.
//
// A rank finds PMI_FD, PMI_RANK and PMI_SIZE in its environment, and in VIADEV_DEVICE the name of its interface.
// Programs of other MPI implementations that speak PMI-1, such as MPICH's, can be started, too.
//
// A rank ends the job if it exits with a status other than 0, by a signal, without PMI's finalize, or while others
// wait for it in a fence, or if it aborts the job. All others then get SIGTERM, and two seconds later SIGKILL. If
// this process dies they get SIGKILL.
package mpirun

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/testbed"
	"viaxdp/mvich/pmi"
)

// Job is what to start.
type Job struct {
	Ranks   int      // 1 to testbed.MaxStar
	Hosts   int      // namespaces that the ranks are divided among, in blocks; 0: one for each rank
	Program []string // and its arguments
	Env     []string // more variables, NAME=value
	MTU     int      // of the interfaces; 0: 1500
	Bind    bool     // rank i runs on CPU i, counted around
	Prefix  bool     // lines of output begin with the rank: "3: "

	// Agent is this program's arguments with which it becomes a Kernel Agent, before --socket PATH. Each host has one if there
	// are fewer hosts than ranks, and VIA_AGENT names its socket to the ranks.
	Agent []string

	// Lossy joins the hosts by a hub that loses a share of the frames; with 0, frames take the same path without losses.
	// No frames are segmented behind the hub.
	Lossy bool
	Loss  float64

	// Stdout and Stderr may be the same; nil: discarded. Except for files, only one Write runs at a time, of both.
	Stdout, Stderr io.Writer
}

// grace is how long ranks have between SIGTERM and SIGKILL.
const grace = 2 * time.Second

// RankError says how a rank ended the job.
type RankError struct {
	Rank   int
	Status int // to exit with: that of the rank, or 128 and its signal, or the code of an abort
	Err    error
}

// Error names the rank and what became of it.
func (e *RankError) Error() string { return fmt.Sprintf("rank %d: %v", e.Rank, e.Err) }

// Unwrap is what became of it.
func (e *RankError) Unwrap() error { return e.Err }

var errSilent = errors.New("it has ended before it was ready (no PMI finalize)")

// Run runs a job to its end. The error is a *RankError if a rank has ended the job (the first such rank), and a
// *testbed.MissingError without the privilege for namespaces. The end of ctx ends the ranks, too, and is the error
// then.
func Run(ctx context.Context, j Job) error {
	if len(j.Program) == 0 {
		return errors.New("no program to start")
	}
	if j.MTU == 0 {
		j.MTU = 1500
	}
	if j.Hosts == 0 {
		j.Hosts = j.Ranks
	}
	if j.Hosts < 1 || j.Hosts > j.Ranks {
		return fmt.Errorf("%d hosts for %d ranks: want 1 to one for each rank", j.Hosts, j.Ranks)
	}
	path, err := exec.LookPath(j.Program[0])
	if err != nil {
		return err
	}
	var star *testbed.Star
	if j.Lossy {
		star, err = testbed.NewLossyStar(j.Hosts, j.MTU, j.Loss)
	} else {
		star, err = testbed.NewStar(j.Hosts, j.MTU)
	}
	if err != nil {
		return err
	}
	defer star.Close()
	agents, err := j.agents(star)
	if err != nil {
		return err
	}
	defer agents.close()
	cpus, err := testbed.AllowedCPUs()
	if err != nil {
		return err
	}
	r := &run{job: j, server: pmi.NewServer(j.Ranks), ended: make(chan ending, j.Ranks), spoke: make(chan error, j.Ranks)}
	turns := [2]*sync.Mutex{{}, {}}
	if oneWriter(j.Stdout, j.Stderr) {
		turns[1] = turns[0]
	}
	for i := range j.Ranks {
		cpu := -1
		if j.Bind {
			cpu = cpus[i%len(cpus)]
		}
		cmd := exec.Command(path, j.Program[1:]...)
		host := hostOf(i, j.Ranks, j.Hosts)
		cmd.Env = slices.Concat(testbed.Environment(), agents.env(host), j.Env)
		if err := r.start(i, host, star, cpu, cmd, turns); err != nil {
			r.server.End()
			r.signal(syscall.SIGKILL)
			r.wait(ctx)
			return fmt.Errorf("rank %d: %w", i, err)
		}
	}
	return r.wait(ctx)
}

// hostOf returns the host of a rank: the ranks are divided in blocks, and the first hosts have one more if they are unequal.
func hostOf(rank, ranks, hosts int) int {
	each, more := ranks/hosts, ranks%hosts
	if rank < more*(each+1) {
		return rank / (each + 1)
	}
	return more + (rank-more*(each+1))/each
}

// Temporary is how the name of a job's directory of sockets begins, which is one of [os.TempDir].
const Temporary = "via-xdp-mpirun"

// agents are the Kernel Agents of a job, one of each host; none if each rank has a host of its own.
type agents struct {
	dir  string // of their sockets
	ends []func()
}

func (j *Job) agents(star *testbed.Star) (*agents, error) {
	a := new(agents)
	if j.Hosts == j.Ranks {
		return a, nil
	}
	if len(j.Agent) == 0 {
		return nil, errors.New("ranks that share a host, and no agent for it")
	}
	dir, err := os.MkdirTemp("", Temporary)
	if err != nil {
		return nil, err
	}
	a.dir = dir
	for i := range j.Hosts {
		end, err := star.Agent(i, j.Agent, a.socket(i))
		if err != nil {
			a.close()
			return nil, fmt.Errorf("agent of host %d: %w", i, err)
		}
		a.ends = append(a.ends, end)
	}
	return a, nil
}

func (a *agents) socket(host int) string {
	return filepath.Join(a.dir, fmt.Sprintf("%d.sock", host))
}

// env tells a rank of the host where its agent is, if it has one.
func (a *agents) env(host int) []string {
	if len(a.ends) == 0 {
		return nil
	}
	return []string{"VIA_AGENT=" + a.socket(host)}
}

func (a *agents) close() {
	for _, end := range a.ends {
		end()
	}
	if a.dir != "" {
		_ = os.RemoveAll(a.dir)
	}
}

// oneWriter reports whether a and b are the same writer. Writers that cannot be compared are not.
func oneWriter(a, b io.Writer) (one bool) {
	defer func() { _ = recover() }()
	return a == b
}

// outputs gives cmd, a rank, its two outputs. A file is used directly, unless lines get a prefix; the others have pipes.
func (j *Job) outputs(rank int, cmd *exec.Cmd, turns [2]*sync.Mutex) (pipes pipes, err error) {
	for i, to := range []*io.Writer{&cmd.Stdout, &cmd.Stderr} {
		w := []io.Writer{j.Stdout, j.Stderr}[i]
		l := line{turn: turns[i], w: w}
		switch f, isFile := w.(*os.File); {
		case w == nil:
			continue
		case j.Prefix:
			l.prefix = strconv.Itoa(rank) + ": "
		case isFile:
			*to = f
			continue
		}
		p := &pipe{line: l, done: make(chan error, 1)}
		if p.from, p.to, err = os.Pipe(); err != nil {
			pipes.close()
			return nil, err
		}
		*to, pipes = p.to, append(pipes, p)
	}
	return pipes, nil
}

// run is a job that runs.
type run struct {
	job    Job
	server *pmi.Server
	ended  chan ending
	spoke  chan error // a rank has said what ends the job: a *RankError

	mu     sync.Mutex
	ranks  []*exec.Cmd // nil: it has ended, and its number may be another's
	killAt time.Time   // when they get SIGKILL; zero: the job has not been ended
}

// ending is how a rank ended; err is a *RankError, or nil.
type ending struct {
	rank int
	err  error
}

func (r *run) start(i, host int, star *testbed.Star, cpu int, cmd *exec.Cmd, turns [2]*sync.Mutex) error {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "pmi"), os.NewFile(uintptr(fds[1]), "pmi")
	defer ours.Close()
	defer theirs.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		return err
	}
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.Env = append(cmd.Env,
		"PMI_FD=3", "PMI_RANK="+strconv.Itoa(i), "PMI_SIZE="+strconv.Itoa(r.job.Ranks),
		"VIADEV_DEVICE="+star.Ends[host].Name)
	pipes, err := r.job.outputs(i, cmd, turns)
	if err == nil {
		if err = star.Start(host, cpu, cmd); err != nil {
			pipes.close()
		}
	}
	if err != nil {
		conn.Close()
		return err
	}
	pipes.serve()
	r.mu.Lock()
	r.ranks = append(r.ranks, cmd)
	r.mu.Unlock()
	go r.attend(i, conn, cmd, pipes)
	return nil
}

// attend serves a rank until it has ended.
func (r *run) attend(i int, conn net.Conn, cmd *exec.Cmd, out pipes) {
	silent := make(chan bool, 1) // it has sent init, and ended without finalize
	lives, gone := context.WithCancel(context.Background())
	defer gone()
	go func() {
		began, done, err := r.server.Serve(lives, i, conn)
		if err != nil {
			conn.Close() // it may wait for an answer
			status := 1
			if abort, ok := errors.AsType[*pmi.AbortError](err); ok {
				status = max(abort.Code&0xff, 1)
			}
			r.spoke <- &RankError{i, status, err}
		}
		silent <- began && !done
	}()
	// Kill the rest of its process group before the number can be reused; what SIGTERM ends has its time.
	for unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
	for time.Now().Before(r.deadline()) && groupLives(cmd.Process.Pid) {
		time.Sleep(50 * time.Millisecond)
	}
	unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
	r.mu.Lock()
	r.ranks[i] = nil
	r.mu.Unlock()
	gone() // it may wait in a fence
	werr := cmd.Wait()
	lost := out.wait()
	conn.SetDeadline(time.Now().Add(time.Second)) // children of it may hold the socket
	quiet := <-silent
	conn.Close()
	r.ended <- ending{i, endOf(i, cmd.ProcessState, werr, lost, quiet)}
}

// deadline is when the ranks get SIGKILL; zero: the job has not been ended.
func (r *run) deadline() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.killAt
}

// groupLives reports whether a process of a group lives. Its leader has ended, and kill(2) would count that, too.
func groupLives(group int) bool {
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range files {
		text, _ := os.ReadFile(file)                                    // of one that has ended since: nothing
		fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:]) // state, parent, group
		if len(fields) > 2 && string(fields[2]) == strconv.Itoa(group) && !bytes.Contains([]byte("ZX"), fields[0]) {
			return true
		}
	}
	return false
}

// endOf judges how a rank ended. lost is why its output was not written, or nil.
func endOf(rank int, state *os.ProcessState, werr, lost error, silent bool) error {
	fail := func(status int, err error) error { return &RankError{rank, status, err} }
	if lost != nil {
		lost = fmt.Errorf("writing its output: %w", lost)
	}
	var exit *exec.ExitError
	switch {
	case errors.As(werr, &exit):
		werr = errors.Join(werr, lost) // which may be the cause: SIGPIPE
		status := state.Sys().(syscall.WaitStatus)
		if status.Signaled() {
			return fail(128+int(status.Signal()), werr)
		}
		return fail(status.ExitStatus(), werr)
	case silent:
		return fail(1, errSilent)
	case lost != nil:
		return fail(1, lost)
	}
	return nil
}

// wait waits for all ranks; when one ends the job, or ctx does, it ends the others.
func (r *run) wait(ctx context.Context) (first error) {
	over := ctx.Done()
	var kill <-chan time.Time
	end := func(why error) {
		if first == nil {
			first = why
			r.server.End()
			r.mu.Lock()
			r.killAt = time.Now().Add(grace)
			r.mu.Unlock()
			r.signal(syscall.SIGTERM)
			kill = time.After(grace)
		}
	}
	for left := len(r.ranks); left > 0; {
		select {
		case e := <-r.ended:
			left--
			select {
			case err := <-r.spoke: // what it said before it ended says more
				end(err)
			default:
			}
			if e.err != nil {
				end(e.err)
			}
			r.server.End() // no fence will be complete any more
		case err := <-r.spoke:
			end(err)
		case <-over:
			over = nil
			end(context.Cause(ctx))
		case <-kill:
			r.signal(syscall.SIGKILL)
		}
	}
	return first
}

// signal sends a signal to all ranks and what they have started.
func (r *run) signal(s syscall.Signal) {
	r.mu.Lock() // a process that is in ranks is not reaped before the signal
	defer r.mu.Unlock()
	for _, cmd := range r.ranks {
		if cmd != nil {
			syscall.Kill(-cmd.Process.Pid, s)
		}
	}
}

// pipe carries an output of a rank to a writer that ranks share.
type pipe struct {
	line     line
	from, to *os.File   // its ends; the rank has to
	done     chan error // copy has ended
}

// copy copies the output until all processes that hold the pipe have closed it, or its deadline passes. Then another
// process holds it, or the writer is slow: what the rank has written is in the pipe.
func (p *pipe) copy() error {
	defer p.from.Close()
	_, err := io.Copy(&p.line, p.from)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		p.from.SetReadDeadline(time.Time{})
		var left int
		if left, err = unix.IoctlGetInt(int(p.from.Fd()), unix.TIOCINQ); err == nil {
			_, err = io.CopyN(&p.line, p.from, int64(left))
		}
	}
	return errors.Join(err, p.line.end())
}

// pipes are those of a rank.
type pipes []*pipe

// serve begins to copy, when the rank has started.
func (all pipes) serve() {
	for _, p := range all {
		p.to.Close()
		go func() { p.done <- p.copy() }()
	}
}

// wait waits until all that the rank, which has ended, has written is copied. The error is why it was not.
func (all pipes) wait() (err error) {
	for _, p := range all {
		p.from.SetReadDeadline(time.Now().Add(grace)) // for output that others hold open
	}
	for _, p := range all {
		err = errors.Join(err, <-p.done)
	}
	return err
}

// close ends the pipes of a rank that has not started.
func (all pipes) close() {
	for _, p := range all {
		p.from.Close()
		p.to.Close()
	}
}

// longest is how many bytes of a line are kept back until its end comes.
const longest = 64 << 10

// line lets a rank share a writer. The writer gets whole lines with the prefix, or pieces of lines longer than
// longest. One goroutine uses a line, such as that of exec.Cmd.
type line struct {
	turn   *sync.Mutex // held while w writes
	w      io.Writer
	prefix string
	begun  []byte // without its end
	pieces bool   // pieces of the line have been passed on
}

// Write passes whole lines on.
func (l *line) Write(b []byte) (int, error) {
	n := len(b)
	var out []byte
	for len(b) > 0 {
		part, rest, ended := bytes.Cut(b, []byte("\n"))
		l.begun, b = append(l.begun, part...), rest
		if !ended && len(l.begun) < longest {
			break
		}
		pieces := l.pieces
		if l.pieces = !ended; ended && pieces && len(l.begun) == 0 {
			continue // the line ended with its last piece
		}
		out = append(append(append(out, l.prefix...), l.begun...), '\n')
		l.begun = l.begun[:0]
	}
	if len(out) == 0 {
		return n, nil
	}
	l.turn.Lock()
	defer l.turn.Unlock()
	_, err := l.w.Write(out)
	return n, err
}

// end passes on what has no end of line.
func (l *line) end() error {
	if len(l.begun) == 0 {
		return nil
	}
	_, err := l.Write([]byte("\n"))
	return err
}
