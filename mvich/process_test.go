package mvich_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/testbed"
	"viaxdp/mvich"
	"viaxdp/mvich/pmi"
	"viaxdp/vipl"
)

// asSwapper makes the test binary a rank of a job of several processes.
const asSwapper = "mvich-swapper"

func TestMain(m *testing.M) {
	nstest.Main(m, map[string]func() error{asSwapper: swapper})
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
		nstest.ErrorIf(t, err != nil || strings.Count(string(out), "all came by "+p.String()) != 2, "%v: %v\n%s", p, err, out)
	}
}
