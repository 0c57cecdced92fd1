package mvich_test

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/agent/kagenttest"
	"viaxdp/internal/lab/memorynic"
	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/schedlat"
	"viaxdp/mvich"
	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

// job is the ranks of a job in one process, each with a NIC of its own, connected in memory.
type job struct {
	fabric *kagenttest.Fabric
	worlds []*mvich.World
	hosts  []*memorynic.Host
	wire   *xdpnictest.Wire
}

// jobConfig says how to make a job; zero fields mean defaults.
type jobConfig struct {
	faults  xdpnictest.Faults
	silence time.Duration // 0: memorynic.Unhurried
	shared  bool          // all ranks on one NIC
	dying   bool          // ranks die: none is finalized
	bubble  bool          // in a testing/synctest bubble, which finds leaks by itself, and only its own
	options func(rank int) []mvich.Option
	refused *memorynic.Refused                   // agent of the first rank's NIC, or nil
	agent   func(*kagenttest.Agent) kagent.Agent // makes that agent instead, or nil
}

// with gives all ranks the same options.
func with(opts ...mvich.Option) func(int) []mvich.Option {
	return func(int) []mvich.Option { return opts }
}

// testTimeout is how long anything in a test may take.
const testTimeout = 60 * time.Second

// calm is a long silence: on a busy machine a live rank may be descheduled for seconds.
const calm = memorynic.Unhurried

func newJob(t testing.TB, n int, c jobConfig) *job {
	t.Helper()
	if !c.bubble {
		leaks := goleak.IgnoreCurrent()
		t.Cleanup(func() {
			if !t.Failed() {
				goleak.VerifyNone(t, leaks)
			}
		})
	}
	j := &job{wire: xdpnictest.NewWire()}
	t.Cleanup(j.wire.Close)
	j.fabric = kagenttest.NewFabric(kagenttest.Faults{})
	for i := range n {
		if i == 0 || !c.shared {
			j.hosts = append(j.hosts, openHost(t, j.wire, j.fabric.Agent(fmt.Sprint("host", i)), c))
			c.refused, c.agent = nil, nil
		}
	}
	j.wire.SetFaults(c.faults)
	j.worlds = make([]*mvich.World, n)
	launchers := mvich.Local(n)
	each(t, n, func(rank int) (err error) {
		opts := []mvich.Option{mvich.WithSpin(200)} // the ranks share a few processors
		if c.options != nil {
			opts = append(opts, c.options(rank)...)
		}
		nic := j.hosts[min(rank, len(j.hosts)-1)].NIC
		j.worlds[rank], err = mvich.Init(nic, launchers[rank], opts...)
		return err
	})
	t.Cleanup(func() {
		if t.Failed() || c.dying {
			return
		}
		each(t, n, func(rank int) error {
			if err := j.worlds[rank].Finalize(); err != nil {
				return fmt.Errorf("rank %d: finalize: %w", rank, err)
			}
			return nil
		})
	})
	return j
}

func openHost(t testing.TB, wire *xdpnictest.Wire, agent *kagenttest.Agent, c jobConfig) *memorynic.Host {
	t.Helper()
	config := memorynic.Config{Queue: xdpnictest.Config{RxChunks: 1024}, Silence: c.silence, Agent: c.agent}
	if c.refused != nil {
		config.Agent = func(a *kagenttest.Agent) kagent.Agent {
			c.refused.Agent, c.refused.Wire = a, wire
			return c.refused
		}
	}
	h := memorynic.Open(t, wire, agent, config)
	if c.refused != nil {
		c.refused.NIC = h.NIC
	}
	h.NIC.ErrorCallback(func(vipl.ErrorDescriptor) {})
	return h
}

// each runs f for every rank at once. It fails the test if one fails, or if they take too long, scheduling latency
// excluded.
func each(t testing.TB, n int, f func(rank int) error) {
	t.Helper()
	meter := schedlat.Start()
	defer meter.Close()
	began := meter.Mark()
	errs := make([]error, n)
	var wait sync.WaitGroup
	for rank := range n {
		wait.Go(func() {
			if errs[rank] = guard(func() error { return f(rank) }); errs[rank] != nil {
				t.Logf("rank %d: %v", rank, errs[rank]) // others may hang for it
			}
		})
	}
	done := make(chan struct{})
	go func() {
		wait.Wait()
		close(done)
	}()
	look := time.NewTicker(time.Second)
	defer look.Stop()
	for over := false; !over; {
		select {
		case <-done:
			over = true
		case <-look.C:
			if began.Over(testTimeout) {
				stacks := make([]byte, 1<<20)
				t.Fatalf("ranks hang:\n%s", stacks[:runtime.Stack(stacks, true)])
			}
		}
	}
	for rank, err := range errs {
		nstest.ErrorIf(t, err != nil, "rank %d: %v", rank, err)
	}
	if t.Failed() {
		t.FailNow()
	}
}

// failed is the value that must panics with; guard turns it into the error.
type failed struct{ error }

// must ends a rank's function, within each, if err is not nil.
func must(err error) {
	if err != nil {
		panic(failed{err})
	}
}

// failIf is must for a result that is wrong.
func failIf(wrong bool, format string, args ...any) {
	if wrong {
		must(fmt.Errorf(format, args...))
	}
}

// mustBe is must for an error of what that is not want.
func mustBe(what string, err, want error) {
	if !errors.Is(err, want) {
		must(fmt.Errorf("%s: %v, want %w", what, err, want))
	}
}

// get returns v, or fails as must does.
func get[T any](v T, err error) T {
	must(err)
	return v
}

// noError ends a test if an error is not nil, outside of ranks' functions.
var noError = nstest.Must

// guard returns the error of f, including that of must.
func guard(f func() error) (err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case failed:
			err = r.error
		default:
			panic(r)
		}
	}()
	return f()
}

// run runs f on every rank, with the world's communicator.
func (j *job) run(t testing.TB, f func(c *mvich.Comm) error) {
	t.Helper()
	each(t, len(j.worlds), func(rank int) error { return f(j.worlds[rank].Comm()) })
}

// spotless checks that no request or message is left, and no buffer or credit is missing.
func (j *job) spotless(t testing.TB, credits int) {
	t.Helper()
	j.run(t, func(c *mvich.Comm) error { return c.Barrier() })
	for rank, w := range j.worlds {
		var s mvich.Stats
		missing := 0
		for end := time.Now().Add(testTimeout); time.Now().Before(end); { // sends of the barrier complete a little later
			missing = 0
			for _, other := range j.worlds {
				other.Comm().Iprobe(mvich.AnySource, mvich.AnyTag)
				if other != w {
					missing += mvich.Missing(w, other)
				}
			}
			s = w.Stats()
			if s.Vbufs-s.FreeVbufs == int(s.Connections)*credits && missing == 0 {
				break
			}
			time.Sleep(time.Millisecond)
		}
		nstest.ErrorIf(t, missing != 0, "rank %d: %d credits are missing", rank, missing)
		nstest.ErrorIf(t, s.Waiting+s.Posted+s.Rendezvous > 0 || s.Vbufs-s.FreeVbufs != int(s.Connections)*credits, "rank %d: something is left: %+v", rank, s)
	}
}

// filling is what messages are filled with: the byte at i is i*7 + i>>8, two periods of it.
var filling = func() []byte {
	b := make([]byte, 1<<17)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}()

// pieces calls f with all of b, piece by piece, and the content of message k there: filling from an offset that
// depends on k.
func pieces(b []byte, k int, f func(at int, b, want []byte) error) error {
	mine := filling[k*31&255<<8:][:len(filling)/2]
	for at := 0; at < len(b); at += len(mine) {
		part := b[at:min(at+len(mine), len(b))]
		if err := f(at, part, mine[:len(part)]); err != nil {
			return err
		}
	}
	return nil
}

func fill(b []byte, k int) {
	pieces(b, k, func(_ int, b, want []byte) error {
		copy(b, want)
		return nil
	})
}

func check(b []byte, k int) error {
	return pieces(b, k, func(at int, got, want []byte) error {
		if bytes.Equal(got, want) {
			return nil
		}
		i := 0
		for got[i] == want[i] {
			i++
		}
		return fmt.Errorf("message %d: byte %d of %d is %#x, want %#x", k, at+i, len(b), got[i], want[i])
	})
}
