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
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/schedlat"
	"viaxdp/mvich/pmi"
)

// The test program is a rank, too.
const asRank = "VIA_MPIRUN_RANK_OF_A_TEST"

// As an agent it has this argument, and the socket is the last one.
const asAgent = "agent-of-a-test"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == asAgent {
		err := errors.New("it fails in " + os.Getenv("RUNTIME_DIRECTORY"))
		if os.Args[2] != "fails" {
			_, err = net.Listen("unix", os.Args[len(os.Args)-1])
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(3)
		}
		nstest.Forever()
	}
	if how := os.Getenv(asRank); how != "" {
		if err := beRank(how); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(3)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// beRank publishes its address, reads those of the others, and reaches them.
func beRank(how string) error {
	c, err := pmi.FromEnv()
	if err != nil {
		return err
	}
	device, err := net.InterfaceByName(os.Getenv("VIADEV_DEVICE"))
	if err != nil {
		return err
	}
	addrs, err := device.Addrs()
	if err != nil {
		return err
	}
	own := addrs[0].(*net.IPNet).IP.String()
	l, err := net.Listen("tcp", net.JoinHostPort(own, "7"))
	if err != nil {
		return err
	}
	defer l.Close()
	if err := errors.Join(c.Put(fmt.Sprint("at-", c.Rank()), own), c.Fence()); err != nil {
		return err
	}
	switch {
	case how == "silent" && c.Rank() == 1:
		return nil
	case how == "abort" && c.Rank() == 1:
		c.Abort(9)
	}
	if how != "reach" {
		time.Sleep(10 * time.Minute) // until it is ended
	}
	for other := range c.Size() {
		host, err := c.Get(fmt.Sprint("at-", other))
		if err != nil {
			return err
		}
		conn, err := net.DialTimeout("tcp", net.JoinHostPort(host, "7"), time.Minute)
		if err != nil {
			return err
		}
		conn.Close()
	}
	fmt.Printf("rank %d of %d has reached all\n", c.Rank(), c.Size())
	return errors.Join(c.Fence(), c.Close())
}

// job runs the test program as ranks.
func job(t *testing.T, ranks int, how string, out *bytes.Buffer) Job {
	t.Helper()
	self, err := os.Executable()
	nstest.Must(t, err)
	return Job{Ranks: ranks, Program: []string{self}, Env: []string{asRank + "=" + how}, Prefix: true, Stdout: out, Stderr: out}
}

// Ranks learn of each other and reach each other, two by a pair and more by a bridge; each line has its rank as a
// prefix.
func TestRun(t *testing.T) {
	nstest.Require(t)
	for _, ranks := range []int{1, 2, 5} {
		var out bytes.Buffer
		j := job(t, ranks, "reach", &out)
		j.Bind = true
		if err := Run(t.Context(), j); err != nil {
			t.Fatalf("%d ranks: %v\n%s", ranks, err, &out)
		}
		for rank := range ranks {
			if want := fmt.Sprintf("%d: rank %d of %d has reached all\n", rank, rank, ranks); !strings.Contains(out.String(), want) {
				t.Errorf("no %q in\n%s", want, &out)
			}
		}
	}
}

// Ranks of a host have its namespace, and an agent there that ends with the job.
func TestHosts(t *testing.T) {
	nstest.Require(t)
	var out bytes.Buffer
	j := Job{Ranks: 5, Hosts: 2, Agent: []string{asAgent}, Prefix: true, Stdout: &out, Stderr: &out,
		Program: []string{"sh", "-c", "test -S $VIA_AGENT && echo $(readlink /proc/self/ns/net) $VIA_AGENT"}}
	nstest.Must(t, Run(t.Context(), j))
	hosts := make(map[string]string)
	for line := range strings.Lines(out.String()) {
		rank, host, _ := strings.Cut(strings.TrimSpace(line), ": ")
		hosts[rank] = host
	}
	a, b := hosts["0"], hosts["3"]
	nstest.ErrorIf(t, a == b || len(hosts) != 5 || hosts["1"] != a || hosts["2"] != a || hosts["4"] != b, "%s", &out)
	if _, err := os.Stat(a[strings.Index(a, "/"):]); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an agent's socket: %v", err)
	}
	// Its lock is beside its socket, also where a unit of systemd has the job.
	t.Setenv("RUNTIME_DIRECTORY", t.TempDir())
	j.Agent = []string{asAgent, "fails"}
	if err := Run(t.Context(), j); err == nil || !strings.HasSuffix(err.Error(), "it fails in") {
		t.Errorf("an agent that does not start: %v", err)
	}
}

// A rank with a host of its own is not sent to an agent of this namespace, which cannot open its interface.
func TestAgentOfEnvironment(t *testing.T) {
	nstest.Require(t)
	for set, want := range map[string]string{"/run/an-agent.sock": "", "auto": "auto", "none": "none"} {
		t.Setenv("VIA_AGENT", set)
		var out bytes.Buffer
		nstest.Must(t, Run(t.Context(), Job{Ranks: 1, Program: []string{"sh", "-c", `echo "$VIA_AGENT"`}, Stdout: &out}))
		nstest.Equal(t, "VIA_AGENT of a rank under VIA_AGENT="+set, strings.TrimSpace(out.String()), want)
	}
}

// The ranks are divided in blocks that differ by one at most.
func TestHostOf(t *testing.T) {
	for want, c := range map[string][2]int{"0123": {4, 4}, "0000": {4, 1}, "00001111": {8, 2}, "0001122": {7, 3}, "0011223": {7, 4}} {
		var got strings.Builder
		for rank := range c[0] {
			fmt.Fprint(&got, hostOf(rank, c[0], c[1]))
		}
		nstest.Equal(t, fmt.Sprint(c), got.String(), want)
	}
}

// However a rank ends the job, the others end soon, and the error names the rank and its status.
func TestEnds(t *testing.T) {
	nstest.Require(t)
	shell := func(script string) Job { return Job{Ranks: 3, Program: []string{"sh", "-c", script}} }
	var out bytes.Buffer
	meter := schedlat.Start()
	defer meter.Close()
	for name, test := range map[string]struct {
		job    Job
		status int
	}{
		"status":   {shell("test $PMI_RANK = 1 && exit 7; sleep 600"), 7},
		"signal":   {shell("test $PMI_RANK = 1 && kill -SEGV $$; sleep 600"), 128 + 11},
		"stubborn": {shell("test $PMI_RANK = 1 && exit 7; trap '' TERM; while true; do sleep 1; done"), 7},
		"in a fence": {shell(`test $PMI_RANK = 1 && {
			printf 'cmd=init pmi_version=1 pmi_subversion=1\ncmd=barrier_in\n' >&3; kill -KILL $$; }; sleep 60`), 128 + 9},
		"no goodbye": {job(t, 3, "silent", &out), 1},
		"abort":      {job(t, 3, "abort", &out), 9},
	} {
		t.Run(name, func(t *testing.T) {
			began := meter.Mark()
			err := Run(t.Context(), test.job)
			var rank *RankError
			nstest.ErrorIf(t, !errors.As(err, &rank) || rank.Rank != 1 || rank.Status != test.status,
				"%v, want status %d of rank 1\n%s", err, test.status, &out)
			if began.Over(30 * time.Second) {
				t.Errorf("it took %v", time.Since(began.At))
			}
		})
	}
}

// When the job is ended, a program that a script has started gets the time that ranks get, although the script has ended.
func TestGraceOfChildren(t *testing.T) {
	nstest.Require(t)
	ready := filepath.Join(t.TempDir(), "ready")
	script := `test $PMI_RANK = 1 && { until test -e $0; do sleep 0.01; done; exit 7; }
		sh -c 'trap "sleep 0.3; echo finished; exit" TERM; touch $0; while :; do sleep 0.05; done' $0; true`
	var out bytes.Buffer
	err := Run(t.Context(), Job{Ranks: 2, Program: []string{"sh", "-c", script, ready}, Stdout: &out})
	var rank *RankError
	nstest.ErrorIf(t, !errors.As(err, &rank) || rank.Status != 7, "%v, want status 7", err)
	nstest.Equal(t, "the program's output", out.String(), "finished\n")
}

// No fence waits for a rank that exits with 0 without using PMI.
func TestFenceWithoutRank(t *testing.T) {
	nstest.Require(t)
	var out bytes.Buffer
	j := job(t, 3, "reach", &out)
	j.Program = []string{"sh", "-c", `test $PMI_RANK = 1 && exit 0; exec "$0"`, j.Program[0]}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	err := Run(ctx, j)
	var rank *RankError
	nstest.ErrorIf(t, !errors.As(err, &rank) || rank.Rank == 1 || rank.Status == 0, "%v\n%s", err, &out)
}

// A rank that was reaped gets no more signals, also while its connection is open: another process may have its number.
func TestNoSignalToReaped(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	cmd := exec.Command("true")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	nstest.Must(t, cmd.Start())
	r := &run{server: pmi.NewServer(1), ended: make(chan ending, 1), ranks: []*exec.Cmd{cmd}}
	go r.attend(0, ours, cmd, nil)
	await.Until(t, "the rank is reaped", func() bool { return syscall.Kill(cmd.Process.Pid, 0) == syscall.ESRCH })
	r.mu.Lock()
	nstest.ErrorIf(t, r.ranks[0] != nil, "signals still go to number %d", cmd.Process.Pid)
	r.mu.Unlock()
	theirs.Close()
	nstest.Check(t, (<-r.ended).err)
}

// A rank that has ended and took no answers does not hold the job up, also where a child of it still has the connection.
func TestAnswersNotTaken(t *testing.T) {
	ours, theirs := net.Pipe() // which holds no bytes: it is full at once
	defer theirs.Close()
	cmd := exec.Command("sh", "-c", "read _")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	end, err := cmd.StdinPipe()
	nstest.Must(t, errors.Join(err, cmd.Start()))
	r := &run{server: pmi.NewServer(1), ended: make(chan ending, 1), ranks: []*exec.Cmd{cmd}}
	go r.attend(0, ours, cmd, nil)
	nstest.Must(t, nstest.Err(io.WriteString(theirs, "cmd=get_maxes\n")))
	nstest.Check(t, end.Close())
	await.Until(t, "the rank's end is known", func() bool { return len(r.ended) > 0 })
}

// The end of the context ends the ranks, and what they have started.
func TestInterrupted(t *testing.T) {
	nstest.Require(t)
	pids := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for { // until both are there
			if list, _ := filepath.Glob(filepath.Join(pids, "*")); len(list) == 2 {
				cancel()
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	err := Run(ctx, Job{Ranks: 2, Program: []string{"sh", "-c", "sleep 100 & touch " + pids + "/$!; wait"}})
	nstest.WantErr(t, "Run", err, context.Canceled)
	list, _ := filepath.Glob(filepath.Join(pids, "*"))
	for _, path := range list {
		if !await.Comes(func() bool { // it was killed, and dies in a moment
			status, err := os.ReadFile(filepath.Join("/proc", filepath.Base(path), "stat"))
			return err != nil || strings.Contains(string(status), ") Z ")
		}) {
			t.Errorf("%s still runs", filepath.Base(path))
		}
	}
}

func TestWrong(t *testing.T) {
	for name, j := range map[string]Job{
		"no program":      {Ranks: 1},
		"not there":       {Ranks: 1, Program: []string{"/nothing/here"}},
		"no ranks":        {Program: []string{"true"}},
		"too many":        {Ranks: 1000, Program: []string{"true"}},
		"more hosts":      {Ranks: 2, Hosts: 3, Program: []string{"true"}},
		"no agent":        {Ranks: 2, Hosts: 1, Program: []string{"true"}},
		"an MTU of a bit": {Ranks: 1, MTU: 1, Program: []string{"true"}},
	} {
		if err := Run(t.Context(), j); err == nil {
			t.Errorf("%s: it ran", name)
		}
	}
}

// Both outputs of all ranks may go to one writer.
func TestOneOutput(t *testing.T) {
	nstest.Require(t)
	const ranks, times = 3, 300
	for _, prefix := range []bool{false, true} {
		var out bytes.Buffer
		script := fmt.Sprintf("i=0; while [ $i -lt %d ]; do echo out; echo err >&2; i=$((i+1)); done", times)
		j := Job{Ranks: ranks, Program: []string{"sh", "-c", script}, Prefix: prefix, Stdout: &out, Stderr: &out}
		nstest.Must(t, Run(t.Context(), j))
		for _, line := range []string{"out\n", "err\n"} {
			if n := strings.Count(out.String(), line); n != ranks*times {
				t.Errorf("with a prefix %v: %d lines of %q, want %d", prefix, n, line, ranks*times)
			}
		}
	}
}

// late is a writer that takes its time for the first bytes.
type late struct {
	bytes.Buffer
	begun bool
}

func (l *late) Write(b []byte) (int, error) {
	if !l.begun {
		time.Sleep(grace + time.Second) // until the pipe of a rank that has ended is no longer waited for
	}
	l.begun = true
	return l.Buffer.Write(b)
}

// A writer that is slow, as a pager is, gets all output of ranks that have ended meanwhile.
func TestSlowOutput(t *testing.T) {
	t.Parallel()
	nstest.Require(t)
	var out late
	nstest.Must(t, Run(t.Context(), Job{Ranks: 1, Program: []string{"seq", "10000"}, Stdout: &out}))
	if n := strings.Count(out.String(), "\n"); n != 10000 {
		t.Errorf("%d lines, want 10000", n)
	}
}

// full is a writer without room.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// Output that cannot be written fails the job, also where it has no end of line.
func TestOutputFails(t *testing.T) {
	nstest.Require(t)
	for _, script := range []string{"echo hello", "printf hello"} {
		err := Run(t.Context(), Job{Ranks: 1, Program: []string{"sh", "-c", script}, Stdout: full{}})
		var rank *RankError
		nstest.ErrorIf(t, !errors.As(err, &rank) || rank.Status != 1 || !errors.Is(err, syscall.ENOSPC),
			"%s: %v, want status 1 and %v", script, err, syscall.ENOSPC)
	}
}

// A process that a rank leaves behind, and that holds the rank's output open, does not hold the job up.
func TestHeldOutput(t *testing.T) {
	t.Parallel()
	nstest.Require(t)
	file := filepath.Join(t.TempDir(), "pid")
	script := `setsid -f sh -c 'echo $$ >$0; exec sleep 600' $0; until test -s $0; do sleep 0.01; done; echo end`
	var out bytes.Buffer
	nstest.Must(t, Run(t.Context(), Job{Ranks: 1, Program: []string{"sh", "-c", script, file}, Stdout: &out}))
	nstest.Equal(t, "its output", out.String(), "end\n")
	text, err := os.ReadFile(file)
	nstest.Must(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	nstest.Must(t, err)
	nstest.Check(t, syscall.Kill(pid, syscall.SIGKILL)) // it still runs
}

// FuzzLines: any output of ranks, in any pieces, comes out as whole lines with their prefixes, each rank's in
// order and without losses. A line that is too long comes in several, and no more than longest is kept back.
func FuzzLines(f *testing.F) {
	f.Add([]byte("one\ntwo"), []byte("a\n\nb\n"), uint16(2), byte(3))
	f.Add([]byte("\n"), []byte{}, uint16(1), byte(1))
	f.Add([]byte("a|b\r\n\x1b[2J"), []byte("|\n|"), uint16(5), byte(255))
	f.Add([]byte("x"), []byte{}, uint16(5), byte(255))
	f.Fuzz(func(t *testing.T, a, b []byte, part uint16, times byte) {
		if times == 255 && len(a) > 0 { // rarely, as it takes long
			a, part = bytes.Repeat(a, 2*longest/len(a)+1), max(part, 1<<12)
		}
		var out bytes.Buffer
		turn := new(sync.Mutex)
		texts := [2][]byte{a, b}
		ranks := [2]*line{{turn: turn, w: &out, prefix: "0|"}, {turn: turn, w: &out, prefix: "1|"}}
		for rest := texts; len(rest[0])+len(rest[1]) > 0; {
			for i, r := range ranks {
				n := min(int(part)+1, len(rest[i]))
				if got, err := r.Write(rest[i][:n]); got != n || err != nil {
					t.Fatalf("%d of %d bytes, %v", got, n, err)
				}
				nstest.FatalIf(t, len(r.begun) >= longest, "%d bytes are kept back", len(r.begun))
				rest[i] = rest[i][n:]
			}
		}
		var got [2]strings.Builder
		for _, r := range ranks {
			nstest.Must(t, r.end())
		}
		for line := range strings.Lines(out.String()) {
			switch {
			case strings.HasPrefix(line, "0|") && strings.HasSuffix(line, "\n"):
				got[0].WriteString(line[2:])
			case strings.HasPrefix(line, "1|") && strings.HasSuffix(line, "\n"):
				got[1].WriteString(line[2:])
			default:
				t.Fatalf("a line of no rank: %q", line)
			}
		}
		for i, text := range texts {
			want, have := string(text), got[i].String()
			if len(want) > 0 && !strings.HasSuffix(want, "\n") {
				want += "\n"
			}
			long := false
			for line := range strings.Lines(want) {
				long = long || len(line) > longest
			}
			if long { // where it was cut depends on the parts that it came in
				want, have = strings.ReplaceAll(want, "\n", ""), strings.ReplaceAll(have, "\n", "")
			}
			if want != have {
				t.Fatalf("rank %d wrote %d bytes and %d came", i, len(want), len(have))
			}
		}
	})
}

// The end of a line that has been passed on in pieces, the last one full, is no line of its own.
func TestEndOfLongLine(t *testing.T) {
	var out bytes.Buffer
	l := line{turn: new(sync.Mutex), w: &out, prefix: "0|"}
	long := strings.Repeat("x", longest)
	for _, part := range []string{long, "\n", "\n", long, "end\n"} {
		nstest.Must(t, nstest.Err(io.WriteString(&l, part)))
	}
	nstest.Must(t, l.end())
	got := strings.ReplaceAll(out.String(), long, "LONG")
	nstest.Equal(t, "output", got, "0|LONG\n0|\n0|LONG\n0|end\n")
}

// uncomparable is a writer that Go cannot compare.
type uncomparable struct{ _ []byte }

func (uncomparable) Write(b []byte) (int, error) { return len(b), nil }

// Only identical outputs take turns: an output without a reader does not block another.
func TestOneWriter(t *testing.T) {
	a, b := new(bytes.Buffer), new(bytes.Buffer)
	for _, c := range []struct {
		x, y io.Writer
		want bool
	}{{a, a, true}, {a, b, false}, {uncomparable{}, uncomparable{}, false}, {a, uncomparable{}, false}} {
		if got := oneWriter(c.x, c.y); got != c.want {
			t.Errorf("%T and %T: %v", c.x, c.y, got)
		}
	}
}
