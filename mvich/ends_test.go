package mvich_test

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/agent/kagenttest"
	"viaxdp/internal/lab/memorynic"
	"viaxdp/internal/lab/nstest"
	"viaxdp/mvich"
)

// A rank dies before any rank has connected with it. Every call that waits for a message of it, by name or as AnySource,
// notices it after a while, as a send does (TestLateConnection).
func TestDeadBeforeConnection(t *testing.T) {
	const n, victim = 5, 4
	again := func(f func() (done bool, err error)) (err error) {
		for done := false; !done && err == nil; {
			time.Sleep(time.Millisecond)
			done, err = f()
		}
		return err
	}
	// none connects live ranks, so each rank must notice the death itself
	ways := [victim]func(c *mvich.Comm, source int) error{
		func(c *mvich.Comm, source int) error { _, err := c.Recv(nil, source, 1); return err },
		func(c *mvich.Comm, source int) error { _, err := c.Probe(source, 1); return err },
		func(c *mvich.Comm, source int) error {
			return again(func() (bool, error) { _, done, err := c.Iprobe(source, 1); return done, err })
		},
		func(c *mvich.Comm, source int) error {
			r := get(c.Irecv(nil, source, 1))
			return again(func() (bool, error) { _, done, err := r.Test(); return done, err })
		},
	}
	for _, source := range []int{victim, mvich.AnySource} {
		synctest.Test(t, func(t *testing.T) {
			j := dyingJob(t, n, jobConfig{bubble: true}, victim)
			j.hosts[victim].NIC.Close()
			each(t, victim, func(rank int) error {
				return wantLost("wait", ways[rank](j.worlds[rank].Comm(), source), victim)
			})
			for rank, w := range j.worlds[:victim] {
				s := w.Stats()
				nstest.ErrorIf(t, source == mvich.AnySource && s.Connections > 0, "rank %d has connected: %+v", rank, s)
			}
			j.finalize(t, victim)
		})
	}
}

// The dead rank's host need not reject the request for that.
func TestDeadBeforeConnectionSilent(t *testing.T) { synctest.Test(t, deadBeforeConnectionSilent) }

func deadBeforeConnectionSilent(t *testing.T) {
	j := newJob(t, 2, jobConfig{dying: true, bubble: true, options: with(mvich.WithConnectTimeout(time.Second))})
	j.fabric.Cut(j.hosts[1].NIC.Query().Address, true)
	each(t, 1, func(int) error {
		return wantLost("receive of anybody", nstest.Err(j.worlds[0].Comm().Recv(nil, mvich.AnySource, 1)), 1)
	})
	each(t, 2, func(rank int) error { return wantLost("finalize", j.worlds[rank].Finalize(), 1-rank) })
}

// withoutVIs is an agent that has no VI to give while spent is set.
type withoutVIs struct {
	*kagenttest.Agent
	spent *atomic.Bool
}

func (a withoutVIs) NewVI() (uint32, error) {
	if a.spent.Load() {
		return 0, kagent.ErrNoVI
	}
	return a.Agent.NewVI()
}

// jobWithoutVIs is a job of three ranks that get no more VIs once spent is set. Rank short ends for that.
func jobWithoutVIs(t *testing.T, short int) (j *job, spent *atomic.Bool) {
	spent = new(atomic.Bool)
	agent := func(a *kagenttest.Agent) kagent.Agent { return withoutVIs{a, spent} }
	return dyingJob(t, 3, jobConfig{bubble: true, agent: agent}, short), spent
}

// A rank that lacks a VI for a connection ends, with that as the cause. The rank at the other end lives on for all others.
func TestShortageOfACaller(t *testing.T) { synctest.Test(t, shortageOfACaller) }

func shortageOfACaller(t *testing.T) {
	const short, wanted, other = 0, 1, 2
	j, spent := jobWithoutVIs(t, short)
	each(t, 3, func(rank int) error {
		c := j.worlds[rank].Comm()
		switch rank {
		case short:
			get(c.Sendrecv(nil, other, 1, nil, other, 1))
			spent.Store(true)
			mustBe("send", c.Send(nil, wanted, 1), kagent.ErrNoVI)
			mustBe("later receive", nstest.Err(c.Recv(nil, mvich.AnySource, 1)), kagent.ErrNoVI)
			return nil
		case other:
			get(c.Sendrecv(nil, short, 1, nil, short, 1))
		}
		must(wantLost("receive", nstest.Err(c.Recv(nil, short, 2)), short))
		get(c.Sendrecv(nil, 3-rank, 3, nil, 3-rank, 3))
		dead := c.Dead()
		failIf(!slices.Equal(dead, []int{short}), "dead are %v", dead)
		return nil
	})
	j.finalize(t, short)
}

// So does a rank that lacks a VI for a rank that calls it, before the caller takes it for dead.
func TestShortageOfACalledRank(t *testing.T) { synctest.Test(t, shortageOfACalledRank) }

func shortageOfACalledRank(t *testing.T) {
	const short, caller, other = 0, 1, 2
	j, spent := jobWithoutVIs(t, short)
	lacks := make(chan struct{})
	each(t, 3, func(rank int) error {
		c := j.worlds[rank].Comm()
		if rank != caller {
			get(c.Sendrecv(nil, other-rank, 1, nil, other-rank, 1))
		}
		if rank == short {
			spent.Store(true)
			close(lacks)
			began := time.Now()
			mustBe("receive", nstest.Err(c.Recv(nil, mvich.AnySource, 2)), kagent.ErrNoVI)
			took := time.Since(began)
			failIf(took > calm*3/4, "it ended after %v, when the caller may have told the others of its death", took)
			return nil
		}
		get(c.Sendrecv(nil, 3-rank, 1, nil, 3-rank, 1)) // so that the caller would tell the other one
		<-lacks
		if rank == caller {
			return wantLost("send", c.Send(nil, short, 2), short)
		}
		return wantLost("receive", nstest.Err(c.Recv(nil, short, 2)), short)
	})
	j.finalize(t, short)
}

// Failed probes are forgotten when no call waits any more.
func TestLooksAreForgotten(t *testing.T) { synctest.Test(t, looksAreForgotten) }

func looksAreForgotten(t *testing.T) {
	j := newJob(t, 2, jobConfig{dying: true, bubble: true})
	j.hosts[1].NIC.Close()
	w := j.worlds[0]
	mvich.LookAt(w, 1)
	nstest.ErrorIf(t, !mvich.Missed(w, 1), "a look in vain is not noted")
	mvich.LookAround(w)
	nstest.ErrorIf(t, mvich.Missed(w, 1) || w.Stats().Deaths > 0, "it is remembered: %+v", w.Stats())
	each(t, 2, func(rank int) error { j.worlds[rank].Finalize(); return nil })
}

// A probe of a live rank does no harm and makes no connection.
func TestLook(t *testing.T) {
	j := newJob(t, 2, jobConfig{})
	for range 5 {
		mvich.LookAt(j.worlds[0], 1)
	}
	for rank, w := range j.worlds {
		s := w.Stats()
		nstest.ErrorIf(t, s.Connections > 0 || s.Deaths > 0, "rank %d: %+v", rank, s)
	}
	j.run(t, func(c *mvich.Comm) error { return c.Barrier() })
}

// A rank that no longer waits for another does not connect with it.
func TestCallsWhomItWaitsFor(t *testing.T) {
	receives := func(source int, cancels bool) func(*testing.T, *mvich.Comm) {
		return func(t *testing.T, c *mvich.Comm) {
			r, err := c.Irecv(nil, source, 1)
			noError(t, err)
			if cancels {
				nstest.ErrorIf(t, !r.Cancel(), "it cannot be cancelled")
			}
			t.Cleanup(func() { r.Cancel() })
		}
	}
	looks := func(times int) func(*testing.T, *mvich.Comm) {
		return func(t *testing.T, c *mvich.Comm) {
			for range times {
				_, _, err := c.Iprobe(1, 1)
				noError(t, err)
			}
		}
	}
	for name, test := range map[string]struct {
		want bool
		wait func(*testing.T, *mvich.Comm)
	}{
		"a receive":                   {true, receives(1, false)},
		"a receive that is cancelled": {false, receives(1, true)},
		"a receive of anybody":        {false, receives(mvich.AnySource, false)},
		"one look":                    {false, looks(1)},
		"two looks":                   {true, looks(2)},
		"no more":                     {false, looks(0)},
	} {
		t.Run(name, func(t *testing.T) {
			j := newJob(t, 2, jobConfig{})
			test.wait(t, j.worlds[0].Comm())
			nstest.Equal(t, "calls", mvich.CallsExpected(j.worlds[0], 1), test.want)
		})
	}
}

// A rank that can already end stays until the others can, too: its last packets may be lost and need retransmission
// for longer than a disconnect waits.
func TestLastMessageIsLost(t *testing.T) { synctest.Test(t, lastMessageIsLost) }

func lastMessageIsLost(t *testing.T) {
	j := newJob(t, 2, jobConfig{dying: true, bubble: true}) // Finalize is called here
	j.run(t, func(c *mvich.Comm) error { return c.Barrier() })
	first, last := j.worlds[1], j.worlds[0]
	each(t, 2, func(rank int) error {
		if rank == 1 {
			return first.Finalize()
		}
		for last.Stats().Waiting == 0 { // until the other one is in it, and waits
			last.Comm().Iprobe(mvich.AnySource, mvich.AnyTag) // progress
			time.Sleep(time.Millisecond)
		}
		j.hosts[1].Queue.Cut(true)
		time.AfterFunc(time.Second, func() { j.hosts[1].Queue.Cut(false) })
		return last.Finalize()
	})
}

// A rank that has called and died does not delay the end of the rank that admits it.
func TestStopBesideUnconfirmed(t *testing.T) { synctest.Test(t, stopBesideUnconfirmed) }

func stopBesideUnconfirmed(t *testing.T) {
	j := newJob(t, 2, jobConfig{dying: true, bubble: true, agent: memorynic.Unconfirming})
	get(j.worlds[0].Comm().Isend(nil, 1, 1))
	synctest.Wait() // the other one waits for the confirmation
	ended, start := errors.New("told to end"), time.Now()
	j.worlds[1].Stop(ended)
	nstest.WantErr(t, "Finalize", j.worlds[1].Finalize(), ended)
	nstest.ErrorIf(t, time.Since(start) > time.Second, "it took %v", time.Since(start))
	j.worlds[0].Stop(ended)
	nstest.WantErr(t, "Finalize", j.worlds[0].Finalize(), ended)
}

// A rank that has called and dies before it confirms is dead for a receive of anybody, too.
func TestDeadBesideUnconfirmed(t *testing.T) { synctest.Test(t, deadBesideUnconfirmed) }

func deadBesideUnconfirmed(t *testing.T) {
	j := dyingJob(t, 2, jobConfig{bubble: true, agent: memorynic.Unconfirming}, 0)
	each(t, 2, func(rank int) error {
		c := j.worlds[rank].Comm()
		if rank == 1 {
			return wantLost("receive of anybody", nstest.Err(c.Recv(nil, mvich.AnySource, 1)), 0)
		}
		get(c.Isend(nil, 1, 1))
		time.Sleep(time.Millisecond) // the call has arrived
		j.fabric.Cut(j.hosts[0].NIC.Query().Address, true)
		return nil
	})
	j.finalize(t, 0)
}

// Requests that are not complete end with Finalize, for every call that waits for them.
func TestFinalizeEndsRequests(t *testing.T) {
	j := newJob(t, 3, jobConfig{dying: true}) // Finalize is called here
	each(t, 3, func(rank int) error {
		w := j.worlds[rank]
		c := w.Comm()
		if rank < 2 { // they are connected
			get(c.Sendrecv(nil, 1-rank, 1, nil, 1-rank, 1))
		}
		requests := make(map[string]*mvich.Request)
		for name, source := range map[string]int{"of anybody": mvich.AnySource, "of the next": (rank + 1) % 3, "of itself": rank} {
			r := get(c.Irecv(make([]byte, 1), source, 2))
			requests["receive "+name] = r
		}
		for name, to := range map[string]int{"to the next": (rank + 1) % 3, "to itself": rank} {
			r := get(c.Issend(make([]byte, 20000), to, 3))
			requests["send "+name] = r
		}
		waited := make(chan error, 1)
		other := get(c.Irecv(nil, mvich.AnySource, 4))
		go func() { _, err := other.Wait(); waited <- err }()
		must(w.Finalize())
		for name, r := range requests {
			_, done, err := r.Test()
			failIf(!done || err == nil, "%s: complete %v, %v", name, done, err)
			if !strings.HasSuffix(name, "the next") { // it may have said before that it leaves
				mustBe(name, nstest.Err(r.Wait()), mvich.ErrFinalized)
			}
		}
		mustBe("a receive that another goroutine waits for", <-waited, mvich.ErrFinalized)
		return nil
	})
}

// If several goroutines call Finalize at once, one of them succeeds.
func TestFinalizeAtOnce(t *testing.T) {
	const goroutines = 4
	j := newJob(t, 2, jobConfig{dying: true}) // Finalize is called here
	errs := make(chan error, 2*goroutines)
	each(t, 2*goroutines, func(i int) error {
		errs <- j.worlds[i%2].Finalize()
		return nil
	})
	done := 0
	for range 2 * goroutines {
		switch err := <-errs; {
		case err == nil:
			done++
		case !errors.Is(err, mvich.ErrFinalized):
			t.Error(err)
		}
	}
	nstest.ErrorIf(t, done != 2, "%d of 2 worlds were finalized", done)
}
