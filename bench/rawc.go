package bench

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/hugepages"
	"viaxdp/xdpnic"
)

// rawC is raw-afxdp in C: a process of package floor that has the rings. This side
// makes the XDP program and the memory, sends commands to the process, and sleeps
// meanwhile. The process runs on the CPU of this one.
type rawC struct {
	params Params
	copies bool
	stop   *atomic.Bool
	nic    *rawNIC
	arena  *hugepages.Arena
	layout rawCLayout
	chunk  int
	proc   *rawCProcess // nil: none

	echoed Span // of the last Echo, what it cost the process
}

// rawCLayout says what lies where in the memory that the two processes share; the
// UMEM is what is before samples.
type rawCLayout struct{ samples, pattern, size int }

func openRawC(p Params, program *os.File, copies bool, stop *atomic.Bool) (*rawC, error) {
	r := &rawC{params: p, copies: copies, stop: stop}
	var socket *os.File
	defer func() { socket.Close() }() // the process has it
	var err error
	r.nic, err = openRawNIC(p, func(ifi *net.Interface, m xdpnic.Mode) (int, error) {
		if m == xdpnic.ModeZeroCopy {
			return -1, fmt.Errorf("the program in C copies: %w", unix.EOPNOTSUPP)
		}
		fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return -1, fmt.Errorf("AF_XDP socket: %w", err)
		}
		socket = os.NewFile(uintptr(fd), "AF_XDP")
		return fd, r.start(ifi, program, socket)
	}, func() {
		r.end()
		socket.Close()
	})
	if err != nil {
		return nil, err
	}
	if err := r.nic.awaitLink(); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// rawCFits says why an interface's frames are none for the program in C; nil: they are.
func rawCFits(mtu int) error {
	if mtu > xdpnic.MaxChunk-xdpnic.PacketHeadroom-ethernetHeader {
		return fmt.Errorf("frames of MTU %d are longer than a chunk, and the program in C has none that are chained", mtu)
	}
	return nil
}

// start maps the memory and starts the process, which opens the queue.
func (r *rawC) start(ifi *net.Interface, program, socket *os.File) error {
	if err := rawCFits(ifi.MTU); err != nil {
		return err
	}
	cfg, err := xdpnic.Config{
		Ifindex: ifi.Index, QueueID: r.params.Queue, RxChunks: ringChunks, TxChunks: ringChunks, Mode: xdpnic.ModeGeneric,
	}.WithDefaults()
	if err != nil {
		return err
	}
	r.chunk = cfg.ChunkSize
	r.layout.samples = cfg.PoolBytes()
	r.layout.pattern = r.layout.samples + 8*maxRound
	r.layout.size = r.layout.pattern + len(pattern)
	policy := hugepages.Avoid
	if r.params.Hugepages {
		policy = hugepages.Auto
	}
	r.arena, err = hugepages.New(hugepages.Config{Size: r.layout.size, Reserve: r.layout.size, Shared: true, Policy: policy})
	if err != nil {
		return err
	}
	copy(r.arena.Bytes()[r.layout.pattern:], pattern)
	fd, err := unix.FcntlInt(uintptr(r.arena.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	memory := os.NewFile(uintptr(fd), "memory")
	defer memory.Close()
	if r.proc, err = startRawC(program, socket, memory, r.stop); err != nil {
		return err
	}
	copies := 0
	if r.copies {
		copies = 1
	}
	_, err = r.proc.call("open %d %d %d %d %d %d %d %d %d %d %d %d %d", ifi.Index, r.params.Queue,
		r.chunk, ringChunks, cfg.SendBuffer, cfg.TxBudget, headersLen(r.params.Local), copies, r.params.MaxBytes,
		cmp.Or(r.params.WaitLimit, waitLimit).Nanoseconds(), r.layout.samples, r.layout.samples, r.layout.pattern)
	return err
}

// end ends the process and gives the memory back.
func (r *rawC) end() error {
	var errs []error
	if r.proc != nil {
		errs = append(errs, r.proc.close())
	}
	if r.arena != nil {
		errs = append(errs, r.arena.Close())
	}
	r.proc, r.arena = nil, nil
	return errors.Join(errs...)
}

// Hello, see Endpoint.
func (r *rawC) Hello() Hello {
	return r.nic.hello(r.chunk-xdpnic.PacketHeadroom, r.arena.Info().Kind.String())
}

// Connect, see Endpoint.
func (r *rawC) Connect(peer Hello) error {
	own := r.Hello()
	h, err := newHeaders(own, peer, r.nic.port)
	if err != nil {
		return err
	}
	headers := make([]byte, h.Len())
	h.PutHead(headers, 0)
	_, err = r.proc.call("connect %d %d %s",
		min(own.Payload, peer.Payload)-frameHeader, min(own.Window, peer.Window), hex.EncodeToString(headers))
	return err
}

// round has one done.
func (r *rawC) round(op string, round Round) (Span, error) {
	if err := round.check(); err != nil {
		return Span{}, err
	}
	checks := 0
	if round.Check {
		checks = 1
	}
	stolen := stolenTime()
	answer, err := r.proc.call("%s %d %d %d %d %d", op, round.ID, round.Bytes, round.Messages, round.Lead, checks)
	if err != nil {
		return Span{}, err
	}
	s, err := spanIn(answer)
	s.Stolen = max(0, stolenTime()-stolen)
	return s, err
}

// spanIn reads what a round took: wall, CPU and waited, in nanoseconds.
func spanIn(answer string) (s Span, err error) {
	_, err = fmt.Sscanf(answer, "%d %d %d", &s.Wall, &s.CPU, &s.Waited)
	if err != nil || s.Wall <= 0 || s.CPU < 0 || fmt.Sprintf("%d %d %d", s.Wall, s.CPU, s.Waited) != answer {
		return Span{}, fmt.Errorf("the program in C has answered %q", answer)
	}
	s.Waited = max(0, s.Waited)
	return s, nil
}

// Ping, see Endpoint.
func (r *rawC) Ping(round Round, rtt []int64) (Span, error) {
	span, err := r.round("ping", round)
	if err != nil {
		return Span{}, err
	}
	samples := r.arena.Bytes()[r.layout.samples:r.layout.pattern]
	for i := range round.Messages {
		rtt[i] = int64(binary.NativeEndian.Uint64(samples[8*i:]))
	}
	return span, nil
}

// Echo, see Endpoint.
func (r *rawC) Echo(round Round) (err error) {
	r.echoed, err = r.round("echo", round)
	return err
}

// Send, see Endpoint.
func (r *rawC) Send(round Round) (Span, error) { return r.round("send", round) }

// Receive, see Endpoint.
func (r *rawC) Receive(round Round) (Span, error) { return r.round("receive", round) }

// Close, see Endpoint.
func (r *rawC) Close() error { return errors.Join(r.nic.close(), r.end()) }

// rawCProcess is the process and its two pipes.
type rawCProcess struct {
	cmd    *exec.Cmd
	stop   *atomic.Bool // may be nil
	orders io.WriteCloser
	pipe   *os.File // of answers
	answer *bufio.Reader
	stderr bytes.Buffer  // read only after exited
	exited chan struct{} // closed when it has been waited for
}

// startRawC starts the program, which gets SIGKILL when the calling thread ends.
func startRawC(program, socket, memory *os.File, stop *atomic.Bool) (_ *rawCProcess, err error) {
	const first = 3 // of ExtraFiles
	p := &rawCProcess{stop: stop, exited: make(chan struct{}), cmd: &exec.Cmd{
		Path: fmt.Sprintf("/proc/self/fd/%d", first+2), Args: []string{"via-xdp-floor"}, Env: []string{"LC_ALL=C"},
		ExtraFiles: []*os.File{socket, memory, program}, WaitDelay: rawCGrace, SysProcAttr: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
	}}
	p.cmd.Stderr = &p.stderr
	if p.orders, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	// Not StdoutPipe, which Wait closes under its reader.
	pipe, theirs, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, p.orders.Close())
	}
	defer theirs.Close()
	p.pipe, p.cmd.Stdout, p.answer = pipe, theirs, bufio.NewReader(pipe)
	if err := p.cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("the program in C: %w", err), p.orders.Close(), pipe.Close())
	}
	go func() {
		defer close(p.exited)
		_ = p.cmd.Wait() // cmd.ProcessState has the result
	}()
	return p, nil
}

// rawCGrace is how long the process may take to end, and its pipes after it.
const rawCGrace = 5 * time.Second

// rawCExit is how long a process may take to end after its pipe has broken: it has
// ended by itself, but a busy host reports that late.
const rawCExit = 30 * time.Second

// call sends one command and returns the text after "ok" in the reply. After an error
// the process is unusable.
func (p *rawCProcess) call(format string, args ...any) (string, error) {
	if _, err := fmt.Fprintf(p.orders, format+"\n", args...); err != nil {
		return "", p.explain(err)
	}
	line := ""
	for {
		if err := p.pipe.SetReadDeadline(time.Now().Add(maxSleep)); err != nil {
			return "", err
		}
		part, err := p.answer.ReadString('\n')
		line += part
		switch {
		case err == nil:
			return understand(line)
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return "", p.explain(err)
		case p.stop != nil && p.stop.Load():
			p.cmd.Process.Kill()
			return "", ErrStopped
		}
	}
}

// understand reads an answer.
func understand(line string) (string, error) {
	line = strings.TrimSpace(line)
	word, rest, _ := strings.Cut(line, " ")
	switch {
	case word == "ok":
		return rest, nil
	case line == "error stalled":
		return "", ErrStalled
	case word == "error":
		return "", fmt.Errorf("the program in C: %s", rest)
	}
	return "", fmt.Errorf("the program in C has answered %q", line)
}

// explain returns how the process ended, after its pipe broke.
func (p *rawCProcess) explain(broken error) error {
	p.orders.Close()
	select {
	case <-p.exited:
	case <-time.After(rawCExit):
		return fmt.Errorf("the program in C: %w", broken)
	}
	if said := bytes.TrimSpace(p.stderr.Bytes()); len(said) > 0 {
		return fmt.Errorf("the program in C has ended (%v): %s", p.cmd.ProcessState, said)
	}
	return fmt.Errorf("the program in C has ended (%v)", p.cmd.ProcessState)
}

// close ends the process: by the end of its orders, if need be by force.
func (p *rawCProcess) close() error {
	p.orders.Close()
	select {
	case <-p.exited:
	case <-time.After(rawCGrace):
		p.cmd.Process.Kill()
		<-p.exited
	}
	p.pipe.Close()
	return nil
}
