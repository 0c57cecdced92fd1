package mvich_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/testbed"
	"viaxdp/mvich"
	"viaxdp/mvich/pmi"
	"viaxdp/vipl"
)

// The test binary is also a rank of jobs of several processes.
const (
	asSwapper  = "mvich-swapper"
	asSurvivor = "mvich-survivor"
)

func TestMain(m *testing.M) {
	nstest.Main(m, map[string]func() error{asSwapper: swapper, asSurvivor: survivor})
}

// beRank runs a process that a launcher has started: its last argument names the protocol.
func beRank(silence time.Duration, f func(w *mvich.World, p mvich.Protocol) error) (err error) {
	nic, err := vipl.OpenNIC(testbed.StarInterface, vipl.WithSilence(silence))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, nic.Close()) }()
	return guard(func() error {
		launcher := get(pmi.FromEnv())
		for p := mvich.Auto; p <= mvich.RPUT; p++ {
			if p.String() == os.Args[len(os.Args)-1] {
				return f(get(mvich.Init(nic, launcher, mvich.WithProtocol(p))), p)
			}
		}
		return fmt.Errorf("no protocol among %q", os.Args)
	})
}

// swapper exchanges messages of all sizes by one protocol, also ones whose receive is not posted yet.
func swapper() error {
	return beRank(calm, func(w *mvich.World, p mvich.Protocol) error {
		c := w.Comm()
		other := 1 - c.Rank()
		must(swapSizes(c))
		for i, n := range sizes {
			out, in := make([]byte, n), make([]byte, n)
			fill(out, 100+i+c.Rank())
			sent := get(c.Isend(out, other, 100+i))
			s, err := c.Probe(mvich.AnySource, 100+i)
			if err != nil || s.Bytes != n {
				return fmt.Errorf("%d bytes: %+v, %w", n, s, err)
			}
			get(c.Recv(in, mvich.AnySource, mvich.AnyTag))
			must(mvich.WaitAll(sent))
			must(check(in, 100+i+other))
		}
		must(w.Finalize())
		s := w.Stats()
		used := map[mvich.Protocol]uint64{mvich.R3: s.R3, mvich.RGET: s.RGET, mvich.RPUT: s.RPUT}[p]
		// Only messages without data, those of the barrier among them, need no rendezvous.
		if used != uint64(2*len(sizes)-2) || used != s.R3+s.RGET+s.RPUT || s.Fallbacks > 0 {
			return fmt.Errorf("%+v", s)
		}
		fmt.Println("all came by", p)
		return nil
	})
}

// Hydra's mpiexec starts ranks that send everything, to 4 MiB, by one protocol.
func TestMpiexec(t *testing.T) {
	t.Parallel() // beside the silence of TestKilledRank
	mpiexec, err := exec.LookPath("mpiexec.hydra")
	if err != nil {
		nstest.Lacks(t, "Hydra's mpiexec is not installed (Debian: mpich)")
	}
	self, err := os.Executable()
	noError(t, err)
	a, b := nstest.Pair(t, nstest.Options{})
	for _, p := range []mvich.Protocol{mvich.R3, mvich.RGET, mvich.RPUT} {
		rank := []string{self, asSwapper, p.String()}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, mpiexec, slices.Concat([]string{"-n", "1"}, a.Inside(t), rank, []string{":", "-n", "1"}, b.Inside(t), rank)...)
		cmd.WaitDelay = 20 * time.Second
		out, err := cmd.CombinedOutput()
		if err != nil || strings.Count(string(out), "all came by "+p.String()) != 2 {
			t.Errorf("%v: %v\n%s", p, err, out)
		}
	}
}

const (
	killedRanks = 3
	victim      = 1

	// killedSilence is what reveals the death of a process that is its own agent.
	killedSilence = 10 * time.Second

	// killedTime is how long all may take: the silence, and all sizes before it and after it, over a lossy way.
	killedTime = 3 * time.Minute
)

// survivor exchanges messages with the victim, and sums with all, until it learns of the victim's death; then
// messages with the other live rank.
func survivor() error {
	return beRank(killedSilence, func(w *mvich.World, _ mvich.Protocol) error {
		c := w.Comm()
		me := c.Rank()
		exchange := func(round, other int) error {
			n := sizes[round%len(sizes)]
			out, in := make([]byte, n), make([]byte, n)
			fill(out, round+me)
			get(c.Sendrecv(out, other, round, in, other, round))
			return check(in, round+other)
		}
		others := []int{victim}
		if me == victim {
			others = []int{0, 2}
		}
		together := func(round int) error {
			for _, other := range others {
				must(exchange(round, other))
			}
			sum := make([]int, 1000)
			for i := range sum {
				sum[i] = me + i
			}
			err := mvich.AllReduce(c, sum, sum, mvich.Sum)
			if err == nil && sum[999] != 0+1+2+3*999 {
				err = fmt.Errorf("a sum of %d", sum[999])
			}
			return err
		}
		for round := 0; ; round++ {
			if err := guard(func() error { return together(round) }); err != nil {
				must(wantLost("together", err, victim))
				break
			}
			if round == len(sizes) {
				fmt.Println("under way")
			}
		}
		for i := range sizes {
			must(exchange(1000000+i, 2-me))
		}
		fmt.Println("goes on")
		io.Copy(io.Discard, os.Stdin) // until the other one has got the last message, too
		return wantLost("finalize", w.Finalize(), victim)
	})
}

// Live ranks notice the death of a killed rank, by any protocol that they used with it, with losses, and go on with
// each other.
func TestKilledRank(t *testing.T) {
	t.Parallel()
	nstest.Require(t)
	protocols := []mvich.Protocol{mvich.Auto, mvich.R3, mvich.RPUT}
	if testing.Short() {
		protocols = protocols[:1]
	}
	for _, p := range protocols {
		t.Run(p.String(), func(t *testing.T) {
			t.Parallel() // most of the time is silence
			star, err := testbed.NewLossyStar(killedRanks, 1500, 0.01)
			noError(t, err)
			defer star.Close()
			server := pmi.NewServer(killedRanks)
			defer server.End()
			var going sync.WaitGroup
			going.Add(killedRanks - 1)
			eachWithin(t, killedTime, killedRanks, func(rank int) error {
				end := func() {}
				if rank != victim {
					end = sync.OnceFunc(going.Done)
				}
				defer end() // also without a word
				var said, errs bytes.Buffer
				started := false
				defer func() {
					if !started {
						server.End() // the others would wait for it
					}
				}()
				cmd, in, out := startRank(server, star, rank, &errs, asSurvivor, p.String())
				started = true
				lines := bufio.NewScanner(io.TeeReader(out, &said))
				for lines.Scan() {
					switch {
					case rank == victim && lines.Text() == "under way":
						cmd.Process.Kill()
					case rank != victim && lines.Text() == "goes on":
						end()
						going.Wait()
						in.Close()
					}
				}
				err := cmd.Wait()
				if rank == victim {
					if cmd.ProcessState.Exited() {
						return fmt.Errorf("the victim: %v: %s%s", err, &said, &errs)
					}
					return nil
				}
				if err != nil || !strings.Contains(said.String(), "goes on") {
					return fmt.Errorf("%v: %s%s", err, &said, &errs)
				}
				return nil
			})
			if taken, lost, err := star.Counts(); err != nil || lost == 0 {
				t.Errorf("%d of %d frames were lost, %v", lost, taken, err)
			}
		})
	}
}

// startRank starts the test program in a namespace as a rank of a server's job.
func startRank(server *pmi.Server, star *testbed.Star, rank int, errs io.Writer, args ...string) (cmd *exec.Cmd, in io.Closer, out io.Reader) {
	fds := get(unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))
	ours, theirs := os.NewFile(uintptr(fds[0]), "pmi"), os.NewFile(uintptr(fds[1]), "pmi")
	defer ours.Close()
	defer theirs.Close()
	conn := get(net.FileConn(ours))
	cmd = exec.Command(get(os.Executable()), args...)
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.Env = append(os.Environ(), "PMI_FD=3", fmt.Sprint("PMI_RANK=", rank), fmt.Sprint("PMI_SIZE=", len(star.Ends)))
	cmd.Stderr = errs
	in, out = get(cmd.StdinPipe()), get(cmd.StdoutPipe())
	if err := star.Start(rank, -1, cmd); err != nil {
		conn.Close()
		must(err)
	}
	go func() {
		defer conn.Close()
		server.Serve(rank, conn)
	}()
	return cmd, in, out
}
